"""Files of pairs to what the training loop reads: a tokenizer, a token store, validation pairs."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import ClassVar, final

import numpy as np
from numpy.typing import NDArray
from torch import nn

from seqloom.config import DataConfig, RunConfig
from seqloom.data.batching.pair_batches import (
    POOL,
    BatchPlan,
    PairRows,
    TranslationBatch,
    special_token_counts,
    translation_batch,
)
from seqloom.data.batching.splits import held_out
from seqloom.data.batching.token_store import (
    TokenStore,
    build_store,
    cache_folder,
    chunked,
    fingerprint,
)
from seqloom.data.formats.columns import Record
from seqloom.data.readers.records import data_files
from seqloom.errors import UsageError, counted
from seqloom.evaluation.writing_systems import require_bleu_tokenizer
from seqloom.json_values import JsonObject
from seqloom.long_work import log_progress
from seqloom.models import model_family
from seqloom.protocols import EncoderDecoder, Rows, StoredTokenizer, context_of
from seqloom.runs.progress import each_pair, read_pair_list, split_note
from seqloom.tasks.starting_point import StartedTrainingData, StartingPoint, starting_point
from seqloom.tasks.training_data import (
    StepTrainingData,
    batch_plan,
    check_same_data,
    count_ids,
    record_data,
    set_output_counts,
    stored_reading_settings,
)
from seqloom.tasks.translation.evaluate_pairs import (
    evaluate_pairs,
    prepare_references,
)
from seqloom.tasks.translation.measures import Measure, References
from seqloom.tasks.translation.text_limit import TextLimit
from seqloom.tasks.translation.translate import target_tokenizer
from seqloom.training.objectives import PairModelling, Translation

COLUMNS = ("source", "target")
"""Of the token store."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class PairTrainingData(StartedTrainingData, StepTrainingData, ABC):
    """Ids of sources and targets as the training loop reads them, whatever task they are of."""

    kind: ClassVar = "pairs"
    store: PairRows

    @property
    def plan(self) -> BatchPlan:
        return batch_plan(self.run.train, self.tokenizer.special_ids)

    def batches(self, epoch: int, start: int) -> Iterator[Rows]:
        return self.plan.epoch(self.store, epoch, start)

    def batches_an_epoch(self) -> int:
        return self.plan.count(self.store)

    def load(self, rows: Rows, whole: Rows) -> TranslationBatch:
        return translation_batch(
            self.store, rows, whole, self.run.data.max_length, self.tokenizer.special_ids
        )

    def objective(self) -> Translation | PairModelling:
        train = self.run.train
        is_encoder_decoder = issubclass(model_family(self.start.family)[1], EncoderDecoder)
        if is_encoder_decoder or vars(self.start.config).get("bidirectional_source"):
            return Translation(train.label_smoothing)
        pad = self.tokenizer.special_ids.pad
        return PairModelling(pad, train.label_smoothing, train.source_loss)

    @abstractmethod
    def id_counts(self) -> NDArray[np.int64]:
        """`(vocabulary,)`: how often each id is trained on."""

    def initialise(self, model: nn.Module) -> None:
        """An output layer that works by frequency needs to know how often each id is written."""
        if self.start.pretrained is None:
            set_output_counts(model, self.id_counts())


@final
@dataclass(frozen=True, kw_only=True)
class PreparedPairs(PairTrainingData):
    """Pairs of one task."""

    store: TokenStore
    validation: list[tuple[str, str]]
    measure: Measure
    """Of the task: what decoded validation data are scored by."""

    def about(self) -> str:
        return f"{counted(len(self.store), 'pair')} ({len(self.validation):,} for validation)"

    def describe(self, rows: Rows) -> str:
        lines = ", ".join(map(str, self.store.lines[rows[:8]]))
        return f"the pairs of lines {lines}" + (", ..." if len(rows) > 8 else "")

    def id_counts(self) -> NDArray[np.int64]:
        return count_store(self.store, self.tokenizer)

    def validate(self, model: nn.Module) -> dict[str, float]:
        """Where the best checkpoint is not chosen by the loss, the pairs are decoded, greedily."""
        if self.run.train.best == "loss":
            return evaluate_pairs(model, self.tokenizer, self.validation, None).metrics
        decode = replace(self.run.decode, beam=1, n_best=1)
        return evaluate_pairs(
            model, self.tokenizer, self.validation, decode, self.references, self.measure
        ).metrics

    @cached_property
    def references(self) -> References:
        """What decoded validation data are compared with."""
        targets = [target for _, target in self.validation]
        return prepare_references(self.tokenizer, targets, self.run.evaluate, self.measure)


def count_store(store: TokenStore, tokenizer: StoredTokenizer) -> NDArray[np.int64]:
    """How often each id is in a store, each target with its end."""
    counts = count_ids(store.tokens, tokenizer.vocabulary_size)
    counts[tokenizer.special_ids.eos] += len(store)
    return counts


