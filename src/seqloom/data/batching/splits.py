"""What is held out of the training data for validation: documents by seed, or the end of the only one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray

from seqloom.data.batching.order import permute
from seqloom.data.readers.documents import DocumentPiece
from seqloom.data.readers.examples import LabelledText
from seqloom.data.readers.labels import text_key
from seqloom.errors import UsageError, counted

SPLIT_SHARE, SPLIT_MOST = 0.02, 1000
"""This share of the records or documents is split off, at most this many, at least one."""
SPLIT_STREAM = 2**32 - 1
"""The split's key beside the seed: no epoch has this number."""
LABELLED_SHARE = 0.1
"""Of labelled examples this share, with the same bounds: each tells no more than right or wrong."""
TAIL_TENTHS = 1
"""Of a corpus of one document the last tenth is held out, as is the custom for books (tiny Shakespeare)."""


@final
@dataclass(frozen=True, kw_only=True)
class HeldOut:
    """What is held out of a corpus."""

    documents: frozenset[int] = frozenset()
    """Numbers of documents, from 0."""
    after: int | None = None
    """Or what follows so many characters of the only document."""

    def __str__(self) -> str:
        if self.after is not None:
            return f"the last tenth of the only document (from character {self.after:,} on)"
        return f"{counted(len(self.documents), 'document')}"


def held_out(count: int, seed: int) -> frozenset[int]:
    """Which of `count` things are held out: a function of the seed."""
    first = np.arange(_split_size(count, SPLIT_SHARE))
    return frozenset(permute(first, count, seed, SPLIT_STREAM).tolist())


def _split_size(count: int, share: float) -> int:
    return min(SPLIT_MOST, max(round(share * count), 1))


def stratified_split(
    labels: NDArray[np.int64], seed: int, groups: NDArray[np.int64] | None = None
) -> NDArray[np.int64]:
    """Which rows are held out, in order: of each label its share (LABELLED_SHARE), and never all.

    `groups` `(rows,)` are numbers from 0, from `group_ids`: rows of one group stay together, under the label
    of its first row, and the share is met to within half a group; if all are larger, by the smallest. The
    k-th of the n rows of a label, in an order by seed, is at (k + 1/2) / n, a group at its middle: the first
    on this line are taken. Raises UsageError if no label has two rows, or groups.
    """
    count = len(labels)
    groups = np.arange(count) if groups is None else groups
    firsts = np.unique(groups, return_index=True)[1]
    sizes, group_labels = np.bincount(groups), labels[firsts]
    shuffled = permute(np.arange(len(sizes)), len(sizes), seed, SPLIT_STREAM)
    # By label; groups that alone have some label come last, where they are not taken.
    alone = _alone(labels, groups)
    by_label = shuffled[np.lexsort((alone[shuffled], group_labels[shuffled]))]
    _, starts, numbers = np.unique(group_labels[by_label], return_index=True, return_counts=True)
    size, number = sizes[by_label], np.repeat(numbers, numbers)
    before = np.cumsum(size) - size
    before -= np.repeat(before[starts], numbers)
    total = np.repeat(np.add.reduceat(size, starts), numbers) if count else size
    # The last group of each label stays.
    may_go = np.arange(len(sizes)) - np.repeat(starts, numbers) + 1 < number
    if not may_go.any():
        raise UsageError(_NOTHING)
    most = _split_size(count, LABELLED_SHARE)
    line = np.where(may_go, (before + size / 2) / total, np.inf)
    first = np.argsort(line, kind="stable")[: int(may_go.sum())]
    small = first[size[first] < 2 * most]
    first = small if len(small) else first[[np.argmin(size[first])]]
    fits = (np.cumsum(size[first]) - size[first] / 2 < most) | (np.arange(len(first)) == 0)
    out = np.isin(groups, by_label[first[np.logical_and.accumulate(fits)]])
    # Where groups have several labels, the last rows of one may have gone with another.
    for label in np.setdiff1d(labels[out], labels[~out]):
        if label not in labels[~out]:
            out &= groups != groups[out & (labels == label)][0]
    if not out.any():
        raise UsageError(_NOTHING)
    return np.flatnonzero(out)


def _alone(labels: NDArray[np.int64], groups: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Of each group whether it is the only one that has some label."""
    number = int(groups.max(initial=-1)) + 1
    pairs = np.unique(np.unique(labels, return_inverse=True)[1] * number + groups)
    kinds = pairs // number
    alone = np.zeros(number, bool)
    alone[pairs[np.bincount(kinds)[kinds] == 1] % number] = True
    return alone


_NOTHING = (
    "validation needs examples of its own, but none may be parted from the others: equal texts, one article"
    " and one group stay together, and one example of each label stays; name more data or --validation files"
)


def group_ids(keys: Sequence[str], groups: Sequence[str | None] | None = None) -> NDArray[np.int64]:
    """`(rows,)`: numbers from 0. Rows with an equal key, or an equal group, have one number, and so have
    those that others connect (union-find)."""
    first: dict[str, int] = {}
    ids = np.unique(
        [first.setdefault(key, row) for row, key in enumerate(keys)], return_inverse=True
    )[1]
    if groups is None:
        return ids
    parent = list(range(len(first)))

    def root(node: int) -> int:
        while parent[node] != node:
            parent[node] = parent[parent[node]]
            node = parent[node]
        return node

    known: dict[str, int] = {}
    for node, group in zip(ids.tolist(), groups, strict=True):
        if group is not None:
            low, high = sorted((root(node), root(known.setdefault(group, node))))
            parent[high] = low
    return np.unique([root(node) for node in range(len(parent))], return_inverse=True)[1][ids]


def split_labelled(
    examples: Sequence[LabelledText], seed: int, *, stratified: bool = True
) -> NDArray[np.int64]:
    """Which examples are held out, in order: see `stratified_split`. Those with the same texts stay together,
    as do those of one group; not `stratified` where labels are numbers. Raises UsageError if nothing can
    be parted."""
    numbers: dict[str, int] = {}
    first = ("".join(example.labels[:1]) if stratified else "" for example in examples)
    labels = np.array([numbers.setdefault(label, len(numbers)) for label in first], np.int64)
    groups = [example.group for example in examples]
    keys = [text_key(example) for example in examples]
    return stratified_split(labels, seed, group_ids(keys, groups))


def hold_out(pieces: Iterable[DocumentPiece], seed: int) -> HeldOut:
    """What to hold out of these documents, which are read once. Raises UsageError if too little would be
    left to train."""
    count = characters = 0
    for piece in pieces:
        count += piece.last
        characters += len(piece.text)
    if count > 1:
        return HeldOut(documents=held_out(count, seed))
    after = characters * (10 - TAIL_TENTHS) // 10
    if not after:
        raise UsageError(
            f"validation needs text of its own, but there are only {characters} characters; name more data or"
            " --validation files"
        )
    return HeldOut(after=after)


def select_pieces(
    pieces: Iterable[DocumentPiece], held: HeldOut, validation: bool
) -> Iterator[DocumentPiece]:
    """The pieces that remain for training, or those held out for validation."""
    number = position = 0
    for piece in pieces:
        if held.after is None:
            if (number in held.documents) is validation:
                yield piece
            number += piece.last
            continue
        # The only document up to `after` characters, or what follows them: a document too.
        cut = min(max(held.after - position, 0), len(piece.text))
        position += len(piece.text)
        if validation and cut < len(piece.text):
            yield piece._replace(
                text=piece.text[cut:], line=piece.line + piece.text.count("\n", 0, cut)
            )
        elif not validation and cut:
            yield piece._replace(text=piece.text[:cut], last=position >= held.after)
