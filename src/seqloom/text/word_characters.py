"""The characters of words, for models that read them beside the words (`models/recurrent.py`). A character is
a code point."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache

UNKNOWN_CHARACTER = 0
"""The id of a character outside of the alphabet; those of the alphabet have ids from 1."""

MAX_CHARACTERS = 24
"""Characters of a word that are read. A few longer words would fill a batch with padding."""


def alphabet_of(words: Iterable[str], min_count: int = 2) -> tuple[str, ...]:
    """The characters that occur at least `min_count` times, in the order of Unicode. By default those that
    occur once are left out, so that training sees the unknown character."""
    counts: Counter[str] = Counter()
    for word, number in Counter(words).items():
        for character in word:
            counts[character] += number
    return tuple(sorted(character for character, number in counts.items() if number >= min_count))


def character_ids(words: Sequence[str], alphabet: tuple[str, ...]) -> list[list[int]]:
    """The ids of the first MAX_CHARACTERS characters of each word."""
    ids = _ids(alphabet)
    return [
        [ids.get(character, UNKNOWN_CHARACTER) for character in word[:MAX_CHARACTERS]]
        for word in words
    ]


@lru_cache(maxsize=8)
def _ids(alphabet: tuple[str, ...]) -> dict[str, int]:
    return {character: number for number, character in enumerate(alphabet, start=1)}
