"""What a person wants to have read: texts with labels, pairs of texts, words with tags, questions with
answers, options to choose from. Each knows its file and line."""

from __future__ import annotations

from typing import NamedTuple, Protocol


class Example(Protocol):
    """What every example knows: where it is."""

    @property
    def path(self) -> str: ...

    @property
    def line(self) -> int | None: ...

    @property
    def shown(self) -> str:
        """Its input, for people."""
        ...


class LabelledExample(Example, Protocol):
    """A text with labels, or words with tags."""

    @property
    def labels(self) -> tuple[str, ...]: ...


class LabelledText(NamedTuple):
    """A text, or two, and its labels."""

    text: str
    second: str | None
    labels: tuple[str, ...]
    """One, or any number where a text may have several; empty if nothing is known. A number for
    similarity, as it was written."""
    group: str | None
    """What must stay together when data are split."""
    path: str
    line: int | None

    @property
    def shown(self) -> str:
        return self.text if self.second is None else f"{self.text} ||| {self.second}"


class TextPair(NamedTuple):
    """A text and the one that is to be made of it."""

    source: str
    target: str
    """Empty where nothing is known."""
    path: str
    line: int | None

    @property
    def shown(self) -> str:
        return self.source


class TaggedWords(NamedTuple):
    """Words and a tag for each."""

    words: tuple[str, ...]
    tags: tuple[str, ...]
    """As many as words; empty if nothing is known."""
    path: str
    line: int
    """Of the first word; the others follow it, but for comments and what is no word."""

    @property
    def labels(self) -> tuple[str, ...]:
        return self.tags

    @property
    def shown(self) -> str:
        return " ".join(self.words)


class GoldAnswer(NamedTuple):
    """A part of a context."""

    start: int
    """In code points."""
    text: str


class Question(NamedTuple):
    """A question about a context."""

    name: str
    """Its id."""
    question: str
    context: str
    answers: tuple[GoldAnswer, ...]
    """Those that people gave; empty if there is none."""
    group: str | None
    """Its article, which stays on one side of a split."""
    path: str
    line: int | None

    @property
    def shown(self) -> str:
        return self.question


class ChoiceQuestion(NamedTuple):
    """A text and what may follow it."""

    text: str
    options: tuple[str, ...]
    answer: int | None
    """Which of them is right; None if that is not known."""
    path: str
    line: int | None

    @property
    def shown(self) -> str:
        return self.text
