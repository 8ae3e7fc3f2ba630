"""Rescoring of n-best lists: a weighted sum of features chooses in each list; the weights are tuned on lists
with references.

    total = Σ weight × feature          the highest of a list is chosen, of equal ones the first

Tuning is minimum error rate training (Och 2003). Along a line of weights w + γ d the total of a hypothesis is
a line in γ, so the hypothesis that is chosen in a list changes at the corners of the upper envelope of its
lines only. Between the corners of all lists the error of the corpus is constant, and the best piece is found
exactly.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Cost = Callable[[Ints], Floats]
"""Sums of statistics `(..., k)` -> what is to be small `(...)`, such as a word error rate."""

DIGITS = 6
"""Significant digits of weights: what is printed is what was tuned."""
STARTS, PASSES = 12, 10
"""Random starts beside those given; passes over the directions, at most."""


@final
@dataclass(frozen=True, kw_only=True)
class Lists:
    """The hypotheses of all lists, one list after the other; no list is empty."""

    features: Floats
    """`(hypotheses, features)`"""
    starts: Ints
    """`(lists,)`: where each list begins."""

    @property
    def owner(self) -> Ints:
        """`(hypotheses,)`: the list of each hypothesis."""
        sizes = np.diff(np.append(self.starts, len(self.features)))
        return np.repeat(np.arange(len(self.starts)), sizes)

    def totals(self, weights: Floats) -> Floats:
        """`(hypotheses,)`. Added feature by feature, so that a total depends on nothing but its own
        hypothesis."""
        total = np.zeros(len(self.features))
        for at, weight in enumerate(weights):
            total += weight * self.features[:, at]
        return total

    def chosen(self, weights: Floats) -> Ints:
        """`(lists,)`: the hypothesis with the highest total of each list."""
        return _first(self.totals(weights), self.starts, self.owner)


def _first(values: Floats, starts: Ints, owner: Ints) -> Ints:
    """Of each list the first hypothesis with the highest value."""
    highest = np.maximum.reduceat(values, starts)
    rows = np.arange(len(values))
    return np.minimum.reduceat(np.where(values == highest[owner], rows, len(values)), starts)


class Corners(NamedTuple):
    """Where along a line of weights the choice changes."""

    first: Ints
    """`(lists,)`: the hypotheses that are chosen at γ = -∞."""
    gamma: Floats
    """`(corners,)`, ascending."""
    leaves: Ints
    """`(corners,)`: the hypothesis that is chosen before the corner,"""
    enters: Ints
    """and the one after it."""


def corners(lists: Lists, weights: Floats, direction: Floats) -> Corners:
    """The corners of the upper envelopes of all lists along weights + γ direction, all lists at once.

    From the line that is highest at -∞ go, again and again, to the steeper line that is crossed first (of
    several the steepest).
    """
    height, slope, owner = lists.totals(weights), lists.totals(direction), lists.owner
    flattest = np.minimum.reduceat(slope, lists.starts)[owner]
    first = _first(np.where(slope == flattest, height, -np.inf), lists.starts, owner)
    now, found = first, []
    while True:
        rise, drop = slope - slope[now][owner], height[now][owner] - height
        with np.errstate(over="ignore"):  # lines that are all but parallel cross nowhere
            crossing = np.divide(drop, rise, out=np.full(len(rise), np.inf), where=rise > 0)
        nearest = np.minimum.reduceat(crossing, lists.starts)
        turns = np.isfinite(nearest)
        if not turns.any():
            break
        then = _first(np.where(crossing == nearest[owner], slope, -np.inf), lists.starts, owner)
        found.append((nearest[turns], now[turns], then[turns]))
        now = np.where(turns, then, now)
    if not found:
        nothing = np.zeros(0, np.int64)
        return Corners(first, np.zeros(0), nothing, nothing)
    gamma, leaves, enters = (np.concatenate(part) for part in zip(*found, strict=True))
    order = np.argsort(gamma, kind="stable")
    return Corners(first, gamma[order], leaves[order], enters[order])


def line_search(
    lists: Lists, statistics: Ints, cost: Cost, weights: Floats, direction: Floats
) -> tuple[float, float]:
    """(γ, cost) of the best point of weights + γ direction: the middle of the best piece, of equal ones of
    the widest."""
    at = corners(lists, weights, direction)
    sums = statistics[at.first].sum(axis=0)
    if not len(at.gamma):
        return 0.0, float(cost(sums))
    changes = np.cumsum(statistics[at.enters] - statistics[at.leaves], axis=0)
    costs = cost(np.concatenate([sums[None], sums + changes]))
    margin = max(float(np.abs(at.gamma).max()) / 10, 1e-3)  # how far beyond the outer corners
    edges = np.concatenate([[at.gamma[0] - margin], at.gamma, [at.gamma[-1] + margin]])
    widths = np.diff(edges)
    costs = np.where(widths > 0, costs, np.inf)
    best = int(np.argmax(np.where(costs == costs.min(), widths, -1.0)))
    return float(edges[best] + edges[best + 1]) / 2, float(costs[best])


def normalised(weights: Floats) -> Floats:
    """The weights with a largest size of 1 and so few digits that they can be printed; all zero stays so. No
    choice changes by scale."""
    largest = np.abs(weights).max(initial=0.0)
    return (
        np.array([float(f"{weight:.{DIGITS}g}") for weight in weights / largest])
        if largest > 0
        else np.zeros(len(weights))
    )


def tune(lists: Lists, statistics: Ints, cost: Cost, points: Floats, seed: int = 0) -> Floats:
    """Weights of small corpus cost on these lists: never more than at any of `points` `(points, features)`.
    Deterministic.

    `statistics` `(hypotheses, k)` are those whose sums the cost takes. From each point, and from some random
    ones, exact line searches go along the features and along as many random directions until a pass finds
    nothing better.
    """
    generator = np.random.default_rng(seed)
    scale = _scale(lists)
    width = lists.features.shape[1]
    random = generator.standard_normal((STARTS, width)) / scale
    reached = [_descend(lists, statistics, cost, start, scale, generator) for start in [*points, *random]]
    costs = [found for found, _ in reached]
    return reached[int(np.argmin(costs))][1]


def _descend(
    lists: Lists, statistics: Ints, cost: Cost, start: Floats, scale: Floats, generator: np.random.Generator
) -> tuple[float, Floats]:
    """(cost, weights) of the point where line searches from `start` end. A step is taken only where the
    choice itself is better."""

    def cost_at(weights: Floats) -> float:
        return float(cost(statistics[lists.chosen(weights)].sum(axis=0)))

    weights = normalised(start)
    now = cost_at(weights)
    for _ in range(PASSES):
        before = now
        random = generator.standard_normal((len(start), len(start)))
        for direction in np.concatenate([np.eye(len(start)), random]) / scale:
            gamma, promised = line_search(lists, statistics, cost, weights, direction)
            if promised < now:
                there = normalised(weights + gamma * direction)
                found = cost_at(there)
                if found < now:
                    weights, now = there, found
        if now == before:
            break
    return now, weights


def _scale(lists: Lists) -> Floats:
    """The spread of each feature within its list, so that random directions treat all alike."""
    sizes = np.diff(np.append(lists.starts, len(lists.features)))[:, None]
    means = np.add.reduceat(lists.features, lists.starts) / sizes
    spread = np.sqrt(np.mean((lists.features - means[lists.owner]) ** 2, axis=0))
    return np.where(spread > 0, spread, 1.0)


def oracle(lists: Lists, statistics: Ints, cost: Cost, start: Ints) -> Ints:
    """`(lists,)`: what a chooser that knows the references takes, beginning with the choice `start`.

    List by list the hypothesis with the smallest corpus cost, the others as they are, until nothing gets
    better. That is the best possible for costs that are sums over lists (word errors, exact matches); for
    others (BLEU) nobody is known to reach more in short time.
    """
    chosen = start.copy()
    sums = statistics[chosen].sum(axis=0)
    ends = np.append(lists.starts[1:], len(statistics))
    while True:
        before = cost(sums)
        for at, (first, end) in enumerate(zip(lists.starts, ends, strict=True)):
            others = sums - statistics[chosen[at]]
            costs = cost(others + statistics[first:end])
            if costs.min() < cost(sums):
                chosen[at] = first + int(np.argmin(costs))
                sums = others + statistics[chosen[at]]
        if not cost(sums) < before:
            return chosen
