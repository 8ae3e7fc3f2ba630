"""Checks pairs of texts: their counts, lengths and faults, and what a training would make of them.

The tokenizer and the token store are made as `train` makes them, so the training finds the store ready.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from seqloom.config import RunConfig
from seqloom.data.batching.pair_batches import TranslationBatch, costs
from seqloom.data.batching.token_store import TokenStore
from seqloom.errors import counted, place
from seqloom.protocols import Tokenizer
from seqloom.runs.progress import mute_logs, read_pair_list
from seqloom.shapes import IGNORE
from seqloom.tasks.data_report import (
    SPLIT_OFF,
    DataReport,
    Row,
    Table,
    findings_table,
    leak_errors,
    pieces_of,
    quantiles,
    shown_pieces,
    table_of,
    training_table,
    unknown_percent,
)
from seqloom.tasks.training_data import prepare_data, total_steps
from seqloom.tasks.translation.measures import TRANSLATION
from seqloom.tasks.translation.pair_findings import (
    SIDES,
    PairSplit,
    read_split,
    store_findings,
    text_findings,
)
from seqloom.tasks.translation.training_data import PreparedPairs, prepare_pairs
from seqloom.training.distributed import World

logger = logging.getLogger(__name__)

BATCH_LABELS = {"source": "reads", "inputs": "is fed", "targets": "is to write"}


def check_pairs(run: RunConfig, test: Sequence[str], folder: Path) -> DataReport:
    """Examines pairs as a training with these settings would read them."""
    files = {"train": run.data.train, "validation": run.data.validation, "test": test}
    splits = [read_split(name, paths, run.data) for name, paths in files.items() if paths]
    train = splits[0]
    for note in dict.fromkeys(note for split in splits for note in split.read_report.notes):
        logger.info(note)
    with mute_logs():
        pairs = prepare_data(partial(prepare_pairs, TRANSLATION), run, folder, World())
    store, plan, max_length = pairs.store, pairs.plan, run.data.max_length
    texts = {"validation" if run.data.validation else SPLIT_OFF: pairs.validation}
    if test:
        with mute_logs():
            texts["test"] = read_pair_list(test, run.data)
    lengths, tokenizer = _tokenized(pairs, texts, train)
    words = {
        f"{split.name} {side}": quantiles(np.asarray(numbers))
        for split in splits
        for side, numbers in zip(SIDES, split.words, strict=True)
    }
    batch_tokens = None if plan.batch_rows else plan.batch_tokens
    findings = [
        *text_findings(splits),
        *store_findings(train.path, store, max_length, batch_tokens),
    ]
    rows = next(plan.epoch(store, 0))
    batch = pairs.load(rows, rows)
    pair_costs = costs(store, np.arange(len(store)), pairs.tokenizer.special_ids)
    training = {
        "pairs": len(store),
        "longest_pair_in_ids": int(pair_costs.max()),
        "batch": f"{plan.batch_rows:,} pairs" if batch_tokens is None else f"{batch_tokens:,} ids",
        "batches_an_epoch": plan.count(store),
        "steps": total_steps(run.train, pairs),
        "pairs_of_the_first_batch": len(rows),
        "trained_tokens_of_the_first_batch": int((batch.targets != IGNORE).sum()),
    }
    lines = [place(train.path, int(store.lines[row])) for row in rows]
    if too_long := _left_out(pairs, train):
        training["pairs_longer_than_the_model_reads"] = too_long
    first_batch = batch_view(batch, pairs.tokenizer, lines)
    counts = {split.name: split.counts() for split in splits}
    return DataReport(
        splits=counts,
        lengths={"ids": lengths, "words": words},
        findings=findings,
        tokenizer=tokenizer,
        training=training,
        first_batch=first_batch,
        errors=split_errors(splits)
        + cut_errors(store, max_length)
        + batch_errors(batch, pairs.tokenizer),
        tables=[
            table_of("Pairs", counts),
            table_of("Length in ids", lengths),
            table_of("Length in words", words),
            _tokenizer_table(tokenizer),
            findings_table(findings),
            training_table("Training", training),
            ("Three pairs of the first batch", ("", ""), _batch_rows(first_batch)),
        ],
    )


def _left_out(pairs: PreparedPairs, train: PairSplit) -> int:
    """How many pairs are longer than the model reads."""
    split_off = 0 if pairs.run.data.validation else len(pairs.validation)
    return len(train.pairs) - split_off - len(pairs.store)


def _tokenizer_table(tokenizer: dict[str, Any]) -> Table:
    title = f"Tokenizer: {tokenizer['kind']}, {counted(tokenizer['vocabulary'], 'piece')}"
    rows: list[Row] = []
    for name, unknown in tokenizer["unknown_percent"].items():
        rows.append((name, f"{tokenizer['ids_per_word'][name]:.2f}", f"{unknown:.2f} %"))
    return title, ("", "ids a word", "unknown"), rows


def _tokenized(
    pairs: PreparedPairs, texts: dict[str, list[tuple[str, str]]], train: PairSplit
) -> tuple[dict[str, dict[str, int]], dict[str, Any]]:
    """(split and side -> quantiles of lengths in ids, the tokenizer). The training text is in the store,
    other texts are tokenised."""
    tokenizer, store = pairs.tokenizer, pairs.store
    words = {}
    for name, some in texts.items():
        words[name] = sum(len(text.split()) for pair in some for text in pair)
    # what is split off is among the words of train, but not in the store
    train_words = sum(map(sum, train.words)) - words.get(SPLIT_OFF, 0)
    lengths = {
        f"train {side}": quantiles(store.lengths(np.arange(len(store)), column))
        for column, side in enumerate(SIDES)
    }
    ids_per_word = {"train": len(store.tokens) / train_words}
    unknown = {"train": unknown_percent(store.tokens, tokenizer.special_ids)}
    for name, some in texts.items():
        parts = []
        for column, side in enumerate(SIDES):
            encoded = tokenizer.encode([pair[column] for pair in some])
            lengths[f"{name} {side}"] = quantiles(np.array(list(map(len, encoded))))
            parts += [np.asarray(ids, np.int64) for ids in encoded]
        ids = np.concatenate(parts)
        ids_per_word[name] = len(ids) / words[name]
        unknown[name] = unknown_percent(ids, tokenizer.special_ids)
    return lengths, {
        "kind": tokenizer.kind,
        "vocabulary": tokenizer.vocabulary_size,
        "ids_per_word": ids_per_word,
        "unknown_percent": unknown,
    }


def split_errors(splits: Sequence[PairSplit]) -> list[str]:
    """What makes training on these files, or a score on them, meaningless. The first split is train."""
    train, *others = splits
    errors = []
    if len(train.pairs) < 2:
        errors.append(
            f"train must have at least 2 pairs, but has {len(train.pairs)} (rows read:"
            f" {train.read_report.read:,}); add more data"
        )
    for split in others:
        errors += leak_errors(split.name, "pairs", np.asarray(split.pairs), np.asarray(train.pairs))
    return errors


def cut_errors(store: TokenStore, max_length: int | None) -> list[str]:
    """What is wrong where data.max_length cuts more than half of the training texts, sources and targets."""
    lengths = np.diff(store.offsets)
    cut = 0 if max_length is None else int((lengths > max_length).sum())
    if 2 * cut <= len(lengths):
        return []
    error = (
        f"data.max_length={max_length} must leave most training texts whole, but cuts {cut:,} of"
        f" {len(lengths):,}; raise it"
    )
    return [error]


def batch_errors(batch: TranslationBatch, tokenizer: Tokenizer) -> list[str]:
    """What is wrong with the targets of a batch: a model that is never taught to end never ends."""
    if not bool((batch.targets != IGNORE).any()):
        return ["a batch must train at least one token, but in the first batch none is trained"]
    eos = tokenizer.special_ids.eos
    if eos is None or bool((batch.targets == eos).any(dim=1).all()):
        return []
    (name,) = tokenizer.pieces([eos])
    error = (
        f"every target must end in {name}, but in the first batch some do not: a model would not learn to"
        " stop"
    )
    return [error]


def batch_view(
    batch: TranslationBatch, tokenizer: Tokenizer, lines: Sequence[str]
) -> list[dict[str, Any]]:
    """The rows with the longest, the middle and the shortest target, as a model gets them."""
    by_length = (batch.targets != IGNORE).sum(dim=1).argsort(stable=True).tolist()
    view = []
    for row in dict.fromkeys((by_length[-1], by_length[len(by_length) // 2], by_length[0])):
        parts = zip(BATCH_LABELS, (batch.source, batch.inputs, batch.targets), strict=True)
        pieces = {name: pieces_of(tokenizer, part[row].tolist()) for name, part in parts}
        view.append({"line": lines[row], **pieces})
    return view


def _batch_rows(view: Sequence[dict[str, Any]]) -> list[Row]:
    rows: list[Row] = []
    for row in view:
        rows.append((row["line"], ""))
        rows += [(f"  {label}", shown_pieces(row[name])) for name, label in BATCH_LABELS.items()]
    return rows
