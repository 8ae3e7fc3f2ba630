"""From scores to answers: against a search through all spans."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqloom.arrays import Floats
from seqloom.data.encoding.sliding_windows import windows
from seqloom.decoding.answer_spans import Answers, best_answers

CONTEXT = "ab cd  ef g"
TOKENS = [(0, 2), (3, 5), (5, 7), (7, 8), (7, 9), (10, 11)]
"""The third is white space; the fourth and fifth share a character."""


def scores(*values: float) -> Floats:
    return np.array(values, np.float64)


def test_by_hand() -> None:
    found = best_answers(
        [scores(1, 3, 0, 2)], [scores(0.5, 1, 0, 2)], [TOKENS[:2] + TOKENS[5:]], CONTEXT, n_best=2
    )
    assert [(one.text, one.start, one.end, one.score) for one in found.spans] == [
        ("ab cd  ef g", 0, 11, 5.0),
        ("ab", 0, 2, 4.0),
    ]
    assert found.no_answer == 1.5
    weights = np.exp([5.0, 4.0, 1.5])
    assert [one.probability for one in found.spans] == pytest.approx(
        list(weights[:2] / weights.sum())
    )
    assert found.no_answer_probability == pytest.approx(weights[2] / weights.sum())


def test_an_answer_is_given_where_it_is_better_than_none_by_the_threshold() -> None:
    found = best_answers([scores(2, 1)], [scores(2, 2)], [TOKENS[:1]], CONTEXT)
    assert found.no_answer - found.spans[0].score == 1
    assert found.best() is None
    assert found.best(threshold=1.0) == found.spans[0]
    assert best_answers([scores(0)], [scores(1)], [[]], CONTEXT) == Answers((), 1.0, 1.0)
    assert best_answers([scores(0)], [scores(1)], [[]], CONTEXT).best(threshold=99) is None


def brute_force(
    starts: list[Floats], ends: list[Floats], offsets: list[list[tuple[int, int]]], longest: int
) -> dict[tuple[int, int], float]:
    found: dict[tuple[int, int], float] = {}
    for start, end, spans in zip(starts, ends, offsets, strict=True):
        for i in range(len(spans)):
            for j in range(i, min(i + longest, len(spans))):
                place, score = (spans[i][0], spans[j][1]), float(start[1 + i] + end[1 + j])
                if score > -np.inf and CONTEXT[place[0] : place[1]].strip():
                    found[place] = max(score, found.get(place, -np.inf))
    return found


@given(
    st.integers(0, 2**32), st.integers(1, 6), st.integers(1, 8), st.integers(1, 30), st.booleans()
)
def test_as_a_search_through_all_spans_of_all_windows(
    seed: int, room: int, longest: int, n_best: int, masked: bool
) -> None:
    generator = np.random.default_rng(seed)
    cut = windows(len(TOKENS), room, int(generator.integers(room)))
    offsets = [TOKENS[begin:end] for begin, end in cut]
    # as rows are padded: longer than a window
    starts, ends = ([generator.normal(size=room + 3).round(1) for _ in cut] for _ in range(2))
    if masked:
        starts[0][1 + int(generator.integers(room))] = -np.inf
        ends[-1][1:] = -np.inf
    found = best_answers(starts, ends, offsets, CONTEXT, n_best=n_best, longest=longest)
    expected = brute_force(starts, ends, offsets, longest)
    places = [(one.start, one.end) for one in found.spans]
    assert len(set(places)) == len(places) == min(n_best, len(expected))
    assert [one.score for one in found.spans] == sorted(expected.values(), reverse=True)[:n_best]
    for one in found.spans:
        assert expected[one.start, one.end] == one.score
        assert one.text == CONTEXT[one.start : one.end]
    assert found.no_answer == min(
        start[0] + end[0] for start, end in zip(starts, ends, strict=True)
    )
    assert sum(
        one.probability for one in found.spans
    ) + found.no_answer_probability == pytest.approx(1)


def test_scores_that_are_all_out() -> None:
    found = best_answers(
        [scores(-np.inf, -np.inf)], [scores(-np.inf, -np.inf)], [TOKENS[:1]], CONTEXT
    )
    assert found == Answers((), -np.inf, 1.0)
