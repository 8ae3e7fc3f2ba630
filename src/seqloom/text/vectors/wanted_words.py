"""Which words of a file are kept, and which of them each wanted word takes."""

from __future__ import annotations

from collections.abc import Collection
from typing import Generic, TypeVar, final

V = TypeVar("V")


@final
class WantedWords(Generic[V]):
    """`words` None wants all. With `fold_case` a word that is not in the file as it is written takes its
    lower case, or else the first that differs only in case; where all are wanted, all are folded."""

    def __init__(self, words: Collection[str] | None, fold_case: bool) -> None:
        self.words = None if words is None else dict.fromkeys(words)
        self.fold_case = fold_case
        self.folded = {word.lower() for word in self.words or ()} if fold_case else set()
        self.kept: dict[str, V] = {}
        """Words as the file has them -> what is kept of each; never None."""
        self.repeated = 0
        """Words that the file has again."""

    def wants(self, word: str) -> bool:
        """Whether a word of the file is to be kept: it is wanted, and the file had it not before."""
        if self.words is not None and word not in self.words and word.lower() not in self.folded:
            return False
        if word in self.kept:
            self.repeated += 1
            return False
        return True

    def found(self) -> dict[str, V]:
        """Wanted word -> what is kept of the word that it takes, in the order of the wanted ones."""
        takes: dict[str, V] = {}
        if self.fold_case:
            lower = {word: value for word, value in self.kept.items() if word == word.lower()}
            for word, value in self.kept.items():
                takes.setdefault(word.lower(), lower.get(word.lower(), value))
            if self.words is None:
                return takes
        elif self.words is None:
            return self.kept
        found = {word: self.kept.get(word, takes.get(word.lower())) for word in self.words}
        return {word: value for word, value in found.items() if value is not None}
