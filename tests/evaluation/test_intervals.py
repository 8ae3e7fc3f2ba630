"""Intervals: what they hold in simulation, and what they are by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from seqloom.evaluation.intervals import ratio_interval, wilson_interval


def test_a_ratio_s_interval_holds_the_truth_in_95_of_100_corpora() -> None:
    generator = np.random.default_rng(0)
    held = 0
    for _ in range(1000):
        counts = generator.integers(1, 60, size=200).astype(float)
        # a document is hard or easy as a whole; mean 2
        hardness = generator.gamma(4.0, 0.5, size=200)
        low, high = ratio_interval(counts * hardness, counts)
        held += low <= 2.0 <= high
    assert 925 <= held <= 975  # 950 and three and a half standard deviations


def test_a_ratio_s_interval_by_hand() -> None:
    low, high = ratio_interval(np.array([1.0, 5.0]), np.array([1.0, 1.0]))
    assert (low + high) / 2 == pytest.approx(3)
    assert (high - low) / 2 == pytest.approx(
        1.959964 * math.sqrt(8 / 2) * math.sqrt(1 / 1) / math.sqrt(1), rel=1e-6
    )


def test_one_unit_says_nothing_of_spread() -> None:
    assert ratio_interval(np.array([3.0]), np.array([2.0])) == (-math.inf, math.inf)


@pytest.mark.parametrize(
    ("hits", "trials", "expected"),
    [
        (0, 10, (0.0, 0.2775)),
        (10, 10, (0.7225, 1.0)),
        (5, 10, (0.2366, 0.7634)),
        (812, 1000, (0.7866, 0.8350)),
    ],
)
def test_a_share_s_interval_is_wilson_s(
    hits: int, trials: int, expected: tuple[float, float]
) -> None:
    assert wilson_interval(hits, trials) == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("trials", [1, 3, 7, 10, 12, 1000])
def test_the_interval_of_a_share_holds_it(trials: int) -> None:
    for hits in range(trials + 1):
        low, high = wilson_interval(hits, trials)
        assert 0 <= low <= hits / trials <= high <= 1