def prepare_pairs(
    measure: Measure, run_config: RunConfig, folder: Path, first: bool
) -> PreparedPairs:
    """Reads the pairs, holds some out for validation, trains the tokenizer, builds the token store."""
    data, seed = run_config.data, run_config.train.seed
    # refused before the training, not at its first validation
    require_bleu_tokenizer(run_config.evaluate.bleu_tokenizer)
    used = data_files(data.train, data) + (
        data_files(data.validation, data) if data.validation else []
    )
    fingerprints = [fingerprint(path) for path in used]
    check_same_data(folder, fingerprints)
    held_out_indices: frozenset[int] = frozenset()
    if data.validation:
        validation = read_pair_list(data.validation, data)
    else:
        held_out_indices, validation = split_validation(data, seed)
        logger.info(split_note(len(validation), "pair", seed))

    def training(notices: bool = False) -> Iterator[Record]:
        records = enumerate(each_pair(data.train, data, notices))
        return (record for number, record in records if number not in held_out_indices)

    def texts() -> Iterator[str]:
        for record in log_progress(training(notices=True), "pairs read for the tokenizer"):
            yield from (record.fields[name] for name in COLUMNS)

    start = starting_point(run_config, folder, texts, first).for_text_pairs()
    identity = {
        "files": [file["sha256"] for file in fingerprints],
        "read": stored_reading_settings(data),
        "held_out": [len(held_out_indices), seed] if held_out_indices else [],
    }
    limit = text_limit(start, data, run_config.train.prompt_length or 0)
    validation = limit.pairs(validation, used[-1])
    store = build_pairs(training, identity, limit, used[0])
    check_context(start, store, validation, data)
    if first:
        record_data(folder, fingerprints, pairs=len(store), validation_pairs=len(validation))
    return PreparedPairs(
        run=run_config, start=start, store=store, validation=validation, measure=measure
    )


def text_limit(start: StartingPoint, data: DataConfig, prompt_length: int) -> TextLimit:
    longest = start.longest_source
    context = None if longest is None else longest - prompt_length
    return TextLimit(context=context, tokenizer=start.tokenizer, data=data)


def build_pairs(
    training: Callable[[], Iterator[Record]],
    identity: JsonObject,
    limit: TextLimit,
    path: str,
) -> TokenStore:
    """The store of these pairs, beside the file at `path`; without those that are too long."""
    cache, tokenizer, data = cache_folder(Path(path)), limit.tokenizer, limit.data
    tokenizers = {"source": tokenizer, "target": target_tokenizer(tokenizer)}
    identity = {**identity, "tokenizer": tokenizer.fingerprint}
    store = build_store(
        lambda: log_progress(training(), "pairs tokenised"), tokenizers, identity, cache
    )
    if left_out := limit.too_long(store, path):

        def short() -> Iterator[Record]:
            return (example for row, example in enumerate(training()) if row not in left_out)

        left = {**identity, "context": limit.context, "max_length": data.max_length}
        store = build_store(short, tokenizers, left, cache)
    log_truncation(store, data)
    return store


def split_validation(data: DataConfig, seed: int) -> tuple[frozenset[int], list[tuple[str, str]]]:
    """(indices of the held-out records, their pairs), drawn by seed from all records."""
    count = sum(1 for _ in each_pair(data.train, data, notices=False))
    if count < 2:
        raise UsageError(
            f"validation needs pairs of its own, but there is only {count}; name more data or --validation"
            " files"
        )
    indices, pairs = held_out(count, seed), []
    for number, record in enumerate(each_pair(data.train, data, notices=False)):
        if number in indices:
            pairs.append((record.fields["source"], record.fields["target"]))
    return indices, pairs


def check_context(
    start: StartingPoint,
    store: TokenStore,
    validation: Sequence[tuple[str, str]],
    data: DataConfig,
) -> None:
    """Raises UsageError for a pair that is longer than a language model reads; only pairs that are trained on
    are cut."""
    context = context_of(start.config)
    if context is None or issubclass(model_family(start.family)[1], EncoderDecoder):
        return
    special = sum(special_token_counts(start.tokenizer.special_ids))
    if start.prompted is not None:
        special += start.prompted.length
    longest = {"training": 0, "validation": 0}
    for lengths in lengths_in(store):
        cut = lengths if data.max_length is None else np.minimum(lengths, data.max_length)
        longest["training"] = max(longest["training"], int(cut.sum(axis=0).max()))
    for batch in chunked(validation, POOL):
        sides = [start.tokenizer.encode(side) for side in zip(*batch, strict=True)]
        for source, target in zip(*sides, strict=True):
            longest["validation"] = max(longest["validation"], len(source) + len(target))
    advice = {
        "training": "cut texts with data.max_length, or use a larger model.context",
        "validation": "use a larger model.context, or other validation data",
    }
    for part, length in longest.items():
        if length + special > context:
            raise UsageError(
                f"a source and its target must fit into model.context={context} together, but the longest"
                f" {part} pair has {length + special:,} tokens"
                f"{', the prompt included' if start.prompted else ''}; {advice[part]}"
            )


def lengths_in(store: TokenStore) -> Iterator[NDArray[np.int64]]:
    """`(columns, rows)`: how many ids each text has, many rows at a time."""
    for first in range(0, len(store), POOL):
        rows = np.arange(first, min(first + POOL, len(store)))
        yield np.stack([store.lengths(rows, column) for column in range(len(store.columns))])


def log_truncation(store: TokenStore, data: DataConfig) -> None:
    """Logs how many texts `data.max_length` truncates, and the longest."""
    if data.max_length is None:
        return
    truncated = longest = 0
    for lengths in lengths_in(store):
        truncated += int((lengths > data.max_length).sum())
        longest = max(longest, int(lengths.max()))
    if truncated:
        are = "is" if truncated == 1 else "are"
        logger.info(
            f"{counted(truncated, 'text')} {are} longer than data.max_length={data.max_length} and {are} cut"
            f" (the longest has {longest:,} ids)"
        )
