"""The data of each of several tasks: examples to train on, examples to measure, what is said of them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import final

from seqloom.config import MixedTaskConfig, RunConfig
from seqloom.data.batching.token_store import fingerprint
from seqloom.data.formats.columns import Record
from seqloom.data.formats.read_report import ReadReport
from seqloom.data.readers.examples import TextPair
from seqloom.data.readers.records import data_files
from seqloom.errors import UsageError
from seqloom.runs.progress import log_notes, logged_report, named_logs, split_note
from seqloom.tasks.text.training_data import expand_folders, read_examples
from seqloom.tasks.text_to_text.mixed_task import LABELLED, PAIRS, MixedTask, mixed_task
from seqloom.tasks.text_to_text.text_forms import TextExample
from seqloom.tasks.translation.training_data import split_validation

logger = logging.getLogger(__name__)


@final
@dataclass(frozen=True, kw_only=True)
class TaskData:
    """A task and its data."""

    task: MixedTask
    files: list[dict[str, object]]
    """Their fingerprints."""
    training: Callable[[bool], Iterator[TextExample]]
    """Whether to log what was guessed and repaired -> its examples."""
    validation: Sequence[TextExample]
    held_out: list[int]
    """(how many, seed) where validation examples come from the training files."""

    def records(self, notices: bool = False) -> Iterator[Record]:
        """The texts to train on."""
        for example in self.training(notices):
            yield Record(self.task.texts(example), example.path, example.line or 0)

    def validation_pairs(self) -> list[tuple[str, str]]:
        texts = map(self.task.texts, self.validation)
        return [(text["source"], text["target"]) for text in texts]


def open_task(name: str, config: MixedTaskConfig, run: RunConfig) -> TaskData:
    """Reads the examples of a task, or of pairs what is held out. What is logged begins with its name."""
    with named_logs(name):
        return (_open_pairs if config.task in PAIRS else _open_labelled)(name, config, run)


def _open_labelled(name: str, config: MixedTaskConfig, run: RunConfig) -> TaskData:
    used = expand_folders([*config.data.train, *config.data.validation])
    spec = LABELLED[config.task]
    head_task, examples, validation = read_examples(spec, replace(run, data=config.data))
    if head_task.kind == "multi-label":
        raise UsageError(
            f"tasks.{name}: each text must have one label to be written as a text, but some have several or"
            " none"
        )
    log_notes(head_task.check_labels(validation, config.data.unseen_labels))
    return TaskData(
        task=mixed_task(name, config, head_task),
        files=[fingerprint(path) for path in used],
        training=lambda notices: iter(examples),
        validation=validation,
        held_out=[] if config.data.validation else [len(validation), run.train.seed],
    )


def _open_pairs(name: str, config: MixedTaskConfig, run: RunConfig) -> TaskData:
    data, seed = config.data, run.train.seed
    task = mixed_task(name, config, None)
    used = data_files(data.train, data)
    indices: frozenset[int] = frozenset()
    validation: list[TextExample] = []
    if data.validation:
        used += data_files(data.validation, data)
        with logged_report() as report:
            validation = list(task.read(data.validation, data, report))
    else:
        indices, pairs = split_validation(data, seed)
        validation = [TextPair(source, target, used[0], None) for source, target in pairs]
        logger.info(split_note(len(validation), "pair", seed))

    def training(notices: bool) -> Iterator[TextExample]:
        report = ReadReport()
        try:
            for number, example in enumerate(task.read(data.train, data, report)):
                if number not in indices:
                    yield example
        finally:
            with named_logs(name):
                log_notes(report.notices() if notices else ())

    return TaskData(
        task=task,
        files=[fingerprint(path) for path in used],
        training=training,
        validation=validation,
        held_out=[len(indices), seed] if indices else [],
    )
