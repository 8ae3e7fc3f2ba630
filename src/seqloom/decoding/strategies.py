"""How rows go on, step by step: a beam keeps the most likely, sampling draws. The loop (`generate.py`) asks
nothing else of them.

Sampling has no generator that could be disturbed. The random number of a row is a function of (seed, sample,
step), the counter-based SplitMix64 (Steele, Lea and Flood 2014), so a text does not depend on what else is in
the batch, nor on the order of the prompts.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from seqloom.config import DecodeConfig
from seqloom.decoding.live_rows import NOT_NUMBERS, Chosen, Hypothesis, Live
from seqloom.decoding.rules import most_likely
from seqloom.errors import SeqloomError, UsageError


@final
@dataclass(frozen=True, kw_only=True)
class Beam:
    """Keeps the `width` most likely hypotheses of each input; one that ends keeps its place in the beam until
    the end (Bahdanau et al. 2015), or, where `end` is given, the next best one takes it, and only the first
    `width` may end (transformers, fairseq).

    With several `groups` it is diverse beam search (Vijayakumar et al. 2018, arXiv:1610.02424, algorithm 1,
    Hamming diversity): each group is a beam of width / groups, and for the choice, though not for the score,
    a token costs it `diversity` nats for every hypothesis of the groups before it that chose this token at
    this step. The best of all groups come first, then their seconds; what several groups found comes once.
    """

    width: int = 1
    length_penalty: float = 1.0
    """α."""
    n_best: int = 1
    groups: int = 1
    diversity: float = 0.5
    """λ."""
    end: int | None = None
    """The id whose hypotheses give up their places."""

    def __post_init__(self) -> None:
        if not 1 <= self.n_best <= self.width:
            raise UsageError(f"n_best must be from 1 to the beam's width {self.width}, but is {self.n_best}")
        if not 0 <= self.length_penalty <= 10 or not 0 <= self.diversity < math.inf:
            given = f"{self.length_penalty} and {self.diversity}"
            raise UsageError(
                f"length_penalty must be from 0 to 10 and diversity at least 0, but they are {given}"
            )
        if self.groups < 1 or self.width % self.groups:
            raise UsageError(f"groups must divide the beam's width {self.width}, but are {self.groups}")

    @property
    def rows(self) -> int:
        """Rows that an input begins with."""
        return self.groups

    def one(self) -> Beam:
        """The same for one output, which is of one group."""
        return replace(self, n_best=1, groups=1, width=self.width // self.groups)

    def score(self, log_probability: float, length: int) -> float:
        return log_probability / float(max(length, 1) ** self.length_penalty)

    def choose(self, live: Live, _: Tensor, allowed: Tensor, ended: Sequence[Sequence[Hypothesis]]) -> Chosen:
        """For each input its best continuations, as many as places are free in its beam; impossible ones
        never."""
        if self.groups == 1:
            parents, ids = _best(live, allowed, self.width, ended, self.end)
        else:
            parents, ids = self._by_groups(live, allowed, ended)
        if parents is None:
            return Chosen(None, ids, live.total + allowed.gather(1, ids[:, None])[:, 0])
        return Chosen(parents, ids, live.total[parents] + allowed[parents, ids])

    def _by_groups(
        self, live: Live, allowed: Tensor, ended: Sequence[Sequence[Hypothesis]]
    ) -> tuple[Tensor, Tensor]:
        costs = torch.zeros(len(ended), allowed.shape[1], dtype=allowed.dtype, device=allowed.device)
        found = []
        for group in range(self.groups):
            rows = (live.sample == group).nonzero()[:, 0]
            if not len(rows):
                continue
            mine = live.select(rows)
            over = [[h for h in hypotheses if h.sample == group] for hypotheses in ended]
            parents, ids = _best(
                mine, allowed[rows] - costs[mine.owner], self.width // self.groups, over, self.end
            )
            parents = rows if parents is None else rows[parents]
            costs.index_put_((live.owner[parents], ids), costs.new_tensor(self.diversity), accumulate=True)
            found.append((parents, ids))
        parents, ids = (torch.cat(parts) for parts in zip(*found, strict=True))
        order = live.owner[parents].argsort(stable=True)
        return parents[order], ids[order]

    def prunable(self, live: Live, limits: Tensor, ended: Sequence[Sequence[Hypothesis]]) -> Tensor:
        """`(rows,)`: rows that cannot become better than what would be returned of their input, or of their
        group, already."""
        wanted = min(self.n_best, self.width // self.groups)
        mine = [
            [[h for h in found if self.groups == 1 or h.sample == group] for group in range(self.groups)]
            for found in ended
        ]
        scores = [[sorted((h.score for h in one), reverse=True) for one in groups] for groups in mine]
        bars = [[(one[wanted - 1 :] or [-math.inf])[0] for one in groups] for groups in scores]
        bar = torch.tensor(bars, dtype=torch.float64, device=live.total.device)[
            live.owner, live.sample if self.groups > 1 else 0
        ]
        prunable = live.total / limits[live.owner].double() ** self.length_penalty <= bar
        if self.end is None:
            return prunable
        beams = live.owner * self.groups + (
            live.sample if self.groups > 1 else 0
        )  # one that went would leave its place to a worse one
        hoping = torch.zeros(len(ended) * self.groups, dtype=torch.bool, device=beams.device).index_fill_(
            0, beams[~prunable], True
        )
        return ~hoping[beams]

    def ranked(self, found: Sequence[Hypothesis]) -> list[Hypothesis]:
        """What is returned, best first; what several groups found is returned once."""
        best = sorted(found, key=lambda h: -h.score)
        if self.groups > 1:
            once: dict[tuple[tuple[int, ...], bool], Hypothesis] = {}
            for h in best:
                once.setdefault((tuple(h.tokens), h.finished), h)
            best = list(once.values())
            rank = [
                sum(other.sample == h.sample for other in best[:place]) for place, h in enumerate(best)
            ]  # in its group
            best = [h for _, h in sorted(zip(rank, best, strict=True), key=lambda one: one[0])]
        return best[: self.n_best]


def _best(
    live: Live, allowed: Tensor, width: int, ended: Sequence[Sequence[Hypothesis]], end: int | None
) -> tuple[Tensor | None, Tensor]:
    """For each input the parents and the tokens of its best continuations; for one row each the parents may
    be None (themselves)."""
    looked = width if end is None or width == 1 else 2 * width
    k = min(looked, allowed.shape[1])
    values, ids = most_likely(allowed, k)
    possible = _possible(values[:, 0])
    if width == 1:
        return (None, ids[:, 0]) if possible is None else (possible, ids[possible, 0])
    totals = live.total[:, None] + values  # (rows, k)
    owners = live.owner.tolist()
    sizes = Counter(owners)  # in the order of the inputs
    first = [0, *itertools.accumulate(sizes.values())][: len(sizes)]
    widest = max(sizes.values(), default=0)
    if widest * len(sizes) == len(owners):
        table = totals.view(len(sizes), widest * k)
    else:
        table = totals.new_full((len(sizes), widest, k), -math.inf)
        group = [at for at, size in enumerate(sizes.values()) for _ in range(size)]
        table[group, [row - first[at] for row, at in enumerate(group)]] = totals
        table = table.flatten(1)
    best, at = most_likely(table, min(looked, table.shape[1]))
    parents = torch.tensor(first, device=totals.device)[:, None] + at // k
    chosen = ids[
        parents.clamp(max=len(ids) - 1), at % k
    ]  # a place of the table that no row has is never taken
    rank = torch.arange(best.shape[1], device=totals.device)
    if end is None:
        taken = (
            rank < torch.tensor([width - len(ended[owner]) for owner in sizes], device=totals.device)[:, None]
        )
    else:
        ends = chosen == end
        taken = torch.where(ends, rank < width, (~ends).cumsum(1) <= width)
    taken = taken & (best > -math.inf)
    return parents[taken], chosen[taken]


def _possible(best: Tensor) -> Tensor | None:
    """Which rows something may follow, from their best log-probabilities `(rows,)`; None for all. Raises
    SeqloomError at NaN."""
    possible = best > -math.inf
    if bool(possible.all()):
        return None
    if bool(best.isnan().any()):
        raise SeqloomError(NOT_NUMBERS)
    return possible.nonzero()[:, 0]


@final
@dataclass(frozen=True, kw_only=True)
class Sample:
    """Draws `samples` texts for each input from what the rules leave of the model's distribution."""

    seed: int = 0
    samples: int = 1

    def __post_init__(self) -> None:
        if self.samples < 1 or not 0 <= self.seed < 2**63:
            raise UsageError(
                f"samples must be at least 1 and the seed from 0 to 2^63 - 1, but they are {self.samples} and"
                f" {self.seed}"
            )

    @property
    def rows(self) -> int:
        """Rows that an input begins with."""
        return self.samples

    def one(self) -> Sample:
        """The same for one output."""
        return replace(self, samples=1)

    def score(self, log_probability: float, _: int) -> float:
        return log_probability

    def choose(
        self, live: Live, log_probs: Tensor, allowed: Tensor, _: Sequence[Sequence[Hypothesis]]
    ) -> Chosen:
        """One token for each row. A row that nothing may follow dies."""
        ids = draw(allowed, uniform(self.seed, live.sample, live.drawn + live.tokens.shape[1]))
        totals = live.total + log_probs.gather(1, ids[:, None])[:, 0]
        parents = _possible(allowed.amax(dim=-1))
        return (
            Chosen(None, ids, totals) if parents is None else Chosen(parents, ids[parents], totals[parents])
        )

    def prunable(self, live: Live, _: Tensor, __: Sequence[Sequence[Hypothesis]]) -> Tensor:
        """No row: each is a sample, good or bad."""
        return torch.zeros_like(live.owner, dtype=torch.bool)

    def ranked(self, found: Sequence[Hypothesis]) -> list[Hypothesis]:
        """What is returned, in the order of the samples."""
        return sorted(found, key=lambda h: h.sample)


