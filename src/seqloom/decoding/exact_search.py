"""Exact MAP: the most likely complete sequence, proven, by branch and bound.

    argmax  Σ log p(y_t | y_<t) / n^α
    over all sequences y_1 .. y_n that end in </s>, the end mark counted, with n at most the maximum length

The empty sequence (</s> alone) is one of them; one that the maximum length cuts off is not. A log-probability
is at most 0, so a prefix with the sum L can end no better than L / maximum^α. Where that is no better than
the best sequence so far (the incumbent), nothing that begins with the prefix needs to be looked at. With α =
0 this is exact inference of Stahlberg and Byrne 2019 (arXiv:1908.10090); the most promising prefix first is
best-first search (Meister, Vieira and Cotterell 2020, arXiv:2007.03909). Prefixes of one length exclude each
other, so fewer than 1 / p(best) of one length are more likely than the best sequence: a proof reads at most
maximum / p(best) of them.

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

from seqloom.decoding.hypotheses import NAN_LOGITS, Hypothesis, LiveHypotheses
from seqloom.decoding.logits_processors import LogitsProcessor
from seqloom.errors import SeqloomError, UsageError
from seqloom.packed_weights import packed_weights
from seqloom.protocols import Decodable, State, device_of, next_logits, select_rows, tensors_of

CHUNK = 64
"""Prefixes that the model reads in one step."""
MOST_BYTES = 3 * 2**27
"""Of the open prefixes and their states. With more, the longest prefixes are read first: then at most one
chunk for each length is added."""
SLACK = 1e-3
"""Nats by which a first comparison in float32 may err; the second, in float64, decides."""


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
class ExactSearchOptions:
    """What an exact search looks for, and for how long."""

    max_new_tokens: int
    """The end mark counted."""
    eos: int
    length_penalty: float = 0.0
    """α."""
    processors: Sequence[LogitsProcessor] = ()
    """They may only lower log-probabilities, or keep them at most 0."""
    budget: SearchBudget = UNLIMITED
    chunk: int = CHUNK

    def __post_init__(self) -> None:
        if self.max_new_tokens < 1:
            raise UsageError(NEEDS_TOKENS)
        if self.chunk < 1:
            raise UsageError(f"chunk must be at least 1, but is {self.chunk}")
        check_length_penalty(self.length_penalty)
        if self.length_penalty * math.log(self.max_new_tokens) > 600:  # length^α would overflow
            raise UsageError(
                f"length_penalty must be smaller for a maximum of {self.max_new_tokens:,} new tokens, but is"
                f" {self.length_penalty:g}"
            )

    @property
    def longest_divisor(self) -> float:
        """maximum^α."""
        return float(self.max_new_tokens**self.length_penalty)


NEEDS_TOKENS = (
    "exact search needs a prompt of at least one token and a maximum of at least 1 new token"
)


def check_length_penalty(length_penalty: float) -> None:
    """Raises UsageError for one that no search can have."""
    if not 0 <= length_penalty <= 100:  # NaN is not
        raise UsageError(f"length_penalty must be a number from 0 to 100, but is {length_penalty}")


@final
@dataclass(frozen=True, kw_only=True)
class ExactResult:
    """The best complete sequence, or the best so far and how much better one could be."""

    best: Hypothesis | None
    """None where none was found; where that is proven too, none is possible."""
    proven: bool
    """Whether nothing is better, up to the rounding of the model's float32."""
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
    options: ExactSearchOptions,
    known: Sequence[Hypothesis] = (),
) -> ExactResult:
    """The best continuation of one prompt that ends in `eos` within the maximum length.

    `state` has one row, or is None. `known` are hypotheses of the same prompt and logits processors, such as
    those of beams: the finished ones are a first lower bound, so the answer is never worse than any of them.
    Raises UsageError for an empty prompt, SeqloomError where a logit is NaN or a processor returns more than
    0.
    """
    if not prompt:
        raise UsageError(NEEDS_TOKENS)
    start, device, budget = time.monotonic(), device_of(model), options.budget
    eos = torch.tensor([options.eos], device=device)
    incumbent = _Incumbent(options, known)
    live = LiveHypotheses.initial(torch.tensor([list(prompt)], device=device))
    tokens, frontier, nodes, empty = live.prompts, list[_OpenPrefixes](), 0, -math.inf
    while True:
        logits, state = next_logits(model, tokens, state)
        processed = _processed(logits, live, options.processors)
        nodes += len(tokens)
        if nodes == 1:
            empty = float(processed[0, options.eos])
        # the sequences that end here may be the best; all other continuations are open
        improved = incumbent.offer_ended(live, live.sum_log_probs + processed[:, options.eos])
        expanded = _expand(state, live, processed.index_fill(1, eos, -math.inf), incumbent)
        frontier.append(expanded)
        for prefixes in frontier if improved else [expanded]:
            prefixes.keep(slice(incumbent.count_promising(prefixes)))
        frontier = [prefixes for prefixes in frontier if len(prefixes.index)]
        room = options.chunk
        if budget.nodes is not None:
            room = min(room, budget.nodes - nodes)
        late = budget.seconds is not None and time.monotonic() - start >= budget.seconds
        if not frontier or room < 1 or late:
            break
        state, live = _most_promising(frontier).pop(room)
        tokens = live.tokens[:, -1:]
    best = incumbent.hypothesis
    bounds = [prefixes.highest / options.longest_divisor for prefixes in frontier]
    return ExactResult(
        best=best,
        proven=not frontier,
        bound=max([*bounds, -math.inf if best is None else best.score]),
        empty=empty,
        nodes=nodes,
        seconds=time.monotonic() - start,
    )


