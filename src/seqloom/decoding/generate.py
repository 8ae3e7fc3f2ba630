"""The one loop that turns any next-token model into text.

A row is a live hypothesis. At each step a strategy (`strategies.py`) says which continuations of the rows
live on; rows that have ended leave, and the state follows by `select_rows`. Greedy search is a beam of one.

    score of a hypothesis = Σ log p / length^α, the end mark counted

A hypothesis that ends keeps its place in the beam, so at most `width` of them end for one input. The search
of an input is over when no row of it is alive, or when even the best that a live row can still become (its Σ
log p can only fall, its length can only grow to the maximum) is no better than the worst of the hypotheses
that would be returned: never earlier.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from seqloom.decoding.live_rows import NOTHING, Chosen, Hypothesis, Live, Step, Stop
from seqloom.decoding.rules import Rule
from seqloom.decoding.strategies import Beam, Sample, Strategy
from seqloom.errors import UsageError
from seqloom.packed_weights import PackedWeights
from seqloom.protocols import Decodable, State, device_of, next_logits, reorder_in_place, select_rows

__all__ = ["Beam", "Begun", "Hypothesis", "Sample", "finish", "generate", "steps"]

T = TypeVar("T")


class Begun(NamedTuple):
    """Where the random numbers of a prompt begin: elsewhere than at 0 where a text is gone on with."""

    sample: int = 0
    drawn: int = 0


def generate(
    model: Decodable,
    state: State,
    prompts: Sequence[Sequence[int]],
    *,
    strategy: Strategy,
    max_new_tokens: Sequence[int],
    eos: int | None,
    pad: int,
    rules: Sequence[Rule] = (),
    stop: Stop | None = None,
    watch: Callable[[Step], None] | None = None,
) -> list[list[Hypothesis]]:
    """For each prompt its hypotheses: of a beam the best first, at most `n_best`; of sampling its samples in
    order.

    `state` has one row per prompt, or is None. Prompts may differ in length (they are padded on the left: a
    `<pad>` is a step that does not happen) but none is empty. `max_new_tokens` counts the end mark. A row
    ends with the token that makes `stop` true, as with the end mark; with `eos` None there is no such mark.
    Raises UsageError for an empty prompt, or a maximum below 1; SeqloomError where a logit is NaN.
    """
    return finish(
        steps(
            model,
            state,
            prompts,
            strategy=strategy,
            max_new_tokens=max_new_tokens,
            eos=eos,
            pad=pad,
            rules=rules,
            stop=stop,
            watch=watch,
        )
    )


def finish(working: Generator[Tensor, None, T], watch: Callable[[Tensor], None] = lambda _: None) -> T:
    """What a generator returns when it has run to its end; `watch` sees what it yields."""
    while True:
        try:
            watch(next(working))
        except StopIteration as ended:
            result: T = ended.value
            return result


@torch.inference_mode()
def steps(
    model: Decodable,
    state: State,
    prompts: Sequence[Sequence[int]],
    *,
    strategy: Strategy,
    max_new_tokens: Sequence[int],
    eos: int | None,
    pad: int,
    rules: Sequence[Rule] = (),
    stop: Stop | None = None,
    watch: Callable[[Step], None] | None = None,
    begun: Sequence[Begun] | None = None,
    before: Sequence[Sequence[int]] | None = None,
) -> Generator[Tensor, None, list[list[Hypothesis]]]:
    """`generate`, one step at a time: yields the new token of each row `(rows,)` as it comes, returns the
    hypotheses.

    Sample j of a prompt draws its numbers as sample `begun.sample + j` does, from number `begun.drawn` on.
    `before` is what stood before each prompt: the model does not read it, the rules do; the last
    `begun.drawn` tokens before the new ones were made too.
    """
    if not all(prompts) or not len(prompts) == len(max_new_tokens) or min(max_new_tokens, default=1) < 1:
        raise UsageError("every prompt must have at least one token and a maximum of at least 1 new token")
    ended: list[list[Hypothesis]] = [[] for _ in prompts]
    if not prompts:
        return ended
    device = device_of(model)
    read = _padded(prompts, pad, device)
    given = _padded(
        [[*one, *prompt] for one, prompt in zip(before or [()] * len(prompts), prompts, strict=True)],
        NOTHING,
        device,
    )
    limits = torch.tensor(list(max_new_tokens), device=device)
    shortest = min(max_new_tokens)
    live = _first_rows(begun or [Begun()] * len(prompts), strategy.rows, given)
    weights = PackedWeights()  # opened at each call of the model: a caller may do anything between two steps
    with weights:
        logits, state = next_logits(model, read, state)
    if strategy.rows > 1:
        logits, state = logits[live.owner], select_rows(state, live.owner)
    rows = _Rows(model, state, len(logits), weights)
    while True:
        log_probs = allowed = logits.float().log_softmax(dim=-1)
        for rule in rules:
            allowed = rule(live, allowed)
        chosen = strategy.choose(live, log_probs, allowed, ended)
        going = _with_tokens(live, chosen)
        finished = torch.zeros_like(chosen.ids, dtype=torch.bool) if eos is None else chosen.ids == eos
        if stop is not None:
            finished = finished | stop(going)
        over = (
            finished
            if going.tokens.shape[1] < shortest
            else finished | (going.tokens.shape[1] >= limits[going.owner])
        )
        if bool(over.any()):  # here a GPU is waited for
            _end(going, over, finished, ended, strategy, eos)
        kept = ~over & ~strategy.prunable(going, limits, ended) if any(ended) else ~over
        if watch is not None:
            watch(Step(live, log_probs, allowed, chosen, going, over, finished, kept))
        yield chosen.ids
        parents, live = chosen.parents, going
        if any(ended) and not bool(kept.all()):
            lives = kept.nonzero()[:, 0]
            if not len(lives):
                return [strategy.ranked(found) for found in ended]
            parents, live = lives if parents is None else parents[lives], live.select(lives)
        elif not len(live.owner):  # nothing could follow
            return [strategy.ranked(found) for found in ended]
        logits = rows.read(live.tokens[:, -1:], parents)


class _Rows:
    """The model and its state. A row stays where it stands in the state as long as it lives; what takes the
    place of a row that died is copied there."""

    def __init__(self, model: Decodable, state: State, count: int, weights: PackedWeights) -> None:
        self._model = model
        self._weights = weights
        self._state = state
        self._place = list(range(count))
        """Where each live row stands."""
        self._order: Tensor | None = None
        """The same as a tensor, unless all stand in order."""

    def read(self, tokens: Tensor, parents: Tensor | None) -> Tensor:
        """tokens `(rows, 1)` of rows that go on from `parents` -> logits `(rows, vocabulary)`."""
        if parents is not None:
            self._move(parents.tolist(), tokens.device)
        if self._order is not None:
            tokens = torch.empty_like(tokens).index_copy_(0, self._order, tokens)
        with self._weights:
            logits, self._state = next_logits(self._model, tokens, self._state, self._order)
        return logits

    def _move(self, parents: list[int], device: torch.device) -> None:
        before, old = len(self._place), [self._place[parent] for parent in parents]
        first: dict[int, int] = {}  # the child that stays
        for child, at in enumerate(old):
            if at < len(old):
                first.setdefault(at, child)
        free = (at for at in range(len(old)) if at not in first)
        self._place = [at if first.get(at) == child else next(free) for child, at in enumerate(old)]
        sources = [0] * len(old)
        for at, source in zip(self._place, old, strict=True):
            sources[at] = source
        if sources != list(range(before)):
            self._state = reorder_in_place(self._state, torch.tensor(sources, device=device))
        self._order = (
            None if self._place == list(range(len(old))) else torch.tensor(self._place, device=device)
        )


def _padded(prompts: Sequence[Sequence[int]], pad: int, device: torch.device) -> Tensor:
    """`(prompts, longest)`, padded on the left."""
    longest = max(len(prompt) for prompt in prompts)
    return torch.tensor([[pad] * (longest - len(prompt)) + list(prompt) for prompt in prompts], device=device)


def _first_rows(begun: Sequence[Begun], each: int, given: Tensor) -> Live:
    """The rows before any new token: `each` of them for a prompt."""
    live = Live.first(given)
    live = live.select(live.owner.repeat_interleave(each))
    first, drawn = torch.tensor(begun, device=given.device)[live.owner].unbind(1)
    return live._replace(
        sample=first + torch.arange(each, device=given.device).repeat(len(begun)), drawn=drawn
    )


def _with_tokens(live: Live, chosen: Chosen) -> Live:
    """The rows that the chosen tokens make."""
    if chosen.parents is not None:
        live = live.select(chosen.parents)
    return live._replace(total=chosen.totals, tokens=torch.cat([live.tokens, chosen.ids[:, None]], dim=1))


def _end(
    live: Live,
    over: Tensor,
    finished: Tensor,
    ended: list[list[Hypothesis]],
    strategy: Strategy,
    eos: int | None,
) -> None:
    """Moves the rows that are over to `ended`."""
    for row in over.nonzero()[:, 0].tolist():
        total, new = float(live.total[row]), live.tokens[row].tolist()
        score = strategy.score(total, len(new))
        tokens = new[:-1] if new[-1] == eos else new
        ended[int(live.owner[row])].append(
            Hypothesis(score, total, tokens, bool(finished[row]), int(live.sample[row]))
        )
