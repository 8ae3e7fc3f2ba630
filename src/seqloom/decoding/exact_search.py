"""Exact MAP: the most likely complete sequence, proven, by branch and bound.

    argmax  Σ log p(y_t | y_<t) / n^α   over all sequences y_1 .. y_n that end in </s>, the end mark counted, n at most the cap

The empty sequence (</s> alone) is one of them; one that the cap cuts off is not. A log-probability is at most
0, so a prefix with the sum L can end no better than L / cap^α, and where that is no better than a sequence
already found, nothing that begins with the prefix needs to be looked at. With α = 0 this is exact inference
of Stahlberg and Byrne 2019 (arXiv:1908.10090); the most promising prefix first is best-first search (Meister,
Vieira and Cotterell 2020, arXiv:2007.03909). Prefixes of one length exclude each other, so fewer than 1 /
p(best) of one length are more likely than the best sequence: a proof reads at most cap / p(best) of them.

Of equally good sequences the shortest is the answer, of these the one with the lowest ids.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from seqloom.decoding.live_rows import NOT_NUMBERS, Hypothesis, Live
from seqloom.decoding.rules import Rule
from seqloom.errors import SeqloomError, UsageError
from seqloom.packed_weights import packed_weights
from seqloom.protocols import Decodable, State, device_of, next_logits, select_rows, tensors_of

CHUNK = 64
"""Prefixes that the model reads in one step."""
MOST_BYTES = 3 * 2**27
"""Of what waits, states and continuations. With more, the longest prefixes go first: then at most one chunk
for each length is added."""
SLACK = 1e-3
"""Nats by which a first look in float32 may err; the second, in float64, decides."""


@final
@dataclass(frozen=True, kw_only=True)
class SearchBudget:
    """Where a search gives up; None is never."""

    nodes: int | None = None
    """Prefixes that the model has read."""
    seconds: float | None = None

    def __post_init__(self) -> None:
        if self.nodes is not None and self.nodes < 1:
            raise UsageError(f"the budget of nodes must be at least 1, but is {self.nodes}")
        if self.seconds is not None and not self.seconds > 0:
            raise UsageError(f"the budget of seconds must be more than 0, but is {self.seconds}")


UNLIMITED = SearchBudget()


@final
@dataclass(frozen=True, kw_only=True)
class ExactResult:
    """The best complete sequence, or the best that was found and how much better one could be."""

    best: Hypothesis | None
    """None where none was found; where that is proven too, none is possible."""
    proven: bool
    """Whether nothing is better, but for the rounding of the model's float32."""
    bound: float
    """No complete sequence has a higher score."""
    empty: float
    """log p of the empty sequence."""
    nodes: int
    """Prefixes that the model has read."""
    seconds: float

    @property
    def gap(self) -> float:
        """How much better than `best` a sequence could still be, in the unit of the score (nats where α = 0);
        0 where proven."""
        if self.proven:
            return 0.0
        return math.inf if self.best is None else self.bound - self.best.score


@torch.inference_mode()
@packed_weights()
def exact_search(
    model: Decodable,
    state: State,
    prompt: Sequence[int],
    *,
    max_new_tokens: int,
    eos: int,
    rules: Sequence[Rule] = (),
    length_penalty: float = 0.0,
    known: Sequence[Hypothesis] = (),
    budget: SearchBudget = UNLIMITED,
    chunk: int = CHUNK,
) -> ExactResult:
    """The best continuation of one prompt that ends in `eos` within `max_new_tokens`, the end mark counted.

    `state` has one row, or is None. `known` are hypotheses of the same prompt and rules, such as those of
    beams: the finished ones are a first lower bound, so the answer is never worse than any of them. Rules may
    only lower log-probabilities, or keep them at most 0. Raises UsageError for an empty prompt or a number
    out of range, SeqloomError where a logit is NaN or a rule gives more than 0.
    """
    _check(prompt, max_new_tokens, length_penalty, chunk)
    began = time.monotonic()
    device = device_of(model)
    goal = _Goal(max_new_tokens, length_penalty, known)
    live = Live.first(torch.tensor([list(prompt)], device=device))
    tokens, waiting, nodes, empty = live.given, list[_Frame](), 0, -math.inf
    while True:
        logits, state = next_logits(model, tokens, state)
        allowed = _allowed(logits, live, rules)
        nodes += len(tokens)
        if nodes == 1:
            empty = float(allowed[0, eos])
        better = goal.see(live, live.total + allowed[:, eos])
        new = _children(
            state, live, allowed.index_fill(1, torch.tensor([eos], device=device), -math.inf), goal
        )
        for frame in [*waiting, new] if better else [new]:
            goal.prune(frame)
        waiting = [frame for frame in [*waiting, new] if len(frame.places)]
        room = chunk if budget.nodes is None else min(chunk, budget.nodes - nodes)
        late = budget.seconds is not None and time.monotonic() - began >= budget.seconds
        if not waiting or room < 1 or late:
            break
        frame = _next(waiting)
        state, live = frame.take(room)
        tokens = live.tokens[:, -1:]
    best, score = goal.best, goal.best.score if goal.best else -math.inf
    bound = max([score, *(goal.bound(frame.head) for frame in waiting)])
    return ExactResult(
        best=best, proven=not waiting, bound=bound, empty=empty, nodes=nodes, seconds=time.monotonic() - began
    )


