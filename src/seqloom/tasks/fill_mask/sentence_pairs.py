"""Rows of two texts: what follows each other in a document, or does not.

    next     the second text follows the first, or is from another document, as likely      Devlin et al. 2019
    order    both follow each other in the document, in this order or swapped, as likely    Lan et al. 2020

As the authors of BERT made their data: sentences of a document are gathered until they fill a row, in a tenth
of the rows only a random part of it; the first text ends after a random sentence of these. The other text
begins with a random sentence of its document, and the sentences that it took the place of come again in the
next row. Two texts that are too long lose tokens of the longer one, at a random end each.

What is gathered may be one sentence, the last of its document or its only one. It is then cut at a random
token, so that labels stay balanced whatever the text is; the authors give it a random second text.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, NamedTuple, final

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from seqloom.data.batching.corpus_store import CorpusStore
from seqloom.data.batching.corpus_windows import WindowPlan
from seqloom.data.batching.order import order
from seqloom.data.encoding.masks import Flags, joined_row
from seqloom.errors import UsageError
from seqloom.protocols import Rows, SpecialIds
from seqloom.tasks.fill_mask.masked_rows import FullWindows, TextRow, TextRows

SHORT = 0.1
"""Share of the rows that are shorter than they could be."""
PAIRS, CUTS = 4, 5
"""Keys of the pairs of an epoch, and of what each of them is cut to, beside the seed."""


@final
class Pair(NamedTuple):
    """Where two texts are in a corpus."""

    first: tuple[int, int]
    second: tuple[int, int]
    label: int


@final
@dataclass(frozen=True, eq=False)
class Sentences:
    """Where the sentences of a corpus are, and the documents that have any."""

    starts: NDArray[np.int64]
    """`(sentences + documents,)`: where each sentence begins, and each document ends."""
    documents: NDArray[np.int64]
    """`(documents, 2)`: the first of `starts` of a document, and the one that is its end."""

    @classmethod
    def of(cls, corpus: CorpusStore, ends_sentence: Flags) -> Sentences:
        """A sentence goes up to a token that ends one; what follows the last of them is one too."""
        starts: list[NDArray[np.int64]] = []
        documents, count = [], 0
        for number in range(len(corpus)):
            ids = corpus.document(number)
            if not len(ids):
                continue
            ends = np.flatnonzero(ends_sentence[ids]) + 1
            inside = ends[ends < len(ids)]
            of_document = np.concatenate([[0], inside, [len(ids)]]) + corpus.offsets[number]
            starts.append(of_document)
            documents.append((count, count + len(of_document) - 1))
            count += len(of_document)
        if not starts:
            return cls(np.zeros(0, np.int64), np.zeros((0, 2), np.int64))
        return cls(np.concatenate(starts), np.asarray(documents, np.int64))


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class SentencePairs:
    """Rows of two texts."""

    kind: Literal["next", "order"]
    seed: int
    room: int
    """Ids of both texts at most."""
    rows: int
    """Of a global batch, at most."""
    static: bool
    """Whether each epoch has the pairs of the first."""
    ends_sentence: Flags
    """`(vocabulary,)`"""
    special_ids: SpecialIds

    def period(self, corpus: CorpusStore) -> int:
        return len(corpus.tokens) + 1

    def epoch(self, corpus: CorpusStore, epoch: int, start: int = 0) -> Iterator[Rows]:
        count = len(self._pairs(corpus, epoch))
        batches = -(-count // self.rows)
        for batch in range(start, batches):
            first, end = batch * count // batches, (batch + 1) * count // batches
            yield order(self.seed, epoch, first, end, count)

    def count(self, corpus: CorpusStore) -> int:
        return -(-len(self._pairs(corpus, 0)) // self.rows)

    def row(self, corpus: CorpusStore, number: int, epoch: int) -> TextRow:
        begin, end, second_begin, second_end, label = self._pairs(corpus, epoch)[number].tolist()
        random = np.random.default_rng([self.seed, epoch, number, CUTS])
        spans = truncated((begin, end), (second_begin, second_end), self.room, random)
        ids = self.special_ids
        texts = [corpus.tokens[begin:end].astype(np.int64) for begin, end in spans]
        return TextRow(*joined_row(texts, ids.prefix, ids.separator, ids.suffix), label)

    def begins(self, corpus: CorpusStore, number: int, epoch: int) -> int:
        return int(self.text_begins(corpus, number, epoch)[0])

    def text_begins(self, corpus: CorpusStore, number: int, epoch: int) -> NDArray[np.int64]:
        """`(2,)`: where both texts of a row begin in the corpus, before they are cut."""
        begins: NDArray[np.int64] = self._pairs(corpus, epoch)[number, [0, 2]]
        return begins

    def for_corpus(self, corpus: CorpusStore) -> TextRows:
        sentences = _sentences(corpus, self.ends_sentence.tobytes())
        if self.kind == "order" or len(sentences.documents) > 1:
            return self
        plan = WindowPlan(seed=self.seed, window=self.room, rows=self.rows)
        return FullWindows(plan=plan, special_ids=self.special_ids)

    def _pairs(self, corpus: CorpusStore, epoch: int) -> NDArray[np.int64]:
        return _pairs_of_epoch(self, corpus, 0 if self.static else epoch)


@lru_cache(2)
def _sentences(corpus: CorpusStore, ends_sentence: bytes) -> Sentences:
    return Sentences.of(corpus, np.frombuffer(ends_sentence, bool))


@lru_cache(3)
def _pairs_of_epoch(rows: SentencePairs, corpus: CorpusStore, epoch: int) -> NDArray[np.int64]:
    """`(pairs, 5)`: all `Pair`s of an epoch, in the order of the text. Raises UsageError if there is no
    other document."""
    sentences = _sentences(corpus, rows.ends_sentence.tobytes())
    if rows.kind == "next" and len(sentences.documents) < 2:
        raise UsageError(
            "train.sentence_pairs=next needs a second text from another document, but there is only"
            f" {len(sentences.documents)} document; set data.document=paragraph, name more files, or take"
            " train.sentence_pairs=order or none"
        )
    random = np.random.default_rng([rows.seed, epoch, PAIRS])
    numbers = array("q")
    for first, second, label in draw_pairs(sentences, rows.kind, rows.room, random):
        numbers.extend((*first, *second, label))
    return np.asarray(numbers, np.int64).reshape(-1, 5)


def draw_pairs(sentences: Sentences, kind: str, room: int, random: Generator) -> Iterator[Pair]:
    starts, documents = sentences.starts, sentences.documents
    for number, (begin, end) in enumerate(documents.tolist()):
        sentence = begin
        while sentence < end:
            length = room if random.random() >= SHORT else int(random.integers(2, room + 1))
            # as many sentences as reach the length
            after = int(np.searchsorted(starts[: end + 1], starts[sentence] + length))
            after = min(max(after, sentence + 1), end)
            cut = sentence + 1
            if after - sentence > 1:
                cut = int(random.integers(sentence + 1, after))
                middle = int(starts[cut])
            elif starts[after] - starts[sentence] > 1:
                middle = int(random.integers(starts[sentence] + 1, starts[after]))
            else:
                sentence = after
                continue
            first, second = (int(starts[sentence]), middle), (middle, int(starts[after]))
            label = int(random.random() < 0.5)
            if label and kind == "order":
                first, second = second, first
            elif label:
                needed = max(length - (first[1] - first[0]), 1)
                second = other_text(sentences, number, needed, random)
                after = cut
            yield Pair(first, second, label)
            sentence = after


def other_text(
    sentences: Sentences, number: int, length: int, random: Generator
) -> tuple[int, int]:
    """Sentences of another document than this one, from a random one on, until they are so long."""
    chosen = int(random.integers(len(sentences.documents) - 1))
    begin, end = sentences.documents[chosen + (chosen >= number)].tolist()
    first = int(random.integers(begin, end))
    starts = sentences.starts
    after = int(np.searchsorted(starts[: end + 1], starts[first] + length))
    return int(starts[first]), int(starts[min(max(after, first + 1), end)])


def truncated(
    first: tuple[int, int], second: tuple[int, int], room: int, random: Generator
) -> list[tuple[int, int]]:
    """Both texts without what is too much: a token at a time of the longer one, at either end."""
    lengths = first[1] - first[0], second[1] - second[0]
    half = room - room // 2
    kept_first = min(lengths[0], max(half, room - lengths[1]))
    kept_second = min(lengths[1], room - kept_first)
    spans = []
    for (begin, end), kept in ((first, kept_first), (second, kept_second)):
        excess = end - begin - kept
        front = int(random.binomial(excess, 0.5))
        spans.append((begin + front, end - (excess - front)))
    return spans
