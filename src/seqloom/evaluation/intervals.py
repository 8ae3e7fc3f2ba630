"""How sure a measured number is."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

NORMAL_95 = 1.959964
"""Standard deviations to either side that hold 95 % of a normal distribution."""


def ratio_interval(totals: NDArray[np.float64], counts: NDArray[np.float64]) -> tuple[float, float]:
    """The 95 % interval of Σ totals / Σ counts over independent units, such as the loss of a corpus over its documents.

    Linearised variance of a ratio (Cochran 1977, Sampling Techniques, eq. 6.13). Infinite for fewer than two units.
    """
    ratio, n = totals.sum() / counts.sum(), len(totals)
    if n < 2:
        return -math.inf, math.inf
    spread = math.sqrt(float(((totals - ratio * counts) ** 2).sum()) * n / (n - 1)) / float(counts.sum())
    return float(ratio - NORMAL_95 * spread), float(ratio + NORMAL_95 * spread)


def share_interval(hits: float, trials: int) -> tuple[float, float]:
    """The 95 % interval of a share (Wilson 1927)."""
    z2, share = NORMAL_95**2, hits / trials
    middle = (share + z2 / (2 * trials)) / (1 + z2 / trials)
    half = NORMAL_95 / (1 + z2 / trials) * math.sqrt(share * (1 - share) / trials + z2 / (4 * trials**2))
    return max(middle - half, 0.0), min(middle + half, 1.0)


def bootstrap_interval(
    statistic: Callable[[NDArray[np.float64]], NDArray[np.float64]], items: int, resamples: int = 2000, seed: int = 0
) -> tuple[float, float]:
    """The 95 % interval of a statistic of items that are drawn with replacement (Efron 1979, percentiles).

    `statistic` maps how often each was drawn, `(resamples, items)`, to `(resamples,)`. Resamples for which it is not finite do not
    count; where there are no others, both ends are nan.
    """
    generator, found = np.random.default_rng(seed), []
    some = max(2**20 // items, 1)  # resamples at a time: bounds the memory
    for first in range(0, resamples, some):
        drawn = generator.multinomial(items, np.full(items, 1 / items), size=min(some, resamples - first))
        found.append(statistic(drawn.astype(np.float64)))
    usable = np.concatenate(found)
    usable = usable[np.isfinite(usable)]
    if not len(usable):
        return math.nan, math.nan
    low, high = np.quantile(usable, [0.025, 0.975])
    return float(low), float(high)
