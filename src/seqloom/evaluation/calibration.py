"""Whether a model is as often right as it says (Guo et al. 2017, arXiv:1706.04599).

    bin m       examples whose confidence (the probability of what was predicted) is in ((m-1)/M, m/M]
    ECE         Σ_m |B_m| / n · |accuracy of B_m - mean confidence of B_m|       expected calibration error

Each bin's part is |Σ (hit - confidence)| / n, so a resample needs sums of bins only.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

BINS = 15
"""As in the paper."""


class Bin(NamedTuple):
    """Examples that a model was about equally sure of: a bar of a reliability diagram."""

    low: float
    high: float
    """Confidences above `low`, up to `high`."""
    examples: int
    confidence: float
    """Their mean; nan where there is no example."""
    accuracy: float
    """Share that is right; nan likewise."""


def bin_of(confidence: Floats, bins: int = BINS) -> NDArray[np.int64]:
    """The bin of each, from 0; a confidence of 0 is in the first."""
    edges = np.linspace(0, 1, bins + 1)
    return np.searchsorted(edges[1:-1], confidence, side="left").astype(np.int64)


def gaps(confidence: Floats, hits: NDArray[Any], bins: int = BINS) -> Floats:
    """`(examples, bins)`: hit - confidence in the example's bin, 0 elsewhere."""
    found = np.zeros((len(confidence), bins))
    found[np.arange(len(confidence)), bin_of(confidence, bins)] = hits - confidence
    return found


def expected_calibration_error(confidence: Floats, hits: NDArray[Any], bins: int = BINS) -> float:
    """ECE of confidences `(examples,)` and whether each answer was right `(examples,)`. nan without examples."""
    return (
        float(np.abs(gaps(confidence, hits, bins).sum(axis=0)).sum() / len(hits))
        if len(hits)
        else float("nan")
    )


def reliability(confidence: Floats, hits: NDArray[Any], bins: int = BINS) -> list[Bin]:
    """The bins, from the least sure to the surest; Σ examples · |accuracy - confidence| / Σ examples is the
    ECE."""
    of, edges = bin_of(confidence, bins), np.linspace(0, 1, bins + 1)
    count = np.bincount(of, minlength=bins)
    sums = [
        np.bincount(of, weights=values, minlength=bins)
        for values in (confidence, np.asarray(hits, np.float64))
    ]
    with np.errstate(invalid="ignore"):  # an empty bin has no mean
        sure, right = (total / count for total in sums)
    return [
        Bin(float(edges[at]), float(edges[at + 1]), int(count[at]), float(sure[at]), float(right[at]))
        for at in range(bins)
    ]
