"""Several tasks as the training loop reads them: one tokenizer, a store for each, and one order."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, final

import numpy as np
from numpy.typing import NDArray
from torch import nn

from seqloom.config import RunConfig
from seqloom.data.batching.mixing import JoinedStores, Mixing
from seqloom.data.batching.pair_batches import BatchPlan
from seqloom.data.batching.token_store import TokenStore
from seqloom.errors import counted, printable
from seqloom.evaluation.writing_systems import require_bleu_tokenizer
from seqloom.long_work import log_progress
from seqloom.protocols import Rows
from seqloom.runs.progress import mute_logs, named_logs
from seqloom.tasks.starting_point import StartingPoint, starting_point
from seqloom.tasks.text_to_text.evaluate_tasks import SCORE, evaluate_task, joined
from seqloom.tasks.text_to_text.mixed_task import check_tasks
from seqloom.tasks.text_to_text.scores import HowToScore
from seqloom.tasks.text_to_text.task_data import TaskData, open_task
from seqloom.tasks.text_to_text.text_forms import check_names
from seqloom.tasks.training_data import (
    check_same_data,
    record_data,
    stored_reading_settings,
)
from seqloom.tasks.translation import measures
from seqloom.tasks.translation.training_data import (
    PairTrainingData,
    PreparedPairs,
    build_pairs,
    check_context,
    count_store,
    prepare_pairs,
    text_limit,
)

logger = logging.getLogger(__name__)


@final
@dataclass(frozen=True, kw_only=True)
class TaskMixture(PairTrainingData):
    """The examples of several tasks as pairs of texts."""

    kind: ClassVar = "texts of several tasks"
    store: JoinedStores
    mixing: Mixing
    tasks: tuple[TaskData, ...]

    @property
    def plan(self) -> BatchPlan:
        return replace(super().plan, mixing=self.mixing)

    def about(self) -> str:
        held_out = sum(len(task.validation) for task in self.tasks)
        return (
            f"{counted(len(self.tasks), 'task')} of {counted(len(self.store), 'example')},"
            f" {len(self.mixing):,} an epoch ({held_out:,} for validation)"
        )

    def describe(self, rows: Rows) -> str:
        places = []
        for row in rows[:8].tolist():
            number, at = self.store.place(row)
            line = self.store.stores[number].lines[at]
            places.append(f"{self.tasks[number].task.name}:{line}")
        return f"the examples {', '.join(places)}" + (", ..." if len(rows) > 8 else "")

    def id_counts(self) -> NDArray[np.int64]:
        """As often as an epoch has them."""
        counts = np.zeros(self.tokenizer.vocabulary_size, np.float64)
        for store, draws in zip(self.store.stores, self.mixing.draws, strict=True):
            counts += count_store(store, self.tokenizer) * (draws / len(store))
        return np.rint(counts).astype(np.int64)

    def validate(self, model: nn.Module) -> dict[str, float]:
        """Of each task the loss; where the best checkpoint is chosen by the score, also what is decoded,
        greedily, and its metrics."""
        decode = None
        if self.run.train.best == SCORE:
            decode = replace(self.run.decode, beam=1, n_best=1)
        how = HowToScore(self.tokenizer, self.run.evaluate, resamples=0)
        with mute_logs():
            found = [
                evaluate_task(model, task.task, task.validation, decode, how) for task in self.tasks
            ]
        return joined([task.task for task in self.tasks], found).metrics


def prepare(run: RunConfig, folder: Path, first: bool) -> PreparedPairs | TaskMixture:
    if not run.tasks:
        return prepare_pairs(measures.TRANSLATION, run, folder, first)
    return prepare_mixture(run, folder, first)


def prepare_mixture(run: RunConfig, folder: Path, first: bool) -> TaskMixture:
    """Reads the examples of each task, holds some out, trains the tokenizer on all, builds their stores."""
    check_tasks(run)
    require_bleu_tokenizer(run.evaluate.bleu_tokenizer)
    tasks = [open_task(name, config, run) for name, config in run.tasks.items()]
    fingerprints = [fingerprint for task in tasks for fingerprint in task.files]
    check_same_data(folder, fingerprints)

    def texts() -> Iterator[str]:
        for task in tasks:
            for record in log_progress(task.records(notices=True), "examples read"):
                yield from record.fields.values()

    start = starting_point(run, folder, texts, first).for_text_pairs()
    stores: list[TokenStore] = []
    for number, task in enumerate(tasks):
        with named_logs(task.task.name):
            tasks[number], store = _with_store(task, run, start)
        stores.append(store)
    data = run.data
    mixing = Mixing(
        sizes=tuple(map(len, stores)), cap=data.mixing_cap, temperature=data.mixing_temperature
    )
    if first:
        known = {data.task.name: data.task.known() for data in tasks}
        record_data(folder, fingerprints, tasks=known, draws=mixing.draws.tolist())
    return TaskMixture(
        run=run,
        start=start,
        store=JoinedStores(stores=tuple(stores)),
        mixing=mixing,
        tasks=tuple(tasks),
    )


def _with_store(
    task: TaskData, run: RunConfig, start: StartingPoint
) -> tuple[TaskData, TokenStore]:
    """The task without validation examples that are too long, and the store of its training examples."""
    config, path = task.task.config, str(task.files[0]["path"])
    how = HowToScore(start.tokenizer, run.evaluate, resamples=0)
    if task.task.form.labels:
        check_names(task.task.form.labels, how.written)
    if task.task.head_task is not None:
        _log_unwritable(task, how)
    data = replace(config.data, max_length=run.data.max_length)
    limit = text_limit(start, data, run.train.prompt_length or 0)
    pairs = task.validation_pairs()
    fitting = limit.fitting(pairs, path)
    identity: dict[str, object] = {
        "files": [fingerprint["sha256"] for fingerprint in task.files],
        "read": stored_reading_settings(config.data),
        "held_out": task.held_out,
        "task": [config.task, task.task.form.prefix, config.number_step],
    }
    store = build_pairs(task.records, identity, limit, path)
    check_context(start, store, [pairs[index] for index in fitting], data)
    return replace(task, validation=[task.validation[index] for index in fitting]), store


def _log_unwritable(task: TaskData, how: HowToScore) -> None:
    """Logs how many different answers are not read as themselves once the tokenizer has written them."""
    form: Any = task.task.form
    examples = {form.target(example): example for example in task.training(False)}
    texts = list(examples)
    written = how.written(texts)
    right = form.read(list(examples.values()), texts, list)
    read = form.read(list(examples.values()), written, how.written)
    lost = [index for index in range(len(texts)) if read[index] != right[index]]
    if lost:
        shown = (printable(repr(lines[lost[0]][:60])) for lines in (texts, written))
        logger.info(
            f"the tokenizer cannot write {len(lost):,} of {len(texts):,} answers so that they are read as"
            f" themselves: {' becomes '.join(shown)} at best, so no score of it is full"
        )
