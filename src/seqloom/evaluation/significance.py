"""Whether one system is better than another on the same items, or was only lucky with them; and how sure a
mean over seeds is.

An item's part is a number (right or wrong, a loss) or several counts (hits, predicted, true) that a `value`
makes a score of their sums: F1, BLEU, error rates. Without a `value` the score is the mean.

    paired bootstrap    items are drawn with replacement, the same for both (Koehn 2004): an interval of the difference.
                        p: how often a difference is as far from the one observed as that is from 0 (Riezler
                            and Maxwell 2005)
    permutation         the two systems' parts of each item are swapped or not (approximate randomisation: Noreen 1989, Yeh 2000).
                        p: how often the difference is then at least as far from 0, that of no swap counted in

Both are two-sided and seeded; systems without any difference have p = 1. Use the permutation test to decide,
the bootstrap to say how large a difference may be. Several systems tested against one: the chance that one of
them wins by luck adds up (multiply p by how many are tested: Bonferroni).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from seqloom.evaluation.intervals import drawn_with_replacement, percentiles

Floats = NDArray[np.float64]
Value = Callable[[Any], Floats]
"""Sums over items `(..., k)` -> score `(...)`."""

RESAMPLES = 10_000
ROUNDING = 1e-12
"""Differences that agree to this are equal."""


class Difference(NamedTuple):
    """How two systems differ: the first's score less the second's."""

    value: float
    low: float
    """Of its 95 % interval."""
    high: float
    p: float
    """The chance of a difference at least as large where there is none."""


class Interval(NamedTuple):
    """A mean and its 95 % interval."""

    mean: float
    low: float
    high: float


def paired_bootstrap(
    first: NDArray[Any],
    second: NDArray[Any],
    value: Value | None = None,
    *,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Difference:
    """first, second `(items,)` or `(items, k)`, item by item. Resamples without a score do not count; without
    any all is nan."""
    ours, theirs, score = _parts(first, second, value)
    both = np.concatenate([ours, theirs], axis=1)
    observed, found = _difference(both.sum(axis=0), score), []
    for weights in drawn_with_replacement(len(ours), resamples, seed):
        found.append(_difference(weights @ both, score))
    every = np.concatenate(found)
    every = every[np.isfinite(every)]
    if not len(every) or not np.isfinite(observed):
        return Difference(float(observed), math.nan, math.nan, math.nan)
    return Difference(float(observed), *percentiles(every), _share_beyond(every - observed, observed))


def permutation_p(
    first: NDArray[Any],
    second: NDArray[Any],
    value: Value | None = None,
    *,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> float:
    """first, second `(items,)` or `(items, k)`, item by item -> p. nan where a system has no score.

    Items on which both are equal stay the same by a swap, so only the others are drawn: few where two good
    systems differ little.
    """
    ours, theirs, score = _parts(first, second, value)
    observed = _difference(np.concatenate([ours.sum(axis=0), theirs.sum(axis=0)]), score)
    if not np.isfinite(observed):
        return math.nan
    moved = (ours - theirs)[(ours != theirs).any(axis=1)]
    generator, found, some = np.random.default_rng(seed), [], max(2**20 // max(len(moved), 1), 1)
    for at in range(0, resamples, some):
        kept = generator.integers(2, size=(min(some, resamples - at), len(moved)), dtype=np.uint8)
        change = (1.0 - kept) @ moved
        found.append(
            _difference(
                np.concatenate([ours.sum(axis=0) - change, theirs.sum(axis=0) + change], axis=1), score
            )
        )
    return _share_beyond(np.concatenate(found), observed)


def mean_interval(values: Sequence[float]) -> Interval:
    """The mean of independent runs, such as seeds, and its interval by Student's t; infinite for fewer than
    two."""
    n, mean = len(values), math.fsum(values) / len(values)
    if n < 2:
        return Interval(mean, -math.inf, math.inf)
    half = t_quantile(n - 1) * math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (n - 1) / n)
    return Interval(mean, mean - half, mean + half)


def t_quantile(freedom: int, inside: float = 0.95) -> float:
    """How many standard errors to either side hold `inside` of Student's t with so many degrees of freedom,
    by bisection."""
    low, high = 0.0, 1.0
    while t_inside(high, freedom) < inside:
        high *= 2
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if t_inside(middle, freedom) < inside else (low, middle)
    return high


def t_inside(t: float, freedom: int) -> float:
    """P(|T| <= t): a finite sum for whole degrees of freedom (Abramowitz and Stegun 1964, 26.7.3 and 26.7.4)."""
    angle = math.atan2(t, math.sqrt(freedom))
    odd, square = freedom % 2, math.cos(angle) ** 2
    term = math.cos(angle) if odd else 1.0
    total = term if freedom > 1 else 0.0
    for k in range(2 + odd, freedom - 1, 2):
        term *= (k - 1) / k * square
        total += term
    total *= math.sin(angle)
    return 2 / math.pi * (angle + total) if odd else total


def _parts(first: NDArray[Any], second: NDArray[Any], value: Value | None) -> tuple[Floats, Floats, Value]:
    """Both as `(items, k)`; the mean as a value of (Σ, count)."""
    ours, theirs = np.asarray(first, np.float64), np.asarray(second, np.float64)
    if ours.shape != theirs.shape or not len(ours):
        raise ValueError(
            f"both systems must have answered the same items, at least one, but have {ours.shape} and"
            f" {theirs.shape}"
        )
    if value is not None:
        return ours.reshape(len(ours), -1), theirs.reshape(len(theirs), -1), value
    ours, theirs = (np.stack([side, np.ones_like(side)], axis=1) for side in (ours, theirs))
    return ours, theirs, lambda sums: np.asarray(sums[..., 0] / sums[..., 1])


def _difference(sums: Floats, score: Value) -> Floats:
    """sums `(..., 2k)` -> `(...)`"""
    k = sums.shape[-1] // 2
    with np.errstate(divide="ignore", invalid="ignore"):  # a resample may have no score
        return np.asarray(score(sums[..., :k]) - score(sums[..., k:]))


def _share_beyond(differences: Floats, observed: Floats) -> float:
    """How many are at least as far from 0 as the observed one, which is one of them (Davison and Hinkley
    1997, 4.2.1)."""
    usable = np.abs(differences[np.isfinite(differences)])
    limit = abs(observed) * (1 - ROUNDING) - ROUNDING
    return float((1 + (usable >= limit).sum()) / (1 + len(usable)))
