"""The one loop that turns any next-token model into text.

A row is a live hypothesis. At each step a strategy (`strategies.py`) says which continuations of the rows live on; rows that have
ended leave, and the state follows by `select_rows`. Greedy search is a beam of one.

    score of a hypothesis = Σ log p / length^α, the end mark counted

A hypothesis that ends keeps its place in the beam, so at most `width` of them end for one input. The search of an input is
over when no row of it is alive, or when even the best that a live row can still become (its Σ log p can only fall, its
length can only grow to the maximum) is no better than the worst of the hypotheses that would be returned: never earlier.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from seqloom.decoding.live import Chosen, Hypothesis, Live
from seqloom.decoding.rules import Rule
from seqloom.decoding.strategies import Beam, Sample, Strategy
from seqloom.errors import SeqloomError, UsageError
from seqloom.protocols import Decodable, State, next_logits, select_rows

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
    eos: int,
    pad: int,
    rules: Sequence[Rule] = (),
) -> list[list[Hypothesis]]:
    """For each prompt its hypotheses: of a beam the best first, at most `n_best`; of sampling its samples in order.

    `state` has one row per prompt, or is None. Prompts may differ in length (they are padded on the left: a `<pad>` is a step
    that does not happen) but none is empty. `max_new_tokens` counts the end mark. Raises UsageError for an empty prompt,
    or a maximum below 1; SeqloomError where a logit is NaN.
    """
    return finish(steps(model, state, prompts, strategy=strategy, max_new_tokens=max_new_tokens, eos=eos, pad=pad, rules=rules))


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
    eos: int,
    pad: int,
    rules: Sequence[Rule] = (),
    begun: Sequence[Begun] | None = None,
    before: Sequence[Sequence[int]] | None = None,
) -> Generator[Tensor, None, list[list[Hypothesis]]]:
    """`generate`, one step at a time: yields the new token of each row `(rows,)` as it comes, returns the hypotheses.

    Sample j of a prompt draws its numbers as sample `begun.sample + j` does, from number `begun.drawn` on. `before` is what stood
    before each prompt: the model does not read it, the rules do; the last `begun.drawn` tokens before the new ones were made too.
    """
    if not all(prompts) or not len(prompts) == len(max_new_tokens) or min(max_new_tokens, default=1) < 1:
        raise UsageError("every prompt must have at least one token and a maximum of at least 1 new token")
    ended: list[list[Hypothesis]] = [[] for _ in prompts]
    if not prompts:
        return ended
    device = next((p.device for p in getattr(model, "parameters", list)()), None)
    read = _padded(prompts, pad, device)
    limits = torch.tensor(list(max_new_tokens), device=device)
    logits, state = next_logits(model, read, state)
    given = read if before is None else _padded([[*one, *prompt] for one, prompt in zip(before, prompts, strict=True)], pad, device)
    live = _first_rows(begun or [Begun()] * len(prompts), strategy.rows, given)
    if strategy.rows > 1:
        logits, state = logits[live.owner], select_rows(state, live.owner)
    while True:
        if bool(logits.isnan().any()):
            raise SeqloomError("logits must be numbers, but the model gave NaN: its weights or its state are broken")
        log_probs = allowed = logits.float().log_softmax(dim=-1)
        for rule in rules:
            allowed = rule(live, allowed)
        chosen = strategy.choose(live, log_probs, allowed, ended)
        parents, live = _go_on(live, chosen, limits, ended, strategy, eos)
        yield chosen.ids
        if not len(parents):
            return [strategy.ranked(found) for found in ended]
        if len(parents) != len(logits) or not torch.equal(parents, torch.arange(len(parents), device=device)):
            state = select_rows(state, parents)
        logits, state = next_logits(model, live.tokens[:, -1:], state)


def _padded(prompts: Sequence[Sequence[int]], pad: int, device: torch.device | None) -> Tensor:
    """`(prompts, longest)`, padded on the left."""
    longest = max(len(prompt) for prompt in prompts)
    return torch.tensor([[pad] * (longest - len(prompt)) + list(prompt) for prompt in prompts], device=device)


def _first_rows(begun: Sequence[Begun], each: int, given: Tensor) -> Live:
    """The rows before any new token: `each` of them for a prompt."""
    live = Live.first(given)
    rows = live.owner.repeat_interleave(each)
    first, drawn = torch.tensor(begun, device=given.device)[rows].unbind(1)
    sample = first + torch.arange(each, device=given.device).repeat(len(begun))
    return live._replace(owner=rows, sample=sample, drawn=drawn, total=live.total[rows], tokens=live.tokens[rows])


def _go_on(live: Live, chosen: Chosen, limits: Tensor, ended: list[list[Hypothesis]], strategy: Strategy, eos: int) -> tuple[Tensor, Live]:
    """One token for every row: moves what has ended to `ended`, returns the parents of the rows that live on, and these."""
    parents, ids, totals = chosen
    owner, sample, drawn = live.owner[parents], live.sample[parents], live.drawn[parents]
    tokens = torch.cat([live.tokens[parents], ids[:, None]], dim=1)
    stops = ids == eos
    over = stops | (tokens.shape[1] >= limits[owner])
    for row in over.nonzero()[:, 0].tolist():
        total, new, finished = float(totals[row]), tokens[row].tolist(), bool(stops[row])
        score = strategy.score(total, len(new))
        ended[int(owner[row])].append(Hypothesis(score, total, new[:-1] if finished else new, finished, int(sample[row])))
    goes_on = ~over & ~strategy.hopeless(owner, totals, limits, ended)
    kept = goes_on.nonzero()[:, 0]
    return parents[kept], Live(owner[kept], sample[kept], drawn[kept], totals[kept], tokens[kept], live.given)
