"""The data doctor for language models: what is in the documents, what is odd about them, what a training
would make of them."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from seqloom.config import RunConfig
from seqloom.data.batching.corpus_store import CorpusStore
from seqloom.data.readers.documents import DocumentPiece
from seqloom.errors import place
from seqloom.runs.progress import Say
from seqloom.tasks.language_modeling.documents import each_document, each_piece
from seqloom.tasks.language_modeling.training_data import PreparedCorpus, prepare_corpus
from seqloom.tasks.registry import task_named
from seqloom.tasks.translation.training_data import prepared, total_steps
from seqloom.training.distributed import World
from seqloom.workflows.data_report.pair_checks import Finding
from seqloom.workflows.data_report.pairs import (
    LEAK,
    Table,
    pieces_of,
    problems_of,
    quantiles,
    shown,
    shown_pieces,
    table_of,
    unknown_among,
)


@final
@dataclass(frozen=True, kw_only=True)
class CorpusReport:
    """What was found."""

    splits: dict[str, dict[str, float]]
    """split -> documents, tokens, words, bytes, tokens_a_word, bytes_a_token, unknown_percent."""
    lengths: dict[str, dict[str, int]]
    """split -> quantiles of the documents' lengths in ids, the end counted."""
    findings: list[Finding]
    tokenizer: dict[str, Any]
    training: dict[str, Any]
    batch: list[dict[str, Any]]
    """A few rows of the first batch: line, inputs, targets (None where nothing is trained), in pieces."""
    errors: list[str]

    def summary(self) -> dict[str, Any]:
        """All of it, for a program."""
        return {
            "splits": self.splits,
            "lengths": self.lengths,
            "findings": [one._asdict() for one in self.findings],
            "tokenizer": self.tokenizer,
            "training": self.training,
            "first_batch": self.batch,
            "errors": self.errors,
        }

    def tables(self) -> list[Table]:
        """The same, for people."""
        findings: list[tuple[str, ...]] = [(one.what, f"{one.number:,}", one.first) for one in self.findings]
        rows: list[tuple[str, ...]] = [(row["line"], shown_pieces(row["inputs"])) for row in self.batch]
        about = self.tokenizer
        return [
            table_of("Documents", self.splits),
            table_of("Length in ids", self.lengths),
            ("Worth a look", ("what", "how many", "first"), findings or [("nothing", "", "")]),
            (
                f"Training ({about['kind']}, {about['vocabulary']:,} pieces)",
                ("", ""),
                [(k, shown(v)) for k, v in self.training.items()],
            ),
            ("Rows of the first batch", ("in the document of", "is fed; to write is the next of each"), rows),
        ]

    def problems(self) -> list[str]:
        """Whole sentences: first what must stop a training, then what is likely to do harm."""
        return problems_of(self.errors, self.findings)


def check_corpus(run: RunConfig, test: Sequence[str], folder: Path, say: Say) -> CorpusReport:
    """Examines documents as a training with these settings would read them."""
    run = RunConfig(
        task=run.task,
        output_dir="",
        data=run.data,
        train=run.train,
        model={"name": task_named(run.task).models[0], "size": "small"},
    )
    corpus = prepared(prepare_corpus, run, folder, World(), say)
    tokenizer = corpus.tokenizer
    splits = {"train": _about(corpus.corpus), "validation": _about(corpus.validation)}
    lengths = {"train": np.diff(corpus.corpus.offsets), "validation": np.diff(corpus.validation.offsets)}
    texts = {"train": Prints.of(each_piece(run.data.train, run.data, lambda _: None))}
    for name, paths in (("validation", run.data.validation), ("test", test)):
        if paths:
            texts[name] = Prints.of(each_piece(paths, run.data, lambda _: None))
    if test:
        documents = list(each_document(test, run.data, tokenizer, lambda _: None))
        lengths["test"] = np.asarray([len(one.ids) + corpus.corpus.ended for one in documents])
        words, size = sum(one.words for one in documents), sum(one.bytes for one in documents)
        unknown = sum(unknown_among(one.ids, tokenizer.special_ids) for one in documents)
        splits["test"] = _sizes(
            len(documents), sum(len(one.ids) for one in documents), words, size, unknown, corpus.corpus.ended
        )
    rows = next(corpus.batches(0, 0))
    return CorpusReport(
        splits=splits,
        lengths={name: quantiles(values) for name, values in lengths.items()},
        findings=[*_repeated(texts["train"]), *_shared(texts)],
        tokenizer={"kind": tokenizer.kind, "vocabulary": tokenizer.vocabulary_size},
        training={
            "window": corpus.plan.window,
            "windows a batch": len(rows),
            "batches an epoch": corpus.batches_an_epoch(),
            "steps": total_steps(run.train, corpus),
        },
        batch=_view(corpus, rows[:3]),
        errors=_leaks(texts),
    )


