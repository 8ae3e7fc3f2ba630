"""The data doctor: what is in the files, what is odd about it, and what a training would make of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from seqloom.config import DataConfig, RunConfig, TrainConfig
from seqloom.errors import UsageError
from seqloom.run_file import apply_settings, parse
from seqloom.runs.progress import Say
from seqloom.runs.settings import keep_standard_input, resolve
from seqloom.tasks.registry import READING_TASKS, task_named
from seqloom.workflows.data_report.corpus import CorpusReport, check_corpus
from seqloom.workflows.data_report.labelled import LabelledReport, check_reading
from seqloom.workflows.data_report.pairs import PairsReport, check_pairs

CHECKS: dict[
    str, Callable[[RunConfig, Sequence[str], Path, Say], PairsReport | CorpusReport | LabelledReport]
] = {
    "translation": check_pairs,
    "text-generation": check_corpus,
    **dict.fromkeys(READING_TASKS, check_reading),
}
"""task -> what examines its data: (run, test files, a folder that is thrown away, say) -> report."""


def check(
    task: str,
    data: Sequence[str],
    validation: Sequence[str],
    test: Sequence[str],
    settings: Sequence[str],
    say: Say = lambda _: None,
    *,
    model: str | None = None,
    start: str | None = None,
) -> PairsReport | CorpusReport | LabelledReport:
    """Examines data as a training with these settings would read it.

    Raises DataError where files cannot be read or hold no usable pair, UsageError for settings that fit in no
    way.
    """
    with TemporaryDirectory() as folder:
        run = keep_standard_input(_configured(task, data, validation, settings, model, start), Path(folder))
        return CHECKS[task](run, test, Path(folder), say)


def _configured(
    task: str,
    data: Sequence[str],
    validation: Sequence[str],
    settings: Sequence[str],
    model: str | None,
    start: str | None,
) -> RunConfig:
    task_named(task)
    if task not in CHECKS:
        raise UsageError(
            f"TASK must be one of {', '.join(CHECKS)} to be checked, but is {task!r}, whose data are checked"
            " as train reads them"
        )
    if not data:
        raise UsageError("a check needs data: name its files after the task")
    if task in READING_TASKS:
        return resolve(task, data, "", model, validation, settings, None, start)
    if model is not None or start is not None:
        raise UsageError(
            f"--model and --from change nothing here, as no model is made to check the data of {task}; leave"
            " them out"
        )
    content = apply_settings({}, list(settings))
    if other := content.keys() - {"data", "train"}:
        raise UsageError(
            f"--set can change data.* and train.* here, but not {', '.join(sorted(other))}.*: no model is"
            " made"
        )
    read = content.get("data", {}) | {"train": tuple(data), "validation": tuple(validation)}
    train = parse(TrainConfig, content.get("train", {}), "train.")
    return RunConfig(task=task, output_dir="", data=parse(DataConfig, read, "data."), train=train)
