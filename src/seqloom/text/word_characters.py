"""The letters of words, for a model that reads them beside the words (`models/recurrent.py`). A letter is a
code point."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache

UNKNOWN_LETTER = 0
"""The number of a letter that the alphabet has not got; its own are numbered from 1."""

MOST_LETTERS = 24
"""Of a word; what is longer is cut, as a few such words would fill a batch with padding."""


def alphabet_of(words: Iterable[str], least: int = 2) -> tuple[str, ...]:
    """The letters that occur at least `least` times, in the order of Unicode. By default those that occur
    once are left out, so that training meets the unknown letter."""
    counts: Counter[str] = Counter()
    for word, number in Counter(words).items():
        for letter in word:
            counts[letter] += number
    return tuple(sorted(letter for letter, number in counts.items() if number >= least))


def numbered(words: Sequence[str], alphabet: tuple[str, ...]) -> list[list[int]]:
    """The numbers of the first MOST_LETTERS letters of each word."""
    numbers = _numbers(alphabet)
    return [[numbers.get(letter, UNKNOWN_LETTER) for letter in word[:MOST_LETTERS]] for word in words]


@lru_cache(maxsize=8)
def _numbers(alphabet: tuple[str, ...]) -> dict[str, int]:
    return {letter: number for number, letter in enumerate(alphabet, start=1)}
