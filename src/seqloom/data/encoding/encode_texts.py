"""Labelled texts, pairs and choices as encoded rows (`encoded_dataset.py`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar, final

import numpy as np

from seqloom.config import APART
from seqloom.data.batching.token_store import chunked
from seqloom.data.encoding.encoded_dataset import (
    EncodedDataset,
    EncodedRow,
    Origin,
    RowTemplate,
    SequenceArray,
    SequenceBuilder,
    Targets,
    WordCharacters,
)
from seqloom.data.readers.examples import ChoiceQuestion, Example, LabelledText
from seqloom.errors import DataError, counted, place
from seqloom.protocols import StoredTokenizer
from seqloom.shapes import IGNORE
from seqloom.text.word_characters import TokenSpelling

CHUNK = 4096
"""Examples whose texts are tokenised at a time."""
TOO_LONG = "longer than the model reads"
"""Why an example or a text is left out."""

Encoded = TypeVar("Encoded", bound=Example)


@final
@dataclass(frozen=True, kw_only=True)
class EncodingOptions:
    """How texts become rows."""

    tokenizer: StoredTokenizer
    template: RowTemplate
    pair: str = "joined"
    """joined, compared, cosine or both_orders."""
    model_max_length: int | None = None
    """Tokens of a row, special ones included, that the model reads at most."""
    max_length: int | None = None
    """Tokens of a text that are kept (`data.max_length`)."""
    skip_too_long: bool = False
    """Whether an example that is longer than the model reads is left out, and counted."""
    stride: int | None = None
    """Tokens that two windows share."""
    alphabet: tuple[str, ...] = ()
    """Characters that are read beside the words; none where they are not read."""
    spelling: TokenSpelling | None = None
    """The bytes of tokens, where these are read."""
    truncation: Truncation = field(default_factory=lambda: Truncation())

    def room(self, texts: int = 1) -> int | None:
        """Tokens that a row of so many texts has room for, special ones not counted; None if there is no
        limit."""
        limits = [] if self.max_length is None else [self.max_length]
        if self.model_max_length is not None:
            limits.append(self.model_max_length - self.template.size(texts))
        return min(limits, default=None)

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text. Where tokens are spelled, unknown words have ids of their own, until the rows
        are `spelled`."""
        return (self.spelling or self.tokenizer).encode(texts)

    def spelled(self, dataset: EncodedDataset) -> EncodedDataset:
        """The rows with the bytes of their tokens, where these are read."""
        if self.spelling is None:
            return dataset
        known, unknown = self.spelling.known, self.spelling.take_unknown()
        ids = dataset.tokens.values
        unknown_id = self.tokenizer.special_ids.unk
        tokens = ids if unknown_id is None else np.where(ids < len(known), ids, unknown_id)
        return replace(
            dataset,
            tokens=replace(dataset.tokens, values=tokens),
            characters=WordCharacters(
                words=dataset.tokens, characters=SequenceArray.of([*known, *unknown])
            ),
        )

    def stride_or(self, default: int) -> int:
        return default if self.stride is None else self.stride


@final
@dataclass
class Truncation:
    """The texts that were truncated, and those that were left out."""

    texts: int = 0
    longest: int = 0
    """Tokens of the longest of the truncated ones."""
    too_long: list[tuple[int, Origin]] = field(default_factory=list)
    """Tokens of each text that the model cannot read, and where it is."""

    def count(self, length: int) -> None:
        self.texts += 1
        self.longest = max(self.longest, length)

    def notices(self) -> list[str]:
        notices = []
        if self.texts:
            notices.append(
                f"{counted(self.texts, 'text is', 'texts are')} cut to what is read at most (the longest has"
                f" {self.longest:,} tokens)"
            )
        if self.too_long:
            longest, (path, line) = max(length for length, _ in self.too_long), self.too_long[0][1]
            notices.append(
                f"{counted(len(self.too_long), 'example is', 'examples are')} skipped: {TOO_LONG} (the"
                f" longest has {longest:,} tokens; first: {place(path, line)})"
            )
        return notices


def encode_labelled(
    examples: Iterable[LabelledText],
    options: EncodingOptions,
    targets: Callable[[Sequence[LabelledText]], Targets],
) -> EncodedDataset:
    """Texts, or pairs of them, each with its label. `targets`: the examples -> what `EncodedBatch.targets`
    has.

    Raises DataError if a text is longer than the model reads, `data.max_length` truncates nothing and
    such texts are not skipped.
    """

    def rows_of(chunk: Sequence[LabelledText]) -> Iterator[list[EncodedRow]]:
        first = encode_truncated([example.text for example in chunk], options)
        second = iter(
            encode_truncated(
                [example.second for example in chunk if example.second is not None], options
            )
        )
        for ids, one in zip(first, chunk, strict=True):
            other = None if one.second is None else next(second)
            yield pair_rows(ids, other, options)

    return _encode(examples, options, rows_of, targets)


def encode_choices(examples: Iterable[ChoiceQuestion], options: EncodingOptions) -> EncodedDataset:
    """A row for each option. Raises DataError as `encode_labelled` does."""

    def rows_of(chunk: Sequence[ChoiceQuestion]) -> Iterator[list[EncodedRow]]:
        texts = encode_truncated([example.text for example in chunk], options)
        choices = iter(
            encode_truncated([option for example in chunk for option in example.options], options)
        )
        for ids, one in zip(texts, chunk, strict=True):
            yield [truncated_row(ids, next(choices), options) for _ in one.options]

    def targets(chunk: Sequence[ChoiceQuestion]) -> Targets:
        return np.array(
            [IGNORE if example.answer is None else example.answer for example in chunk], np.int64
        )

    return _encode(examples, options, rows_of, targets)


