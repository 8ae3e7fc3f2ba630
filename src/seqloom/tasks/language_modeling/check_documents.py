"""Checks the documents of a language model: their sizes and faults, and what a training would make of
them."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from seqloom.config import DataConfig, RunConfig
from seqloom.data.batching.corpus_store import CorpusStore
from seqloom.data.readers.documents import DocumentPiece
from seqloom.errors import place
from seqloom.runs.progress import mute_logs
from seqloom.tasks.data_report import (
    DataReport,
    Finding,
    count_unknown,
    findings_table,
    leak_errors,
    pieces_of,
    quantiles,
    shown_pieces,
    table_of,
    training_table,
)
from seqloom.tasks.language_modeling.documents import each_document, each_piece
from seqloom.tasks.language_modeling.training_data import PreparedCorpus, prepare_corpus
from seqloom.tasks.training_data import prepare_data, total_steps
from seqloom.training.distributed import World

MOST_PLACES = 2**20
"""Documents whose first line is remembered."""


def check_documents(run: RunConfig, test: Sequence[str], folder: Path) -> DataReport:
    """Examines documents as a training with these settings would read them."""
    corpus = prepare_data(prepare_corpus, run, folder, World())
    tokenizer, stores = corpus.tokenizer, {"train": corpus.corpus, "validation": corpus.validation}
    splits = {name: _store_sizes(store) for name, store in stores.items()}
    lengths = {name: quantiles(np.diff(store.offsets)) for name, store in stores.items()}
    if test:
        with mute_logs():
            documents = list(each_document(test, run.data, tokenizer))
        sizes = np.asarray([len(document.ids) for document in documents])
        lengths["test"] = quantiles(sizes + corpus.corpus.ended)
        splits["test"] = _sizes(
            len(documents),
            int(sizes.sum()),
            words=sum(document.words for document in documents),
            size=sum(document.bytes for document in documents),
            unknown=sum(
                count_unknown(document.ids, tokenizer.special_ids) for document in documents
            ),
            ended=corpus.corpus.ended,
        )
    findings, errors = _repeated_documents(run.data, test)
    rows = next(corpus.batches(0, 0))
    training = {
        "window": corpus.plan.window,
        "windows a batch": len(rows),
        "batches an epoch": corpus.batches_an_epoch(),
        "steps": total_steps(run.train, corpus),
    }
    first_batch = _batch_view(corpus, rows[:3])
    return DataReport(
        splits=splits,
        lengths=lengths,
        findings=findings,
        tokenizer={"kind": tokenizer.kind, "vocabulary": tokenizer.vocabulary_size},
        training=training,
        first_batch=first_batch,
        errors=errors,
        tables=[
            table_of("Documents", splits),
            table_of("Length in ids", lengths),
            findings_table(findings),
            training_table(
                f"Training ({tokenizer.kind}, {tokenizer.vocabulary_size:,} pieces)", training
            ),
            (
                "Rows of the first batch",
                ("in the document of", "is fed; to write is the next of each"),
                [(row["line"], shown_pieces(row["inputs"])) for row in first_batch],
            ),
        ],
    )


def _repeated_documents(data: DataConfig, test: Sequence[str]) -> tuple[list[Finding], list[str]]:
    """Documents that occur twice in training, or in training and in other data; and the errors of these."""
    files = {"train": data.train, "validation": data.validation, "test": test}
    texts = {
        name: DocumentHashes.of(each_piece(paths, data, notices=False))
        for name, paths in files.items()
        if paths
    }
    train = texts.pop("train")
    findings, errors = [*train.repeated()], list[str]()
    for name, other in texts.items():
        findings += other.known(name, train)
        errors += leak_errors(name, "documents", other.hashes, train.hashes)
    return findings, errors


@final
@dataclass(frozen=True)
class DocumentHashes:
    """A hash of 64 bits for each document, and the places where the documents begin."""

    hashes: NDArray[np.uint64]
    places: list[str]

    @classmethod
    def of(cls, pieces: Iterable[DocumentPiece]) -> DocumentHashes:
        hashes, digest, is_first = array("Q"), blake2b(digest_size=8), True
        places: list[str] = []
        for piece in pieces:
            if is_first and len(places) < MOST_PLACES:
                places.append(place(piece.path, piece.line))
            digest.update(piece.text.encode())
            is_first = piece.last
            if piece.last:
                hashes.append(int.from_bytes(digest.digest(), "little"))
                digest = blake2b(digest_size=8)
        return cls(np.frombuffer(hashes, np.uint64), places)

    def repeated(self) -> Iterator[Finding]:
        repeats = np.ones(len(self.hashes), bool)
        repeats[np.unique(self.hashes, return_index=True)[1]] = False
        advice = ""
        if 10 * repeats.sum() > len(repeats):
            advice = (
                "a model learns them by heart; leave them out if they are no part of the language"
            )
        return self._findings("documents that stood before", repeats, advice)

    def known(self, name: str, train: DocumentHashes) -> Iterator[Finding]:
        """The documents of this split, called `name`, that are in train too."""
        shared = np.isin(self.hashes, train.hashes)
        return self._findings(f"documents of {name} in train", shared, "they are scored too well")

    def _findings(self, what: str, where: NDArray[np.bool_], advice: str) -> Iterator[Finding]:
        if where.any():
            first = int(np.flatnonzero(where)[0])
            location = self.places[first] if first < len(self.places) else f"document {first + 1:,}"
            yield Finding(what, int(where.sum()), location, advice)


def _store_sizes(store: CorpusStore) -> dict[str, float]:
    totals = store.totals
    return _sizes(
        totals.documents,
        totals.ids - store.ended * totals.documents,
        words=totals.words,
        size=totals.bytes,
        unknown=totals.unknown,
        ended=store.ended,
    )


def _sizes(
    documents: int, ids: int, *, words: int, size: int, unknown: int, ended: bool
) -> dict[str, float]:
    """Of documents that have so many ids in all, and an end mark each where they are `ended`."""
    inside = max(ids, 1)
    return {
        "documents": documents,
        "tokens": ids + ended * documents,
        "words": words,
        "bytes": size,
        "tokens_a_word": inside / max(words, 1),
        "bytes_a_token": size / inside,
        "unknown_percent": 100 * unknown / inside,
    }


def _batch_view(corpus: PreparedCorpus, rows: NDArray[np.int64]) -> list[dict[str, Any]]:
    batch = corpus.load(rows, rows)
    starts = corpus.plan.windows(corpus.corpus, rows).starts.tolist()
    view = []
    for start, inputs, targets in zip(
        starts, batch.inputs.tolist(), batch.targets.tolist(), strict=True
    ):
        parts = {"inputs": inputs, "targets": targets}
        pieces = {name: pieces_of(corpus.tokenizer, ids) for name, ids in parts.items()}
        view.append({"line": corpus.corpus.place(start), **pieces})
    return view
