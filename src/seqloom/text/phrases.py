"""Phrases: pairs of words that are more often side by side than by chance, joined to one: new_york.

    score(a, b) = N (count(a b) - δ) / (count(a) count(b))        N: all words

Mikolov et al.: Distributed Representations of Words and Phrases and their Compositionality, NIPS 2013, with
the N of the program, word2phrase. As there a word is part of one pair at most, the first from the left, and
joined texts can be joined again.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple, final

from seqloom.config import DataConfig

DELTA = 5
"""δ, so that rare words make no phrases."""
MOST_PAIRS = 2**24
"""Pairs that are counted at one time; where there are more the rarest are left out, as in word2phrase."""

Pair = tuple[str, str]


class Neighbours(NamedTuple):
    """Two words with nothing but white space between."""

    pair: Pair
    end: int
    """Of the first, in the text."""
    start: int
    """Of the second."""


@final
class Phrases:
    """phrases = Phrases(DataConfig(tokenizer="words", normalisation="lower"))
    phrases.learn(texts, threshold=100)
    phrases.join("in New York")  # in New_York
    """

    def __init__(self, data: DataConfig) -> None:
        """`data` says what a word is, and whether case matters."""
        self.is_lower = data.normalisation == "lower"
        self.word = re.compile(r"\S+" if data.tokenizer == "whitespace" else r"\w+")
        self.counts: dict[Pair, int] = {}
        """Those that are joined, the most frequent first."""

    def learn(self, texts: Iterable[str], threshold: float) -> None:
        """Finds the pairs with a score above the threshold."""
        words, pairs = Counter[str](), Counter[Pair]()
        least = 1
        for text in texts:
            words.update(self._key(match[0]) for match in self.word.finditer(text))
            pairs.update(neighbours.pair for neighbours in self._neighbours(text))
            while len(pairs) > MOST_PAIRS:
                pairs = Counter({pair: count for pair, count in pairs.items() if count > least})
                least += 1
        whole = words.total()
        self.counts = {
            (a, b): count
            for (a, b), count in pairs.most_common()
            if whole * (count - DELTA) > threshold * words[a] * words[b]
        }

    def join(self, text: str) -> str:
        parts: list[str] = []
        done = joined_from = 0
        for pair, end, start in self._neighbours(text):
            if pair in self.counts and end > joined_from:
                parts += [text[done:end], "_"]
                # the second word begins no other pair
                done, joined_from = start, start + len(pair[1])
        return "".join([*parts, text[done:]])

    def _key(self, word: str) -> str:
        return word.lower() if self.is_lower else word

    def _neighbours(self, text: str) -> Iterator[Neighbours]:
        before: re.Match[str] | None = None
        for match in self.word.finditer(text):
            if before is not None and text[before.end() : match.start()].isspace():
                pair = self._key(before[0]), self._key(match[0])
                yield Neighbours(pair, before.end(), match.start())
            before = match
