"""Letters of words as numbers."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from seqloom.text.word_characters import MOST_LETTERS, UNKNOWN_LETTER, alphabet_of, numbered

WORDS = st.lists(st.text(max_size=30), max_size=6)


@given(WORDS)
def test_known_letters_spell_the_word(words: list[str]) -> None:
    alphabet = alphabet_of(words, least=1)
    for word, numbers in zip(words, numbered(words, alphabet), strict=True):
        assert "".join(alphabet[number - 1] for number in numbers) == word[:MOST_LETTERS]


@given(WORDS, WORDS)
def test_letters_that_are_not_in_the_alphabet_are_the_unknown_one(known: list[str], words: list[str]) -> None:
    alphabet = alphabet_of(known)
    for word, numbers in zip(words, numbered(words, alphabet), strict=True):
        for letter, number in zip(word, numbers, strict=False):
            assert (number == UNKNOWN_LETTER) == (letter not in alphabet)


def test_a_letter_that_occurs_once_is_left_out() -> None:
    assert alphabet_of(["ab", "ba", "caab"]) == ("a", "b")
    assert alphabet_of(["ž", "ž"]) == ("ž",)
    assert numbered(["abc", ""], ("a", "c")) == [[1, 0, 2], []]
