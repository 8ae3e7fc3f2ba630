"""Encoded examples: rows of token ids for an encoder with a task head, and their batches.

    a text                 prefix a suffix                       [CLS] a [SEP]           <s> a </s>
    two texts, joined      prefix a separator b suffix           [CLS] a [SEP] b [SEP]   <s> a <delim> b </s>
    two texts, compared    a row for each                        Conneau et al. 2017
    both orders            a row for a b, one for b a            GPT-1's similarity, Radford et al. 2018
    options to choose from a row for each, the text joined with it
    words with tags        one row, or windows over it (`encode_words.py`)
    a question             the question joined with each window of its context (`encode_questions.py`)

An item of a batch is an example with all of its rows, or a window.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, TypeVar, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from seqloom.data.batching.pair_batches import pad
from seqloom.data.encoding.sliding_windows import Window
from seqloom.data.formats.columns import first_few
from seqloom.errors import place
from seqloom.protocols import EncodedBatch, Rows, SpecialIds
from seqloom.shapes import IGNORE
from seqloom.text.special_tokens import BOS, DELIMITER, EOS

CAUSAL_MARKS = ("<start>", "<delimiter>", "<extract>")
"""Special tokens that a causal encoder with pretrained tokens has beyond their vocabulary, in this order
(Radford et al. 2018)."""

T = TypeVar("T")
Targets = NDArray[np.int64 | np.float32]
"""`(items, ...)`: ids, or numbers to predict."""
Origin = tuple[str, int | None]
"""(file, line) of an example."""


class RowTemplate(NamedTuple):
    """The special tokens of a row."""

    prefix: tuple[int, ...]
    separator: tuple[int, ...]
    suffix: tuple[int, ...]

    def size(self, texts: int) -> int:
        """How many special tokens a row of so many texts has."""
        return len(self.prefix) + len(self.suffix) + (texts - 1) * len(self.separator)

    def joined(self, first: Sequence[int], second: Sequence[int] | None = None) -> EncodedRow:
        """One text, or two, with their special tokens."""
        if second is None:
            row = [*self.prefix, *first, *self.suffix]
            return EncodedRow(row, len(row))
        before = [*self.prefix, *first, *self.separator]
        return EncodedRow([*before, *second, *self.suffix], len(before))


class EncodedRow(NamedTuple):
    """A row that an encoder reads."""

    tokens: list[int]
    second_start: int
    """Where the second text begins; the end if there is none."""


def row_template(special_ids: SpecialIds, encoder: str, own: bool, size: int) -> RowTemplate:
    """Of a family of encoders. `own`: whether seqloom made the tokenizer, whose `size` is that of its
    vocabulary."""
    # one with a mask has the special tokens of BERT, which its encoder was trained on
    own = own and special_ids.mask is None
    separator = (DELIMITER,) if own else special_ids.separator
    if encoder in ("bag_of_words", "mlp", "convolution", "recurrent", "elmo"):
        return RowTemplate((), separator, ())
    if own:
        prefix = () if encoder == "t5" else (BOS,)
        return RowTemplate(prefix, separator, (EOS,))
    if encoder == "gpt":
        return RowTemplate((size,), (size + 1,), (size + 2,))
    return RowTemplate(special_ids.prefix, separator, special_ids.suffix)


@final
@dataclass(frozen=True)
class SequenceArray:
    """Sequences of numbers of different lengths in one array, one after the other."""

    values: NDArray[np.int32]
    offsets: NDArray[np.int64]

    @classmethod
    def of(cls, sequences: Iterable[Sequence[int]]) -> SequenceArray:
        builder = SequenceBuilder()
        for sequence in sequences:
            builder.add(sequence)
        return builder.build()

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> NDArray[np.int32]:
        return self.values[self.offsets[index] : self.offsets[index + 1]]

    @property
    def lengths(self) -> NDArray[np.int64]:
        return np.diff(self.offsets)

    def padded(self, rows: NDArray[np.int64], value: int) -> Tensor:
        """`(rows, longest)`, padded on the right; no step where all are empty."""
        chosen = [self[int(row)] for row in rows]
        if not chosen:
            return torch.zeros(0, 0, dtype=torch.long)
        return pad(chosen, value)  # type: ignore[arg-type]


@final
class SequenceBuilder:
    """Collects sequences."""

    def __init__(self) -> None:
        self._values, self._offsets = array("i"), array("q", [0])

    def add(self, sequence: Sequence[int]) -> None:
        self._values.extend(sequence)
        self._offsets.append(len(self._values))

    def build(self) -> SequenceArray:
        return SequenceArray(
            np.asarray(self._values, np.int32), np.asarray(self._offsets, np.int64)
        )


@final
@dataclass(frozen=True, kw_only=True)
class WordCharacters:
    """The characters of words: of each different word once."""

    words: SequenceArray
    """For each row and step the number of a word in `characters`, -1 where none is read."""
    characters: SequenceArray
    """The ids of its characters."""

    def batch(self, rows: NDArray[np.int64], steps: int) -> Tensor:
        """`(rows, steps, characters)`, -1 at padding."""
        words = np.full((len(rows), steps), -1, np.int64)
        for index, row in enumerate(rows):
            numbers = self.words[int(row)]
            words[index, : len(numbers)] = numbers
        used, inverse = np.unique(words, return_inverse=True)
        characters = self.characters.padded(used[used >= 0], -1)
        table = torch.full((len(used), max(characters.shape[1], 1)), -1, dtype=torch.long)
        table[torch.from_numpy(used >= 0), : characters.shape[1]] = characters
        return table[torch.from_numpy(inverse.reshape(words.shape))]


@final
@dataclass(frozen=True, kw_only=True)
class EncodedDataset:
    """Items that are ready to be batched, each one or more rows."""

    tokens: SequenceArray
    """Of each row, special tokens included."""
    second_start: NDArray[np.int64]
    """`(rows,)`: where the second text begins."""
    row_offsets: NDArray[np.int64]
    """`(items + 1,)`: the first row of each item, and the number of rows."""
    targets: Targets | SequenceArray
    """By item: `(items, ...)` as `EncodedBatch.targets` has it; of tags a `SequenceArray`."""
    places: SequenceArray | None = None
    """By row."""
    characters: WordCharacters | None = None
    example_of: NDArray[np.int64] | None = None
    """Of windows: `(items,)`, the example of each."""
    windows: Sequence[Sequence[Window]] = ()
    """Of windows, by example: the part of it that each sees, in words, or in tokens of the context."""
    offsets: Sequence[Sequence[tuple[int, int]]] = ()
    """Of questions, by example: the code points of each token of the context."""
    origins: Sequence[Origin] = ()
    """Of each example."""
    left_out: frozenset[int] = frozenset()
    """The numbers of the examples that were too long and are not in it."""

    def __len__(self) -> int:
        return len(self.row_offsets) - 1

    def kept(self, examples: Sequence[T]) -> Sequence[T]:
        """The examples without those that were left out."""
        if not self.left_out:
            return examples
        return [example for number, example in enumerate(examples) if number not in self.left_out]

    @property
    def flat_targets(self) -> NDArray[np.generic]:
        """Those of all items; the tags of all words, one after the other."""
        match self.targets:
            case SequenceArray(values=values):
                return values
            case of_items:
                return of_items

    @cached_property
    def costs(self) -> NDArray[np.int64]:
        """`(items,)`: the steps of each: its rows times the longest."""
        if not len(self):
            return np.zeros(0, np.int64)
        longest = np.maximum.reduceat(self.tokens.lengths, self.row_offsets[:-1])
        return np.asarray(longest * np.diff(self.row_offsets))

    def lengths(self, rows: Rows, column: int) -> NDArray[np.int64]:
        """What `BatchPlan` asks of a store of two columns; items have but one."""
        return np.zeros(len(rows), np.int64) if column else np.asarray(self.costs[rows])

    def batch(self, items: Rows) -> EncodedBatch:
        """The items of these numbers."""
        counts = self.row_offsets[items + 1] - self.row_offsets[items]
        rows = np.concatenate(
            [np.arange(self.row_offsets[i], self.row_offsets[i + 1]) for i in items]
        )
        tokens = self.tokens.padded(rows, -1)
        steps = torch.arange(tokens.shape[1])
        segments = (steps >= torch.from_numpy(self.second_start[rows])[:, None]) & (tokens >= 0)
        match self.targets:
            case SequenceArray() as tags:
                targets = tags.padded(items, IGNORE)
            case of_items:
                targets = torch.from_numpy(np.asarray(of_items[items]))
        characters = torch.zeros(*tokens.shape, 0, dtype=torch.long)
        if self.characters is not None:
            characters = self.characters.batch(rows, tokens.shape[1])
        places = torch.zeros(len(rows), 0, dtype=torch.long)
        if self.places is not None:
            places = self.places.padded(rows, -1)
        return EncodedBatch(
            tokens=tokens,
            segments=segments.long(),
            characters=characters,
            owner=torch.from_numpy(np.repeat(np.arange(len(items)), counts)),
            places=places,
            targets=targets,
        )

    def load(self, items: Rows, whole: Rows) -> EncodedBatch:
        """The batch of a worker's items. Without items: the first of the `whole` batch with nothing trained,
        since a worker must take part."""
        if len(items):
            return self.batch(items)
        batch = self.batch(whole[:1])
        nothing = float("nan") if batch.targets.is_floating_point() else IGNORE
        return batch._replace(targets=torch.full_like(batch.targets, nothing))

    def describe(self, items: Rows) -> str:
        """Where items come from, for messages."""
        examples = items if self.example_of is None else self.example_of[items]
        places = [place(*self.origins[int(example)]) for example in examples[:9]]
        return f"the examples {first_few(places, 8)}"
