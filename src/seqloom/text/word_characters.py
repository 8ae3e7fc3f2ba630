"""Characters of words, for models that read them: code points beside the words (`models/recurrent.py`), or
the bytes of each token in place of its id (`models/elmo.py`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, final

if TYPE_CHECKING:
    from seqloom.protocols import StoredTokenizer

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


@final
class TokenSpelling:
    """The bytes of each token of a tokenizer. A word that the vocabulary does not hold is spelled too: it has
    an id of its own, beyond the vocabulary, until `take_unknown` is called."""

    def __init__(self, tokenizer: StoredTokenizer, longest: int) -> None:
        """`longest`: the bytes of a word that are read."""
        self.tokenizer, self.longest = tokenizer, longest
        names = tokenizer.pieces(range(tokenizer.vocabulary_size))
        pairs = zip(tokenizer.token_bytes, names, strict=True)
        self.known = [list((spelled or name.encode())[:longest]) for spelled, name in pairs]
        """Of each id; a special one has its name."""
        self._unknown: dict[str, int] = {}

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text."""
        encoded = self.tokenizer.encode(texts)
        unk = self.tokenizer.special_ids.unk
        if unk is None or not self.tokenizer.has_unknown:
            return encoded
        for text, ids in zip(texts, encoded, strict=True):
            if unk not in ids:
                continue
            (spans,) = self.tokenizer.offsets([text])
            for index, (begin, end) in enumerate(spans):
                if ids[index] == unk:
                    word = self.tokenizer.normalise(text[begin:end])
                    ids[index] = len(self.known) + self._unknown.setdefault(
                        word, len(self._unknown)
                    )
        return encoded

    def take_unknown(self) -> list[list[int]]:
        """The bytes of the unknown words since the last call, in the order of their ids."""
        words, self._unknown = [*self._unknown], {}
        return [list(word.encode()[: self.longest]) for word in words]
