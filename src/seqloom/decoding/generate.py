"""The one loop that turns any next-token model into text.

A row is a live hypothesis. At each step a strategy says which continuations of the rows live on and which have
ended; rows that have ended leave, and the state follows by `select_rows`. Greedy search is a beam of one.

    score of a hypothesis = Σ log p / length^α, the end mark counted

A hypothesis that ends keeps its place in the beam, so at most `width` of them end for one input. The search of an input is
over when no row of it is alive, or when even the best that a live row can still become (its Σ log p can only fall, its
length can only grow to the maximum) is no better than the worst of the hypotheses that would be returned: never earlier.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, final

import torch
from torch import Tensor

from seqloom.decoding.rules import Rule, most_likely
from seqloom.errors import SeqloomError, UsageError
from seqloom.protocols import Decodable, State, next_logits, select_rows


class Hypothesis(NamedTuple):
    """One output for one input."""

    score: float
    """Σ log p / length^α."""
    log_probability: float
    """Σ log p of its tokens, in nats, the end mark's too where it has one."""
    tokens: list[int]
    """The new tokens, without the prompt and without the end mark."""
    finished: bool
    """False where the maximum length cut it off."""


@final
@dataclass(frozen=True, kw_only=True)
class Beam:
    """Keeps the `width` most likely hypotheses of each input; one that ends keeps its place in the beam until the end."""

    width: int = 1
    length_penalty: float = 1.0
    """α."""
    n_best: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.n_best <= self.width:
            raise UsageError(f"n_best must be from 1 to the beam's width {self.width}, but is {self.n_best}")
        if self.length_penalty < 0:
            raise UsageError(f"length_penalty must be at least 0, but is {self.length_penalty}")

    def score(self, log_probability: float, length: int) -> float:
        return log_probability / float(max(length, 1) ** self.length_penalty)


class _Live(NamedTuple):
    """The live rows, grouped by input in order."""

    owner: Tensor
    """`(rows,)`: the input of each row."""
    total: Tensor
    """`(rows,)`: Σ log p."""
    tokens: Tensor
    """`(rows, steps)`: the new tokens so far."""


@torch.inference_mode()
def generate(
    model: Decodable,
    state: State,
    prompts: Sequence[Sequence[int]],
    *,
    strategy: Beam,
    max_new_tokens: Sequence[int],
    eos: int,
    pad: int,
    rules: Sequence[Rule] = (),
) -> list[list[Hypothesis]]:
    """For each prompt its hypotheses, best first, at most `n_best`.

    `state` has one row per prompt. Prompts may differ in length (they are padded on the left: a `<pad>` is a step that
    does not happen) but none is empty. `max_new_tokens` counts the end mark. Raises UsageError for an empty prompt,
    or a maximum below 1; SeqloomError where a logit is NaN.
    """
    if not all(prompts) or not len(prompts) == len(max_new_tokens) or min(max_new_tokens, default=1) < 1:
        raise UsageError("every prompt must have at least one token and a maximum of at least 1 new token")
    longest = max((len(prompt) for prompt in prompts), default=0)
    padded = [[pad] * (longest - len(prompt)) + list(prompt) for prompt in prompts]
    ended: list[list[Hypothesis]] = [[] for _ in prompts]
    if not prompts:
        return ended
    device = next((p.device for p in getattr(model, "parameters", list)()), None)
    read = torch.tensor(padded, device=device)
    logits, state = next_logits(model, read, state)
    inputs = torch.arange(len(prompts), device=device)
    live = _Live(inputs, logits.new_zeros(len(prompts), dtype=torch.float64), read[:, :0])
    limits = torch.tensor(list(max_new_tokens), device=device)
    while True:
        if bool(logits.isnan().any()):
            raise SeqloomError("logits must be numbers, but the model gave NaN: its weights or its state are broken")
        log_probs = logits.float().log_softmax(dim=-1)
        for rule in rules:
            log_probs = rule(live.tokens, log_probs)
        parents, live = _step(live, log_probs, limits, ended, strategy, eos)
        if not len(parents):
            return [sorted(found, key=lambda h: -h.score)[: strategy.n_best] for found in ended]
        if len(parents) != len(logits) or not torch.equal(parents, torch.arange(len(parents), device=device)):
            state = select_rows(state, parents)
        logits, state = next_logits(model, live.tokens[:, -1:], state)


def _step(live: _Live, log_probs: Tensor, limits: Tensor, ended: list[list[Hypothesis]], strategy: Beam, eos: int) -> tuple[Tensor, _Live]:
    """One token for every input: moves what has ended to `ended`, returns the parents of the rows that live on, and these."""
    parents, ids, totals = _best_continuations(live, log_probs, strategy.width, [len(found) for found in ended])
    owner = live.owner[parents]
    tokens = torch.cat([live.tokens[parents], ids[:, None]], dim=1)
    stops = ids == eos
    over = stops | (tokens.shape[1] >= limits[owner])
    for row in over.nonzero()[:, 0].tolist():
        total, new, finished = float(totals[row]), tokens[row].tolist(), bool(stops[row])
        hypothesis = Hypothesis(strategy.score(total, len(new)), total, new[:-1] if finished else new, finished)
        ended[int(owner[row])].append(hypothesis)
    goes_on = ~over & ~_hopeless(owner, totals, over, limits, ended, strategy)
    kept = goes_on.nonzero()[:, 0]
    return parents[kept], _Live(owner[kept], totals[kept], tokens[kept])


def _best_continuations(live: _Live, log_probs: Tensor, width: int, ended: list[int]) -> tuple[Tensor, Tensor, Tensor]:
    """For each input its best (parent row, token, Σ log p), as many as places are free in its beam; impossible ones never."""
    k = min(width, log_probs.shape[1])
    values, ids = most_likely(log_probs, k)
    totals = live.total[:, None] + values  # (rows, k)
    if width == 1:
        parents = torch.arange(len(totals), device=totals.device)
        possible = totals[:, 0] > float("-inf")
        return parents[possible], ids[possible, 0], totals[possible, 0]
    groups, group, sizes = torch.unique_consecutive(live.owner, return_inverse=True, return_counts=True)
    first = sizes.cumsum(0) - sizes
    place = torch.arange(len(totals), device=totals.device) - first[group]  # of a row among the rows of its input
    widest = int(sizes.max())
    table = totals.new_full((len(groups), widest, k), float("-inf"))
    table[group, place] = totals
    best, at = most_likely(table.flatten(1), min(width, widest * k))
    free = width - torch.tensor([ended[owner] for owner in groups.tolist()], device=totals.device)
    taken = (torch.arange(best.shape[1], device=totals.device) < free[:, None]) & (best > float("-inf"))
    group_at, rank = taken.nonzero(as_tuple=True)
    flat = at[group_at, rank]
    parents = first[group_at] + flat // k
    return parents, ids[parents, flat % k], best[group_at, rank]


def _hopeless(owner: Tensor, totals: Tensor, over: Tensor, limits: Tensor, ended: list[list[Hypothesis]], strategy: Beam) -> Tensor:
    """Rows that cannot become better than the n hypotheses their input has already."""
    bars = [_bar(found, strategy.n_best) for found in ended]
    bar = torch.tensor(bars, dtype=torch.float64, device=totals.device)[owner]
    reachable = totals / limits[owner].double() ** strategy.length_penalty
    return (reachable <= bar) & ~over


def _bar(found: list[Hypothesis], n: int) -> float:
    """What a new hypothesis must beat to be returned."""
    return sorted((h.score for h in found), reverse=True)[n - 1] if len(found) >= n else float("-inf")