def _check(prompt: Sequence[int], max_new_tokens: int, length_penalty: float, chunk: int) -> None:
    if not prompt or max_new_tokens < 1:
        raise UsageError(
            "exact search needs a prompt of at least one token and a maximum of at least 1 new token"
        )
    if chunk < 1:
        raise UsageError(f"chunk must be at least 1, but is {chunk}")
    check_length_penalty(length_penalty)
    if length_penalty * math.log(max_new_tokens) > 600:  # length^α is no float then
        raise UsageError(
            f"length_penalty must be smaller for a maximum of {max_new_tokens:,} new tokens, but is"
            f" {length_penalty:g}"
        )


def check_length_penalty(length_penalty: float) -> None:
    """Raises UsageError for one that no search can have."""
    if not 0 <= length_penalty <= 100:  # NaN is not
        raise UsageError(f"length_penalty must be a number from 0 to 100, but is {length_penalty}")


def _allowed(logits: Tensor, live: Live, rules: Sequence[Rule]) -> Tensor:
    """Log-probabilities `(rows, vocabulary)`, the same numbers as in a beam."""
    allowed = logits.float().log_softmax(dim=-1)
    for rule in rules:
        allowed = rule(live, allowed)
    highest = float(allowed.amax())
    if not highest <= 0:
        raise SeqloomError(
            NOT_NUMBERS
            if math.isnan(highest)
            else (
                f"rules of an exact search must keep log-probabilities at most 0, but one is {highest}; leave"
                " that rule out"
            )
        )
    return allowed


@final
class _Goal:
    """What is searched for: the best so far, and what could be better."""

    def __init__(self, cap: int, length_penalty: float, known: Sequence[Hypothesis]) -> None:
        self.cap, self.length_penalty = cap, length_penalty
        self.best: Hypothesis | None = None
        for one in known:
            if one.finished and len(one.tokens) < cap:
                self._offer(one.log_probability, one.tokens)

    def bound(self, total: float) -> float:
        """The best score that a prefix with this Σ log p can end with."""
        return total / float(self.cap**self.length_penalty)

    def see(self, live: Live, ended: Tensor) -> bool:
        """Sequences that end after these rows, with Σ log p `(rows,)`, the end mark's too; whether one is
        better than the best so far."""
        before, scores = self.best, ended / float((live.tokens.shape[1] + 1) ** self.length_penalty)
        for row in ((scores == scores.max()) & (ended > -math.inf)).nonzero()[:, 0].tolist():
            self._offer(float(ended[row]), live.tokens[row].tolist())
        return self.best is not before

    def _offer(self, total: float, tokens: list[int]) -> None:
        length = len(tokens) + 1
        new = Hypothesis(total / float(length**self.length_penalty), total, tokens, finished=True)
        if self.best is None or _rank(new) < _rank(self.best):
            self.best = new

    def floor(self) -> float:
        """The Σ log p below which no prefix can become better."""
        return -math.inf if self.best is None else self.best.score * float(self.cap**self.length_penalty)

    def alive(self, totals: Tensor, length: int) -> Tensor:
        """`(n,)`: whether prefixes of `length` tokens with Σ log p `(n,)` can still become the answer."""
        if length >= self.cap:  # there is no room for the end mark
            return torch.zeros_like(totals, dtype=torch.bool)
        if self.best is None:
            return totals > -math.inf
        bounds = totals / float(self.cap**self.length_penalty)
        ties_count = length <= len(self.best.tokens)  # one that is as good but longer is not the answer
        return bounds >= self.best.score if ties_count else bounds > self.best.score

    def prune(self, frame: _Frame) -> None:
        """Only what is alive stays in the frame."""
        frame.keep(slice(int(self.alive(frame.totals(), frame.length).sum())))


