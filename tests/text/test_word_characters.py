"""Letters of words as numbers."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from seqloom.text.word_characters import (
    MAX_CHARACTERS,
    UNKNOWN_CHARACTER,
    alphabet_of,
    character_ids,
)

WORDS = st.lists(st.text(max_size=30), max_size=6)


@given(WORDS)
def test_known_letters_spell_the_word(words: list[str]) -> None:
    alphabet = alphabet_of(words, min_count=1)
    for word, numbers in zip(words, character_ids(words, alphabet), strict=True):
        assert "".join(alphabet[number - 1] for number in numbers) == word[:MAX_CHARACTERS]


@given(WORDS, WORDS)
def test_letters_that_are_not_in_the_alphabet_are_the_unknown_one(
    known: list[str], words: list[str]
) -> None:
    alphabet = alphabet_of(known)
    for word, numbers in zip(words, character_ids(words, alphabet), strict=True):
        for letter, number in zip(word, numbers, strict=False):
            assert (number == UNKNOWN_CHARACTER) == (letter not in alphabet)


def test_a_letter_that_occurs_once_is_left_out() -> None:
    assert alphabet_of(["ab", "ba", "caab"]) == ("a", "b")
    assert alphabet_of(["ž", "ž"]) == ("ž",)
    assert character_ids(["abc", ""], ("a", "c")) == [[1, 0, 2], []]
