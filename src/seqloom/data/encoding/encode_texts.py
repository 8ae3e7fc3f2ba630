"""Labelled texts, pairs and choices as the rows of a reader (`reading.py`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple, final

import numpy as np

from seqloom.config import APART
from seqloom.data.encoding.encoded_dataset import EncodedDataset, EncodedRow, RaggedRows, RowLayout
from seqloom.data.readers.examples import ChoiceQuestion, LabelledText
from seqloom.errors import DataError
from seqloom.protocols import StoredTokenizer
from seqloom.shapes import IGNORE

CHUNK = 4096
"""Examples whose texts are tokenised at a time."""


@final
@dataclass(frozen=True, kw_only=True)
class EncodingOptions:
    """How texts become rows."""

    tokenizer: StoredTokenizer
    layout: RowLayout
    pair: str = "joined"
    """joined, compared, cosine or both_orders."""
    longest: int | None = None
    """Tokens of a row, marks included, that the model reads at most."""
    cut: int | None = None
    """Tokens of a text that are kept (`data.max_length`)."""
    stride: int | None = None
    """Tokens that two windows share."""
    alphabet: tuple[str, ...] = ()
    """Letters that are read beside the words; none where they are not read."""
    notes: Notes = field(default_factory=lambda: Notes())


@final
@dataclass
class Notes:
    """What was cut on the way."""

    cut: int = 0
    """Texts of which only the begin is read."""
    longest: int = 0
    """Tokens of the longest of them."""

    def count(self, length: int) -> None:
        self.cut += 1
        self.longest = max(self.longest, length)

    def said(self) -> list[str]:
        return (
            [f"{self.cut:,} texts are cut to what is read at most (the longest has {self.longest:,} tokens)"]
            if self.cut
            else []
        )


class TooLong(NamedTuple):
    """Rows that are longer than the model reads, where nothing may be cut."""

    number: int
    longest: int
    first: tuple[str, int | None]


def labelled_set(
    examples: Iterable[LabelledText],
    reading: EncodingOptions,
    targets: Callable[[Sequence[LabelledText]], Any],
) -> EncodedDataset:
    """Texts, or pairs of them, each with its label. `targets`: the examples -> what `EncodedBatch.targets`
    has.

    Raises DataError where a text is longer than the model reads and `data.max_length` cuts nothing.
    """

    def rows_of(some: Sequence[LabelledText]) -> list[list[EncodedRow]]:
        first = kept(reading.tokenizer.encode([one.text for one in some]), reading)
        second = kept(
            reading.tokenizer.encode([one.second or "" for one in some if one.second is not None]), reading
        )
        seconds = iter(second)
        return [
            pair_rows(ids, None if one.second is None else next(seconds), reading)
            for ids, one in zip(first, some, strict=True)
        ]

    return _set(examples, reading, rows_of, targets)


def choice_set(examples: Iterable[ChoiceQuestion], reading: EncodingOptions) -> EncodedDataset:
    """A row for each option. Raises DataError as `labelled_set` does."""

    def rows_of(some: Sequence[ChoiceQuestion]) -> list[list[EncodedRow]]:
        texts = kept(reading.tokenizer.encode([one.text for one in some]), reading)
        options = iter(
            kept(reading.tokenizer.encode([option for one in some for option in one.options]), reading)
        )
        return [
            [shortened(ids, next(options), reading) for _ in one.options]
            for ids, one in zip(texts, some, strict=True)
        ]

    def answers(some: Sequence[ChoiceQuestion]) -> Any:
        return np.array([IGNORE if one.answer is None else one.answer for one in some], np.int64)

    return _set(examples, reading, rows_of, answers)


def _set(
    examples: Iterable[Any],
    reading: EncodingOptions,
    rows_of: Callable[[Sequence[Any]], list[list[EncodedRow]]],
    targets: Any,
) -> EncodedDataset:
    where: list[tuple[str, int | None]] = []
    first_row, second, answers = [0], [], []
    too_long: list[TooLong] = []
    remaining = iter(examples)

    def tokens() -> Iterable[Sequence[int]]:
        while some := list(islice(remaining, CHUNK)):
            answers.append(targets(some))
            for example, rows in zip(some, rows_of(some), strict=True):
                where.append((example.path, example.line))
                first_row.append(first_row[-1] + len(rows))
                for row in rows:
                    if reading.longest is not None and len(row.tokens) > reading.longest:
                        too_long.append(TooLong(1, len(row.tokens), where[-1]))
                    second.append(row.second)
                    yield row.tokens or [reading.tokenizer.special_ids.unk or 0]  # a row must have a step

    ragged = RaggedRows.of(tokens())
    refuse_too_long(too_long, reading)
    return EncodedDataset(
        tokens=ragged,
        second=np.array(second, np.int64),
        first_row=np.array(first_row, np.int64),
        targets=np.concatenate(answers) if answers else np.zeros(0, np.int64),
        where=where,
    )


def refuse_too_long(found: Sequence[TooLong], reading: EncodingOptions) -> None:
    """Raises DataError where there are rows that the model cannot read."""
    if found:
        longest = max(one.longest for one in found)
        raise DataError(
            f"a text must have at most {reading.longest} tokens to be read, marks included, but"
            f" {len(found):,} have more (the longest {longest:,}); read the begin of each: --set"
            f" data.max_length={reading.longest}",
            *found[0].first,
        )


def kept(ids: list[list[int]], reading: EncodingOptions) -> list[list[int]]:
    """Each text cut to `reading.cut`, or to what a row has room for where that is less; counted."""
    if reading.cut is None:
        return ids
    most = (
        reading.cut if reading.longest is None else min(reading.cut, reading.longest - reading.layout.size(1))
    )
    for at, one in enumerate(ids):
        if len(one) > most:
            reading.notes.count(len(one))
            ids[at] = one[:most]
    return ids


def pair_rows(first: list[int], second: list[int] | None, reading: EncodingOptions) -> list[EncodedRow]:
    """The rows of one text or of a pair."""
    if second is None or reading.pair in APART:
        return [shortened(one, None, reading) for one in ([first] if second is None else [first, second])]
    rows = [shortened(first, second, reading)]
    return rows if reading.pair == "joined" else [*rows, shortened(second, first, reading)]


def shortened(first: list[int], second: list[int] | None, reading: EncodingOptions) -> EncodedRow:
    """A row; where texts may be cut (`reading.cut`), at most as long as the model reads: the longer text
    gives way (Devlin et al. 2019)."""
    if reading.cut is not None and reading.longest is not None:
        after = 0 if second is None else len(second)
        room = reading.longest - reading.layout.size(1 if second is None else 2)
        if len(first) + after > room:
            reading.notes.count(len(first) + after)
            first = first[: max(room - after, (room + 1) // 2)]
            second = second if second is None else second[: room - len(first)]
    return reading.layout.joined(first, second)


# --- answers as numbers
# ----------------------------------------------------------------------------------------------


def label_numbers(order: Sequence[str]) -> Callable[[Sequence[LabelledText]], Any]:
    """The number of each example's label, IGNORE where it has none or one that is not in `order`."""
    known = {name: at for at, name in enumerate(order)}
    return lambda some: np.array(
        [known.get(one.labels[0], IGNORE) if one.labels else IGNORE for one in some], np.int64
    )


def label_sets(order: Sequence[str]) -> Callable[[Sequence[LabelledText]], Any]:
    """`(examples, labels)` of 0 and 1."""
    known = {name: at for at, name in enumerate(order)}

    def sets(some: Sequence[LabelledText]) -> Any:
        found = np.zeros((len(some), len(order)), np.int64)
        for row, one in zip(found, some, strict=True):
            row[[known[label] for label in one.labels if label in known]] = 1
        return found

    return sets


def scores_of(some: Sequence[LabelledText]) -> Any:
    """The number of each pair, nan where there is none."""
    return np.array([float(one.labels[0]) if one.labels else np.nan for one in some], np.float32)
