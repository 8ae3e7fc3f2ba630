"""Tests of differences keep their laws: p = 1 where nothing differs, uniform where nothing but luck does,
McNemar's where that applies."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats  # type: ignore[import-untyped]

from seqloom.evaluation.classification import f1_of_counts
from seqloom.evaluation.significance import (
    Interval,
    mean_interval,
    paired_bootstrap,
    permutation_p_value,
    t_inside,
    t_quantile,
)

answers = st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=60)


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=20))
def test_the_same_system_twice_has_p_1(items: list[float]) -> None:
    values = np.array(items)
    assert permutation_p_value(values, values, resamples=50) == 1
    assert paired_bootstrap(values, values, resamples=50) == (0, 0, 0, 1)


@given(answers)
def test_the_order_of_the_systems_only_turns_the_sign(pairs: list[tuple[bool, bool]]) -> None:
    first, second = np.array(pairs).T
    assert permutation_p_value(first, second, resamples=200) == permutation_p_value(
        second, first, resamples=200
    )
    one, other = (
        paired_bootstrap(first, second, resamples=200),
        paired_bootstrap(second, first, resamples=200),
    )
    assert (one.value, one.low, one.high, one.p) == pytest.approx(
        (-other.value, -other.high, -other.low, other.p)
    )


@pytest.mark.parametrize(
    ("only_first", "only_second"), [(9, 1), (12, 4), (30, 18), (5, 5), (1, 0), (0, 8)]
)
def test_permutations_of_hits_are_mcnemar_s_exact_test(only_first: int, only_second: int) -> None:
    """A swap is a coin for each item on which only one was right."""
    first = np.r_[np.ones(only_first), np.zeros(only_second), np.ones(200), np.zeros(50)]
    second = np.r_[np.zeros(only_first), np.ones(only_second), np.ones(200), np.zeros(50)]
    exact = stats.binomtest(only_first, only_first + only_second).pvalue
    assert permutation_p_value(first, second) == pytest.approx(
        exact, abs=4 * math.sqrt(exact * (1 - exact) / 10_000) + 2e-4
    )


def nothing_but_luck(seed: int, counts: bool) -> tuple[float, float]:
    """p of both tests for two systems of one skill."""
    generator = np.random.default_rng(seed)
    hardness = generator.beta(2, 2, size=150)
    first, second = (generator.gamma(2, hardness) for _ in range(2))
    if not counts:
        return (
            permutation_p_value(first, second, resamples=400, seed=seed),
            paired_bootstrap(first, second, resamples=400, seed=seed).p,
        )
    true = generator.integers(1, 5, size=150)
    systems = []
    for _ in range(2):
        hits = generator.binomial(true, hardness)
        systems.append(np.stack([hits, hits + generator.poisson(0.7, size=150), true], axis=1))
    first, second = systems
    return (
        permutation_p_value(first, second, f1_of_counts, resamples=400, seed=seed),
        paired_bootstrap(first, second, f1_of_counts, resamples=400, seed=seed).p,
    )


@pytest.mark.parametrize("counts", [False, True], ids=["mean", "F1"])
def test_p_is_uniform_where_nothing_differs_but_luck(counts: bool) -> None:
    found = np.array([nothing_but_luck(seed, counts) for seed in range(600)])
    for limit in (0.05, 0.2, 0.5):
        chance = 3.5 * math.sqrt(limit * (1 - limit) / 600)
        shares = (found <= limit).mean(axis=0)
        assert shares == pytest.approx([limit, limit], abs=chance + 0.01), limit


def test_a_difference_is_found_and_its_interval_holds_it() -> None:
    held = 0
    for seed in range(300):
        generator = np.random.default_rng(seed)
        common = generator.normal(size=100)
        first, second = (
            common + 0.3 + 0.5 * generator.normal(size=100),
            common + 0.5 * generator.normal(size=100),
        )
        found = paired_bootstrap(first, second, resamples=500)
        held += found.low <= 0.3 <= found.high
    # 285 and three and a half standard deviations; the percentiles of a hundred items are a little narrow
    assert 270 <= held <= 296
    clear = paired_bootstrap(first + 0.2, second)
    assert clear.low > 0
    assert clear.p < 0.001
    assert permutation_p_value(first + 0.2, second) < 0.001
    assert (
        permutation_p_value(first, second, seed=1)
        == permutation_p_value(first, second, seed=1)
        != permutation_p_value(first, second, seed=2)
    )


def test_a_small_sample_by_all_its_swaps() -> None:
    first, second = np.array([3.0, 1.0, 4.0, 1.0, 5.0]), np.array([2.0, 2.0, 1.0, 0.0, 3.0])
    signs = np.array(np.meshgrid(*[[-1, 1]] * 5)).reshape(5, -1).T
    exact = (np.abs(signs @ (first - second)) >= abs((first - second).sum()) - 1e-12).mean()
    assert permutation_p_value(first, second) == pytest.approx(exact, abs=0.015)


def test_without_a_score_there_is_no_p() -> None:
    nothing = np.zeros((4, 3))
    assert math.isnan(permutation_p_value(nothing, nothing, f1_of_counts))
    assert np.isnan(paired_bootstrap(nothing, nothing, f1_of_counts)).all()


def test_systems_must_have_answered_the_same_items() -> None:
    with pytest.raises(ValueError, match="the same items"):
        paired_bootstrap(np.zeros(3), np.zeros(4))


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 5, 7, 9, 10, 29, 30, 100, 201])
def test_student_s_t_is_that_of_scipy(freedom: int) -> None:
    assert t_quantile(freedom) == pytest.approx(stats.t.ppf(0.975, freedom), rel=1e-9)
    assert t_quantile(freedom, 0.99) == pytest.approx(stats.t.ppf(0.995, freedom), rel=1e-9)
    for t in (0.0, 0.3, 1.7, 12.0):
        assert t_inside(t, freedom) == pytest.approx(1 - 2 * stats.t.sf(t, freedom), abs=1e-12)


def test_a_mean_over_seeds() -> None:
    assert mean_interval([0.8, 0.9, 0.85]) == pytest.approx(
        (0.85, 0.85 - 4.302653 * 0.05 / 3**0.5, 0.85 + 4.302653 * 0.05 / 3**0.5)
    )
    assert mean_interval([0.7]) == Interval(0.7, -math.inf, math.inf)
    held = sum(
        found.low <= 2 <= found.high
        for found in (
            mean_interval(list(np.random.default_rng(seed).normal(2, 1, size=3)))
            for seed in range(2000)
        )
    )
    assert held / 2000 == pytest.approx(0.95, abs=0.017)