def _rank(hypothesis: Hypothesis) -> tuple[float, int, list[int]]:
    """Less is better."""
    return -hypothesis.score, len(hypothesis.tokens), hypothesis.tokens


@final
class _Frame:
    """Rows that were read, and their continuations by one token that wait to be read, the most likely first.

    There are up to rows x vocabulary of these, so each is kept in 8 bytes: where it stands in `(rows,
    vocabulary)`, and log p of its last token, `(n,)` both.
    """

    def __init__(self, state: State, live: Live, vocabulary: int, places: Tensor, log_probs: Tensor) -> None:
        self.state, self.live, self.vocabulary = state, live, vocabulary
        self.places, self.log_probs = places, log_probs
        self.length = live.tokens.shape[1] + 1
        """Tokens of a continuation."""
        self.head = -math.inf
        """Σ log p of the most likely one that waits."""
        self.bytes = 0
        """Of all that it holds, what views leave unused too."""
        self.keep(slice(None))

    def totals(self, some: slice = slice(None)) -> Tensor:
        """Σ log p `(n,)`."""
        return self.live.total[self.places[some] // self.vocabulary] + self.log_probs[some]

    def keep(self, some: slice) -> None:
        """The others leave, and where that is half of what is held, its memory is given back."""
        self.places, self.log_probs = self.places[some], self.log_probs[some]
        if 0 < 2 * self.places.nbytes <= self.places.untyped_storage().nbytes():
            self.places, self.log_probs = self.places.clone(), self.log_probs.clone()
            self._keep_rows()
        self.head = float(self.totals(slice(1))[0]) if len(self.places) else -math.inf
        storages = [part.untyped_storage() for part in (*tensors_of(self.state), self.places, self.log_probs)]
        self.bytes = sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())

    def _keep_rows(self) -> None:
        """Rows that nothing waits for leave, where they are half of all."""
        parents = self.places.long() // self.vocabulary
        used = torch.zeros(len(self.live.tokens), dtype=torch.bool, device=parents.device).index_fill(
            0, parents, True
        )
        rows = used.nonzero()[:, 0]
        if 2 * len(rows) <= len(used):
            self.state, self.live = select_rows(self.state, rows), self.live.select(rows)
            parents = (used.cumsum(0) - 1)[parents]
            self.places = (parents * self.vocabulary + self.places % self.vocabulary).to(self.places.dtype)

    def take(self, count: int) -> tuple[State, Live]:
        """The most likely `count` leave: the states that they go on from, and what they are now."""
        parents, ids = (
            self.places[:count].long() // self.vocabulary,
            self.places[:count].long() % self.vocabulary,
        )
        live, zeros, totals = self.live, torch.zeros_like(parents), self.totals(slice(count))
        state, tokens = (
            select_rows(self.state, parents),
            torch.cat([live.tokens[parents], ids[:, None]], dim=1),
        )
        self.keep(slice(count, None))
        return state, Live(zeros, zeros, zeros, totals, tokens, live.given)


def _children(state: State, live: Live, allowed: Tensor, goal: _Goal) -> _Frame:
    """All continuations of the rows that can still become the answer; of equals that of the first row, then
    the lowest id."""
    least = (goal.floor() - live.total - SLACK).to(allowed.dtype)
    places = ((allowed >= least[:, None]) & (allowed > -math.inf)).flatten().nonzero()[:, 0]
    log_probs = allowed.flatten()[places]
    order = (live.total[places // allowed.shape[1]] + log_probs).argsort(descending=True, stable=True)
    small = torch.int32 if allowed.numel() < 2**31 else torch.int64
    return _Frame(state, live, allowed.shape[1], places[order].to(small), log_probs[order])


def _next(waiting: Sequence[_Frame]) -> _Frame:
    """Best first; but the longest first, of these the best, where much is held."""
    if sum(frame.bytes for frame in waiting) > MOST_BYTES:
        return max(waiting, key=lambda frame: (frame.length, frame.head))
    return max(waiting, key=lambda frame: frame.head)
