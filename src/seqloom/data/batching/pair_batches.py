"""Rows to batches of ids: length buckets, a budget of tokens, shares, padding, and the shift of the target
(only here).

The batches of an epoch are a function of (seed, epoch): the rows come in the order of `order`; each pool of
consecutive rows is sorted by length, cut into batches that fit the budget, and its batches are shuffled. A
global batch is fixed before it is shared between workers and micro-batches, so their number changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from seqloom.data.batching.order import Rows, order, permute
from seqloom.data.batching.token_store import TokenStore
from seqloom.protocols import SpecialIds
from seqloom.shapes import IGNORE
from seqloom.text.special_tokens import SPECIAL_IDS

POOL = 8192
"""Rows that are sorted by length together."""

SOURCE, TARGET = 0, 1
"""The columns of a store of pairs."""


class TranslationBatch(NamedTuple):
    """Pairs as ids. `source` ends in `</s>`; `inputs` is `<s> y…`; `targets` is `y… </s>`, IGNORE at padding.
    The marks of others stand where these would."""

    source: Tensor
    """`(rows, source)`"""
    inputs: Tensor
    """`(rows, steps)`"""
    targets: Tensor
    """`(rows, steps)`"""


class HasLengths(Protocol):
    """Rows whose lengths are known."""

    def __len__(self) -> int: ...

    def lengths(self, rows: Rows, column: int) -> NDArray[np.int64]:
        """`(n,)`: in a column, SOURCE or TARGET."""
        ...


@final
@dataclass(frozen=True, kw_only=True)
class BatchPlan:
    """Which rows are trained together, and when."""

    seed: int
    batch_tokens: int | None
    """Budget of a global batch: rows × (longest source + longest target), marks counted."""
    batch_rows: int | None
    """Or a fixed number of rows."""
    special_ids: SpecialIds | None = SPECIAL_IDS
    """None: the lengths of the store are those with marks."""

    def epoch(self, store: HasLengths, epoch: int, start: int = 0) -> Iterator[Rows]:
        """The global batches of an epoch from the `start`-th on: arrays of row numbers."""
        seen = 0
        for pool in range(-(-len(store) // POOL)):
            rows = order(self.seed, epoch, pool * POOL, min((pool + 1) * POOL, len(store)), len(store))
            source, target = (0, 0) if self.special_ids is None else marks_of_pair(self.special_ids)
            batches = self._cut(
                rows, store.lengths(rows, SOURCE) + source, store.lengths(rows, TARGET) + target
            )
            if seen + len(batches) > start:
                for at in permute(np.arange(len(batches)), len(batches), self.seed, epoch, pool + 1)[
                    max(start - seen, 0) :
                ]:
                    yield batches[at]
            seen += len(batches)

    def count(self, store: HasLengths, epoch: int = 0) -> int:
        """How many global batches an epoch has (epochs differ by a few)."""
        return sum(1 for _ in self.epoch(store, epoch))

    def _cut(self, rows: Rows, sources: NDArray[np.int64], targets: NDArray[np.int64]) -> list[Rows]:
        by_cost = np.argsort(sources + targets, kind="stable")
        rows = rows[by_cost]
        if self.batch_rows is not None:
            return [rows[at : at + self.batch_rows] for at in range(0, len(rows), self.batch_rows)]
        assert self.batch_tokens is not None
        ends = cuts(sources[by_cost], targets[by_cost], self.batch_tokens)
        return [rows[first:end] for first, end in zip([0, *ends], ends, strict=False)]


def cuts(sources: NDArray[np.int64], targets: NDArray[np.int64], budget: int) -> list[int]:
    """Where batches end, when rows of these lengths are taken in order and none costs more than
    rows × (longest source + longest target); a single row may."""
    ends, first, longest = [], 0, (0, 0)
    for at, (source, target) in enumerate(zip(sources.tolist(), targets.tolist(), strict=True)):
        longest = max(longest[0], source), max(longest[1], target)
        if (at - first + 1) * sum(longest) > budget and at > first:
            ends.append(at)
            first, longest = at, (source, target)
    return [*ends, len(sources)]


def costs(store: TokenStore, rows: Rows, special_ids: SpecialIds = SPECIAL_IDS) -> NDArray[np.int64]:
    """Tokens that each row needs, source and target with their marks."""
    return store.lengths(rows, SOURCE) + store.lengths(rows, TARGET) + sum(marks_of_pair(special_ids))


def marks_of_pair(special_ids: SpecialIds) -> tuple[int, int]:
    """How many steps the marks of a source are, and those of a target."""
    return len(special_ids.prefix) + len(special_ids.suffix), len(special_ids.bos) + (
        special_ids.eos is not None
    ) - 1


def share(rows: Rows, part: int, parts: int) -> Rows:
    """The `part`-th of `parts` shares of a batch: every parts-th row, so that shares are alike in length."""
    return rows[part::parts]


def translation_batch(
    store: TokenStore, rows: Rows, whole: Rows, max_length: int | None, special_ids: SpecialIds = SPECIAL_IDS
) -> TranslationBatch:
    """The batch of these rows, each text cut to `max_length` ids.

    No rows: the first of the `whole` batch with nothing trained, since a worker must take part even where a
    batch has fewer rows than there are workers.
    """
    used = rows if len(rows) else whole[:1]
    sources, targets = (
        [store.sequence(row, column)[:max_length].tolist() for row in used] for column in (SOURCE, TARGET)
    )
    batch = pair_batch(sources, targets, special_ids)
    return batch if len(rows) else batch._replace(targets=torch.full_like(batch.targets, IGNORE))


def pair_batch(
    sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]], special_ids: SpecialIds = SPECIAL_IDS
) -> TranslationBatch:
    """Pairs of ids with their marks, padded on the right. The target is shifted here and nowhere else; marks
    that begin it are fed and never trained."""
    written = [written_with(target, special_ids) for target in targets]
    given = max(len(special_ids.bos) - 1, 0)
    return TranslationBatch(
        source_batch(sources, special_ids),
        pad([one[:-1] for one in written], special_ids.pad),
        pad([[*[IGNORE] * given, *one[given + 1 :]] for one in written], IGNORE),
    )


def source_batch(sources: Sequence[Sequence[int]], special_ids: SpecialIds = SPECIAL_IDS) -> Tensor:
    """Sources as an encoder reads them, with their marks and padded: `(rows, source)`."""
    return pad([read_with(source, special_ids) for source in sources], special_ids.pad)


def read_with(ids: Sequence[int], special_ids: SpecialIds) -> list[int]:
    """A text as an encoder reads it."""
    return [*special_ids.prefix, *ids, *special_ids.suffix]


def written_with(ids: Sequence[int], special_ids: SpecialIds) -> list[int]:
    """A text with what a model reads before it and what ends it: of this, each id but those that begin it is
    predicted from the ids before it. Where nothing begins a text its first id is read and never predicted."""
    return [*special_ids.bos, *ids, *([] if special_ids.eos is None else [special_ids.eos])]


def pad(sequences: Sequence[Sequence[int]], value: int) -> Tensor:
    """Sequences of different length as one tensor `(rows, longest)`, filled up on the right."""
    padded = np.full((len(sequences), max(map(len, sequences))), value, dtype=np.int64)
    for row, sequence in enumerate(sequences):
        padded[row, : len(sequence)] = sequence
    return torch.from_numpy(padded)
