"""How well one row of numbers goes with another: correlation, and how sure it is.

    Pearson     Σ w (x - x̄)(y - ȳ) / √(Σ w (x - x̄)² Σ w (y - ȳ)²)
    Spearman    the same of the ranks; what is tied shares the mean of its ranks

The weights w say how often each item was drawn, so that all resamples of a bootstrap are one call.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from seqloom.evaluation.intervals import bootstrap_interval

Floats = NDArray[np.float64]


def pearson(x: Floats, y: Floats, weights: Floats) -> Floats:
    """x, y `(items,)` or `(resamples, items)`, weights `(resamples, items)` -> `(resamples,)`; nan where one side is constant."""
    total, centred, spreads = weights.sum(axis=-1), [], []
    for side in (x, y):
        side = np.broadcast_to(side, weights.shape)
        moved = side - (_dot(weights, side, np.ones_like(side)) / total)[:, None]
        spread, size = _dot(weights, moved, moved), _dot(weights, side, side)
        centred.append(moved)
        spreads.append(np.where(spread > size * 1e-24, spread, np.nan))  # less is rounding
    return np.asarray(_dot(weights, *centred) / np.sqrt(spreads[0] * spreads[1]), np.float64)


def _dot(weights: Floats, x: Floats, y: Floats) -> Floats:
    return np.asarray(np.einsum("ri,ri,ri->r", weights, x, y))


def ranks(values: Floats, weights: Floats) -> Floats:
    """values `(items,)`, weights `(resamples, items)` -> the rank of each in each resample, from 1: `(resamples, items)`."""
    _, group = np.unique(values, return_inverse=True)
    order = np.argsort(group, kind="stable")
    starts = np.flatnonzero(np.diff(group[order], prepend=-1))
    counts = np.add.reduceat(weights[:, order], starts, axis=1)
    return np.asarray((counts.cumsum(axis=1) - (counts - 1) / 2)[:, group], np.float64)


def spearman(x: Floats, y: Floats, weights: Floats) -> Floats:
    """x, y `(items,)`, weights `(resamples, items)` -> `(resamples,)`."""
    return pearson(ranks(x, weights), ranks(y, weights), weights)


def correlations(x: Floats, y: Floats) -> dict[str, float]:
    """pearson and spearman × 100, each with `_low` and `_high`, the ends of its 95 % interval (bootstrap over the items)."""
    once, metrics = np.ones((1, len(x))), {}
    for name, statistic in (("pearson", pearson), ("spearman", spearman)):
        metrics[name] = 100 * float(statistic(x, y, once)[0])
        low, high = bootstrap_interval(lambda weights, of=statistic: of(x, y, weights), len(x))  # type: ignore[misc]
        metrics |= {f"{name}_low": 100 * low, f"{name}_high": 100 * high}
    return metrics


def number_metrics(true: Floats, predicted: Floats) -> dict[str, float]:
    """Of numbers that were predicted: pearson, spearman and mean_squared_error, each with `_low` and `_high`; examples."""
    squares = (predicted - true) ** 2
    low, high = bootstrap_interval(lambda weights: weights @ squares / len(squares), len(squares))
    error = {"mean_squared_error": float(squares.mean()), "mean_squared_error_low": low, "mean_squared_error_high": high}
    return correlations(predicted, true) | error | {"examples": len(true)}
