"""How sure a measured number is."""

from __future__ import annotations

import math

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
