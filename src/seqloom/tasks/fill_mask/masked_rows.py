"""Rows of a corpus with masks, as a function of (seed, epoch, position); and rows without pairs: windows over
all documents."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol, final

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from seqloom.data.batching.corpus_store import CorpusStore
from seqloom.data.batching.corpus_windows import WindowPlan
from seqloom.data.batching.pair_batches import pad
from seqloom.data.encoding.masks import Ids, MaskedRow, MaskOptions, apply_masks, joined_row
from seqloom.errors import DataError
from seqloom.protocols import MaskedBatch, Rows, SpecialIds
from seqloom.shapes import IGNORE

MASKS = 3
"""The key of masks beside the seed, the epoch and the position: batches, offsets and noise have others."""
REPLACEMENTS = 4
"""That of what replacements are drawn with."""


@final
class TextRow(NamedTuple):
    """What a row holds before masks are made."""

    ids: Ids
    """With special tokens."""
    segments: Ids
    label: int = IGNORE
    """Whether the second text follows the first: `MaskedBatch.labels`."""


class TextRows(Protocol):
    """How a corpus is cut into rows. A number names the same row wherever it is made."""

    def period(self, corpus: CorpusStore) -> int:
        """The numbers of the rows of an epoch are below it."""
        ...

    def epoch(self, corpus: CorpusStore, epoch: int, start: int = 0) -> Iterator[Rows]:
        """The global batches of an epoch from the `start`-th on."""
        ...

    def count(self, corpus: CorpusStore) -> int:
        """How many global batches an epoch has."""
        ...

    def row(self, corpus: CorpusStore, number: int, epoch: int) -> TextRow: ...

    def begins(self, corpus: CorpusStore, number: int, epoch: int) -> int:
        """The place of its first id in the corpus."""
        ...

    def for_corpus(self, corpus: CorpusStore) -> TextRows:
        """The same, or rows without pairs where a corpus has no other documents to take texts from."""
        ...


@final
@dataclass(frozen=True, kw_only=True)
class FullWindows:
    """Windows over all documents, with what ends a text between two (Liu et al. 2019: FULL-SENTENCES)."""

    plan: WindowPlan
    """Its windows leave room for the special tokens of a row."""
    special_ids: SpecialIds

    def period(self, corpus: CorpusStore) -> int:
        return len(corpus.tokens) + self.plan.window

    def epoch(self, corpus: CorpusStore, epoch: int, start: int = 0) -> Iterator[Rows]:
        for rows in self.plan.epoch(corpus, epoch, start):
            yield rows + self.plan.window

    def count(self, corpus: CorpusStore) -> int:
        return self.plan.count(corpus)

    def row(self, corpus: CorpusStore, number: int, epoch: int) -> TextRow:
        begin = number - self.plan.window
        ids = corpus.tokens[max(begin, 0) : begin + self.plan.window].astype(np.int64)
        prefix, suffix = self.special_ids.prefix, self.special_ids.suffix
        # the end of a document at the end of a row is that of the row
        if len(ids) and suffix and ids[-1] == suffix[-1]:
            ids = ids[:-1]
        return TextRow(*joined_row([ids], prefix, (), suffix))

    def begins(self, corpus: CorpusStore, number: int, epoch: int) -> int:
        return max(number - self.plan.window, 0)

    def for_corpus(self, corpus: CorpusStore) -> FullWindows:
        return self


@final
@dataclass(frozen=True, kw_only=True)
class MaskedRows:
    """The rows of a run with their masks. A number is epoch · period + the number of the row in its epoch."""

    texts: TextRows
    options: MaskOptions
    seed: int
    static: bool
    """Whether each epoch has the rows and masks of the first, in another order."""
    replaced: bool = False
    """Whether chosen tokens are replaced by those of a generator (ELECTRA)."""

    def epoch(self, corpus: CorpusStore, epoch: int, start: int = 0) -> Iterator[Rows]:
        first = 0 if self.static else epoch * self.texts.period(corpus)
        for rows in self.texts.epoch(corpus, epoch, start):
            yield rows + first

    def measured(self, corpus: CorpusStore) -> MaskedRows:
        """The rows by which a corpus is measured. Raises DataError if no token of it can be masked."""
        if bool(self.options.protected[corpus.tokens].all()):
            raise DataError(
                "text that masks are measured on must hold a token that can be masked, but all of it is"
                " special or unknown; give more text (of a training: more data, or --validation)"
            )
        return replace(self, static=False, texts=self.texts.for_corpus(corpus))

    def begins(self, corpus: CorpusStore, number: int) -> int:
        """The place in the corpus where a row begins."""
        epoch, place = divmod(number, self.texts.period(corpus))
        return self.texts.begins(corpus, place, epoch)

    def text(self, corpus: CorpusStore, number: int) -> TextRow:
        epoch, place = divmod(number, self.texts.period(corpus))
        return self.texts.row(corpus, place, epoch)

    def masked(self, corpus: CorpusStore, number: int, ids: Ids) -> MaskedRow:
        """The masks of a row that holds these ids."""
        epoch, place = divmod(number, self.texts.period(corpus))
        random = np.random.default_rng([self.seed, epoch, place, MASKS])
        return apply_masks(ids, self.options, random)

    def batch(self, corpus: CorpusStore, rows: Rows, whole: Rows) -> MaskedBatch:
        """No rows: the first of the `whole` batch with nothing trained, since a worker must take part even
        where a batch has fewer rows than there are workers."""
        used = rows if len(rows) else whole[:1]
        texts = [self.text(corpus, int(row)) for row in used]
        masked = [
            self.masked(corpus, int(row), text.ids) for row, text in zip(used, texts, strict=True)
        ]
        labels = torch.tensor([text.label for text in texts])
        label_weight = token_weight = 0.0
        if self.replaced or bool((labels != IGNORE).any()):
            made = dict(zip(used.tolist(), masked, strict=True))
            chosen, tokens = self._counts(corpus, whole, made)
            label_weight, token_weight = chosen / len(whole), chosen / tokens
        uniform = [
            self._uniform(corpus, int(row), len(text.ids) if self.replaced else 0)
            for row, text in zip(used, texts, strict=True)
        ]
        batch = MaskedBatch(
            tokens=pad([row.inputs.tolist() for row in masked], -1),
            segments=pad([text.segments.tolist() for text in texts], 0),
            targets=pad([row.targets.tolist() for row in masked], IGNORE),
            labels=labels,
            label_weights=torch.full((len(used),), label_weight),
            uniform=pad_sequence(uniform, batch_first=True),
            token_weights=torch.full((len(used),), token_weight),
        )
        if len(rows):
            return batch
        return batch._replace(
            targets=torch.full_like(batch.targets, IGNORE),
            labels=torch.full_like(labels, IGNORE),
            token_weights=torch.zeros(len(used)),
        )

    def _counts(
        self, corpus: CorpusStore, whole: Rows, made: Mapping[int, MaskedRow]
    ) -> tuple[int, int]:
        """Chosen places and tokens of a global batch. They are the same for each worker and micro-batch, so
        each makes the masks of all, beside those that it has made."""
        chosen = tokens = 0
        for row in whole.tolist():
            masked = made.get(row) or self.masked(corpus, row, self.text(corpus, row).ids)
            targets = masked.targets
            chosen += int((targets != IGNORE).sum())
            tokens += len(targets)
        return chosen, tokens

    def _uniform(self, corpus: CorpusStore, number: int, length: int) -> Tensor:
        """`(length,)`: what the replacements of a row are drawn with."""
        epoch, place = divmod(number, self.texts.period(corpus))
        random = np.random.default_rng([self.seed, epoch, place, REPLACEMENTS])
        return torch.from_numpy(random.random(length))
