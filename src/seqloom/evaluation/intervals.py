"""Confidence intervals of measured numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from seqloom.arrays import Floats

NORMAL_95 = 1.959964
"""Standard deviations to either side that hold 95 % of a normal distribution."""
RESAMPLES = 2000
"""Of a bootstrap, by default."""


def ratio_interval(totals: Floats, counts: Floats) -> tuple[float, float]:
    """The 95 % interval of Σ totals / Σ counts over independent units, such as the loss of a corpus over its
    documents.

    Linearised variance of a ratio (Cochran 1977, Sampling Techniques, eq. 6.13). Infinite for fewer than two
    units.
    """
    ratio, n = totals.sum() / counts.sum(), len(totals)
    if n < 2:
        return -math.inf, math.inf
    squares = float(((totals - ratio * counts) ** 2).sum())
    spread = math.sqrt(squares * n / (n - 1)) / float(counts.sum())
    return float(ratio - NORMAL_95 * spread), float(ratio + NORMAL_95 * spread)


def wilson_interval(hits: float, trials: int) -> tuple[float, float]:
    """The 95 % interval of a share (Wilson 1927)."""
    z2, share = NORMAL_95**2, hits / trials
    middle = (share + z2 / (2 * trials)) / (1 + z2 / trials)
    half = (
        NORMAL_95
        / (1 + z2 / trials)
        * math.sqrt(share * (1 - share) / trials + z2 / (4 * trials**2))
    )
    # rounding must not leave the share itself, nor [0, 1]
    return min(max(middle - half, 0.0), share), max(min(middle + half, 1.0), share)


def bootstrap_weights(items: int, resamples: int, seed: int) -> Iterator[Floats]:
    """How often each item is drawn (with replacement) in each resample: blocks of `(rows, items)`,
    `resamples` rows in all, so that memory is bounded.

    They are counts of drawn indices: the same distribution as a multinomial's, in a tenth of its time.
    """
    generator, block = np.random.default_rng(seed), max(2**20 // items, 1)
    for first in range(0, resamples, block):
        rows = min(block, resamples - first)
        index = generator.integers(items, size=(rows, items)) + np.arange(rows)[:, None] * items
        yield (
            np.bincount(index.ravel(), minlength=rows * items)
            .reshape(rows, items)
            .astype(np.float64)
        )


def bootstrap_intervals(
    statistics: Callable[[Floats], Floats], items: int, resamples: int = RESAMPLES, seed: int = 0
) -> list[tuple[float, float]]:
    """The 95 % bootstrap interval of each of several statistics of items (Efron 1979, percentiles).

    `statistics` maps how often each item was drawn, `(resamples, items)`, to `(resamples, statistics)`.
    Resamples for which a statistic is not finite do not count for it; where there are no others, both ends
    are nan.
    """
    resampled = [statistics(weights) for weights in bootstrap_weights(items, resamples, seed)]
    return [percentiles(column) for column in np.concatenate(resampled).T]


def with_intervals(
    names: Sequence[str], statistics: Callable[[Floats], Floats], items: int, resamples: int
) -> dict[str, float]:
    """Each statistic by its name, and with `resamples` the ends of its bootstrap interval, as `NAME_low` and
    `NAME_high`."""
    values = dict(zip(names, map(float, statistics(np.ones((1, items)))[0]), strict=True))
    if resamples:
        for name, (low, high) in zip(
            names, bootstrap_intervals(statistics, items, resamples), strict=True
        ):
            values |= {f"{name}_low": low, f"{name}_high": high}
    return values


def percentiles(values: Floats) -> tuple[float, float]:
    """The ends of the middle 95 % of the finite values; nan if there is none."""
    usable = values[np.isfinite(values)]
    if not len(usable):
        return math.nan, math.nan
    low, high = np.quantile(usable, [0.025, 0.975])
    return float(low), float(high)
