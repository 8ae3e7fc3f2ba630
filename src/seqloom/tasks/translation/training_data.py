"""Files of pairs to what the training loop reads: a tokenizer, a token store, validation pairs."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar, final

import numpy as np
from torch import nn

from seqloom import files
from seqloom.config import DataConfig, RunConfig
from seqloom.data.batching.pair_batches import POOL, BatchPlan, TranslationBatch, translation_batch
from seqloom.data.batching.splits import held_out
from seqloom.data.batching.token_store import TokenStore, build_store, cache_folder, fingerprint
from seqloom.data.formats.columns import Record
from seqloom.data.readers.records import data_files
from seqloom.errors import UsageError
from seqloom.protocols import NewModel, Rows
from seqloom.run_file import to_plain
from seqloom.runs import run_folder
from seqloom.runs.progress import each_pair, log_progress, read_pair_list, split_note
from seqloom.tasks.training_data import check_same_data, learned_tokenizer, new_model
from seqloom.tasks.translation.evaluate_pairs import evaluate_pairs
from seqloom.text.tokenizers import TextTokenizer
from seqloom.training.objectives import Translation

COLUMNS = ("source", "target")
"""Of the token store."""

logger = logging.getLogger(__name__)

M = TypeVar("M")


@final
@dataclass(frozen=True, kw_only=True)
class PreparedPairs:
    """Pairs turned into what the loop reads."""

    run: RunConfig
    tokenizer: TextTokenizer
    store: TokenStore
    validation: list[tuple[str, str]]

    @property
    def plan(self) -> BatchPlan:
        train = self.run.train
        return BatchPlan(
            seed=train.seed,
            batch_tokens=train.batch_tokens,
            batch_rows=train.batch_rows,
            special_ids=self.tokenizer.special_ids,
        )

    def about(self) -> str:
        return f"{len(self.store):,} pairs ({len(self.validation):,} for validation)"

    def build(self) -> NewModel:
        return new_model(self.run, self.tokenizer.vocabulary_size)

    def batches(self, epoch: int, start: int) -> Iterator[Rows]:
        return self.plan.epoch(self.store, epoch, start)

    def batches_an_epoch(self) -> int:
        return self.plan.count(self.store)

    def load(self, rows: Rows, whole: Rows) -> TranslationBatch:
        return translation_batch(
            self.store, rows, whole, self.run.data.max_length, self.tokenizer.special_ids
        )

    def describe(self, rows: Rows) -> str:
        return (
            "the pairs of lines "
            + ", ".join(str(line) for line in self.store.lines[rows[:8]])
            + (", ..." if len(rows) > 8 else "")
        )

    def objective(self) -> Translation:
        return Translation(self.run.train.label_smoothing)

    def initialise(self, model: nn.Module) -> None:
        pass

    def fit(self, model_class: Any, config: Any) -> nn.Module:
        raise UsageError(f"a {model_class.__name__} cannot be made of pairs")

    def validate(self, model: nn.Module) -> dict[str, float]:
        """Where the best checkpoint is not chosen by the loss, the pairs are decoded, greedily."""
        decode = None if self.run.train.best == "loss" else replace(self.run.decode, beam=1, n_best=1)
        return evaluate_pairs(model, self.tokenizer, self.validation, decode).metrics


def prepare_pairs(run_config: RunConfig, folder: Path, first: bool) -> PreparedPairs:
    data = run_config.data
    used = data_files(data.train, data) + (data_files(data.validation, data) if data.validation else [])
    prints = [fingerprint(path) for path in used]
    check_same_data(folder, prints)
    if data.validation:
        held: set[int] = set()
        validation = read_pair_list(data.validation, data)
    else:
        held, validation = split_validation(data, run_config.train.seed)
        logger.info(split_note(len(validation), "pair", run_config.train.seed))

    def training(notices: bool = False) -> Iterator[Record]:
        records = enumerate(each_pair(data.train, data, notices))
        return (record for at, record in records if at not in held)

    def texts() -> Iterator[str]:
        records = log_progress(training(notices=True), "pairs read for the tokenizer")
        return (text for record in records for text in (record.fields[name] for name in COLUMNS))

    tokenizer = learned_tokenizer(folder, data, texts, first)
    identity = {
        "files": [one["sha256"] for one in prints],
        "read": {
            key: value
            for key, value in to_plain(data).items()
            if key not in ("train", "validation", "max_length")
        },
        "held_out": [len(held), run_config.train.seed] if held else [],
        "tokenizer": tokenizer.fingerprint,
    }
    store = build_store(
        lambda: log_progress(training(), "pairs tokenised"),
        COLUMNS,
        tokenizer,
        identity,
        cache_folder(Path(used[0])),
    )
    log_truncation(store, data)
    if first and not (folder / run_folder.DATA).exists():
        files.write_json(
            folder / run_folder.DATA,
            {"files": prints, "pairs": len(store), "validation_pairs": len(validation)},
        )
    return PreparedPairs(run=run_config, tokenizer=tokenizer, store=store, validation=validation)


def split_validation(data: DataConfig, seed: int) -> tuple[set[int], list[tuple[str, str]]]:
    """(numbers of the held-out records, their pairs): chosen by seed among all records."""
    count = sum(1 for _ in each_pair(data.train, data, notices=False))
    if count < 2:
        raise UsageError(
            f"validation needs pairs of its own, but there is only {count}; name more data or --validation"
            " files"
        )
    held = set(held_out(count, seed))
    records = enumerate(each_pair(data.train, data, notices=False))
    return held, [(record.fields["source"], record.fields["target"]) for at, record in records if at in held]


def log_truncation(store: TokenStore, data: DataConfig) -> None:
    """How many texts `data.max_length` cuts, and the longest."""
    if data.max_length is None:
        return
    cut = longest = 0
    for start in range(0, len(store), POOL):
        rows = np.arange(start, min(start + POOL, len(store)))
        lengths = np.stack([store.lengths(rows, column) for column in range(len(store.columns))])
        cut, longest = cut + int((lengths > data.max_length).sum()), max(longest, int(lengths.max()))
    if cut:
        logger.info(
            f"{cut:,} texts are longer than data.max_length={data.max_length} and are cut (the longest has"
            f" {longest:,} ids)"
        )