@final
@dataclass(frozen=True)
class Prints:
    """Documents told apart by 64 bits of their text's hash; and where each began."""

    hashes: NDArray[np.uint64]
    places: list[str]

    @classmethod
    def of(cls, pieces: Iterable[DocumentPiece]) -> Prints:
        hashes, state, begins = array("Q"), blake2b(digest_size=8), True
        places: list[str] = []
        for piece in pieces:
            if begins and len(places) < 2**20:
                places.append(place(piece.path, piece.line))
            state.update(piece.text.encode())
            if begins := piece.last:
                hashes.append(int.from_bytes(state.digest(), "little"))
                state = blake2b(digest_size=8)
        return cls(np.frombuffer(hashes, np.uint64), places)

    def first(self, among: NDArray[np.bool_]) -> str:
        at = int(np.flatnonzero(among)[0])
        return self.places[at] if at < len(self.places) else f"document {at + 1:,}"


def _repeated(train: Prints) -> list[Finding]:
    _, first = np.unique(train.hashes, return_index=True)
    again = np.ones(len(train.hashes), bool)
    again[first] = False
    if not again.any():
        return []
    advice = (
        "a model learns them by heart; leave them out if they are no part of the language"
        if 10 * again.sum() > len(again)
        else ""
    )
    return [Finding("documents that stood before", int(again.sum()), train.first(again), advice)]


def _shared(texts: dict[str, Prints]) -> list[Finding]:
    found = []
    for name, other in texts.items():
        known = np.isin(other.hashes, texts["train"].hashes)
        if name != "train" and known.any():
            found.append(
                Finding(
                    f"documents of {name} in train",
                    int(known.sum()),
                    other.first(known),
                    "they are scored too well",
                )
            )
    return found


def _leaks(texts: dict[str, Prints]) -> list[str]:
    errors = []
    for name, other in texts.items():
        known = int(np.isin(other.hashes, texts["train"].hashes).sum())
        if name != "train" and known >= LEAK * len(other.hashes):
            errors.append(
                f"{name} must hold other documents than train, but {known:,} of its {len(other.hashes):,}"
                " stand in train too, so a score on it says nothing; leave them out of one of both"
            )
    return errors


def _about(store: CorpusStore) -> dict[str, float]:
    totals = store.totals
    inside = totals.ids - store.ended * totals.documents
    return _sizes(totals.documents, inside, totals.words, totals.bytes, totals.unknown, store.ended)


def _sizes(documents: int, inside: int, words: int, size: int, unknown: int, ended: bool) -> dict[str, float]:
    """Of documents of so many ids inside of them, with or without an end each."""
    tokens, inside = inside + ended * documents, max(inside, 1)
    return {
        "documents": documents,
        "tokens": tokens,
        "words": words,
        "bytes": size,
        "tokens_a_word": inside / max(words, 1),
        "bytes_a_token": size / inside,
        "unknown_percent": 100 * unknown / inside,
    }


def _view(corpus: PreparedCorpus, rows: NDArray[np.int64]) -> list[dict[str, Any]]:
    batch = corpus.load(rows, rows)
    starts = corpus.plan.windows(corpus.corpus, rows).starts.tolist()
    return [
        {
            "line": corpus.corpus.place(start),
            "inputs": pieces_of(corpus.tokenizer, inputs),
            "targets": pieces_of(corpus.tokenizer, targets),
        }
        for start, inputs, targets in zip(starts, batch.inputs.tolist(), batch.targets.tolist(), strict=True)
    ]
