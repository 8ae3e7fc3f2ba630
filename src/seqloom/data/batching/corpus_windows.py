"""Windows of a corpus: shuffled ones for Transformers, streams for recurrent models.

A window is a range of ids, `[start, start + length)`. Its targets are these ids; its inputs are the ids one
place before them, where `</s>` (and what is before all) is `<s>`: what ends a document is predicted, what
begins one is read. So a window is several documents in a row, of which the first may begin before it, and the
last may end after it.

In a pretrained tokenizer `</s>` and `<s>` may be the same, or there is no `<s>` and `</s>` itself is read.
Where nothing ends a document the next one continues it.

Which windows are read when is a function of (seed, epoch). In each epoch every id is a target exactly once,
but for the first of all where nothing stands before it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, NamedTuple, Protocol, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from seqloom.data.batching.order import order
from seqloom.protocols import Rows, SpecialIds
from seqloom.shapes import IGNORE
from seqloom.text.special_tokens import SPECIAL_IDS

CorpusIds = NDArray[np.uint16 | np.uint32 | np.int64]
"""Ids as stores have them, or as tokenizers give them."""


class Corpus(Protocol):
    """What windows are cut from."""

    @property
    def tokens(self) -> CorpusIds:
        """`(ids,)`: documents, each ended by `</s>`."""
        ...


class TextBatch(NamedTuple):
    """Windows as ids, padded on the right."""

    inputs: Tensor
    """`(rows, steps)`: `<s>` where a document begins, `<pad>` where nothing is read"""
    targets: Tensor
    """`(rows, steps)`: the id that follows each input, IGNORE where nothing is trained"""
    streams: Tensor
    """`(rows,)`: the stream that each row continues, -1 for none"""
    begins: Tensor
    """`(rows,)`: whether a row has no stream, or its stream begins here"""


class BidirectionalBatch(NamedTuple):
    """Windows for a language model of each direction. Those of the backward one are of the reversed corpus:
    other windows, whose stream goes from the end of the corpus to its beginning."""

    inputs: Tensor
    """`(rows, steps)`, as in `TextBatch`."""
    targets: Tensor
    backward_inputs: Tensor
    """In the order of reading: `</s>` where a document is entered at its end."""
    backward_targets: Tensor
    """The id before each input; `<s>` before the first of a document."""
    streams: Tensor
    begins: Tensor
    """Both as in `TextBatch`, for both directions."""
    characters: Tensor
    """`(rows, steps, letters)`: the bytes of each input, -1 at padding; no letters where none are read."""
    backward_characters: Tensor


class Windows(NamedTuple):
    """Where the rows of a batch lie."""

    starts: Rows
    lengths: Rows
    streams: Rows
    begins: NDArray[np.bool_]


class CorpusPlan(Protocol):
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
    """Windows in random order, for models that start from the empty state in each. A row is the start of its
    window.

    An epoch cuts at multiples of `window`, moved to the left by less than a window, by (seed, epoch); so its
    first window may start before the corpus and be shorter, and the last may be shorter too. Batches differ
    by at most one window.
    """

    carries: ClassVar = False
    """Whether a row goes on where the same row of the last batch ended."""
    seed: int
    window: int
    rows: int
    """Windows of a global batch, at most."""
    fixed: bool = False
    """Whether all epochs cut at the places of the first."""

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
        moved = epoch_offset(self.window, self.seed, 0 if self.fixed else epoch)
        return moved, -(-(len(corpus.tokens) + moved) // self.window)


@final
@dataclass(frozen=True, kw_only=True)
class StreamPlan:
    """Streams, for models that carry their state on: stream k reads the k-th part of the corpus, window after
    window.

    The corpus is a ring that each epoch enters at another place, by (seed, epoch), where all streams begin.
    Batch i of an epoch holds window i of every stream. Streams differ by at most one id, and so do the
    windows of a stream. A row is (epoch · windows of a stream + i) · streams + k.
    """

    carries: ClassVar = True
    seed: int
    window: int
    """Ids of a window, at most."""
    rows: int
    """Streams: windows of a global batch."""

    def epoch(self, corpus: Corpus, epoch: int, start: int = 0) -> Iterator[Rows]:
        steps = self.count(corpus)
        for step in range(start, steps):
            yield np.arange(self.rows, dtype=np.int64) + (epoch * steps + step) * self.rows

    def count(self, corpus: Corpus, epoch: int = 0) -> int:
        longest = -(-len(corpus.tokens) // self.rows)
        return -(-longest // self.window)

    def windows(self, corpus: Corpus, rows: Rows) -> Windows:
        size, steps = len(corpus.tokens), self.count(corpus)
        streams, windows = rows % self.rows, rows // self.rows
        epochs, step = windows // steps, windows % steps
        entered = np.asarray(
            [epoch_offset(size, self.seed, int(epoch)) for epoch in epochs], dtype=np.int64
        )
        first, after = streams * size // self.rows, (streams + 1) * size // self.rows
        starts, ends = (first + window * (after - first) // steps for window in (step, step + 1))
        return Windows((starts + entered) % size, ends - starts, streams, step == 0)


@lru_cache(16)
def epoch_offset(below: int, seed: int, epoch: int) -> int:
    """A number in 0..below-1, as a function of (seed, epoch)."""
    return int(np.random.SeedSequence([seed, epoch, 1]).generate_state(1, np.uint64)[0]) % below


def load_windows(
    corpus: Corpus, plan: CorpusPlan, rows: Rows, whole: Rows, special_ids: SpecialIds = SPECIAL_IDS
) -> TextBatch:
    """The batch of these rows.

    No rows: the first of the `whole` batch with nothing trained and no stream, since a worker must take part
    even where a batch has fewer rows than there are workers.
    """
    used = rows if len(rows) else whole[:1]
    starts, lengths, streams, begins = plan.windows(corpus, used)
    steps = np.arange(max(int(lengths.max()), 1))  # all windows of a shard may be empty
    inside = steps < lengths[:, None]
    places = (starts[:, None] + steps) % len(corpus.tokens)
    targets = corpus.tokens[places].astype(np.int64)
    inputs = corpus.tokens[places - 1].astype(np.int64)  # before the first id is the last, a </s>
    if special_ids.bos:
        begins_document = places == 0 if special_ids.eos is None else inputs == special_ids.eos
        inputs[begins_document] = special_ids.bos[-1]
    elif special_ids.eos is None:
        targets[places == 0] = IGNORE
    if not len(rows):
        inside, streams, begins = np.zeros_like(inside), np.full(1, -1), np.ones(1, bool)
    inputs, targets = np.where(inside, inputs, special_ids.pad), np.where(inside, targets, IGNORE)
    return TextBatch(*map(torch.from_numpy, (inputs, targets, streams, begins)))


@final
@dataclass(frozen=True)
class ReversedCorpus:
    """A corpus from its end to its beginning: `</s>` comes before the last id of each document."""

    corpus: Corpus

    @property
    def tokens(self) -> CorpusIds:
        return self.corpus.tokens[::-1]


def load_both_directions(
    corpus: Corpus,
    plan: CorpusPlan,
    rows: Rows,
    whole: Rows,
    special_ids: SpecialIds = SPECIAL_IDS,
    letters: Tensor | None = None,
) -> BidirectionalBatch:
    """The windows of these rows in the corpus and in the reversed one. `letters` `(ids, letters)`: the bytes
    of each id, -1 at padding."""
    forward = load_windows(corpus, plan, rows, whole, special_ids)
    backward = load_windows(ReversedCorpus(corpus), plan, rows, whole, special_ids)
    (bos,), eos = special_ids.bos, special_ids.eos
    assert eos is not None
    inputs = backward.inputs.masked_fill(backward.inputs == bos, eos)
    targets = backward.targets.masked_fill(backward.targets == eos, bos)

    def spelled(ids: Tensor) -> Tensor:
        return ids.new_zeros(*ids.shape, 0) if letters is None else letters[ids]

    return BidirectionalBatch(
        forward.inputs,
        forward.targets,
        inputs,
        targets,
        forward.streams,
        forward.begins,
        spelled(forward.inputs),
        spelled(inputs),
    )
