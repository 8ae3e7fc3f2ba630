"""The settings of a run folder: how its data were read, what is read again, what may change on resume."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from seqloom import files
from seqloom.config import DataConfig, EvaluateConfig, RunConfig, tokenizer_kind
from seqloom.errors import FolderError, UsageError, printable
from seqloom.json_values import JsonObject, as_text
from seqloom.protocols import Settings
from seqloom.run_file import parse, read_run_file, to_plain
from seqloom.runs import run_folder
from seqloom.runs.run_folder import STANDARD_INPUT

T = TypeVar("T")


def absolute(path: T) -> T | str:
    """A path that a run finds again from wherever it is resumed."""
    text = as_text(path)
    return path if text is None or text == "-" else os.path.abspath(text)


def model_fields(model: Settings) -> dict[str, Any]:
    """Of the model's settings those that its own configuration has."""
    return {key: value for key, value in model.items() if key not in ("name", "size", "from")}


def keep_standard_input(folder: Path) -> None:
    """Data from standard input is read several times, and again on resume: it is kept in the run folder."""
    place = folder / STANDARD_INPUT
    files.write_atomic(place, lambda file: shutil.copyfileobj(files.standard_input(), file))


def with_kept_input(run_config: RunConfig, folder: Path) -> RunConfig:
    """The run with the file in place of standard input."""
    place = str(folder / STANDARD_INPUT)
    train_files = tuple(place if path == "-" else path for path in run_config.data.train)
    return replace(run_config, data=replace(run_config.data, train=train_files))


def read_resumed(folder: Path) -> RunConfig:
    """The configuration that a run folder was made with."""
    files.require_folder(folder, "a run folder to be resumed", run_folder.RUN)
    run_config = run_config_in(folder)
    own = folder / STANDARD_INPUT
    train_files = tuple(
        str(own) if Path(path).name == STANDARD_INPUT and own.exists() else path
        for path in run_config.data.train
    )
    # the folder may have moved
    return replace(run_config, data=replace(run_config.data, train=train_files))


def run_config_in(folder: Path) -> RunConfig:
    """What run.yaml says. Raises FolderError if that cannot be."""
    content = read_run_file(str(folder / run_folder.RUN))
    try:
        return parse(RunConfig, content)
    except UsageError as error:
        raise FolderError(str(error), folder / run_folder.RUN) from None


AS_TRAINED = (
    *("source", "target", "text", "document", "encoding", "delimiter", "header", "quoting"),
    *("skip_initial_space", "join"),
)
"""How the texts and pairs of a training are read."""


def saved_data_settings(folder: Path) -> dict[str, Any] | None:
    """The settings of data of a run; None if the folder is a checkpoint of others."""
    run_folder.check_files(folder, run_folder.RUN)
    if not files.is_there(folder / run_folder.RUN):
        return None
    return dict(read_run_file(str(folder / run_folder.RUN))["data"])


def data_config(folder: Path, given: JsonObject) -> DataConfig:
    """Settings of reading texts and pairs: those that are given, else those of the training."""
    return merge_data_settings(saved_data_settings(folder) or {}, given, AS_TRAINED)


def merge_data_settings(before: JsonObject, given: JsonObject, names: Iterable[str]) -> DataConfig:
    """Settings that are given, and of these names else those from before. One that is given as its default
    stands."""
    return parse(
        DataConfig, {name: before[name] for name in names if name in before} | dict(given), "data."
    )


def evaluate_config(folder: Path, given: JsonObject) -> EvaluateConfig:
    """Settings of measuring: those that are given, else those of the training."""
    run_folder.check_files(folder, run_folder.RUN)
    saved: JsonObject = {}
    if files.is_there(folder / run_folder.RUN):
        saved = read_run_file(str(folder / run_folder.RUN))["evaluate"]
    return parse(EvaluateConfig, {**saved, **given}, "evaluate.")


ADJUSTABLE: tuple[str, ...] = (
    "learning_rate",
    "clip_norm",
    "dtype",
    "device",
    "threads",
    "accumulate",
    "log_every",
    "patience",
    "tensorboard",
    "trackers",
    "worker_timeout",
)
"""Settings of training that may be changed in a run.yaml before it is resumed; the last bits change then."""


ADJUSTABLE_DATA: tuple[str, ...] = ("train", "validation", "on_bad_line", "max_line_bytes")
"""Settings of data that may be changed too; files are compared by their hashes."""


def fixed_settings(run_config: RunConfig) -> dict[str, object]:
    """What must not change within a run, as key -> value. Data files are compared by their hashes instead."""
    plain = to_plain(run_config)
    sections = {
        section: plain[section] for section in ("model", "data", "head", "train", "evaluate")
    }
    for name, task in plain["tasks"].items():
        data = task.pop("data")
        sections |= {f"tasks.{name}": task, f"tasks.{name}.data": data}
    fixed = {}
    for section, fields in sections.items():
        adjustable = ADJUSTABLE if section == "train" else ()
        if section.endswith("data"):
            adjustable = ADJUSTABLE_DATA
        for key, value in fields.items():
            if key not in adjustable:
                fixed[f"{section}.{key}"] = value
    return fixed


def check_unchanged(
    folder: Path, before: dict[str, object], now: dict[str, object]
) -> dict[str, object]:
    """The settings of a run. Raises FolderError if a resumed run would have others than before."""
    if "data.tokenizer" in before:  # an old run may have the old name of a kind
        before = before | {"data.tokenizer": tokenizer_kind(before["data.tokenizer"])}
    # a setting that is newer than the run cannot have changed
    changed = [key for key in sorted(before) if before[key] != now.get(key)]
    if changed:
        was = ", ".join(
            f"{key} was {before.get(key)!r} and is {now.get(key)!r}" for key in changed[:5]
        )
        raise FolderError(
            f"{printable(str(folder / run_folder.RUN))}: a resumed run must keep its settings, but"
            f" {printable(was)}; put them back, or train a new run"
        )
    return now
