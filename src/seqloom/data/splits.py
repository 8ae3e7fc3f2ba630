"""What is held out of the training data for validation: documents by seed, or the end of the only one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray

from seqloom.data.documents import Piece
from seqloom.data.order import permute
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


def held_out_evenly(labels: NDArray[np.int64], seed: int) -> NDArray[np.int64]:
    """Which rows are held out, in order: of each label its share (LABELLED_SHARE), and never the only one.

    The k-th of the n rows of a label, in an order by seed, stands at (k + 1/2) / n: the first on this line are taken.
    Raises UsageError where no label has two rows.
    """
    count = len(labels)
    shuffled = permute(np.arange(count), count, seed, SPLIT_STREAM)
    by_label = shuffled[np.argsort(labels[shuffled], kind="stable")]
    _, starts, sizes = np.unique(labels[by_label], return_index=True, return_counts=True)
    nth = np.arange(count) - np.repeat(starts, sizes)
    total = np.repeat(sizes, sizes)
    may_go = nth + 1 < total
    if not may_go.any():
        raise UsageError("validation needs examples of its own, but no label has two; name more data or --validation files")
    most = min(SPLIT_MOST, max(round(LABELLED_SHARE * count), 1))
    along = np.where(may_go, (nth + 0.5) / total, np.inf)
    first = np.argsort(along, kind="stable")[: min(most, int(may_go.sum()))]
    return np.sort(by_label[first])


def hold_out(pieces: Iterable[Piece], seed: int) -> HeldOut:
    """What to hold out of these documents, which are read once. Raises UsageError where too little would be left to train."""
    count = characters = 0
    for piece in pieces:
        count += piece.last
        characters += len(piece.text)
    if count > 1:
        return HeldOut(documents=held_out(count, seed))
    after = characters * (10 - TAIL_TENTHS) // 10
    if not after:
        raise UsageError(
            f"validation needs text of its own, but there are only {characters} characters; name more data or --validation files"
        )
    return HeldOut(after=after)


def kept(pieces: Iterable[Piece], held: HeldOut, validation: bool) -> Iterator[Piece]:
    """The pieces that remain for training, or those held out for validation."""
    if held.after is not None:
        return _part(pieces, held.after, validation)
    return _chosen(pieces, held.documents, validation)


def _chosen(pieces: Iterable[Piece], documents: frozenset[int], validation: bool) -> Iterator[Piece]:
    number = 0
    for piece in pieces:
        if (number in documents) is validation:
            yield piece
        number += piece.last


def _part(pieces: Iterable[Piece], after: int, tail: bool) -> Iterator[Piece]:
    """The only document up to `after` characters, or what follows them: a document too."""
    start = 0
    for piece in pieces:
        at = min(max(after - start, 0), len(piece.text))  # where it is cut
        start += len(piece.text)
        if tail and at < len(piece.text):
            yield piece._replace(text=piece.text[at:], line=piece.line + piece.text.count("\n", 0, at))
        elif not tail and at:
            yield piece._replace(text=piece.text[:at], last=start >= after)
