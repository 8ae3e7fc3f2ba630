"""Correlation of two series of numbers, and its confidence interval.

    Pearson     Σ w (x - x̄)(y - ȳ) / √(Σ w (x - x̄)² Σ w (y - ȳ)²)
    Spearman    the same of the ranks; ties share the mean of their ranks

The weights w say how often each item was drawn, so that all resamples of a bootstrap are one call.
"""

from __future__ import annotations

import numpy as np

from seqloom.arrays import Floats
from seqloom.evaluation.intervals import RESAMPLES, with_intervals


def pearson(x: Floats, y: Floats, weights: Floats) -> Floats:
    """x, y `(items,)` or `(resamples, items)`, weights `(resamples, items)` -> `(resamples,)`; nan where one
    side is constant."""
    total, centred, variances = weights.sum(axis=-1), [], []
    for values in (x, y):
        values = np.broadcast_to(values, weights.shape)
        deviations = values - (_dot(weights, values, np.ones_like(values)) / total)[:, None]
        variance, size = _dot(weights, deviations, deviations), _dot(weights, values, values)
        centred.append(deviations)
        variances.append(np.where(variance > size * 1e-24, variance, np.nan))  # less is rounding
    return np.asarray(_dot(weights, *centred) / np.sqrt(variances[0] * variances[1]), np.float64)


def _dot(weights: Floats, x: Floats, y: Floats) -> Floats:
    return np.asarray(np.einsum("ri,ri,ri->r", weights, x, y))


def ranks(values: Floats, weights: Floats) -> Floats:
    """values `(items,)`, weights `(resamples, items)` -> the rank of each in each resample, from 1:
    `(resamples, items)`."""
    _, group = np.unique(values, return_inverse=True)
    order = np.argsort(group, kind="stable")
    starts = np.flatnonzero(np.diff(group[order], prepend=-1))
    counts = np.add.reduceat(weights[:, order], starts, axis=1)
    return np.asarray((counts.cumsum(axis=1) - (counts - 1) / 2)[:, group], np.float64)


def spearman(x: Floats, y: Floats, weights: Floats) -> Floats:
    """x, y `(items,)`, weights `(resamples, items)` -> `(resamples,)`."""
    return pearson(ranks(x, weights), ranks(y, weights), weights)


def correlations(x: Floats, y: Floats, resamples: int = RESAMPLES) -> dict[str, float]:
    """pearson and spearman × 100, and with `resamples` the ends of their 95 % intervals (bootstrap over the
    items)."""
    return with_intervals(
        ("pearson", "spearman"), lambda weights: _correlated(x, y, weights), len(x), resamples
    )


def rank_errors(x: Floats, y: Floats) -> list[float]:
    """How far each item's rank in x is from that in y, as a share of the largest distance."""
    once = np.ones((1, len(x)))
    distances = np.abs(ranks(x, once) - ranks(y, once))[0] / max(len(x) - 1, 1)
    return list(map(float, distances))


def number_metrics(true: Floats, predicted: Floats, resamples: int = RESAMPLES) -> dict[str, float]:
    """Metrics of a regression: pearson, spearman and mean_squared_error, with the ends of their intervals;
    examples."""
    squares = (predicted - true) ** 2

    def statistics(weights: Floats) -> Floats:
        return np.column_stack(
            [_correlated(predicted, true, weights), weights @ squares / len(squares)]
        )

    names = ("pearson", "spearman", "mean_squared_error")
    return with_intervals(names, statistics, len(squares), resamples) | {"examples": len(true)}


def _correlated(x: Floats, y: Floats, weights: Floats) -> Floats:
    """weights `(resamples, items)` -> `(resamples, 2)`: Pearson's and Spearman's × 100."""
    return 100 * np.column_stack([pearson(x, y, weights), spearman(x, y, weights)])
