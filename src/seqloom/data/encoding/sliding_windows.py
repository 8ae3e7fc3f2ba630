"""Texts that are longer than a model reads: cut into windows that overlap.

A tag comes from the window with most context around its word, where the smaller of its contexts, left and
right, is largest: Devlin et al. 2019 (the code of their SQuAD experiments, `_check_is_max_context`). Answers
are compared by their scores in all windows (`decoding/answer_spans.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import TypeVar

from seqloom.errors import UsageError

T = TypeVar("T")
Window = tuple[int, int]
"""(begin, end) of what is read together; the end is excluded."""


def windows(length: int, room: int, stride: int) -> list[Window]:
    """Windows of at most `room` places that cover a text of `length`; neighbours share `stride` places or
    more.

    Where there are several, all are full: the last one begins `room` before the end. An empty text has one
    window, (0, 0). Raises UsageError if windows would not move on.
    """
    _check(room, stride)
    if length <= room:
        return [(0, length)]
    begins = [*range(0, length - room, room - stride), length - room]
    return [(begin, begin + room) for begin in begins]


def word_windows(sizes: Sequence[int], room: int, stride: int) -> list[Window]:
    """Windows over words of so many tokens each: `words[begin:end]` have at most `room` tokens.

    No word is cut, except one that alone has more than `room` tokens: its first `room` are read. A word of no
    tokens keeps its place. Neighbours share as many words as have at most `stride` tokens. Raises UsageError
    if windows would not move on.
    """
    _check(room, stride)
    total = [0, *accumulate(min(size, room) for size in sizes)]  # tokens before each word
    found: list[Window] = []
    begin = end = 0
    while True:
        while end < len(sizes) and total[end + 1] - total[begin] <= room:
            end += 1
        if end == len(sizes):
            break
        found.append((begin, end))
        while total[end] - total[begin] > stride or total[end + 1] - total[begin] > room:
            begin += 1
    while begin > 0 and total[end] - total[begin - 1] <= room:
        begin -= 1
    return [*found, (begin, end)]


def _check(room: int, stride: int) -> None:
    if not 0 <= stride < room:
        raise UsageError(
            f"data.stride, the tokens that two windows share, must be less than what a window holds ({room}),"
            f" but is {stride}; make it smaller, or let the model read more"
        )


def best_windows(windows: Sequence[Window], length: int) -> list[int]:
    """The window that answers each place of a text of `length`: the one with most context on its nearer side,
    else in all, else the first. Every place must be in a window."""
    best: list[tuple[int, int, int]] = [(-1, -1, -1)] * length
    for number, (begin, end) in enumerate(windows):
        for place in range(begin, end):
            context = min(place - begin, end - 1 - place), end - begin, -number
            best[place] = max(best[place], context)
    if any(nearer < 0 for nearer, _, _ in best):
        raise ValueError("a place of the text is in no window")
    return [-number for _, _, number in best]


def merge_windows(
    windows: Sequence[Window], answers: Sequence[Sequence[T]], length: int
) -> list[T]:
    """One answer for each place of a text; `answers[window]` has one for each place of the window."""
    best = best_windows(windows, length)
    return [answers[window][place - windows[window][0]] for place, window in enumerate(best)]
