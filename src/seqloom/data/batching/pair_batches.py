"""Rows to batches of ids: length buckets, a budget of tokens, shards, padding, and the shift of the target
(only here).

The batches of an epoch are a function of (seed, epoch): the rows come in the order of `order`; each pool of
consecutive rows is sorted by length, cut into batches that fit the budget, and its batches are shuffled. A
global batch is fixed before it is divided between workers and micro-batches, so their number changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from seqloom.data.batching.mixing import Mixing
from seqloom.data.batching.order import order, permute
from seqloom.data.batching.token_store import TokenIds
from seqloom.protocols import Rows, SpecialIds
from seqloom.shapes import IGNORE
from seqloom.text.special_tokens import SPECIAL_IDS

POOL = 8192
"""Rows that are sorted by length together."""

SOURCE, TARGET = 0, 1
"""The columns of a store of pairs."""


class TranslationBatch(NamedTuple):
    """Pairs as ids. `source` ends in `</s>`; `inputs` is `<s> y…`; `targets` is `y… </s>`, IGNORE at padding.
    A pretrained tokenizer has special tokens of its own in place of these."""

    source: Tensor
    """`(rows, source)`"""
    inputs: Tensor
    """`(rows, steps)`"""
    targets: Tensor
    """`(rows, steps)`"""


class SequenceLengths(Protocol):
    """Rows whose lengths are known."""

    def __len__(self) -> int: ...

    def lengths(self, rows: Rows, column: int) -> NDArray[np.int64]:
        """`(n,)`: in a column, SOURCE or TARGET."""
        ...


class PairRows(SequenceLengths, Protocol):
    """Rows of two sequences of ids."""

    def sequence(self, row: int, column: int) -> TokenIds: ...


@final
@dataclass(frozen=True, kw_only=True)
class BatchPlan:
    """Which rows are trained together, and when."""

    seed: int
    batch_tokens: int | None
    """Budget of a global batch: rows × (longest source + longest target), special tokens counted."""
    batch_rows: int | None
    """Or a fixed number of rows."""
    special_ids: SpecialIds | None = SPECIAL_IDS
    """None: the lengths of the store include special tokens."""
    mixing: Mixing | None = None
    """Where the rows are of several sets: which of them an epoch has."""

    def epoch(self, store: SequenceLengths, epoch: int, start: int = 0) -> Iterator[Rows]:
        """The global batches of an epoch from the `start`-th on: arrays of row numbers."""
        count = len(store if self.mixing is None else self.mixing)
        for pool, first in enumerate(range(0, count, POOL), start=1):
            batches = self._cut(store, self._rows(epoch, first, min(first + POOL, count), count))
            if start < len(batches):
                shuffled = permute(np.arange(len(batches)), len(batches), self.seed, epoch, pool)
                yield from (batches[batch] for batch in shuffled[start:])
            start = max(start - len(batches), 0)

    def count(self, store: SequenceLengths, epoch: int = 0) -> int:
        """How many global batches an epoch has (epochs differ by a few)."""
        return sum(1 for _ in self.epoch(store, epoch))

    def _rows(self, epoch: int, start: int, stop: int, count: int) -> Rows:
        """Those at these positions of an epoch of `count` rows."""
        if self.mixing is None:
            return order(self.seed, epoch, start, stop, count)
        return self.mixing.order(self.seed, epoch, start, stop)

    def _cut(self, store: SequenceLengths, rows: Rows) -> list[Rows]:
        """The batches of a pool."""
        special = (0, 0) if self.special_ids is None else special_token_counts(self.special_ids)
        sources, targets = (
            store.lengths(rows, SOURCE) + special[0],
            store.lengths(rows, TARGET) + special[1],
        )
        by_length = np.argsort(sources + targets, kind="stable")
        if self.batch_rows is not None:
            ends = [*range(self.batch_rows, len(rows), self.batch_rows), len(rows)]
        else:
            assert self.batch_tokens is not None
            ends = batch_ends(sources[by_length], targets[by_length], self.batch_tokens)
        return [rows[by_length[first:end]] for first, end in zip([0, *ends], ends, strict=False)]


def batch_ends(sources: NDArray[np.int64], targets: NDArray[np.int64], budget: int) -> list[int]:
    """Where batches end, when rows of these lengths are taken in order and none costs more than
    rows × (longest source + longest target); a single row may."""
    ends, first, longest = [], 0, (0, 0)
    for row, (source, target) in enumerate(zip(sources.tolist(), targets.tolist(), strict=True)):
        longest = max(longest[0], source), max(longest[1], target)
        if (row - first + 1) * sum(longest) > budget and row > first:
            ends.append(row)
            first, longest = row, (source, target)
    return [*ends, len(sources)]


def costs(store: PairRows, rows: Rows, special_ids: SpecialIds = SPECIAL_IDS) -> NDArray[np.int64]:
    """Tokens that each row needs, source and target with their special tokens."""
    return (
        store.lengths(rows, SOURCE)
        + store.lengths(rows, TARGET)
        + sum(special_token_counts(special_ids))
    )


def special_token_counts(special_ids: SpecialIds) -> tuple[int, int]:
    """How many special tokens a source has, and how many steps those of a target add."""
    ends = special_ids.eos is not None
    return len(special_ids.prefix) + len(special_ids.suffix), len(special_ids.bos) + ends - 1


def shard(rows: Rows, part: int, parts: int) -> Rows:
    """The `part`-th of `parts` shards of a batch: every parts-th row, so that shards are alike in length."""
    return rows[part::parts]


def translation_batch(
    store: PairRows,
    rows: Rows,
    whole: Rows,
    max_length: int | None,
    special_ids: SpecialIds = SPECIAL_IDS,
) -> TranslationBatch:
    """The batch of these rows, each text truncated to `max_length` ids.

    No rows: the first of the `whole` batch with nothing trained, since a worker must take part even where a
    batch has fewer rows than there are workers.
    """
    used = rows if len(rows) else whole[:1]
    sources = [store.sequence(row, SOURCE)[:max_length].tolist() for row in used]
    targets = [store.sequence(row, TARGET)[:max_length].tolist() for row in used]
    batch = pair_batch(sources, targets, special_ids)
    return batch if len(rows) else batch._replace(targets=torch.full_like(batch.targets, IGNORE))


def pair_batch(
    sources: Sequence[Sequence[int]],
    targets: Sequence[Sequence[int]],
    special_ids: SpecialIds = SPECIAL_IDS,
) -> TranslationBatch:
    """Pairs of ids with their special tokens, padded on the right. The target is shifted here and nowhere
    else; tokens that begin it are inputs and never trained."""
    decoded = [decoder_ids(target, special_ids) for target in targets]
    given = max(len(special_ids.bos) - 1, 0)
    return TranslationBatch(
        source_batch(sources, special_ids),
        pad([ids[:-1] for ids in decoded], special_ids.pad),
        pad([[*[IGNORE] * given, *ids[given + 1 :]] for ids in decoded], IGNORE),
    )


def source_batch(sources: Sequence[Sequence[int]], special_ids: SpecialIds = SPECIAL_IDS) -> Tensor:
    """Sources as an encoder reads them, padded: `(rows, source)`."""
    return pad([encoder_ids(source, special_ids) for source in sources], special_ids.pad)


def encoder_ids(ids: Sequence[int], special_ids: SpecialIds) -> list[int]:
    """A text with the special tokens that an encoder reads."""
    return [*special_ids.prefix, *ids, *special_ids.suffix]


def decoder_ids(ids: Sequence[int], special_ids: SpecialIds) -> list[int]:
    """A text between the tokens that begin it and the one that ends it: each id but those that begin it is
    predicted from the ids before it. Where nothing begins a text its first id is read and never predicted."""
    return [*special_ids.bos, *ids, *([] if special_ids.eos is None else [special_ids.eos])]


def pad(sequences: Sequence[Sequence[int]], value: int) -> Tensor:
    """Sequences of different lengths as one tensor `(rows, longest)`, padded on the right."""
    padded = np.full((len(sequences), max(map(len, sequences))), value, dtype=np.int64)
    for row, sequence in enumerate(sequences):
        padded[row, : len(sequence)] = sequence
    return torch.from_numpy(padded)
