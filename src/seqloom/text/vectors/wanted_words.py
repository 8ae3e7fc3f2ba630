"""Which words of a file are kept, and which of them each word takes that somebody wants."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, final


@final
class WantedWords:
    """`words` None wants all. With `fold_case` a word that is not there as it is written takes its lower
    case, or else the first that differs in case alone; where all are wanted, all are folded."""

    def __init__(self, words: Collection[str] | None, fold_case: bool) -> None:
        self.words = None if words is None else dict.fromkeys(words)
        self.fold_case = fold_case
        self.folded = {word.lower() for word in self.words or ()} if fold_case else set()
        self.kept: dict[str, Any] = {}
        """Of words as the file has them, what was kept of each; never None."""
        self.repeated = 0
        """How many stood there before."""

    def wants(self, word: str) -> bool:
        """Whether a word of the file is to be kept: it is wanted, and has not been there before."""
        if (
            self.words is not None
            and word not in self.words
            and not (self.fold_case and word.lower() in self.folded)
        ):
            return False
        if word in self.kept:
            self.repeated += 1
            return False
        return True

    def found(self) -> dict[str, Any]:
        """Wanted word -> what was kept of the one it takes, in the order of the wanted ones."""
        if not self.fold_case:
            return (
                self.kept
                if self.words is None
                else {word: self.kept[word] for word in self.words if word in self.kept}
            )
        takes: dict[str, Any] = {}
        for word, value in self.kept.items():
            takes.setdefault(word.lower(), value)
        takes.update((word, value) for word, value in self.kept.items() if word == word.lower())
        if self.words is None:
            return takes
        found = {word: self.kept.get(word, takes.get(word.lower())) for word in self.words}
        return {word: value for word, value in found.items() if value is not None}
