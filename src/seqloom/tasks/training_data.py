"""What the training data of all tasks share: the tokenizer of a run, its plan, its record of files."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import ClassVar, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from seqloom import files, manifest
from seqloom.arrays import Integers
from seqloom.config import DataConfig, RunConfig, TrainConfig
from seqloom.data.batching.pair_batches import BatchPlan
from seqloom.errors import FolderError, UsageError, printable
from seqloom.protocols import (
    FittedModel,
    FrequencyOutput,
    ModelConfig,
    NeuralDecodable,
    NewModel,
    SpecialIds,
    StoredTokenizer,
    TrainingData,
)
from seqloom.run_file import to_plain
from seqloom.runs import run_folder
from seqloom.runs.new_model import build_model
from seqloom.runs.progress import mute_logs
from seqloom.runs.settings import model_fields
from seqloom.text.tokenizers import TextTokenizer, train_tokenizer
from seqloom.training.distributed import World

logger = logging.getLogger(__name__)

COUNTED_IDS = 2**24
"""Ids that are counted at one time."""
D = TypeVar("D", bound=TrainingData)


class StepTrainingData:
    """Training data for models with gradients that take nothing else from them."""

    kind: ClassVar[str]
    """What the data are, in the plural."""

    def initialise(self, model: nn.Module) -> None:
        """Nothing needs to be set."""

    def fit(self, model_class: type[FittedModel], config: ModelConfig) -> nn.Module:
        raise UsageError(f"a {model_class.__name__} cannot be made of {self.kind}")


def batch_plan(train: TrainConfig, special_ids: SpecialIds | None) -> BatchPlan:
    return BatchPlan(
        seed=train.seed,
        batch_tokens=train.batch_tokens,
        batch_rows=train.batch_rows,
        special_ids=special_ids,
    )


def total_steps(config: TrainConfig, data: TrainingData) -> int:
    """How many steps a training has."""
    return config.max_steps or max(
        math.ceil(config.epochs * data.batches_an_epoch()), config.min_steps
    )


def prepare_data(
    prepare: Callable[[RunConfig, Path, bool], D], run_config: RunConfig, folder: Path, world: World
) -> D:
    """The training data of a worker. The first worker prepares and writes; then the others read what it
    wrote. An error in one of them stops all."""
    with world.together():
        data = prepare(run_config, folder, True) if world.first else None
    # together: a worker that fails clears the folder, which another may still read
    with world.together(), mute_logs():
        return data or prepare(run_config, folder, False)


def learned_tokenizer(
    folder: Path,
    data: DataConfig,
    texts: Callable[[], Iterator[str]],
    first: bool,
    extend: Callable[[TextTokenizer], TextTokenizer] = lambda learned: learned,
) -> TextTokenizer:
    """The folder's tokenizer. Where there is none yet, the first worker trains it on these texts, adds what
    the task needs (`extend`), and writes it."""
    if not first or (folder / run_folder.TOKENIZER).exists():
        return run_folder.read_tokenizer(folder / run_folder.TOKENIZER)
    tokenizer = train_tokenizer(
        texts(), data.tokenizer, data.vocabulary, data.normalisation, data.minimum_count
    )
    sized = data.tokenizer not in ("bytes", "characters")
    if sized and tokenizer.vocabulary_size < data.vocabulary:
        logger.info(
            f"the text allows {tokenizer.vocabulary_size:,} pieces, fewer than"
            f" data.vocabulary={data.vocabulary:,}"
        )
    tokenizer = extend(tokenizer)
    if data.add_tokens:
        tokenizer = tokenizer.with_added_tokens(data.add_tokens)
    files.write_atomic(folder / run_folder.TOKENIZER, tokenizer.to_json())
    manifest.add(folder, run_folder.TOKENIZER)
    return tokenizer


def check_same_data(folder: Path, fingerprints: Sequence[Mapping[str, object]]) -> None:
    """Raises FolderError if a run would be resumed with other data than it was started with."""
    if not (folder / run_folder.DATA).exists():
        return
    path = folder / run_folder.DATA
    try:
        before = [file["sha256"] for file in files.read_json(path)["files"]]
    except (KeyError, TypeError):
        raise FolderError("must list the files of the training, but does not", path) from None
    pairs = zip(before, fingerprints, strict=False)
    changed = [printable(str(new["path"])) for old, new in pairs if old != new["sha256"]]
    if changed or len(before) != len(fingerprints):
        raise FolderError(
            f"{printable(str(folder))}: a run must go on with the data it began with, but"
            f" {', '.join(changed) or 'their number'} has changed; restore it, or train a new run"
        )


def stored_reading_settings(data: DataConfig) -> dict[str, object]:
    """The settings that a store of tokens depends on, beside its files."""
    left_out = ("train", "validation", "max_length", "mixing_cap", "mixing_temperature")
    return {name: value for name, value in to_plain(data).items() if name not in left_out}


def record_data(
    folder: Path, fingerprints: Sequence[Mapping[str, object]], **counts: object
) -> None:
    """Writes data.json, unless an earlier start of the run did."""
    if not (folder / run_folder.DATA).exists():
        files.write_json(folder / run_folder.DATA, {"files": fingerprints, **counts})
        manifest.add(folder, run_folder.DATA)


def count_ids(ids: Integers, vocabulary_size: int) -> NDArray[np.int64]:
    """`(vocabulary,)`: how often each id occurs."""
    counts = np.zeros(vocabulary_size, np.int64)
    for start in range(0, len(ids), COUNTED_IDS):
        counts += np.bincount(ids[start : start + COUNTED_IDS], minlength=vocabulary_size)
    return counts


def set_output_counts(model: nn.Module, counts: NDArray[np.int64]) -> None:
    """Tells an output layer that works by frequency how often each id is a target."""
    if isinstance(model, NeuralDecodable) and isinstance(model.output, FrequencyOutput):
        model.output.set_counts(torch.from_numpy(counts))


def impossible_targets(
    tokenizer: StoredTokenizer, predicted: Collection[int] = ()
) -> tuple[int, ...]:
    """The special ids that are never a target: all but the end mark, `<unk>` where a text may have it, and
    others that are `predicted`. What the output of a model that predicts a next token leaves out."""
    special_ids = tokenizer.special_ids
    of_texts = (special_ids.unk,) if tokenizer.has_unknown else ()
    return tuple(
        token_id for token_id in special_ids.forbidden if token_id not in (*of_texts, *predicted)
    )


def new_model(run: RunConfig, vocabulary_size: int, suppressed: tuple[int, ...] = ()) -> NewModel:
    """A model of the run's family, with random weights."""
    name, size = run.model["name"], run.model["size"]
    model, config = build_model(
        name,
        size,
        vocabulary_size,
        model_fields(run.model),
        suppressed_ids=suppressed,
    )
    return NewModel(model, config, name)
