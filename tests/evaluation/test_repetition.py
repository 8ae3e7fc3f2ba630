"""Repetition and variety: against counting by hand, where the answer is known, and loops exactly where they
were planted."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqloom.evaluation.repetition import (
    RepetitionLoop,
    RepetitionStatistics,
    ScoredContinuation,
    distinct_n,
    ngrams,
    rep_n,
    repeated_share,
    repetition_loop,
)

text = st.lists(st.integers(16, 19), max_size=25)
texts = st.lists(text, max_size=5)
sizes = st.integers(1, 5)


def places(tokens: list[int], n: int) -> range:
    return range(max(len(tokens) - n + 1, 0))


@given(text, sizes)
def test_rep_n_counts_the_ngrams_that_came_before(tokens: list[int], n: int) -> None:
    assert ngrams(tokens, n) == [tuple(tokens[at : at + n]) for at in places(tokens, n)]
    again = sum(
        any(tokens[at : at + n] == tokens[before : before + n] for before in range(at))
        for at in places(tokens, n)
    )
    share = repeated_share(tokens, n)
    if len(tokens) < n:
        assert share is None
    else:
        assert share == pytest.approx(again / len(places(tokens, n)))


@given(texts, sizes)
def test_rep_n_is_the_mean_over_texts_that_have_one(some: list[list[int]], n: int) -> None:
    shares = [share for share in (repeated_share(one, n) for one in some) if share is not None]
    assert rep_n(some, n) == pytest.approx(
        float(np.mean(shares)) if shares else math.nan, nan_ok=True
    )


@given(texts, sizes)
def test_distinct_n_counts_over_all_texts_and_never_across_two(
    some: list[list[int]], n: int
) -> None:
    seen: list[list[int]] = []
    total = 0
    for one in some:
        for at in places(one, n):
            total += 1
            if one[at : at + n] not in seen:
                seen.append(one[at : at + n])
    assert distinct_n(some, n) == pytest.approx(
        len(seen) / total if total else math.nan, nan_ok=True
    )


@given(st.integers(1, 30), sizes)
def test_a_text_without_repetition_and_one_of_nothing_else(length: int, n: int) -> None:
    fresh, constant = list(range(16, 16 + length)), [16] * length
    if length >= n:
        count = length - n + 1
        assert (repeated_share(fresh, n), distinct_n([fresh], n)) == (0, 1)
        assert repeated_share(constant, n) == pytest.approx(1 - 1 / count)
        assert distinct_n([constant, constant], n) == pytest.approx(1 / (2 * count))
    assert repetition_loop(fresh) is None
    assert repetition_loop(constant) == (RepetitionLoop(2, length // 2) if length >= 6 else None)


@given(text, st.integers(2, 6), st.integers(1, 6), st.integers(0, 5))
def test_a_loop_is_found_where_it_was_planted(
    before: list[int], length: int, copies: int, part: int
) -> None:
    """After any text a phrase of tokens that differ, so often, and perhaps a part of it once more."""
    phrase = list(range(30, 30 + length))
    rest = phrase[: min(part, length - 1)]
    assert repetition_loop([*before, *phrase * copies, *rest]) == (
        RepetitionLoop(length, copies) if copies >= 3 else None
    )
    assert repetition_loop([*before, *phrase * copies, *rest, 99]) is None


@given(st.lists(st.integers(16, 17), max_size=18))
def test_a_loop_is_three_copies_of_two_tokens_or_more(tokens: list[int]) -> None:
    phrases = [
        n for n in range(2, 7) if len(tokens) >= 3 * n and tokens[-n:] * 3 == tokens[-3 * n :]
    ]
    found = repetition_loop(tokens)
    assert (found is not None) == bool(phrases)
    if found is not None:
        n, copies = found
        assert n == phrases[0]
        assert tokens[-n:] * copies == tokens[-n * copies :]
        assert tokens[-n:] * (copies + 1) != tokens[-n * (copies + 1) :]


def test_statistics_of_three_texts() -> None:
    looped = ScoredContinuation([16, 17] * 4, False, np.log([0.5] * 8))
    short = ScoredContinuation([20], True, np.log([0.25, 1.0]))
    empty = ScoredContinuation([], True, np.log([0.1]))
    found = RepetitionStatistics.from_texts([looped, short, empty])
    assert found.perplexity == pytest.approx((0.5**8 * 0.25 * 0.1) ** (-1 / 11))
    assert found.mean_probability == pytest.approx((8 * 0.5 + 0.25 + 1 + 0.1) / 11)
    assert found.rep_4 == pytest.approx(3 / 5)
    assert (found.loops, found.finished) == pytest.approx((1 / 3, 2 / 3))
    assert (found.distinct_1, found.distinct_2, found.distinct_3) == pytest.approx(
        (3 / 9, 2 / 7, 2 / 6)
    )
    assert found.mean_length == 3
    assert found.texts_by_position == [3, 2, 1, 1, 1, 1, 1, 1]
    assert found.by_position[:3] == pytest.approx([(0.5 + 0.25 + 0.1) / 3, 0.75, 0.5])
    nothing = RepetitionStatistics.from_texts([empty])
    assert math.isnan(nothing.rep_4)
    assert math.isnan(nothing.distinct_1)
    assert (
        RepetitionStatistics.from_texts(
            [ScoredContinuation([16], False, np.array([-800.0]))]
        ).perplexity
        == math.inf
    )
