"""How an answer is chosen by likelihood, by the equations of the papers."""

from __future__ import annotations

import math

import numpy as np
import pytest

from seqloom.tasks.prompting.answers import LogProb
from seqloom.tasks.prompting.choices import ScoredItem, Spread, accuracy, choose


def test_a_tie_chooses_nothing() -> None:
    assert choose(np.array([-1.0, -3.0])) == 0
    assert choose(np.array([-1.0, -1.0])) is None
    assert choose(np.array([-math.inf, -math.inf])) is None


ITEM = ScoredItem(
    given=[LogProb(math.log(0.2), 1, False), LogProb(math.log(0.06), 2, False)],
    bytes=[1, 4],
    alone=[math.log(0.4), math.log(0.01)],
    content_free=[math.log(0.09), math.log(0.01)],
)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("raw", [math.log(0.2), math.log(0.06)]),
        ("token", [math.log(0.2), math.log(0.06) / 2]),
        ("byte", [math.log(0.2), math.log(0.06) / 4]),
        ("pmi", [math.log(0.2 / 0.4), math.log(0.06 / 0.01)]),
        # the content-free probabilities of the two answers are 0.9 and 0.1
        ("calibrated", [math.log(0.2 / 0.9), math.log(0.06 / 0.1)]),
    ],
)
def test_each_kind_of_score_is_its_equation(kind: str, expected: list[float]) -> None:
    assert ITEM.by(kind) == pytest.approx(expected)


def test_an_impossible_answer_is_never_chosen() -> None:
    item = ITEM._replace(
        given=[LogProb(-math.inf, 1, False), LogProb(-5.0, 2, False)],
        alone=[-math.inf, -math.inf],
        content_free=[-math.inf, -2.0],
    )
    for kind in ("raw", "token", "byte", "pmi", "calibrated"):
        assert choose(item.by(kind)) == 1, kind


def test_the_interval_of_one_run_is_wilsons_and_that_of_several_is_over_items() -> None:
    right = np.array([True] * 30 + [False] * 10)
    one = accuracy([right])
    assert (one.value, round(one.low, 1), round(one.high, 1)) == (75.0, 59.8, 85.8)
    several = accuracy([right, right[::-1]])
    assert several.value == 75.0
    assert several.low < 75.0 < several.high


def test_the_spread_of_one_number_is_not_known() -> None:
    two = Spread.of([50.0, 60.0])
    assert (two.mean, two.min, two.max) == (55.0, 50.0, 60.0)
    assert two.deviation == pytest.approx(math.sqrt(50))
    assert math.isnan(Spread.of([50.0]).deviation)