Strategy = Beam | Sample


def strategy_of(decode: DecodeConfig, end: int | None = None) -> Strategy:
    """`end` is the id that ends a text."""
    if decode.strategy == "sample":
        return Sample(seed=decode.seed, samples=decode.n_best)
    return Beam(
        width=decode.beam,
        length_penalty=decode.length_penalty,
        n_best=decode.n_best,
        groups=decode.groups,
        diversity=decode.diversity,
        end=end if decode.refill else None,
    )


def draw(log_probs: Tensor, u: Tensor) -> Tensor:
    """The first id whose share of the cumulated probability exceeds u `(rows,)`: ids `(rows,)`. Shares are
    added in float64, and what is impossible is never drawn, unless nothing is possible."""
    shares = (
        log_probs.softmax(dim=-1).double().cumsum(dim=-1)
    )  # exp is slow at -inf, and a cumsum that changes the type too
    total = shares[:, -1]
    point = torch.minimum(
        u * total, total.nextafter(torch.zeros_like(total))
    )  # rounding must not lead to what comes after the last
    return torch.searchsorted(shares, point[:, None], right=True)[:, 0].clamp(max=log_probs.shape[1] - 1)


def uniform(seed: int, samples: Tensor, steps: Tensor) -> Tensor:
    """A number of [0, 1) for each row, float64, a multiple of 2^-53: step `(rows,)` of the stream of (seed,
    sample `(rows,)`)."""
    if samples.device.type == "cpu":  # NumPy needs a third of the time for a few rows
        return torch.from_numpy(_mixed(np.int64(seed), samples.numpy(), steps.numpy()) * 2.0**-53)
    numbers: Tensor = _mixed(torch.tensor(seed, device=samples.device), samples, steps)
    return numbers.double() * 2.0**-53


def _mixed(seed: Any, samples: Any, steps: Any) -> Any:
    """53 bits, in the int64 of NumPy or torch."""
    with np.errstate(over="ignore"):  # it wraps around
        stream = _mix(_mix(seed + _GAMMA) + (samples + 1) * _GAMMA)
        return _shifted(_mix(stream + (steps + 1) * _GAMMA), 11)


def _mix(values: Any) -> Any:
    """The finaliser of SplitMix64, in int64 that wraps around."""
    values = (values ^ _shifted(values, 30)) * (0xBF58476D1CE4E5B9 - 2**64)
    values = (values ^ _shifted(values, 27)) * (0x94D049BB133111EB - 2**64)
    return values ^ _shifted(values, 31)


def _shifted(values: Any, bits: int) -> Any:
    """To the right, with zeros from the left."""
    return (values >> bits) & ((1 << (64 - bits)) - 1)


_GAMMA = 0x9E3779B97F4A7C15 - 2**64
