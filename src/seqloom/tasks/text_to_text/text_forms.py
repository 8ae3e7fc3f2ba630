"""Examples as a text to read and a text to write, as T5 has them (Raffel et al. 2020, appendix D), and back.

    labels        cola sentence: TEXT                                 LABEL
                  rte sentence1: TEXT sentence2: TEXT                 LABEL
    numbers       stsb sentence1: TEXT sentence2: TEXT                3.8, a multiple of 0.2
    answers       squad question: QUESTION context: CONTEXT           ANSWER, nothing if there is none
    tags          pos: WORD WORD ...                                  WORD TAG WORD TAG ...
    pairs         summarize: SOURCE                                   TARGET

A blank inside a word with a tag is written `_`. A text that is no label, number or tag is None, which is
wrong.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_EVEN, Decimal
from difflib import SequenceMatcher
from typing import Generic, TypeVar, final

from seqloom.data.readers.examples import LabelledText, Question, TaggedWords, TextPair
from seqloom.errors import DataError, UsageError, printable

TextExample = LabelledText | TaggedWords | Question | TextPair
T = TypeVar("T", bound=TextExample)
A = TypeVar("A")
"""What a text says: a label, a number, tags, a text."""
Written = Callable[[Sequence[str]], list[str]]
"""What is left of texts once a tokenizer has cut and joined them."""

MOST_STEPS = 10**15
"""Of a number: more digits than a float holds."""


@dataclass(frozen=True, kw_only=True)
class TextForm(ABC, Generic[T, A]):
    """How the examples of a task are texts."""

    prefix: str
    labels: tuple[str, ...] = ()
    """Names that it writes."""

    def default_prefix(self, name: str, *, pairs: bool) -> str:
        """That of a task of this name whose examples are `pairs` of texts or single ones."""
        return f"{name} "

    @abstractmethod
    def source(self, example: T) -> str:
        """What the model reads."""

    @abstractmethod
    def target(self, example: T) -> str:
        """What it is to write. Raises DataError if that could not be read back."""

    @abstractmethod
    def read(self, examples: Sequence[T], texts: Sequence[str], written: Written) -> list[A | None]:
        """What the model wrote for each example; None if it means nothing."""


@final
@dataclass(frozen=True, kw_only=True)
class LabelForm(TextForm[LabelledText, str]):
    """One label, by its name."""

    def default_prefix(self, name: str, *, pairs: bool) -> str:
        return f"{name} " if pairs else f"{name} sentence: "

    def source(self, example: LabelledText) -> str:
        return self.prefix + _texts(example)

    def target(self, example: LabelledText) -> str:
        return example.labels[0]

    def read(
        self, examples: Sequence[LabelledText], texts: Sequence[str], written: Written
    ) -> list[str | None]:
        names = names_as_written(self.labels, written)
        return [names.get(text.strip()) for text in texts]


@final
@dataclass(frozen=True, kw_only=True)
class NumberForm(TextForm[LabelledText, float]):
    """A number, rounded to a multiple of a step."""

    step: float

    def source(self, example: LabelledText) -> str:
        return self.prefix + _texts(example)

    def target(self, example: LabelledText) -> str:
        if abs(float(example.labels[0])) > MOST_STEPS * self.step:
            raise DataError(
                f"a score must be at most {MOST_STEPS:,} times number_step={self.step} to be written as a"
                f" text, but is {example.labels[0]}",
                example.path,
                example.line,
            )
        return number_text(example.labels[0], self.step)

    def read(
        self, examples: Sequence[LabelledText], texts: Sequence[str], written: Written
    ) -> list[float | None]:
        return [read_number(text) for text in texts]


@final
@dataclass(frozen=True, kw_only=True)
class AnswerForm(TextForm[Question, str]):
    """The first of the right answers."""

    def source(self, example: Question) -> str:
        return f"{self.prefix}question: {example.question} context: {example.context}"

    def target(self, example: Question) -> str:
        return example.answers[0].text if example.answers else ""

    def read(
        self, examples: Sequence[Question], texts: Sequence[str], written: Written
    ) -> list[str | None]:
        return list(texts)


@final
@dataclass(frozen=True, kw_only=True)
class TagForm(TextForm[TaggedWords, tuple[str | None, ...]]):
    """Each word and its tag. The words say which tag is whose where the model leaves one out."""

    def default_prefix(self, name: str, *, pairs: bool) -> str:
        return f"{name}: "

    def source(self, example: TaggedWords) -> str:
        return self.prefix + " ".join(_words(example))

    def target(self, example: TaggedWords) -> str:
        parts: list[str] = []
        for word, tag in zip(_words(example), example.tags, strict=True):
            if " " in tag:
                raise DataError(
                    f"a tag must have no blank to be written after its word, but is {printable(tag)!r}",
                    example.path,
                    example.line,
                )
            parts += [word, tag]
        return " ".join(parts)

    def read(
        self, examples: Sequence[TaggedWords], texts: Sequence[str], written: Written
    ) -> list[tuple[str | None, ...] | None]:
        names = names_as_written(self.labels, written)
        found: list[tuple[str | None, ...] | None] = []
        for example, text in zip(examples, texts, strict=True):
            words, parts = written(_words(example)), text.split(" ")
            matching = SequenceMatcher(None, words, parts[::2], autojunk=False)
            tags: list[str | None] = [None] * len(words)
            for first, place, count in matching.get_matching_blocks():
                for n, tag in enumerate(parts[1::2][place : place + count], first):
                    tags[n] = names.get(tag)
            found.append(tuple(tags))
        return found


@final
@dataclass(frozen=True, kw_only=True)
class PairForm(TextForm[TextPair, str]):
    """The target as it is."""

    def default_prefix(self, name: str, *, pairs: bool) -> str:
        return f"{name}: "

    def source(self, example: TextPair) -> str:
        return self.prefix + example.source

    def target(self, example: TextPair) -> str:
        return example.target

    def read(
        self, examples: Sequence[TextPair], texts: Sequence[str], written: Written
    ) -> list[str | None]:
        return list(texts)


def _texts(example: LabelledText) -> str:
    if example.second is None:
        return example.text
    return f"sentence1: {example.text} sentence2: {example.second}"


def _words(example: TaggedWords) -> list[str]:
    return [word.replace(" ", "_") for word in example.words]


def number_text(written: str, step: float) -> str:
    """The nearest multiple of the step, of two that are as near the even one, with the decimals of the
    step."""
    unit = Decimal(str(step))
    number = (Decimal(str(float(written))) / unit).to_integral_value(ROUND_HALF_EVEN) * unit
    # + 0 makes 0 of -0
    return f"{number.quantize(unit) + 0:f}"


def read_number(text: str) -> float | None:
    """Blanks do not matter: some tokenizers put them around a point. None if it is no finite number."""
    try:
        value = math.nan if "_" in text else float(text.replace(" ", ""))
    except ValueError:
        value = math.nan
    return value if math.isfinite(value) else None


def names_as_written(labels: Sequence[str], written: Written) -> dict[str, str]:
    """What the model can write of each label -> the label."""
    texts = [text.strip() for text in written(labels)]
    return {**dict(zip(labels, labels, strict=True)), **dict(zip(texts, labels, strict=True))}


def check_names(labels: Sequence[str], written: Written) -> None:
    """Raises UsageError for labels that are the same text once the tokenizer has written them."""
    texts = [text.strip() for text in written(labels)]
    most, count = Counter(texts).most_common(1)[0]
    if count > 1:
        same = [label for label, text in zip(labels, texts, strict=True) if text == most]
        raise UsageError(
            f"labels must differ where they are written as texts, but the tokenizer makes {most!r} of"
            f" {', '.join(map(repr, same[:3]))}; rename them, or use another tokenizer"
        )
