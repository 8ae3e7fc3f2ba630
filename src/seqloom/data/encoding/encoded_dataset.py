"""Texts as rows of ids that a reader is given, and their batches.

    a text                 before a after                    [CLS] a [SEP]           <s> a </s>
    two texts, joined      before a between b after          [CLS] a [SEP] b [SEP]   <s> a <delim> b </s>
    two texts, compared    a row for each                    Conneau et al. 2017
    both orders            a row for a b, one for b a        GPT-1's similarity, Radford et al. 2018
    options to choose from a row for each, the text joined with it
    words with tags        one row, or windows over it (`tagging.py`)
    a question             the question joined with each window of its context (`answering.py`)

What is drawn into batches is an item: an example with all of its rows, or a window.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from seqloom.data.batching.order import Rows
from seqloom.data.batching.pair_batches import pad
from seqloom.data.encoding.sliding_windows import Window
from seqloom.errors import place
from seqloom.protocols import EncodedBatch, SpecialIds
from seqloom.shapes import IGNORE
from seqloom.text.special_tokens import BOS, DELIMITER, EOS

CAUSAL_MARKS = ("<start>", "<delimiter>", "<extract>")
"""Marks that a causal reader of others' tokens has beyond their vocabulary, in this order (Radford et al.
2018)."""


class RowLayout(NamedTuple):
    """The marks of a row."""

    before: tuple[int, ...]
    between: tuple[int, ...]
    after: tuple[int, ...]

    def size(self, texts: int) -> int:
        """How many steps the marks of so many texts take."""
        return len(self.before) + len(self.after) + (texts - 1) * len(self.between)

    def joined(self, first: Sequence[int], second: Sequence[int] | None = None) -> EncodedRow:
        """One text, or two, with their marks."""
        if second is None:
            row = [*self.before, *first, *self.after]
            return EncodedRow(row, len(row))
        start = [*self.before, *first, *self.between]
        return EncodedRow([*start, *second, *self.after], len(start))


class EncodedRow(NamedTuple):
    """What an encoder reads at a time."""

    tokens: list[int]
    second: int
    """Where the second text begins; the end where there is none."""


def row_layout(special_ids: SpecialIds, encoder: str, own: bool, size: int) -> RowLayout:
    """Of a family of encoders. `own`: whether seqloom made the tokenizer, whose `size` is that of its
    vocabulary."""
    if encoder in ("bag_of_words", "convolution", "recurrent"):
        return RowLayout((), (DELIMITER,) if own else special_ids.separator, ())
    if own:
        return RowLayout((BOS,) if encoder != "t5" else (), (DELIMITER,), (EOS,))
    if encoder == "gpt":
        return RowLayout((size,), (size + 1,), (size + 2,))
    return RowLayout(special_ids.prefix, special_ids.separator, special_ids.suffix)


@final
@dataclass(frozen=True)
class RaggedRows:
    """Sequences of numbers of different length, one after the other."""

    values: NDArray[np.int32]
    offsets: NDArray[np.int64]

    @classmethod
    def of(cls, sequences: Iterable[Sequence[int]]) -> RaggedRows:
        values, offsets = array("i"), array("q", [0])
        for sequence in sequences:
            values.extend(sequence)
            offsets.append(len(values))
        return cls(np.asarray(values, np.int32), np.asarray(offsets, np.int64))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, at: int) -> NDArray[np.int32]:
        return self.values[self.offsets[at] : self.offsets[at + 1]]

    @property
    def lengths(self) -> NDArray[np.int64]:
        return np.diff(self.offsets)

    def padded(self, rows: NDArray[np.int64], value: int) -> Tensor:
        """`(rows, longest)`, filled up on the right; no step where all are empty."""
        chosen = [self[int(row)] for row in rows]
        return pad(chosen, value) if len(chosen) else torch.zeros(0, 0, dtype=torch.long)  # type: ignore[arg-type]


@final
@dataclass(frozen=True, kw_only=True)
class WordCharacters:
    """The letters of words: of each different word once."""

    words: RaggedRows
    """For each row and step the number of a word in `spelled`, -1 where none is read."""
    token_bytes: RaggedRows
    """The ids of its letters."""

    def batch(self, rows: NDArray[np.int64], steps: int) -> Tensor:
        """`(rows, steps, letters)`, -1 at padding."""
        words = np.full((len(rows), steps), -1, np.int64)
        for at, row in enumerate(rows):
            numbers = self.words[int(row)]
            words[at, : len(numbers)] = numbers
        used, back = np.unique(words, return_inverse=True)
        letters = self.token_bytes.padded(used[used >= 0], -1)
        table = torch.full((len(used), max(letters.shape[1], 1)), -1, dtype=torch.long)
        table[torch.from_numpy(used >= 0), : letters.shape[1]] = letters
        return table[torch.from_numpy(back.reshape(words.shape))]


@final
@dataclass(frozen=True, kw_only=True)
class EncodedDataset:
    """Items that are ready to be batched. `items` of them, each one or more rows."""

    tokens: RaggedRows
    """Of each row, marks included."""
    second: NDArray[np.int64]
    """`(rows,)`: where the second text begins."""
    first_row: NDArray[np.int64]
    """`(items + 1,)`"""
    targets: Any
    """By item: `(items, ...)` as `EncodedBatch.targets` has it; of tags a `RaggedRows`."""
    places: RaggedRows | None = None
    """By row."""
    letters: WordCharacters | None = None
    example: NDArray[np.int64] | None = None
    """Of windows: `(items,)`, the example that each is of."""
    cuts: Sequence[Sequence[Window]] = ()
    """Of windows, by example: which part of it each sees, in words, or in tokens of the context."""
    offsets: Sequence[Sequence[tuple[int, int]]] = ()
    """Of questions, by example: where each token of the context stands in it, in code points."""
    where: Sequence[tuple[str, int | None]] = ()
    """(file, line) of each example."""

    def __len__(self) -> int:
        return len(self.first_row) - 1

    @cached_property
    def costs(self) -> NDArray[np.int64]:
        """`(items,)`: the steps of each: its rows times the longest."""
        longest = (
            np.maximum.reduceat(self.tokens.lengths, self.first_row[:-1])
            if len(self)
            else np.zeros(0, np.int64)
        )
        return np.asarray(longest * np.diff(self.first_row))

    def lengths(self, rows: Rows, column: int) -> NDArray[np.int64]:
        """What `BatchPlan` asks of a store of two columns; items have but one."""
        return np.zeros(len(rows), np.int64) if column else np.asarray(self.costs[rows])

    def batch(self, items: Rows) -> EncodedBatch:
        """The items of these numbers."""
        counts = self.first_row[items + 1] - self.first_row[items]
        rows = np.concatenate([np.arange(self.first_row[i], self.first_row[i + 1]) for i in items])
        tokens = self.tokens.padded(rows, -1)
        steps = torch.arange(tokens.shape[1])
        segments = (steps >= torch.from_numpy(self.second[rows])[:, None]) & (tokens >= 0)
        if isinstance(self.targets, RaggedRows):
            targets = self.targets.padded(items, IGNORE)
        else:
            targets = torch.from_numpy(np.asarray(self.targets[items]))
        return EncodedBatch(
            tokens=tokens,
            segments=segments.long(),
            characters=(
                torch.zeros(*tokens.shape, 0, dtype=torch.long)
                if self.letters is None
                else self.letters.batch(rows, tokens.shape[1])
            ),
            owner=torch.from_numpy(np.repeat(np.arange(len(items)), counts)),
            places=(
                self.places.padded(rows, -1)
                if self.places is not None
                else torch.zeros(len(rows), 0, dtype=torch.long)
            ),
            targets=targets,
        )

    def load(self, items: Rows, whole: Rows) -> EncodedBatch:
        """The batch of a share. No items: the first of the `whole` batch with nothing trained, since a worker
        must take part."""
        if len(items):
            return self.batch(items)
        batch = self.batch(whole[:1])
        nothing = torch.full_like(
            batch.targets, float("nan") if batch.targets.is_floating_point() else IGNORE
        )
        return batch._replace(targets=nothing)

    def describe(self, items: Rows) -> str:
        """Where items come from, for messages."""
        examples = items if self.example is None else self.example[items]
        return (
            "the examples "
            + ", ".join(place(*self.where[int(at)]) for at in examples[:8])
            + ", ..." * (len(examples) > 8)
        )
