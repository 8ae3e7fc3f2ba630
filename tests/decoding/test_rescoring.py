"""Rescoring: the envelope finds what a grid finds, tuning is never worse than where it began."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seqloom.arrays import Floats
from seqloom.decoding import rescoring
from seqloom.decoding.rescoring import (
    Ints,
    NBestLists,
    corners,
    line_search,
    normalised,
    oracle,
    tune,
)


def lists_of(*tables: list[tuple[float, ...]]) -> NBestLists:
    sizes = [len(table) for table in tables]
    rows = np.array([row for table in tables for row in table], np.float64)
    return NBestLists(features=rows, starts=np.cumsum([0, *sizes[:-1]]))


def rate(sums: Ints) -> Floats:
    return np.asarray(sums[..., 0] / sums[..., 1])


@st.composite
def problems(draw: st.DrawFn, features: int = 2) -> tuple[NBestLists, Ints]:
    """A few lists of whole-numbered features, with ties and copies, and (errors, length) of each
    hypothesis."""
    sizes = draw(st.lists(st.integers(1, 6), min_size=1, max_size=5))
    numbers = st.lists(st.integers(-4, 4), min_size=features, max_size=features)
    rows = draw(st.lists(numbers, min_size=sum(sizes), max_size=sum(sizes)))
    errors = draw(st.lists(st.integers(0, 9), min_size=sum(sizes), max_size=sum(sizes)))
    lists = NBestLists(features=np.array(rows, np.float64), starts=np.cumsum([0, *sizes[:-1]]))
    return lists, np.array([[one, 10] for one in errors], np.int64)


def cost_at(lists: NBestLists, statistics: Ints, weights: Floats) -> float:
    return float(rate(statistics[lists.chosen(weights)].sum(axis=0)))


GRID = np.arange(-9, 9, 1 / 7) + 1e-3
"""Slopes and heights differ by whole numbers up to 8, so corners lie at k / n with k and n up to 8: none is
on the grid or beyond it. A piece between corners may be 1 / 56 narrow and missed by the grid: the search may
be better, never worse."""


@given(problems())
def test_a_line_search_is_never_worse_than_a_grid_and_keeps_its_promise(
    problem: tuple[NBestLists, Ints],
) -> None:
    lists, statistics = problem
    weights, direction = np.array([1.0, 0.0]), np.array([0.0, 1.0])
    gamma, promised = line_search(lists, statistics, rate, weights, direction)
    assert promised <= min(cost_at(lists, statistics, weights + step * direction) for step in GRID)
    assert cost_at(lists, statistics, weights + gamma * direction) == promised


@given(problems())
def test_between_corners_the_envelope_is_the_choice(problem: tuple[NBestLists, Ints]) -> None:
    lists, _ = problem
    weights, direction = np.array([1.0, 0.0]), np.array([0.0, 1.0])
    found = corners(lists, weights, direction)
    assert (np.diff(found.gamma) >= 0).all()
    chosen = found.first.copy()
    edges = [-100.0, *found.gamma, 100.0]
    for at, (low, high) in enumerate(itertools.pairwise(edges)):
        if high - low > 1e-9:
            there = lists.chosen(weights + (low + high) / 2 * direction)
            assert sorted(chosen) == sorted(there)
        if at < len(found.gamma):
            assert found.leaves[at] in chosen
            chosen[chosen == found.leaves[at]] = found.enters[at]


def test_an_envelope_by_hand() -> None:
    """Heights and slopes (0, 0), (-1, 1), (-4, 2) and one that is never highest: corners at 1 and 3."""
    lists = lists_of([(0, 0), (-1, 1), (-4, 2), (-3, 1)])
    found = corners(lists, np.array([1.0, 0.0]), np.array([0.0, 1.0]))
    assert found.first.tolist() == [0]
    assert found.gamma.tolist() == [1, 3]
    assert (found.leaves.tolist(), found.enters.tolist()) == ([0, 1], [1, 2])
    errors = np.array([[3, 10], [1, 10], [2, 10], [0, 10]])
    assert line_search(lists, errors, rate, np.array([1.0, 0.0]), np.array([0.0, 1.0])) == (2, 0.1)


@settings(max_examples=15)
@given(problems(features=3))
def test_tuning_is_never_worse_than_its_points(problem: tuple[NBestLists, Ints]) -> None:
    lists, statistics = problem
    points = np.concatenate([np.zeros((1, 3)), np.eye(3), np.full((1, 3), 0.5)])
    weights = tune(lists, statistics, rate, points)
    assert cost_at(lists, statistics, weights) <= min(
        cost_at(lists, statistics, point) for point in points
    )
    assert weights.tolist() == tune(lists, statistics, rate, points).tolist()  # the same again
    best = oracle(lists, statistics, rate, lists.chosen(weights))
    lowest = [
        statistics[first:end, 0].min()
        for first, end in itertools.pairwise([*lists.starts, len(statistics)])
    ]
    assert statistics[best, 0].sum() == sum(lowest)


def test_tuning_finds_a_mixture_that_no_feature_alone_is() -> None:
    """The right hypothesis is second in both features, and first in their sum less a penalty in the third."""
    generator = np.random.default_rng(3)
    tables: list[list[tuple[float, ...]]] = [
        [(5.0, 0.0, 1.0), (4.0 + x, 4.0 - x, 2.0), (0.0, 5.0, 1.0), (5.5, 5.0, 9.0)]
        for x in generator.uniform(-0.9, 0.9, 20)
    ]
    lists, statistics = lists_of(*tables), np.tile([[3, 10], [0, 10], [3, 10], [5, 10]], (20, 1))
    alone = [cost_at(lists, statistics, unit) for unit in np.eye(3)]
    assert min(alone) > 0
    assert cost_at(lists, statistics, tune(lists, statistics, rate, np.eye(3))) == 0


def test_a_search_that_promises_too_much_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounding may betray a promise; what is reached is then no worse than where it began, and the best point
    wins."""
    lists, statistics = (
        lists_of([(0, 3), (0, 1), (1, 2), (0, 4)], [(0, 5), (1, 0)]),
        np.array([[3, 9], [0, 9], [1, 9], [4, 9], [2, 9], [0, 9]]),
    )
    monkeypatch.setattr(rescoring, "line_search", lambda *_: (50.0, -1.0))
    points = np.array([[0.0, 1.0], [0.0, -1.0], [0.0, 0.0]])
    weights = tune(lists, statistics, rate, points)
    assert cost_at(lists, statistics, weights) == 0
    monkeypatch.setattr(rescoring, "STARTS", 0)
    assert tune(lists, statistics, rate, points).tolist() == [0, -1]


