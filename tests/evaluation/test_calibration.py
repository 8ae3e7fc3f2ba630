"""Bins and the expected calibration error, beside scikit-learn's calibration curve."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.calibration import calibration_curve

from seqloom.evaluation.calibration import bin_of, expected_calibration_error, reliability

answers = st.lists(
    st.tuples(st.one_of(st.floats(0, 1), st.sampled_from([0.0, 0.2, 0.4, 1.0])), st.booleans()),
    min_size=1,
    max_size=60,
)


@given(answers, st.sampled_from([1, 5, 10, 15]))
def test_bins_are_those_of_scikit_learn(pairs: list[tuple[float, bool]], bins: int) -> None:
    confidence, hits = np.array([c for c, _ in pairs]), np.array([h for _, h in pairs])
    # needs both outcomes
    right, sure = calibration_curve(
        np.r_[hits, True, False], np.r_[confidence, 0.0, 0.0], n_bins=bins
    )
    found = reliability(np.r_[confidence, 0.0, 0.0], np.r_[hits, True, False], bins)
    used = [one for one in found if one.examples]
    assert [one.accuracy for one in used] == pytest.approx(right)
    assert [one.confidence for one in used] == pytest.approx(sure)
    assert sum(one.examples for one in found) == len(pairs) + 2
    assert all(np.isnan([one.accuracy, one.confidence]).all() for one in found if not one.examples)


@given(answers)
def test_the_error_is_the_weighted_gap_of_the_bins(pairs: list[tuple[float, bool]]) -> None:
    confidence, hits = np.array([c for c, _ in pairs]), np.array([h for _, h in pairs])
    used = [one for one in reliability(confidence, hits) if one.examples]
    gap = sum(one.examples * abs(one.accuracy - one.confidence) for one in used) / len(pairs)
    assert expected_calibration_error(confidence, hits) == pytest.approx(gap, abs=1e-12)


def test_an_edge_belongs_to_the_bin_below_it() -> None:
    assert bin_of(np.array([0.0, 0.2, 0.2000001, 1.0]), 5).tolist() == [0, 0, 1, 4]


def test_who_is_right_as_often_as_said_has_no_error_and_who_boasts_has() -> None:
    generator = np.random.default_rng(0)
    confidence = generator.uniform(0.3, 1, size=200_000)
    hits = generator.random(200_000) < confidence
    assert expected_calibration_error(confidence, hits) < 0.01
    assert expected_calibration_error(
        confidence, generator.random(200_000) < confidence - 0.2
    ) == pytest.approx(0.2, abs=0.01)


def test_the_mean_of_no_example_is_nan() -> None:
    assert np.isnan(expected_calibration_error(np.zeros(0), np.zeros(0, bool)))