def _encode(
    examples: Iterable[Encoded],
    options: EncodingOptions,
    rows_of: Callable[[Sequence[Encoded]], Iterator[list[EncodedRow]]],
    targets_of: Callable[[Sequence[Encoded]], Targets],
) -> EncodedDataset:
    tokens, origins = SequenceBuilder(), list[Origin]()
    row_offsets, second_start, targets = [0], [], []
    too_long: list[tuple[int, Origin]] = []
    left_out: set[int] = set()
    number = 0
    for chunk in chunked(examples, CHUNK):
        kept = []
        for example, rows in zip(chunk, rows_of(chunk), strict=True):
            longest = max((len(row.tokens) for row in rows), default=0)
            if options.model_max_length is not None and longest > options.model_max_length:
                too_long.append((longest, (example.path, example.line)))
                left_out.add(number)
            else:
                kept.append(example)
                origins.append((example.path, example.line))
                row_offsets.append(row_offsets[-1] + len(rows))
                for row in rows:
                    second_start.append(row.second_start)
                    # A row must have a step.
                    tokens.add(row.tokens or [options.tokenizer.special_ids.unk or 0])
            number += 1
        targets.append(targets_of(kept))
    options.truncation.too_long += too_long
    if too_long and not options.skip_too_long:
        raise _too_long(too_long, options)
    known = np.concatenate(targets) if targets else np.zeros(0, np.int64)
    dataset = EncodedDataset(
        tokens=tokens.build(),
        second_start=np.array(second_start, np.int64),
        row_offsets=np.array(row_offsets, np.int64),
        targets=known,
        origins=origins,
        left_out=frozenset(left_out),
    )
    return options.spelled(dataset)


def _too_long(found: Sequence[tuple[int, Origin]], options: EncodingOptions) -> DataError:
    limit, longest = options.model_max_length, max(length for length, _ in found)
    return DataError(
        f"a text must have at most {limit} tokens to be read, marks included, but"
        f" {counted(len(found), 'has', 'have')} more (the longest {longest:,}); leave such texts out: --set"
        f" data.on_bad_line=skip, or read the beginning of each: --set data.max_length={limit}",
        *found[0][1],
    )


def encode_truncated(texts: Sequence[str], options: EncodingOptions) -> list[list[int]]:
    """The ids of each text, truncated to `max_length`, or to what a row has room for where that is less."""
    encoded = options.encode(texts)
    most = options.room()
    if most is None or options.max_length is None:
        return encoded
    return [truncated(ids, most, options) for ids in encoded]


def truncated(ids: list[int], most: int, options: EncodingOptions) -> list[int]:
    """The first `most` ids; a longer text is counted."""
    if len(ids) <= most:
        return ids
    options.truncation.count(len(ids))
    return ids[:most]


def pair_rows(
    first: list[int], second: list[int] | None, options: EncodingOptions
) -> list[EncodedRow]:
    """The rows of one text or of a pair."""
    if second is not None and options.pair in APART:
        return [truncated_row(first, None, options), truncated_row(second, None, options)]
    rows = [truncated_row(first, second, options)]
    if second is not None and options.pair != "joined":
        rows.append(truncated_row(second, first, options))
    return rows


def truncated_row(
    first: list[int], second: list[int] | None, options: EncodingOptions
) -> EncodedRow:
    """A row; where `max_length` allows truncation, at most as long as the model reads: the longer text is
    shortened first (Devlin et al. 2019)."""
    if options.max_length is not None and options.model_max_length is not None:
        after = len(second or ())
        room = options.model_max_length - options.template.size(1 + (second is not None))
        if len(first) + after > room:
            options.truncation.count(len(first) + after)
            first = first[: max(room - after, (room + 1) // 2)]
            second = second if second is None else second[: room - len(first)]
    return options.template.joined(first, second)


# --- targets as numbers


def label_ids(order: Sequence[str]) -> Callable[[Sequence[LabelledText]], Targets]:
    """The number of each example's label, IGNORE where it has none or one that is not in `order`."""
    ids = {name: index for index, name in enumerate(order)}

    def targets(chunk: Sequence[LabelledText]) -> Targets:
        return np.array(
            [ids.get(example.labels[0], IGNORE) if example.labels else IGNORE for example in chunk],
            np.int64,
        )

    return targets


def multi_hot_labels(order: Sequence[str]) -> Callable[[Sequence[LabelledText]], Targets]:
    """`(examples, labels)` of 0 and 1."""
    ids = {name: index for index, name in enumerate(order)}

    def targets(chunk: Sequence[LabelledText]) -> Targets:
        multi_hot = np.zeros((len(chunk), len(order)), np.int64)
        for row, example in zip(multi_hot, chunk, strict=True):
            row[[ids[label] for label in example.labels if label in ids]] = 1
        return multi_hot

    return targets


def scores_of(chunk: Sequence[LabelledText]) -> Targets:
    """The number of each pair, nan if there is none."""
    return np.array(
        [float(example.labels[0]) if example.labels else np.nan for example in chunk], np.float32
    )