def test_of_equal_totals_the_earlier_is_chosen() -> None:
    lists = lists_of([(1, 0), (1, 5), (1, 5)], [(0, 2), (0, 2)])
    assert lists.chosen(np.array([1.0, 0.0])).tolist() == [0, 3]
    assert lists.chosen(np.array([0.0, 1.0])).tolist() == [1, 3]
    assert lists.chosen(np.zeros(2)).tolist() == [0, 3]


@given(problems(features=3), st.integers(0, 1000))
def test_the_order_of_lists_and_of_hypotheses_with_other_totals_means_nothing(
    problem: tuple[NBestLists, Ints], seed: int
) -> None:
    lists, statistics = problem
    weights = np.array([1.0, np.sqrt(2) / 100, np.sqrt(3) / 10_000])  # equal totals: equal features
    bounds = list(itertools.pairwise([*lists.starts, len(statistics)]))
    order = np.random.default_rng(seed).permutation(len(bounds))
    # stable: equal ones stay in order
    rows = [sorted(range(*bounds[at]), key=lambda row: tuple(lists.features[row])) for at in order]
    moved = NBestLists(
        features=np.concatenate([lists.features[some] for some in rows]),
        starts=np.cumsum([0, *(len(some) for some in rows[:-1])]),
    )
    there = np.concatenate([statistics[some] for some in rows])
    assert cost_at(moved, there, weights) == cost_at(lists, statistics, weights)


def test_weights_are_scaled_to_what_can_be_printed() -> None:
    assert normalised(np.array([3.0, -1.0, 0.0])).tolist() == [1, -0.333333, 0]
    assert normalised(np.zeros(2)).tolist() == [0, 0]


def test_an_oracle_of_a_cost_that_is_no_sum_is_at_least_as_good_as_its_start() -> None:
    generator = np.random.default_rng(0)
    statistics = generator.integers(1, 9, size=(40, 2))
    lists = NBestLists(features=np.zeros((40, 1)), starts=np.arange(0, 40, 4))

    def cost(sums: Ints) -> Floats:
        return np.asarray(-np.sqrt(sums[..., 0]) / sums[..., 1])

    start = lists.starts
    found = oracle(lists, statistics, cost, start)
    assert cost(statistics[found].sum(axis=0)) < cost(statistics[start].sum(axis=0))
    assert (found // 4 == np.arange(10)).all()  # each within its list


@pytest.mark.parametrize("size", [1e-300, 1e300])
def test_lines_that_are_all_but_parallel_do_no_harm(size: float) -> None:
    lists = lists_of([(1.0, 0.0), (0.0, size)])
    assert len(corners(lists, np.array([1.0, 0.0]), np.array([0.0, 1e-20])).gamma) <= 1
