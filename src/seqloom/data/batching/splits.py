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
from seqloom.errors import UsageError

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
        return f"{len(self.documents):,} documents"


def held_out(count: int, seed: int) -> frozenset[int]:
    """Which of `count` things are held out: a function of the seed."""
    most = min(SPLIT_MOST, max(round(SPLIT_SHARE * count), 1))
    return frozenset(permute(np.arange(most), count, seed, SPLIT_STREAM).tolist())


def held_out_evenly(
    labels: NDArray[np.int64], seed: int, units: NDArray[np.int64] | None = None
) -> NDArray[np.int64]:
    """Which rows are held out, in order: of each label its share (LABELLED_SHARE), and never all.

    `units` `(rows,)` are numbers from 0, `units_of` makes them: rows of one unit go together, by the label of
    its first row, and with them the share is met to within half a unit, if there is none but larger ones by
    the smallest. The k-th of the n rows of a label, in an order by seed, stands at (k + 1/2) / n, a unit at
    its middle: the first on this line are taken. Raises UsageError where no label has two rows, or units.
    """
    count = len(labels)
    units = np.arange(count) if units is None else units
    firsts = np.unique(units, return_index=True)[1]
    sizes, kinds = np.bincount(units), labels[firsts]
    shuffled = permute(np.arange(len(sizes)), len(sizes), seed, SPLIT_STREAM)
    only = _only(labels, units)
    by_label = shuffled[np.lexsort((only[shuffled], kinds[shuffled]))]
    _, starts, numbers = np.unique(kinds[by_label], return_index=True, return_counts=True)
    size, number = sizes[by_label], np.repeat(numbers, numbers)
    before = np.cumsum(size) - size
    before -= np.repeat(before[starts], numbers)
    total = np.repeat(np.add.reduceat(size, starts), numbers) if count else size
    may_go = np.arange(len(sizes)) - np.repeat(starts, numbers) + 1 < number
    if not may_go.any():
        raise UsageError(_NOTHING)
    most = min(SPLIT_MOST, max(round(LABELLED_SHARE * count), 1))
    along = np.where(may_go, (before + size / 2) / total, np.inf)
    first = np.argsort(along, kind="stable")[: int(may_go.sum())]
    small = first[size[first] < 2 * most]
    first = small if len(small) else first[[np.argmin(size[first])]]
    fits = (np.cumsum(size[first]) - size[first] / 2 < most) | (np.arange(len(first)) == 0)
    out = np.isin(units, by_label[first[np.logical_and.accumulate(fits)]])
    for label in np.setdiff1d(
        labels[out], labels[~out]
    ):  # units of several labels: the last rows of one may not go with another
        if label not in labels[~out]:
            out &= units != units[out & (labels == label)][0]
    if not out.any():
        raise UsageError(_NOTHING)
    return np.flatnonzero(out)


def _only(labels: NDArray[np.int64], units: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Of each unit whether it is the only one that has some label."""
    number = int(units.max(initial=-1)) + 1
    pairs = np.unique(np.unique(labels, return_inverse=True)[1] * number + units)
    kinds = pairs // number
    only = np.zeros(number, bool)
    only[pairs[np.bincount(kinds)[kinds] == 1] % number] = True
    return only


_NOTHING = (
    "validation needs examples of its own, but none may be parted from the others: equal texts, one article"
    " and one group stay together, and one example of each label stays; name more data or --validation files"
)


def units_of(keys: Sequence[str], groups: Sequence[str | None] | None = None) -> NDArray[np.int64]:
    """`(rows,)`: numbers of units from 0. Rows with one key, or with one group, are in one unit, and so are
    those that others join."""
    first: dict[str, int] = {}
    units = np.unique([first.setdefault(key, row) for row, key in enumerate(keys)], return_inverse=True)[1]
    if groups is None:
        return units
    owner = list(range(len(first)))  # a unit of equal keys belongs to another, or to itself

    def root(unit: int) -> int:
        while owner[unit] != unit:
            owner[unit] = owner[owner[unit]]
            unit = owner[unit]
        return unit

    met: dict[str, int] = {}
    for unit, group in zip(units.tolist(), groups, strict=True):
        if group is not None:
            low, high = sorted((root(unit), root(met.setdefault(group, unit))))
            owner[high] = low
    return np.unique([root(unit) for unit in range(len(owner))], return_inverse=True)[1][units]


def split_labelled(
    examples: Sequence[LabelledText], seed: int, *, stratified: bool = True
) -> NDArray[np.int64]:
    """Which examples are held out, in order: see `held_out_evenly`. Those with the same texts stay together,
    as do those of one group; not `stratified` where labels are numbers. Raises UsageError where nothing can
    be parted."""
    kinds: dict[str, int] = {}
    first = ("".join(example.labels[:1]) if stratified else "" for example in examples)
    labels = np.array([kinds.setdefault(label, len(kinds)) for label in first], np.int64)
    groups = [example.group for example in examples]
    return held_out_evenly(
        labels, seed, units_of([text_key(example) for example in examples], groups if any(groups) else None)
    )


def hold_out(pieces: Iterable[DocumentPiece], seed: int) -> HeldOut:
    """What to hold out of these documents, which are read once. Raises UsageError where too little would be
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


def kept(pieces: Iterable[DocumentPiece], held: HeldOut, validation: bool) -> Iterator[DocumentPiece]:
    """The pieces that remain for training, or those held out for validation."""
    if held.after is not None:
        return _part(pieces, held.after, validation)
    return _chosen(pieces, held.documents, validation)


def _chosen(
    pieces: Iterable[DocumentPiece], documents: frozenset[int], validation: bool
) -> Iterator[DocumentPiece]:
    number = 0
    for piece in pieces:
        if (number in documents) is validation:
            yield piece
        number += piece.last


def _part(pieces: Iterable[DocumentPiece], after: int, tail: bool) -> Iterator[DocumentPiece]:
    """The only document up to `after` characters, or what follows them: a document too."""
    start = 0
    for piece in pieces:
        at = min(max(after - start, 0), len(piece.text))  # where it is cut
        start += len(piece.text)
        if tail and at < len(piece.text):
            yield piece._replace(text=piece.text[at:], line=piece.line + piece.text.count("\n", 0, at))
        elif not tail and at:
            yield piece._replace(text=piece.text[:at], last=start >= after)
