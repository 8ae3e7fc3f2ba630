"""What the training data of all tasks share: the tokenizer of a run, and that its files stay the same."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from seqloom import files
from seqloom.config import DataConfig, RunConfig, TrainConfig
from seqloom.errors import FolderError, printable
from seqloom.protocols import NewModel, TrainingData
from seqloom.runs import run_folder
from seqloom.runs.progress import mute_logs
from seqloom.runs.settings import model_fields
from seqloom.text.tokenizers import TextTokenizer, train_tokenizer
from seqloom.training.distributed import World

logger = logging.getLogger(__name__)

D = TypeVar("D", bound=TrainingData)


def total_steps(config: TrainConfig, data: TrainingData) -> int:
    """How many steps a training has."""
    return config.max_steps or max(math.ceil(config.epochs * data.batches_an_epoch()), config.min_steps)


def prepare_data(
    prepare: Callable[[RunConfig, Path, bool], D], run_config: RunConfig, folder: Path, world: World
) -> D:
    """Reads the data, learns the tokenizer from the training text alone (or takes the folder's), makes the
    store.

    The first worker does it and writes; then the others read what it made. What stops one of them stops all.
    """
    with world.together():
        data = prepare(run_config, folder, True) if world.first else None
    # nobody goes on, and perhaps fails and clears the folder, while another still reads it
    with world.together(), mute_logs():
        return data or prepare(run_config, folder, False)


def learned_tokenizer(
    folder: Path, data: DataConfig, texts: Callable[[], Iterator[str]], first: bool
) -> TextTokenizer:
    """The folder's tokenizer; where there is none yet, the first worker learns it from these texts and writes
    it."""
    if not first or (folder / run_folder.TOKENIZER).exists():
        return run_folder.read_tokenizer(folder / run_folder.TOKENIZER)
    tokenizer = train_tokenizer(texts(), data.tokenizer, data.vocabulary, data.normalisation)
    if (
        data.tokenizer in ("bpe", "words", "whitespace", "wordpiece", "unigram")
        and tokenizer.vocabulary_size < data.vocabulary
    ):
        logger.info(
            f"the text allows {tokenizer.vocabulary_size:,} pieces, fewer than"
            f" data.vocabulary={data.vocabulary:,}"
        )
    files.write_atomic(folder / run_folder.TOKENIZER, tokenizer.to_json())
    return tokenizer


def check_same_data(folder: Path, prints: list[dict[str, Any]]) -> None:
    """Raises FolderError where a run would go on with other data than it began with."""
    if not (folder / run_folder.DATA).exists():
        return
    before = files.read_json(folder / run_folder.DATA)["files"]
    changed = [
        new["path"] for old, new in zip(before, prints, strict=False) if old["sha256"] != new["sha256"]
    ]
    if changed or len(before) != len(prints):
        raise FolderError(
            f"{printable(str(folder))}: a run must go on with the data it began with, but"
            f" {', '.join(map(printable, changed)) or 'their number'} has changed; restore it, or train a"
            " new run"
        )


def new_model(run: RunConfig, vocabulary_size: int) -> NewModel:
    """A model of the run's family, with random weights."""
    name, size = run.model["name"], run.model["size"]
    model, config = run_folder.build_model(name, size, vocabulary_size, model_fields(run.model))
    return NewModel(model, config, name)
