"""Calibration: whether a model is right as often as it is confident (Guo et al. 2017, arXiv:1706.04599).

    bin m       examples whose confidence (the probability of what was predicted) is in ((m-1)/M, m/M]
    ECE         expected calibration error, Σ_m |B_m| / n · |accuracy of B_m - mean confidence of B_m|

A bin contributes |Σ (hit - confidence)| / n, so a bootstrap resample needs only sums of bins.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from seqloom.arrays import Bools, Floats, Ints

BINS = 15
"""As in the paper."""


class Bin(NamedTuple):
    """Examples of similar confidence: a bar of a reliability diagram."""

    low: float
    high: float
    """Confidences above `low`, up to `high`."""
    examples: int
    confidence: float
    """Their mean; nan where there is no example."""
    accuracy: float
    """Share that is right; nan likewise."""


def bin_of(confidence: Floats, bins: int = BINS) -> Ints:
    """The bin of each, from 0; a confidence of 0 is in the first."""
    edges = np.linspace(0, 1, bins + 1)
    return np.searchsorted(edges[1:-1], confidence, side="left").astype(np.int64)


def gaps(confidence: Floats, hits: Bools, bins: int = BINS) -> Floats:
    """`(examples, bins)`: hit - confidence in the example's bin, 0 elsewhere."""
    table = np.zeros((len(confidence), bins))
    table[np.arange(len(confidence)), bin_of(confidence, bins)] = hits - confidence
    return table


def expected_calibration_error(confidence: Floats, hits: Bools, bins: int = BINS) -> float:
    """ECE of confidences `(examples,)` and whether each answer was right `(examples,)`. nan without
    examples."""
    if not len(hits):
        return float("nan")
    return float(np.abs(gaps(confidence, hits, bins).sum(axis=0)).sum() / len(hits))


def reliability(confidence: Floats, hits: Bools, bins: int = BINS) -> list[Bin]:
    """The bins, by rising confidence; Σ examples · |accuracy - confidence| / Σ examples is the ECE."""
    index, edges = bin_of(confidence, bins), np.linspace(0, 1, bins + 1)
    count = np.bincount(index, minlength=bins)
    with np.errstate(invalid="ignore"):  # an empty bin has no mean
        mean = np.bincount(index, weights=confidence, minlength=bins) / count
        accuracy = np.bincount(index, weights=np.asarray(hits, np.float64), minlength=bins) / count
    columns = zip(edges[:-1], edges[1:], count, mean, accuracy, strict=True)
    return [Bin(float(a), float(b), int(n), float(c), float(d)) for a, b, n, c, d in columns]