def _processed(
    logits: Tensor, live: LiveHypotheses, processors: Sequence[LogitsProcessor]
) -> Tensor:
    """Log-probabilities `(rows, vocabulary)`, the same numbers as in a beam."""
    processed = logits.float().log_softmax(dim=-1)
    for processor in processors:
        processed = processor(live, processed)
    highest = float(processed.amax())
    if math.isnan(highest):
        raise SeqloomError(NAN_LOGITS)
    if highest > 0:
        raise SeqloomError(
            f"rules of an exact search must keep log-probabilities at most 0, but one is {highest}; leave"
            " that rule out"
        )
    return processed


@final
class _Incumbent:
    """The best complete sequence so far, and which prefixes could still be better."""

    def __init__(self, options: ExactSearchOptions, known: Sequence[Hypothesis]) -> None:
        self.options = options
        self.hypothesis: Hypothesis | None = None
        for hypothesis in known:
            if hypothesis.finished and len(hypothesis.tokens) < options.max_new_tokens:
                self._offer(hypothesis.log_probability, hypothesis.tokens)

    def offer_ended(self, live: LiveHypotheses, totals: Tensor) -> bool:
        """Sequences that end after these rows, with Σ log p `(rows,)`, that of the end mark included. Returns
        whether one is better than the best so far."""
        before = self.hypothesis
        scores = totals / float((live.tokens.shape[1] + 1) ** self.options.length_penalty)
        for row in ((scores == scores.max()) & (totals > -math.inf)).nonzero()[:, 0].tolist():
            self._offer(float(totals[row]), live.tokens[row].tolist())
        return self.hypothesis is not before

    def _offer(self, total: float, tokens: list[int]) -> None:
        score = total / float((len(tokens) + 1) ** self.options.length_penalty)
        new = Hypothesis(score, total, tokens, finished=True)
        if self.hypothesis is None or _rank(new) < _rank(self.hypothesis):
            self.hypothesis = new

    def lowest_total(self) -> float:
        """The Σ log p below which no prefix can become better."""
        return (
            -math.inf
            if self.hypothesis is None
            else self.hypothesis.score * self.options.longest_divisor
        )

    def count_promising(self, prefixes: _OpenPrefixes) -> int:
        """How many of the prefixes, which are sorted, can still become the answer."""
        if prefixes.length >= self.options.max_new_tokens:  # there is no room for the end mark
            return 0
        totals = prefixes.totals()
        if self.hypothesis is None:
            return int((totals > -math.inf).sum())
        bounds, score = totals / self.options.longest_divisor, self.hypothesis.score
        # among equally good sequences a longer one is not the answer
        if prefixes.length <= len(self.hypothesis.tokens):
            return int((bounds >= score).sum())
        return int((bounds > score).sum())


def _rank(hypothesis: Hypothesis) -> tuple[float, int, list[int]]:
    """Less is better."""
    return -hypothesis.score, len(hypothesis.tokens), hypothesis.tokens


