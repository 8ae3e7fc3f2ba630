"""Examines data before it is trained on: what is in the files, what is odd about it, and what a training
would make of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from seqloom.config import DataConfig, RunConfig, TrainConfig
from seqloom.errors import UsageError
from seqloom.protocols import Task
from seqloom.registry import all_tasks, task_to_train
from seqloom.run_file import apply_settings, parse
from seqloom.runs.settings import keep_standard_input, with_kept_input
from seqloom.tasks.data_report import DataReport
from seqloom.tasks.settings import refuse_unread, resolve


def check(
    task: str,
    data: Sequence[str],
    validation: Sequence[str],
    test: Sequence[str],
    settings: Sequence[str],
    *,
    model: str | None = None,
    start: str | None = None,
) -> DataReport:
    """Examines data as a training with these settings would read it.

    Raises DataError where files cannot be read or hold no usable example, UsageError for settings that do not
    fit the task.
    """
    found = task_to_train(task)
    if found.check is None:
        able = ", ".join(one.name for one in all_tasks() if one.check is not None)
        raise UsageError(
            f"TASK must be one of {able} to be checked, but is {task!r}, whose data are checked as train"
            " reads them"
        )
    if not data:
        raise UsageError("a check needs data: name its files after the task")
    if found.check_with_model:
        run = resolve(task, data, "", model, validation, settings, None, start)
    elif model is not None or start is not None:
        raise UsageError(
            f"--model and --from change nothing here, as no model is made to check the data of {task}; leave"
            " them out"
        )
    else:
        run = _run_without_model(found, data, validation, settings)
    with TemporaryDirectory() as folder:
        place = Path(folder)
        if "-" in run.data.train:
            keep_standard_input(place)
        report: DataReport = found.check(with_kept_input(run, place), test, place)
    return report


def _run_without_model(
    task: Task, data: Sequence[str], validation: Sequence[str], settings: Sequence[str]
) -> RunConfig:
    """The configuration of a run whose model does not matter: it is never made."""
    content = apply_settings({}, list(settings))
    if other := content.keys() - {"data", "train"}:
        raise UsageError(
            f"--set can change data.* and train.* here, but not {', '.join(sorted(other))}.*: no model is"
            " made"
        )
    data_settings = content.get("data", {}) | {
        "train": tuple(data),
        "validation": tuple(validation),
    }
    run = RunConfig(
        task=task.name,
        output_dir="",
        # no weights are made of it, but what is learnt of the data may ask for its limits
        model={"name": task.models[0], "size": "small"},
        data=parse(DataConfig, data_settings, "data."),
        train=parse(TrainConfig, content.get("train", {}), "train."),
    )
    given = {
        "head": {},
        "decode": {},
        "evaluate": {},
        "train": {},
        **content,
        "data": data_settings,
    }
    refuse_unread(task, run, given, {})
    return run
