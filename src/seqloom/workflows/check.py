"""Examines data before it is trained on: what is in the files, what is odd about it, and what a training
would make of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from seqloom.errors import UsageError
from seqloom.registry import all_tasks, task_to_train
from seqloom.run_file import read_run_file
from seqloom.runs.settings import keep_standard_input, with_kept_input
from seqloom.tasks.data_report import DataReport
from seqloom.tasks.settings import resolve


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

    Raises DataError where files cannot be read or hold no usable example, UsageError for settings that do not
    fit the task.
    """
    task = task or (None if config is None else read_run_file(config).get("task"))
    if not isinstance(task, str):
        raise UsageError("a check needs TASK and DATA, or --config with a run file that names them")
    found = task_to_train(task)
    if found.check is None:
        able = ", ".join(one.name for one in all_tasks() if one.check is not None)
        raise UsageError(
            f"TASK must be one of {able} to be checked, but is {task!r}, whose data are checked as train"
            " reads them"
        )
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
        report: DataReport = found.check(with_kept_input(run, place), test, place)
    return report
