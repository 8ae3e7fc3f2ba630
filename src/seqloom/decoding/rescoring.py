"""Rescoring of n-best lists: a weighted sum of features chooses from each list; the weights are tuned on
lists with references.

    total = Σ weight × feature          the highest of a list is chosen, among equals the first

Tuning is minimum error rate training (Och 2003). Along a line of weights w + γ d the total of a hypothesis is
linear in γ, so the choice from a list changes only at the corners of the upper envelope of its lines. Between
the corners of all lists the error of the corpus is constant, so the best interval is found exactly.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from seqloom.arrays import Floats

Ints = NDArray[np.int64]
Cost = Callable[[Ints], Floats]
"""Sums of statistics `(..., k)` -> the cost `(...)` to be minimised, such as a word error rate."""

DIGITS = 6
"""Significant digits of weights: the printed weights are exactly the tuned ones."""
STARTS, PASSES = 12, 10
"""Random starts besides the given ones; passes over the directions, at most."""


@final
@dataclass(frozen=True, kw_only=True)
class NBestLists:
    """The hypotheses of all lists, one list after another; no list is empty."""

    features: Floats
    """`(hypotheses, features)`"""
    starts: Ints
    """`(lists,)`: where each list begins."""

    @property
    def list_index(self) -> Ints:
        """`(hypotheses,)`: the list of each hypothesis."""
        sizes = np.diff(np.append(self.starts, len(self.features)))
        return np.repeat(np.arange(len(self.starts)), sizes)

    def totals(self, weights: Floats) -> Floats:
        """`(hypotheses,)`. Summed feature by feature, so that rounding does not depend on other
        hypotheses."""
        total = np.zeros(len(self.features))
        for weight, feature in zip(weights, self.features.T, strict=True):
            total += weight * feature
        return total

    def chosen(self, weights: Floats) -> Ints:
        """`(lists,)`: the hypothesis with the highest total of each list."""
        return _first_highest(self.totals(weights), self.starts, self.list_index)


def _first_highest(values: Floats, starts: Ints, list_index: Ints) -> Ints:
    """The first hypothesis with the highest value of each list."""
    highest = np.maximum.reduceat(values, starts)
    rows = np.arange(len(values))
    return np.minimum.reduceat(np.where(values == highest[list_index], rows, len(values)), starts)


class Corners(NamedTuple):
    """Where along a line of weights the choice changes."""

    first: Ints
    """`(lists,)`: the choices at γ = -∞."""
    gamma: Floats
    """`(corners,)`, ascending."""
    leaves: Ints
    """`(corners,)`: the hypothesis that is chosen before the corner."""
    enters: Ints
    """`(corners,)`: the one that is chosen after it."""


def corners(lists: NBestLists, weights: Floats, direction: Floats) -> Corners:
    """The corners of the upper envelopes along weights + γ direction, of all lists at once."""
    height, slope, index = lists.totals(weights), lists.totals(direction), lists.list_index
    # at γ = -∞ the flattest line is highest, among equally flat ones the highest
    flattest = np.minimum.reduceat(slope, lists.starts)[index]
    first = _first_highest(np.where(slope == flattest, height, -np.inf), lists.starts, index)
    current, turns = first, []
    while True:
        # from the current line of each list on to the steeper line that it crosses first, of several the
        # steepest
        rise, drop = slope - slope[current][index], height[current][index] - height
        with np.errstate(over="ignore"):  # lines that are almost parallel cross nowhere
            crossing = np.divide(drop, rise, out=np.full(len(rise), np.inf), where=rise > 0)
        nearest = np.minimum.reduceat(crossing, lists.starts)
        turning = np.isfinite(nearest)
        if not turning.any():
            break
        following = _first_highest(
            np.where(crossing == nearest[index], slope, -np.inf), lists.starts, index
        )
        turns.append((nearest[turning], current[turning], following[turning]))
        current = np.where(turning, following, current)
    if not turns:
        empty = np.zeros(0, np.int64)
        return Corners(first, np.zeros(0), empty, empty)
    gamma, leaves, enters = (np.concatenate(part) for part in zip(*turns, strict=True))
    order = np.argsort(gamma, kind="stable")
    return Corners(first, gamma[order], leaves[order], enters[order])


def line_search(
    lists: NBestLists, statistics: Ints, cost: Cost, weights: Floats, direction: Floats
) -> tuple[float, float]:
    """(γ, cost) of the best point of weights + γ direction: the middle of the best interval, among equals of
    the widest."""
    first, gamma, leaves, enters = corners(lists, weights, direction)
    sums = statistics[first].sum(axis=0)
    if not len(gamma):
        return 0.0, float(cost(sums))
    changes = np.cumsum(statistics[enters] - statistics[leaves], axis=0)
    costs = cost(np.concatenate([sums[None], sums + changes]))
    margin = max(float(np.abs(gamma).max()) / 10, 1e-3)  # how far beyond the outer corners
    edges = np.concatenate([[gamma[0] - margin], gamma, [gamma[-1] + margin]])
    widths = np.diff(edges)
    costs = np.where(widths > 0, costs, np.inf)
    best = int(np.argmax(np.where(costs == costs.min(), widths, -1.0)))
    return float(edges[best] + edges[best + 1]) / 2, float(costs[best])


def normalised(weights: Floats) -> Floats:
    """The weights scaled to a largest size of 1, which changes no choice, and rounded so that they can be
    printed; zeros stay zeros."""
    largest = np.abs(weights).max(initial=0.0)
    if not largest > 0:
        return np.zeros(len(weights))
    return np.array([float(f"{weight:.{DIGITS}g}") for weight in weights / largest])


def tune(lists: NBestLists, statistics: Ints, cost: Cost, points: Floats, seed: int = 0) -> Floats:
    """Weights of low corpus cost on these lists: never more than at any of `points` `(points, features)`.
    Deterministic.

    `statistics` `(hypotheses, k)` are those whose sums the cost takes. From each point, and from some random
    ones, exact line searches follow the features and as many random directions until a pass improves nothing.
    """
    generator = np.random.default_rng(seed)
    scale = _scale(lists)
    random = generator.standard_normal((STARTS, lists.features.shape[1])) / scale
    ends = [
        _descend(lists, statistics, cost, start, scale, generator) for start in [*points, *random]
    ]
    return min(ends, key=lambda end: end[0])[1]


def _descend(
    lists: NBestLists,
    statistics: Ints,
    cost: Cost,
    start: Floats,
    scale: Floats,
    generator: np.random.Generator,
) -> tuple[float, Floats]:
    """(cost, weights) of the point where line searches from `start` end. A step is taken only if the cost of
    the choices really falls."""

    def cost_at(weights: Floats) -> float:
        return float(cost(statistics[lists.chosen(weights)].sum(axis=0)))

    weights = normalised(start)
    lowest = cost_at(weights)
    for _ in range(PASSES):
        before = lowest
        random = generator.standard_normal((len(start), len(start)))
        for direction in np.concatenate([np.eye(len(start)), random]) / scale:
            gamma, promised = line_search(lists, statistics, cost, weights, direction)
            if promised < lowest:
                candidate = normalised(weights + gamma * direction)
                reached = cost_at(candidate)
                if reached < lowest:
                    weights, lowest = candidate, reached
        if lowest == before:
            break
    return lowest, weights


def _scale(lists: NBestLists) -> Floats:
    """The standard deviation of each feature within its list, so that random directions treat all alike."""
    sizes = np.diff(np.append(lists.starts, len(lists.features)))[:, None]
    means = np.add.reduceat(lists.features, lists.starts) / sizes
    spread = np.sqrt(np.mean((lists.features - means[lists.list_index]) ** 2, axis=0))
    return np.where(spread > 0, spread, 1.0)


def oracle(lists: NBestLists, statistics: Ints, cost: Cost, start: Ints) -> Ints:
    """`(lists,)`: the choice of an oracle that knows the references, starting from the choice `start`.

    List by list it takes the hypothesis with the smallest corpus cost, the others being fixed, until nothing
    improves. That is optimal for costs that are sums over lists (word errors, exact matches), and a local
    optimum for others (BLEU).
    """
    chosen = start.copy()
    sums = statistics[chosen].sum(axis=0)
    ends = np.append(lists.starts[1:], len(statistics))
    while True:
        before = cost(sums)
        for number, (first, end) in enumerate(zip(lists.starts, ends, strict=True)):
            others = sums - statistics[chosen[number]]
            costs = cost(others + statistics[first:end])
            if costs.min() < cost(sums):
                chosen[number] = first + int(np.argmin(costs))
                sums = others + statistics[chosen[number]]
        if not cost(sums) < before:
            return chosen
