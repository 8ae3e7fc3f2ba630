"""The data doctor for pairs: what is in the files, what is odd about it, and what a training would make of
it.

The tokenizer and the token store are made as `train` makes them, so the store is ready when the training
comes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from seqloom.config import RunConfig
from seqloom.data.batching.pair_batches import TranslationBatch, costs, translation_batch
from seqloom.data.batching.token_store import TokenStore
from seqloom.errors import place
from seqloom.protocols import SpecialIds, Tokenizer
from seqloom.runs.progress import Say, read_pair_list
from seqloom.shapes import IGNORE
from seqloom.tasks.translation.training_data import PreparedPairs, prepare_pairs, prepared, total_steps
from seqloom.training.distributed import World
from seqloom.workflows.data_report.pair_checks import (
    SIDES,
    Finding,
    Split,
    read_split,
    store_findings,
    text_findings,
)

SPLIT_OFF = "split off"
"""The name of validation pairs that were taken from the training data."""
QUANTILES = {"min": 0.0, "median": 0.5, "95%": 0.95, "99%": 0.99, "max": 1.0}
LEAK = 0.9
"""A validation or test set with at least this share of its pairs in train measures nothing."""
SHOWN = 16
"""Pieces of a text that are shown."""
PADDING = "<pad>"
"""How a step that does not happen is shown."""

Lengths = dict[str, dict[str, int]]
"""Split and side -> quantiles."""
Table = tuple[str, tuple[str, ...], list[tuple[str, ...]]]
"""Title, header, rows."""


@final
@dataclass(frozen=True, kw_only=True)
class PairsReport:
    """What was found."""

    counts: dict[str, dict[str, int]]
    """split -> read, used, skipped, repaired."""
    ids: Lengths
    words: Lengths
    findings: list[Finding]
    tokenizer: dict[str, Any]
    """kind, vocabulary, and by split ids_per_word and unknown_percent."""
    training: dict[str, Any]
    batch: list[dict[str, Any]]
    """A few rows of the first batch: line, source, inputs, targets (None where nothing is trained), in
    pieces."""
    errors: list[str]
    """What must stop a training."""

    def summary(self) -> dict[str, Any]:
        """All of it, for a program."""
        return {
            "splits": self.counts,
            "lengths": {"ids": self.ids, "words": self.words},
            "findings": [one._asdict() for one in self.findings],
            "tokenizer": self.tokenizer,
            "training": self.training,
            "first_batch": self.batch,
            "errors": self.errors,
        }

    def tables(self) -> list[Table]:
        """The same, for people."""
        about = self.tokenizer
        findings: list[tuple[str, ...]] = [(one.what, f"{one.number:,}", one.first) for one in self.findings]
        return [
            table_of("Pairs", self.counts),
            table_of("Length in ids", self.ids),
            table_of("Length in words", self.words),
            (
                f"Tokenizer: {about['kind']}, {about['vocabulary']:,} pieces",
                ("", "ids a word", "unknown"),
                _unknown_rows(about),
            ),
            ("Worth a look", ("what", "how many", "first"), findings or [("nothing", "", "")]),
            (
                "Training",
                ("", ""),
                [(name.replace("_", " "), shown(value)) for name, value in self.training.items()],
            ),
            (
                "Three pairs of the first batch",
                ("", ""),
                [row for one in self.batch for row in _batch_rows(one)],
            ),
        ]

    def problems(self) -> list[str]:
        """Whole sentences: first what must stop a training, then what is likely to do harm."""
        return problems_of(self.errors, self.findings)


def problems_of(errors: Sequence[str], findings: Sequence[Finding]) -> list[str]:
    """Whole sentences, for people; one too where there is nothing to say."""
    warnings = [
        f"warning: {one.what}: {one.number:,} (first: {one.first}); {one.advice}"
        for one in findings
        if one.advice
    ]
    return [f"error: {error}" for error in errors] + warnings or ["nothing found that is likely to do harm"]


def check_pairs(run: RunConfig, test: Sequence[str], folder: Path, say: Say) -> PairsReport:
    """Examines pairs as a training with these settings would read them."""
    files = {"train": run.data.train, "validation": run.data.validation, "test": test}
    splits = [read_split(name, paths, run.data) for name, paths in files.items() if paths]
    for remark in dict.fromkeys(remark for split in splits for remark in split.tally.notes):
        say(remark)
    pairs = prepared(prepare_pairs, run, folder, World(), lambda _: None)
    store, train, plan = pairs.store, splits[0], pairs.plan
    budget = None if plan.batch_rows else plan.batch_tokens
    rows = next(plan.epoch(store, 0))
    special_ids = pairs.tokenizer.special_ids
    batch = translation_batch(store, rows, rows, run.data.max_length, special_ids)
    texts = {"validation" if run.data.validation else SPLIT_OFF: pairs.validation}
    if test:
        texts["test"] = read_pair_list(test, run.data, lambda _: None)
    ids, tokenizer = measured(pairs, texts, train)
    return PairsReport(
        counts={one.name: counts_of(one) for one in splits},
        ids=ids,
        words={
            f"{one.name} {side}": quantiles(np.asarray(words))
            for one in splits
            for side, words in zip(SIDES, one.words, strict=True)
        },
        findings=[*text_findings(splits), *store_findings(train.path, store, run.data.max_length, budget)],
        tokenizer=tokenizer,
        training={
            "pairs": len(store),
            "longest_pair_in_ids": int(costs(store, np.arange(len(store)), special_ids).max()),
            "batch": f"{plan.batch_rows:,} pairs" if budget is None else f"{budget:,} ids",
            "batches_an_epoch": plan.count(store),
            "steps": total_steps(run.train, pairs),
            "pairs_of_the_first_batch": len(rows),
            "trained_tokens_of_the_first_batch": int((batch.targets != IGNORE).sum()),
        },
        batch=batch_view(batch, pairs.tokenizer, [place(train.path, int(store.lines[row])) for row in rows]),
        errors=[
            *split_errors(splits),
            *cut_errors(store, run.data.max_length),
            *batch_errors(batch, pairs.tokenizer),
        ],
    )


def counts_of(split: Split) -> dict[str, int]:
    tally = split.tally
    return {"read": tally.read, "used": tally.used, "skipped": tally.skipped, "repaired": tally.replaced}


def measured(
    prepared: PreparedPairs, texts: dict[str, list[tuple[str, str]]], train: Split
) -> tuple[Lengths, dict[str, Any]]:
    """(lengths in ids, what is to be said of the tokenizer): the training text from the store, other texts
    are tokenised.

    What is split off stands in `train` too, but not in the store.
    """
    tokenizer, store = prepared.tokenizer, prepared.store
    lengths = {
        f"train {side}": quantiles(store.lengths(np.arange(len(store)), column))
        for column, side in enumerate(SIDES)
    }
    unknown: dict[str, float] = {
        "train": 100 * unknown_among(store.tokens, tokenizer.special_ids) / max(len(store.tokens), 1)
    }
    words = {name: sum(len(text.split()) for pair in pairs for text in pair) for name, pairs in texts.items()}
    words_in_store = sum(sum(side) for side in train.words) - words.get(SPLIT_OFF, 0)
    per_word = {"train": len(store.tokens) / words_in_store}
    for name, pairs in texts.items():
        ids = [tokenizer.encode([pair[column] for pair in pairs]) for column in range(len(SIDES))]
        lengths |= {
            f"{name} {side}": quantiles(np.array([len(one) for one in ids[column]]))
            for column, side in enumerate(SIDES)
        }
        together = np.concatenate([np.asarray(one, np.int64) for side in ids for one in side])
        per_word[name] = len(together) / words[name]
        unknown[name] = 100 * unknown_among(together, tokenizer.special_ids) / max(len(together), 1)
    about = {
        "kind": tokenizer.kind,
        "vocabulary": tokenizer.vocabulary_size,
        "ids_per_word": per_word,
        "unknown_percent": unknown,
    }
    return lengths, about


def unknown_among(ids: NDArray[Any], special_ids: SpecialIds) -> int:
    """How many ids are the unknown one."""
    return 0 if special_ids.unk is None else int(np.count_nonzero(ids == special_ids.unk))


def quantiles(values: NDArray[Any]) -> dict[str, int]:
    found = np.quantile(values, list(QUANTILES.values()), method="higher")
    return {name: int(value) for name, value in zip(QUANTILES, found, strict=True)}


def split_errors(splits: Sequence[Split]) -> list[str]:
    """What makes a training or a measure on these files senseless; the first split is that of the training."""
    train, *others = splits
    errors = []
    if len(train.pairs) < 2:
        errors.append(
            f"train must have at least 2 pairs, but has {len(train.pairs)} (rows read: {train.tally.read:,});"
            " add more data"
        )
    for one in others:
        known, total = int(np.isin(np.asarray(one.pairs), np.asarray(train.pairs)).sum()), len(one.pairs)
        if known >= LEAK * total:
            errors.append(
                f"{one.name} must hold other pairs than train, but {known:,} of its {total:,} stand in train"
                " too, so a score on it says nothing; leave them out of one of both"
            )
    return errors


def cut_errors(store: TokenStore, max_length: int | None) -> list[str]:
    """What is wrong where data.max_length cuts more than half of the training texts, sources and targets
    alike."""
    lengths = np.diff(store.offsets)
    cut = 0 if max_length is None else int((lengths > max_length).sum())
    if 2 * cut <= len(lengths):
        return []
    return [
        (
            f"data.max_length={max_length} must leave most training texts whole, but cuts {cut:,} of"
            f" {len(lengths):,}; raise it"
        )
    ]


def batch_errors(batch: TranslationBatch, tokenizer: Tokenizer) -> list[str]:
    """What is wrong with the targets of a batch: a model that is never taught to end never ends."""
    if not bool((batch.targets != IGNORE).any()):
        return ["a batch must train at least one token, but in the first batch none is trained"]
    end = tokenizer.special_ids.eos
    if end is not None and not bool((batch.targets == end).any(dim=1).all()):
        (name,) = tokenizer.pieces([end])
        return [
            (
                f"every target must end in {name}, but in the first batch some do not: a model would not learn to"
                " stop"
            )
        ]
    return []


def batch_view(batch: TranslationBatch, tokenizer: Tokenizer, lines: Sequence[str]) -> list[dict[str, Any]]:
    """The rows with the longest, the middle and the shortest target, as a model gets them."""
    by_length = (batch.targets != IGNORE).sum(dim=1).argsort(stable=True).tolist()
    view = []
    for row in dict.fromkeys((by_length[-1], by_length[len(by_length) // 2], by_length[0])):
        source, inputs, targets = (
            pieces_of(tokenizer, part[row].tolist()) for part in (batch.source, batch.inputs, batch.targets)
        )
        view.append({"line": lines[row], "source": source, "inputs": inputs, "targets": targets})
    return view


def pieces_of(tokenizer: Tokenizer, ids: Sequence[int]) -> list[str | None]:
    """Pieces of a row of a batch: None where nothing is trained, <pad> where nothing is read."""
    return [
        None if one == IGNORE else PADDING if one == tokenizer.special_ids.pad else tokenizer.pieces([one])[0]
        for one in ids
    ]


def _batch_rows(row: dict[str, Any]) -> list[tuple[str, ...]]:
    told = {"source": "reads", "inputs": "is fed", "targets": "is to write"}
    return [(row["line"], ""), *((f"  {what}", shown_pieces(row[key])) for key, what in told.items())]


def shown_pieces(pieces: Sequence[str | None]) -> str:
    """Pieces with a blank between them, their own blanks as ␣; the middle of a long text is left out, runs of
    padding are counted."""
    shown: list[str] = []
    for piece, run in groupby(
        "(untrained)" if piece is None else piece.replace(" ", "␣") for piece in pieces
    ):
        count = len(list(run))
        shown += [f"{piece}×{count}"] if piece in ("(untrained)", PADDING) else [piece] * count
    left_out = len(shown) - SHOWN
    return " ".join(
        shown if left_out <= 1 else [*shown[: SHOWN // 2], f"[… {left_out} more …]", *shown[-SHOWN // 2 :]]
    )


def table_of(title: str, rows: Mapping[str, Mapping[str, object]]) -> Table:
    """A row of numbers for each name."""
    header = ("", *(name.replace("_", " ") for name in next(iter(rows.values()))))
    return title, header, [(name, *map(shown, values.values())) for name, values in rows.items()]


def _unknown_rows(about: dict[str, Any]) -> list[tuple[str, ...]]:
    return [
        (name, f"{about['ids_per_word'][name]:.2f}", f"{share:.2f} %")
        for name, share in about["unknown_percent"].items()
    ]


def shown(value: object) -> str:
    """Numbers with commas, and with the digits that count."""
    return (
        f"{value:,}"
        if isinstance(value, int)
        else f"{value:,.4g}"
        if isinstance(value, float)
        else str(value)
    )
