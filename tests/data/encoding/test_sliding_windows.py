"""Windows over long texts: everything is read, and each place is answered once."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqloom.data.encoding.sliding_windows import best_windows, merge_windows, windows, word_windows
from seqloom.errors import UsageError

ROOM_AND_STRIDE = st.integers(1, 12).flatmap(
    lambda room: st.tuples(st.just(room), st.integers(0, room - 1))
)


def test_windows_by_hand() -> None:
    assert windows(0, 4, 1) == [(0, 0)]
    assert windows(4, 4, 1) == [(0, 4)]
    assert windows(5, 4, 1) == [(0, 4), (1, 5)]
    assert windows(10, 4, 1) == [(0, 4), (3, 7), (6, 10)]
    assert windows(9, 4, 2) == [(0, 4), (2, 6), (4, 8), (5, 9)]


@given(st.integers(0, 60), ROOM_AND_STRIDE)
def test_windows_cover_a_text_and_are_full(length: int, sizes: tuple[int, int]) -> None:
    room, stride = sizes
    found = windows(length, room, stride)
    assert found[0][0] == 0
    assert found[-1][1] == length
    assert all(end - begin == min(room, length) for begin, end in found)
    assert all(
        before[0] < after[0] and before[1] - after[0] >= stride for before, after in pairwise(found)
    )
    assert all(before[1] - after[0] == stride for before, after in pairwise(found[:-1]))


@given(st.lists(st.integers(0, 15), max_size=30), ROOM_AND_STRIDE)
def test_no_word_is_cut_and_each_is_in_a_window(words: list[int], sizes: tuple[int, int]) -> None:
    room, stride = sizes
    found = word_windows(words, room, stride)
    fits = [min(size, room) for size in words]
    assert all(sum(fits[begin:end]) <= room for begin, end in found)
    assert {at for begin, end in found for at in range(begin, end)} == set(range(len(words)))
    assert all(before[0] < after[0] and before[1] < after[1] for before, after in pairwise(found))
    for begin, end in found:  # nothing more would fit in
        assert end == len(words) or sum(fits[begin : end + 1]) > room
    for before, after in pairwise(found):  # as much is shared as may be
        begin = after[0]
        assert (
            begin == 0
            or sum(fits[begin - 1 : before[1]]) > stride
            or sum(fits[begin - 1 : before[1] + 1]) > room
            or after is found[-1]
        )


@given(st.integers(0, 60), ROOM_AND_STRIDE)
def test_words_of_one_token_are_cut_as_tokens_are(length: int, sizes: tuple[int, int]) -> None:
    assert word_windows([1] * length, *sizes) == windows(length, *sizes)


@given(st.lists(st.integers(0, 15), max_size=30), ROOM_AND_STRIDE)
def test_as_many_answers_as_words_each_of_its_own_word(
    words: list[int], sizes: tuple[int, int]
) -> None:
    found = word_windows(words, *sizes)
    assert merge_windows(found, [list(range(*window)) for window in found], len(words)) == list(
        range(len(words))
    )


@given(st.integers(1, 60), ROOM_AND_STRIDE)
def test_a_place_is_answered_where_it_sees_most_on_its_nearer_side(
    length: int, sizes: tuple[int, int]
) -> None:
    found = windows(length, *sizes)
    for at, window in enumerate(best_windows(found, length)):
        nearer = [
            min(at - begin, end - 1 - at) if begin <= at < end else -1 for begin, end in found
        ]
        assert nearer[window] == max(nearer)
        assert window == nearer.index(max(nearer))


def test_a_window_that_does_not_move_on_is_refused() -> None:
    for room, stride in ((4, 4), (4, 5), (1, 1), (0, 0), (4, -1)):
        with pytest.raises(
            UsageError, match=r"data\.stride, .*, must be less than what a window holds"
        ):
            windows(9, room, stride)
        with pytest.raises(
            UsageError, match=r"data\.stride, .*, must be less than what a window holds"
        ):
            word_windows([1] * 9, room, stride)
    with pytest.raises(ValueError, match="in no window"):
        best_windows([(0, 2), (3, 4)], 4)