@final
class _OpenPrefixes:
    """Prefixes of one length that wait to be read, the most likely first: continuations by one token of rows
    that were read together.

    There are up to rows x vocabulary of them, so each takes 8 bytes: its index in `(rows, vocabulary)`, and
    log p of its last token, `(n,)` both.
    """

    def __init__(
        self, state: State, live: LiveHypotheses, vocabulary: int, index: Tensor, log_probs: Tensor
    ) -> None:
        self.state, self.live, self.vocabulary = state, live, vocabulary
        self.index, self.log_probs = index, log_probs
        self.length = live.tokens.shape[1] + 1
        """Tokens of a prefix."""
        self.highest = -math.inf
        """Σ log p of the most likely one."""
        self.bytes = 0
        """Of all tensors that are kept, with the unused rest of their storages."""
        self.keep(slice(None))

    def totals(self, some: slice = slice(None)) -> Tensor:
        """Σ log p `(n,)`."""
        return self.live.sum_log_probs[self.index[some] // self.vocabulary] + self.log_probs[some]

    def keep(self, some: slice) -> None:
        """Drops the others, and gives their memory back where that is half of what is kept."""
        self.index, self.log_probs = self.index[some], self.log_probs[some]
        if 0 < 2 * self.index.nbytes <= self.index.untyped_storage().nbytes():
            self.index, self.log_probs = self.index.clone(), self.log_probs.clone()
            self._drop_unused_rows()
        self.highest = float(self.totals(slice(1))[0]) if len(self.index) else -math.inf
        # slices share a storage, so each storage counts once
        storages = [
            part.untyped_storage() for part in (*tensors_of(self.state), self.index, self.log_probs)
        ]
        self.bytes = sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())

    def _drop_unused_rows(self) -> None:
        """Drops the rows that no prefix continues, where they are half of all."""
        parents = self.index.long() // self.vocabulary
        used = torch.zeros(len(self.live.tokens), dtype=torch.bool, device=parents.device)
        used.index_fill_(0, parents, True)
        rows = used.nonzero()[:, 0]
        if 2 * len(rows) <= len(used):
            self.state, self.live = select_rows(self.state, rows), self.live.select(rows)
            parents = (used.cumsum(0) - 1)[parents]
            self.index = (parents * self.vocabulary + self.index % self.vocabulary).to(
                self.index.dtype
            )

    def pop(self, count: int) -> tuple[State, LiveHypotheses]:
        """Removes the most likely `count`; returns the states that they continue, and their tokens."""
        first = self.index[:count].long()
        parents, ids = first // self.vocabulary, first % self.vocabulary
        live = self.live.select(parents)
        tokens = torch.cat([live.tokens, ids[:, None]], dim=1)
        live = live._replace(sum_log_probs=self.totals(slice(count)), tokens=tokens)
        state = select_rows(self.state, parents)
        self.keep(slice(count, None))
        return state, live


def _expand(
    state: State, live: LiveHypotheses, processed: Tensor, incumbent: _Incumbent
) -> _OpenPrefixes:
    """All continuations of the rows that may still become the answer; of equals that of the first row, then
    the lowest id."""
    vocabulary = processed.shape[1]
    # most continuations are hopeless: drop them in float32 before anything is sorted
    least = (incumbent.lowest_total() - live.sum_log_probs - SLACK).to(processed.dtype)
    index = ((processed >= least[:, None]) & (processed > -math.inf)).flatten().nonzero()[:, 0]
    log_probs = processed.flatten()[index]
    order = (live.sum_log_probs[index // vocabulary] + log_probs).argsort(
        descending=True, stable=True
    )
    dtype = torch.int32 if processed.numel() < 2**31 else torch.int64
    return _OpenPrefixes(state, live, vocabulary, index[order].to(dtype), log_probs[order])


def _most_promising(frontier: Sequence[_OpenPrefixes]) -> _OpenPrefixes:
    """Best first; but the longest first, of these the best, where much memory is used."""
    if sum(prefixes.bytes for prefixes in frontier) > MOST_BYTES:
        return max(frontier, key=lambda prefixes: (prefixes.length, prefixes.highest))
    return max(frontier, key=lambda prefixes: prefixes.highest)
