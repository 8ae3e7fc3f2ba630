"""Examines data before it is trained on: what is in the files, what is odd about it, and what a training
would make of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from operator import itemgetter
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from seqloom.config import RunConfig
from seqloom.errors import UsageError
from seqloom.json_values import as_text
from seqloom.models import model_family
from seqloom.protocols import FittedModel
from seqloom.registry import task_to_train
from seqloom.run_file import read_run_file
from seqloom.runs.progress import collect_logs, mute_logs
from seqloom.runs.settings import keep_standard_input, with_kept_input
from seqloom.tasks.data_report import DataReport, training_table
from seqloom.tasks.settings import resolve
from seqloom.tasks.training_cost import TIMED_STEPS, training_cost

SAMPLED = 40
"""Batches of which the largest shows the memory, and those of medium size the time."""


def check(
    task: str | None,
    data: Sequence[str],
    validation: Sequence[str],
    test: Sequence[str],
    settings: Sequence[str],
    *,
    model: str | None = None,
    start: str | None = None,
    config: str | None = None,
) -> DataReport:
    """Examines data as a training with these settings would read it; `config` is a run file, which the others
    change.

    Raises DataError if files cannot be read or hold no usable example, UsageError for settings that do not
    fit the task.
    """
    if not task and config is not None:
        task = as_text(read_run_file(config).get("task"))
    if not task:
        raise UsageError("a check needs TASK and DATA, or --config with a run file that names them")
    found = task_to_train(task)
    if not data and config is None:
        raise UsageError("a check needs data: name its files after the task")
    run = resolve(task, data, "", model, validation, settings, config, start)
    # messages name the files as they were given
    if data:
        run = replace(run, data=replace(run.data, train=tuple(data)))
    if validation:
        run = replace(run, data=replace(run.data, validation=tuple(validation)))
    with TemporaryDirectory() as folder:
        place = Path(folder)
        if "-" in run.data.train:
            keep_standard_input(place)
        run = with_kept_input(run, place)
        if run.train.threads:
            torch.set_num_threads(run.train.threads)
        if found.check is None:
            if test:
                raise UsageError(f"--test changes nothing for {task}; leave it out")
            return trained_only(run, place)
        report: DataReport = found.check(run, test, place)
        if "seconds_a_step" not in report.training and not report.errors:
            report = with_cost(report, run, place)
    return report


def trained_only(run: RunConfig, folder: Path) -> DataReport:
    """The report of a task whose data have no check of their own: what a training would cost."""
    with collect_logs() as notices:
        cost = cost_of(run, folder)
    tables = [training_table("Training", cost)] if cost else []
    return DataReport(
        splits={},
        lengths={},
        notices=notices,
        tokenizer={},
        training=cost,
        first_batch=[],
        tables=tables,
    )


def with_cost(report: DataReport, run: RunConfig, folder: Path) -> DataReport:
    """The report with what a training would cost."""
    with mute_logs():
        cost = cost_of(run, folder)
    if not cost:
        return report
    *others, first_batch = report.tables
    tables = [*others, training_table("Cost of a training", cost), first_batch]
    return replace(report, training={**report.training, **cost}, tables=tables)


def cost_of(run: RunConfig, folder: Path) -> dict[str, float]:
    """Parameters, memory and time; nothing of a model that is counted and not trained."""
    prepare = task_to_train(run.task).training_data
    if prepare is None or issubclass(model_family(run.model["name"])[1], FittedModel):
        return {}
    data = prepare(run, folder, True)
    sampled = list(islice(data.batches(0, 0), SAMPLED))
    sizes = [sum(part.numel() for part in data.load(rows, rows)) for rows in sampled]
    by_size = [rows for _, rows in sorted(zip(sizes, sampled, strict=True), key=itemgetter(0))]
    middle = max(len(by_size) // 2 - TIMED_STEPS // 2, 0)
    return training_cost(data, run, by_size[-1], by_size[middle : middle + TIMED_STEPS])
