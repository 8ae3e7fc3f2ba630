"""Correlations with weights are those of the repeated items, as scipy has them; intervals hold what they
must."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import stats  # type: ignore[import-untyped]
from sklearn.metrics import mean_squared_error

from seqloom.evaluation.correlation import correlations, number_metrics, pearson, ranks, spearman
from seqloom.evaluation.intervals import bootstrap_intervals

items = st.lists(
    st.tuples(st.integers(0, 5), st.integers(0, 5), st.integers(0, 3)), min_size=2, max_size=30
)


@given(items)
def test_weights_are_repetitions(drawn: list[tuple[int, int, int]]) -> None:
    x, y, times = np.array(drawn, np.float64).T
    every_x, every_y = np.repeat(x, times.astype(int)), np.repeat(y, times.astype(int))
    assume(len(every_x) > 1)
    weights = np.stack([times, np.ones_like(times)])
    assert np.repeat(ranks(x, weights)[0], times.astype(int)) == pytest.approx(
        stats.rankdata(every_x)
    )
    for ours, theirs in ((pearson, stats.pearsonr), (spearman, stats.spearmanr)):
        found = ours(x, y, weights)[0]
        if np.ptp(every_x) == 0 or np.ptp(every_y) == 0:
            assert np.isnan(found)
        else:
            assert found == pytest.approx(theirs(every_x, every_y)[0], abs=1e-12)


def test_a_constant_side_has_no_correlation() -> None:
    found = correlations(np.full(9, 0.1), np.arange(9.0))
    assert all(np.isnan(value) for value in found.values())


def test_the_interval_is_that_of_fisher_for_normal_numbers() -> None:
    generator = np.random.default_rng(5)
    x = generator.normal(size=400)
    y = x + generator.normal(size=400)
    found, interval = correlations(x, y), stats.pearsonr(x, y).confidence_interval()
    assert found["pearson_low"] == pytest.approx(100 * interval.low, abs=1.5)
    assert found["pearson_high"] == pytest.approx(100 * interval.high, abs=1.5)
    assert found["spearman_low"] < found["spearman"] < found["spearman_high"]


def test_a_bootstrap_of_a_mean() -> None:
    values = np.random.default_rng(1).normal(size=2000)
    ((low, high),) = bootstrap_intervals(
        lambda weights: (weights @ values / weights.sum(axis=1))[:, None], len(values)
    )
    error = 1.96 * values.std() / np.sqrt(len(values))
    assert (low, high) == pytest.approx(
        (values.mean() - error, values.mean() + error), abs=error / 8
    )
    assert np.isnan(
        bootstrap_intervals(lambda weights: np.full((len(weights), 1), np.nan), 3)
    ).all()


def test_numbers_are_measured_as_by_scikit_learn() -> None:
    generator = np.random.default_rng(2)
    true = generator.normal(size=500)
    told = true + generator.normal(size=500)
    found = number_metrics(true, told)
    assert found["mean_squared_error"] == pytest.approx(mean_squared_error(true, told))
    assert found["spearman"] == pytest.approx(100 * stats.spearmanr(true, told)[0])
    error = 1.96 * ((told - true) ** 2).std() / np.sqrt(500)
    ends = found["mean_squared_error_low"], found["mean_squared_error_high"]
    assert ends == pytest.approx(
        (found["mean_squared_error"] - error, found["mean_squared_error"] + error), abs=error / 5
    )
    assert found["examples"] == 500
