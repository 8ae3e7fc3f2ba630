"""Documents as a language model reads them for evaluation: what `evaluate`, `ensemble` and the validation of
training share."""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from torch import nn

from seqloom.config import DataConfig
from seqloom.data.batching.corpus_windows import CorpusIds
from seqloom.data.batching.token_store import fingerprint
from seqloom.data.readers.documents import DocumentPiece, corpus_files, read_documents
from seqloom.errors import UsageError
from seqloom.evaluation.perplexity import CorpusLikelihood, score_texts
from seqloom.packed_weights import Storage
from seqloom.protocols import SpecialIds, StoredTokenizer, context_of
from seqloom.runs.progress import logged_report
from seqloom.text.special_tokens import SPECIAL_IDS
from seqloom.text.tokenizer_kinds import UNKNOWN_WORD, WORD_KINDS

CHUNK = 2**16
"""Tokens of documents that are scored together."""

logger = logging.getLogger(__name__)


class Document(NamedTuple):
    """A document as ids (without special tokens), and its size."""

    ids: CorpusIds
    words: int
    bytes: int


def each_piece(
    paths: Sequence[str], data: DataConfig, notices: bool = True
) -> Generator[DocumentPiece, None, None]:
    """The documents of the named files and folders, in pieces. At the end, or at an error, what was guessed,
    repaired and left out is logged, unless this is a second pass (not `notices`)."""
    with logged_report(notices) as report:
        files = corpus_files(paths, data, logger.info) if notices else corpus_files(paths, data)
        yield from read_documents(files, data, report)


def log_spelled_unknown(pieces: Iterable[DocumentPiece], kind: str) -> Iterator[DocumentPiece]:
    """The pieces; at the end it is logged how many `<unk>` they spell, if this kind of tokenizer takes it for
    text. Benchmarks have it in the place of rare words."""
    spelled = 0
    for piece in pieces:
        spelled += piece.text.count(UNKNOWN_WORD)
        yield piece
    if spelled and kind not in WORD_KINDS:
        logger.info(
            f"{spelled:,} {UNKNOWN_WORD} in the texts are read as characters; data.tokenizer=whitespace or"
            " words takes each for one unknown word, as published perplexities do"
        )


def each_document(
    paths: Sequence[str], data: DataConfig, tokenizer: StoredTokenizer
) -> Iterator[Document]:
    """The documents of the named files and folders as ids, one at a time."""
    ids: list[int] = []
    texts: list[str] = []
    for piece in log_spelled_unknown(each_piece(paths, data), tokenizer.kind):
        ids += tokenizer.encode([piece.text])[0]
        texts.append(piece.text)
        if piece.last:
            text = "".join(texts)
            yield Document(np.asarray(ids, np.int64), len(text.split()), len(text.encode()))
            ids, texts = [], []


def fingerprints(paths: Sequence[str], data: DataConfig) -> list[dict[str, object]]:
    """The fingerprints of the named files, and of those in named folders."""
    return [fingerprint(path) for path in corpus_files(paths, data)] if paths else []


def evaluate_documents(
    model: nn.Module,
    documents: Iterator[Document],
    stride: int | None = None,
    special_ids: SpecialIds = SPECIAL_IDS,
) -> dict[str, float]:
    """Perplexity and its kin over documents; memory is bounded by the longest. The model must be in
    evaluation mode."""
    return score_documents(model, documents, stride, special_ids).metrics()


def score_documents(
    model: nn.Module,
    documents: Iterator[Document],
    stride: int | None = None,
    special_ids: SpecialIds = SPECIAL_IDS,
) -> CorpusLikelihood:
    corpus = CorpusLikelihood.empty(special_ids)
    for batch in document_batches(documents):
        scores = score_texts(
            model, [document.ids for document in batch], special_ids, stride=stride
        )
        for document, score in zip(batch, scores, strict=True):
            corpus.add(score, document.ids, words=document.words, size=document.bytes)
    return corpus


def document_batches(documents: Iterator[Document]) -> Iterator[list[Document]]:
    batch: list[Document] = []
    size = 0
    for document in documents:
        batch.append(document)
        size += len(document.ids) + 1
        if size >= CHUNK:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def stride_of(model: object, stride: int | None) -> int | None:
    """By how much windows move on: the given stride, or half a window, so that each token of a long text is
    predicted from at least half a window. Raises UsageError for a stride of a model that reads all before."""
    context = context_of(model)
    if stride is not None and context is None:
        raise UsageError(
            "--stride changes nothing here: the model reads each token with all that stands before it; leave"
            " it out"
        )
    return stride or (None if context is None else max(context // 2, 1))


def describe_weights(measured: Storage, written: Storage) -> str:
    """With which weights a measurement is made, and texts are written; empty if both are float32."""
    if measured == written == "float32":
        return ""
    notice = f"measured with weights stored in {measured}"
    return (
        notice
        if measured == written
        else f"{notice}; texts are written with {written} (decode.weights)"
    )


def describe_scoring(model: object, stride: int | None, tokenizer: StoredTokenizer) -> str:
    """How log-probabilities are computed, in one line."""
    context, special_ids = context_of(model), tokenizer.special_ids
    begin = " ".join(tokenizer.pieces(special_ids.bos)) or "the first token"
    end = "nothing ends a text"
    if special_ids.eos is not None:
        end = f"{tokenizer.pieces([special_ids.eos])[0]} at the end is predicted"
    text = (
        f"log-probabilities in nats, vocabulary of {tokenizer.vocabulary_size:,} ({tokenizer.kind});"
        f" {begin} is fed and never predicted, {end}"
    )
    if context is None:
        return f"{text}; every token is read with all that stands before it in its text"
    step = stride_of(model, stride)
    return (
        f"{text}; a text longer than {context} tokens is read in windows of {context},"
        f" each {step} further on"
    )
