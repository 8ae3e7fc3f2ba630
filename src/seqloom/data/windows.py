"""Windows of a corpus: shuffled ones for Transformers, streams for recurrent models, overlapping ones for scoring.

A window is a run of ids, `[start, start + length)`. Its targets are these ids; its inputs are the ids one place before
them, where `</s>` (and what is before all) is `<s>`: what ends a document is predicted, what begins one is read. So a
window is several documents in a row, of which the first may have begun before it, and the last goes on behind it.

Which windows are read when is a function of (seed, epoch). In each epoch every id is a target exactly once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import Any, NamedTuple, Protocol, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from seqloom.data.order import Rows, order
from seqloom.errors import UsageError
from seqloom.shapes import IGNORE
from seqloom.text.special import BOS, EOS, PAD


class Corpus(Protocol):
    """What windows are cut from."""

    @property
    def tokens(self) -> NDArray[Any]:
        """`(ids,)`: documents, each ended by `</s>`."""
        ...


class TextBatch(NamedTuple):
    """Windows as ids, padded on the right."""

    inputs: Tensor
    """`(rows, steps)`: `<s>` where a document begins, `<pad>` where nothing is read"""
    targets: Tensor
    """`(rows, steps)`: the id that follows each input, IGNORE where nothing is trained"""
    lanes: Tensor
    """`(rows,)`: the stream that each row goes on with, -1 for none"""
    begins: Tensor
    """`(rows,)`: whether nothing goes before a row: it is no stream, or its stream begins here"""


class Windows(NamedTuple):
    """Where the rows of a batch lie."""

    starts: Rows
    lengths: Rows
    lanes: Rows
    begins: NDArray[np.bool_]


class Plan(Protocol):
    """Which windows are trained together, and when; a row is a number that `windows` understands."""

    def epoch(self, corpus: Corpus, epoch: int, start: int = 0) -> Iterator[Rows]:
        """The global batches of an epoch from the `start`-th on."""
        ...

    def count(self, corpus: Corpus, epoch: int = 0) -> int:
        """How many global batches an epoch has."""
        ...

    def windows(self, corpus: Corpus, rows: Rows) -> Windows: ...


@final
@dataclass(frozen=True, kw_only=True)
class WindowPlan:
    """Windows in random order, for models that begin anew in each. A row is where its window starts.

    An epoch cuts at multiples of `window`, moved to the left by less than a window, by (seed, epoch); so its first window may start
    before the corpus, and be shorter by that, as may be the last. Batches differ by at most one window.
    """

    seed: int
    window: int
    rows: int
    """Windows of a global batch, at most."""

    def epoch(self, corpus: Corpus, epoch: int, start: int = 0) -> Iterator[Rows]:
        (moved, count), batches = self._cut(corpus, epoch), self.count(corpus, epoch)
        for batch in range(start, batches):
            first, end = batch * count // batches, (batch + 1) * count // batches
            yield order(self.seed, epoch, first, end, count) * self.window - moved

    def count(self, corpus: Corpus, epoch: int = 0) -> int:
        return -(-self._cut(corpus, epoch)[1] // self.rows)

    def windows(self, corpus: Corpus, rows: Rows) -> Windows:
        starts, ends = np.maximum(rows, 0), np.minimum(rows + self.window, len(corpus.tokens))
        return Windows(starts, ends - starts, np.full(len(rows), -1), np.ones(len(rows), bool))

    def _cut(self, corpus: Corpus, epoch: int) -> tuple[int, int]:
        """How far an epoch's cuts are moved to the left, and how many windows it has."""
        moved = drawn(self.window, self.seed, epoch)
        return moved, -(-(len(corpus.tokens) + moved) // self.window)


@final
@dataclass(frozen=True, kw_only=True)
class StreamPlan:
    """Streams, for models that carry their state on: lane k reads the k-th part of the corpus, window after window.

    The corpus is a ring that each epoch enters at another place, by (seed, epoch); there all lanes begin anew. Batch i of
    an epoch holds window i of every lane. Lanes differ by at most one id, and so do the windows of a lane. A row is
    (epoch · windows of a lane + i) · lanes + k.
    """

    seed: int
    window: int
    """Ids of a window, at most."""
    rows: int
    """Lanes: windows of a global batch."""

    def epoch(self, corpus: Corpus, epoch: int, start: int = 0) -> Iterator[Rows]:
        steps = self.count(corpus)
        for step in range(start, steps):
            yield np.arange(self.rows, dtype=np.int64) + (epoch * steps + step) * self.rows

    def count(self, corpus: Corpus, epoch: int = 0) -> int:
        longest = -(-len(corpus.tokens) // self.rows)
        return -(-longest // self.window)

    def windows(self, corpus: Corpus, rows: Rows) -> Windows:
        size, steps = len(corpus.tokens), self.count(corpus)
        lanes, windows = rows % self.rows, rows // self.rows
        epochs, step = windows // steps, windows % steps
        entered = np.asarray([drawn(size, self.seed, int(epoch)) for epoch in epochs], dtype=np.int64)
        lane, after = lanes * size // self.rows, (lanes + 1) * size // self.rows
        starts, ends = (lane + at * (after - lane) // steps for at in (step, step + 1))
        return Windows((starts + entered) % size, ends - starts, lanes, step == 0)


@lru_cache(16)
def drawn(below: int, seed: int, epoch: int) -> int:
    """A number in 0..below-1, as a function of (seed, epoch)."""
    return int(np.random.SeedSequence([seed, epoch, 1]).generate_state(1, np.uint64)[0]) % below


def load_windows(corpus: Corpus, plan: Plan, rows: Rows, whole: Rows) -> TextBatch:
    """The batch of these rows.

    No rows: the first of the `whole` batch with nothing trained and no stream, since a worker must take part even where a
    batch has fewer rows than there are workers.
    """
    starts, lengths, lanes, begins = plan.windows(corpus, rows if len(rows) else whole[:1])
    steps = np.arange(max(int(lengths.max()), 1))  # a share of a tiny batch may be all empty
    inside = steps < lengths[:, None]
    targets = corpus.tokens[(starts[:, None] + steps) % len(corpus.tokens)].astype(np.int64)
    before = corpus.tokens[(starts[:, None] + steps - 1) % len(corpus.tokens)].astype(np.int64)  # before the first stands the last, a </s>
    inputs = np.where(before == EOS, BOS, before)
    if not len(rows):
        inside, lanes, begins = np.zeros_like(inside), np.full(1, -1), np.ones(1, bool)
    return TextBatch(*map(torch.from_numpy, (np.where(inside, inputs, PAD), np.where(inside, targets, IGNORE), lanes, begins)))


class ScoringBatch(NamedTuple):
    """Windows of documents whose predictions are scored. The target at step j of row r is number `starts[r] + j` of document
    `documents[r]`, counted from 0; the last of a document is its `</s>`."""

    inputs: Tensor
    """`(rows, steps)`"""
    targets: Tensor
    """`(rows, steps)`: IGNORE where another window scores"""
    documents: Rows
    """`(rows,)`"""
    starts: Rows
    """`(rows,)`"""
    follows: Tensor | None
    """`(rows,)`: the row of the batch before that each row goes on with, for `select_rows`; None: all begin anew."""


def evaluation_windows(
    documents: Iterable[Sequence[int] | NDArray[Any]], window: int, stride: int, rows: int, carried: bool = False
) -> Iterator[ScoringBatch]:
    """Batches of at most `rows` windows in which every id of every document, `</s>` too, is a target exactly once.

    `documents` are ids without marks; a `</s>` among them is followed by `<s>`, so that a whole corpus without its last id is one
    document to a model that joins documents. Before each target a window has at least `window - stride` other inputs, or
    all that the document has. With `carried` a row goes on with the state of the row that it follows, and `stride` must be
    `window`. Documents of like length are read together, a pool at a time; which ones changes no result.
    """
    if not 1 <= stride <= window or (carried and stride != window):
        raise UsageError(f"the stride must be from 1 to the window, and the window where a state is carried, but is {stride} of {window}")
    numbered = enumerate(documents)
    while pool := list(islice(numbered, POOL)):
        pool.sort(key=lambda one: -len(one[1]))
        yield from _carried(pool, window, rows) if carried else _overlapping(pool, window, stride, rows)


POOL = 1024
"""Documents that are sorted by length together."""

Numbered = list[tuple[int, Sequence[int] | NDArray[Any]]]


def _overlapping(pool: Numbered, window: int, stride: int, rows: int) -> Iterator[ScoringBatch]:
    windows = (
        _Window(number, ids, start, 0 if start == 0 else window - stride, min(window, len(ids) + 1 - start))
        for number, ids in pool
        for start in range(0, max(len(ids) + 1 - window + stride, 1), stride)
    )
    while some := list(islice(windows, rows)):
        yield _scoring_batch(some, None)


def _carried(pool: Numbered, window: int, rows: int) -> Iterator[ScoringBatch]:
    for first in range(0, len(pool), rows):
        group, start = pool[first : first + rows], 0
        while group := [one for one in group if len(one[1]) + 1 > start]:  # the longest stand first, so those that go on do
            some = [_Window(number, ids, start, 0, min(window, len(ids) + 1 - start)) for number, ids in group]
            yield _scoring_batch(some, torch.arange(len(some)) if start else None)
            start += window


class _Window(NamedTuple):
    document: int
    ids: Sequence[int] | NDArray[Any]
    start: int
    known: int
    """How many of its first targets another window scores."""
    length: int


def _scoring_batch(windows: list[_Window], follows: Tensor | None) -> ScoringBatch:
    shape = len(windows), max(one.length for one in windows)
    inputs, targets = np.full(shape, PAD, np.int64), np.full(shape, IGNORE, np.int64)
    for row, (_, ids, start, known, length) in enumerate(windows):
        run = np.full(length + 1, BOS, np.int64)  # the id before the first target, and the targets
        inner = np.asarray(ids[max(start - 1, 0) : start + length])
        run[start == 0 :][: len(inner)] = inner
        if start + length > len(ids):
            run[length] = EOS
        inputs[row, :length] = np.where(run[:-1] == EOS, BOS, run[:-1])
        targets[row, known:length] = run[known + 1 :]
    numbers, starts = (np.asarray(values, np.int64) for values in zip(*((one.document, one.start) for one in windows), strict=True))
    return ScoringBatch(torch.from_numpy(inputs), torch.from_numpy(targets), numbers, starts, follows)
