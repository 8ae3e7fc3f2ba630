"""How rows go on, step by step: a beam keeps the most likely, sampling draws. The loop (`generate.py`) asks nothing else of them.

Sampling has no generator that could be disturbed. The random number of a row is a function of (seed, sample, step), the counter-based
SplitMix64 (Steele, Lea and Flood 2014), so a text does not depend on what else is in the batch, nor on the order of the prompts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor

from seqloom.config import DecodeConfig
from seqloom.decoding.live import Chosen, Hypothesis, Live
from seqloom.decoding.rules import most_likely
from seqloom.errors import UsageError


@final
@dataclass(frozen=True, kw_only=True)
class Beam:
    """Keeps the `width` most likely hypotheses of each input; one that ends keeps its place in the beam until the end."""

    width: int = 1
    length_penalty: float = 1.0
    """α."""
    n_best: int = 1

    rows = 1
    """Rows that an input begins with."""

    def __post_init__(self) -> None:
        if not 1 <= self.n_best <= self.width:
            raise UsageError(f"n_best must be from 1 to the beam's width {self.width}, but is {self.n_best}")
        if self.length_penalty < 0:
            raise UsageError(f"length_penalty must be at least 0, but is {self.length_penalty}")

    def one(self) -> Beam:
        """The same for one output."""
        return replace(self, n_best=1)

    def score(self, log_probability: float, length: int) -> float:
        return log_probability / float(max(length, 1) ** self.length_penalty)

    def choose(self, live: Live, _: Tensor, allowed: Tensor, ended: Sequence[Sequence[Hypothesis]]) -> Chosen:
        """For each input its best continuations, as many as places are free in its beam; impossible ones never."""
        k = min(self.width, allowed.shape[1])
        values, ids = most_likely(allowed, k)
        totals = live.total[:, None] + values  # (rows, k)
        if self.width == 1:
            parents = (totals[:, 0] > float("-inf")).nonzero()[:, 0]
            return Chosen(parents, ids[parents, 0], totals[parents, 0])
        groups, group, sizes = torch.unique_consecutive(live.owner, return_inverse=True, return_counts=True)
        first = sizes.cumsum(0) - sizes
        place = torch.arange(len(totals), device=totals.device) - first[group]  # of a row among the rows of its input
        widest = int(sizes.max())
        table = totals.new_full((len(groups), widest, k), float("-inf"))
        table[group, place] = totals
        best, at = most_likely(table.flatten(1), min(self.width, widest * k))
        free = self.width - torch.tensor([len(ended[owner]) for owner in groups.tolist()], device=totals.device)
        taken = (torch.arange(best.shape[1], device=totals.device) < free[:, None]) & (best > float("-inf"))
        group_at, rank = taken.nonzero(as_tuple=True)
        flat = at[group_at, rank]
        parents = first[group_at] + flat // k
        return Chosen(parents, ids[parents, flat % k], best[group_at, rank])

    def hopeless(self, owner: Tensor, totals: Tensor, limits: Tensor, ended: Sequence[Sequence[Hypothesis]]) -> Tensor:
        """`(rows,)`: rows that cannot become better than the n hypotheses their input has already."""
        bars = [sorted((h.score for h in found), reverse=True)[self.n_best - 1 :][:1] or [float("-inf")] for found in ended]
        bar = torch.tensor(bars, dtype=torch.float64, device=totals.device)[owner, 0]
        return totals / limits[owner].double() ** self.length_penalty <= bar

    def ranked(self, found: Sequence[Hypothesis]) -> list[Hypothesis]:
        """What is returned, best first."""
        return sorted(found, key=lambda h: -h.score)[: self.n_best]


@final
@dataclass(frozen=True, kw_only=True)
class Sample:
    """Draws `samples` texts for each input from what the rules leave of the model's distribution."""

    seed: int = 0
    samples: int = 1

    def __post_init__(self) -> None:
        if self.samples < 1 or not 0 <= self.seed < 2**63:
            raise UsageError(f"samples must be at least 1 and the seed from 0 to 2^63 - 1, but they are {self.samples} and {self.seed}")

    @property
    def rows(self) -> int:
        """Rows that an input begins with."""
        return self.samples

    def one(self) -> Sample:
        """The same for one output."""
        return replace(self, samples=1)

    def score(self, log_probability: float, _: int) -> float:
        return log_probability

    def choose(self, live: Live, log_probs: Tensor, allowed: Tensor, _: Sequence[Sequence[Hypothesis]]) -> Chosen:
        """One token for each row. A row that nothing may follow dies."""
        ids, possible = draw(allowed, uniform(self.seed, live.sample, live.drawn + live.tokens.shape[1]))
        totals = live.total + log_probs.gather(1, ids[:, None])[:, 0]
        parents = possible.nonzero()[:, 0]
        return Chosen(parents, ids[parents], totals[parents])

    def hopeless(self, owner: Tensor, _: Tensor, __: Tensor, ___: Sequence[Sequence[Hypothesis]]) -> Tensor:
        """No row: each is a sample, good or bad."""
        return torch.zeros_like(owner, dtype=torch.bool)

    def ranked(self, found: Sequence[Hypothesis]) -> list[Hypothesis]:
        """What is returned, in the order of the samples."""
        return sorted(found, key=lambda h: h.sample)


Strategy = Beam | Sample


def strategy_of(decode: DecodeConfig) -> Strategy:
    if decode.strategy == "sample":
        return Sample(seed=decode.seed, samples=decode.n_best)
    return Beam(width=decode.beam, length_penalty=decode.length_penalty, n_best=decode.n_best)


def draw(log_probs: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    """The first id whose cumulated probability exceeds u `(rows,)`: ids `(rows,)`, and whether anything was possible `(rows,)`.

    Probabilities become whole multiples of 2^-52, whose sums are exact in any order: what is impossible is never drawn, and
    devices agree. They may sum to less than 1.
    """
    shares = (log_probs.double().exp() * 2**52).long().cumsum(dim=-1)
    total = shares[:, -1]
    point = (u * total).long()  # 0 to total - 1: u is at most 1 - 2^-53
    ids = torch.searchsorted(shares, point[:, None], right=True)[:, 0]
    return ids.clamp(max=log_probs.shape[1] - 1), total > 0


def uniform(seed: int, samples: Tensor, steps: Tensor) -> Tensor:
    """A number of [0, 1) for each row, float64, a multiple of 2^-53: step `(rows,)` of the stream of (seed, sample `(rows,)`)."""
    key = _mix(torch.full_like(samples, seed) + _GAMMA)
    stream = _mix(key + (samples + 1) * _GAMMA)
    return _shifted(_mix(stream + (steps + 1) * _GAMMA), 11).double() * 2.0**-53


def _mix(values: Tensor) -> Tensor:
    """The finaliser of SplitMix64, in int64 that wraps around."""
    values = (values ^ _shifted(values, 30)) * (0xBF58476D1CE4E5B9 - 2**64)
    values = (values ^ _shifted(values, 27)) * (0x94D049BB133111EB - 2**64)
    return values ^ _shifted(values, 31)


def _shifted(values: Tensor, bits: int) -> Tensor:
    """To the right, with zeros from the left."""
    return (values >> bits) & ((1 << (64 - bits)) - 1)


_GAMMA = 0x9E3779B97F4A7C15 - 2**64
