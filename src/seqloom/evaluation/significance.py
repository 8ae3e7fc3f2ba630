"""Whether one system is better than another on the same items or was only lucky, and the confidence interval
of a mean over seeds.

An item contributes a number (right or wrong, a loss) or several counts (hits, predicted, true) that a score
function makes a score of their sums: F1, BLEU, error rates. Without a score function the score is the mean.

    paired bootstrap    items are drawn with replacement, the same for both (Koehn 2004): an interval of the
                        difference. p: how often a difference is as far from the one observed as that is from
                        0 (Riezler and Maxwell 2005)
    permutation         the two systems' outputs of each item are swapped or not (approximate randomisation:
                        Noreen 1989, Yeh 2000). p: how often the difference is then at least as far from 0,
                        that without swaps included

Both are two-sided and seeded; systems without any difference have p = 1. Use the permutation test to decide,
the bootstrap to say how large a difference may be. With several systems tested against one, the chance that
one of them wins by luck adds up (multiply p by how many are tested: Bonferroni).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from seqloom.arrays import Floats, Numbers
from seqloom.evaluation.intervals import bootstrap_weights, percentiles

ScoreFunction = Callable[[Numbers], Floats]
"""Sums over items `(..., k)` -> score `(...)`."""

RESAMPLES = 10_000
ROUNDING = 1e-12
"""Differences that agree to this are equal."""


class Difference(NamedTuple):
    """The score of the first system less that of the second."""

    value: float
    low: float
    """Of its 95 % interval."""
    high: float
    p: float
    """The chance of a difference at least as large if there is none."""


class Interval(NamedTuple):
    """A mean and its 95 % interval."""

    mean: float
    low: float
    high: float


def paired_bootstrap(
    first: Numbers,
    second: Numbers,
    score: ScoreFunction | None = None,
    *,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Difference:
    """first, second `(items,)` or `(items, k)`, item by item. Resamples without a score do not count; where
    no resample has one, all is nan."""
    first, second, score = _as_sums(first, second, score)
    both = np.concatenate([first, second], axis=1)
    observed = float(_difference(both.sum(axis=0), score))
    weights = bootstrap_weights(len(first), resamples, seed)
    differences = np.concatenate([_difference(block @ both, score) for block in weights])
    differences = differences[np.isfinite(differences)]
    if not len(differences) or not math.isfinite(observed):
        return Difference(observed, math.nan, math.nan, math.nan)
    p = _share_beyond(differences - observed, observed)
    return Difference(observed, *percentiles(differences), p)


def permutation_p_value(
    first: Numbers,
    second: Numbers,
    score: ScoreFunction | None = None,
    *,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> float:
    """first, second `(items,)` or `(items, k)`, item by item -> p. nan where a system has no score.

    Swapping changes nothing on items where both systems are equal, so only the others are drawn: few where
    two good systems differ little.
    """
    first, second, score = _as_sums(first, second, score)
    first_sum, second_sum = first.sum(axis=0), second.sum(axis=0)
    observed = float(_difference(np.concatenate([first_sum, second_sum]), score))
    if not math.isfinite(observed):
        return math.nan
    swappable = (first - second)[(first != second).any(axis=1)]
    generator = np.random.default_rng(seed)
    block = max(2**20 // max(len(swappable), 1), 1)
    differences = []
    for start in range(0, resamples, block):
        size = (min(block, resamples - start), len(swappable))
        kept = generator.integers(2, size=size, dtype=np.uint8)
        change = (1.0 - kept) @ swappable
        swapped = np.concatenate([first_sum - change, second_sum + change], axis=1)
        differences.append(_difference(swapped, score))
    return _share_beyond(np.concatenate(differences), observed)


def mean_interval(values: Sequence[float]) -> Interval:
    """The mean of independent runs, such as seeds, and its interval by Student's t; infinite for fewer than
    two."""
    n, mean = len(values), math.fsum(values) / len(values)
    if n < 2:
        return Interval(mean, -math.inf, math.inf)
    variance = math.fsum((value - mean) ** 2 for value in values) / (n - 1)
    half = t_quantile(n - 1) * math.sqrt(variance / n)
    return Interval(mean, mean - half, mean + half)


def t_quantile(freedom: int, inside: float = 0.95) -> float:
    """The t for which P(|T| <= t) is `inside`, by bisection; `freedom` is the degrees of freedom."""
    low, high = 0.0, 1.0
    while t_inside(high, freedom) < inside:
        high *= 2
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if t_inside(middle, freedom) < inside else (low, middle)
    return high


def t_inside(t: float, freedom: int) -> float:
    """P(|T| <= t): a finite sum for whole degrees of freedom (Abramowitz and Stegun 1964, 26.7.3 and
    26.7.4)."""
    angle = math.atan2(t, math.sqrt(freedom))
    odd, square = freedom % 2, math.cos(angle) ** 2
    term = math.cos(angle) if odd else 1.0
    total = term if freedom > 1 else 0.0
    for k in range(2 + odd, freedom - 1, 2):
        term *= (k - 1) / k * square
        total += term
    total *= math.sin(angle)
    return 2 / math.pi * (angle + total) if odd else total


def _as_sums(
    first: Numbers, second: Numbers, score: ScoreFunction | None
) -> tuple[Floats, Floats, ScoreFunction]:
    """Both as `(items, k)`; the mean as a score of (Σ, count)."""
    first, second = np.asarray(first, np.float64), np.asarray(second, np.float64)
    if first.shape != second.shape or not len(first):
        raise ValueError(
            f"both systems must have answered the same items, at least one, but have {first.shape} and"
            f" {second.shape}"
        )
    if score is not None:
        return first.reshape(len(first), -1), second.reshape(len(second), -1), score
    first, second = (np.stack([values, np.ones_like(values)], axis=1) for values in (first, second))
    return first, second, lambda sums: np.asarray(sums[..., 0] / sums[..., 1])


def _difference(sums: Floats, score: ScoreFunction) -> Floats:
    """sums `(..., 2k)` -> `(...)`"""
    k = sums.shape[-1] // 2
    with np.errstate(divide="ignore", invalid="ignore"):  # a resample may have no score
        return np.asarray(score(sums[..., :k]) - score(sums[..., k:]))


def _share_beyond(differences: Floats, observed: float) -> float:
    """The share of differences at least as far from 0 as the observed one, which is one of them (Davison and
    Hinkley 1997, 4.2.1)."""
    usable = np.abs(differences[np.isfinite(differences)])
    limit = abs(observed) * (1 - ROUNDING) - ROUNDING
    return float((1 + (usable >= limit).sum()) / (1 + len(usable)))
