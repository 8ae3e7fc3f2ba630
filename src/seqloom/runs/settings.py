"""The settings of a run: what was asked for, what the folder says, what may change on resume."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from seqloom import files
from seqloom.config import DataConfig, HeadConfig, RunConfig, tokenizer_kind
from seqloom.errors import FolderError, UsageError, printable
from seqloom.interop.hub import is_hub_name
from seqloom.run_file import apply_settings, parse, read_run_file, to_plain
from seqloom.runs import run_folder
from seqloom.tasks.registry import (
    FINE_TUNING,
    RATES,
    READ_BY_ALL,
    READING_STEPS,
    READING_TASKS,
    TASKS,
    task_named,
)

STANDARD_INPUT = "standard-input"
"""The file of a run folder that keeps what was piped in."""


def resolve(
    task: str | None,
    data: Sequence[str],
    output_dir: str | Path | None,
    model: str | None,
    validation: Sequence[str],
    settings: Sequence[str],
    config: str | None,
    start: str | Path | None = None,
) -> RunConfig:
    """What was asked for, as one configuration: the run file, changed by the arguments, changed by the
    settings."""
    content: dict[str, Any] = read_run_file(config) if config else {}
    content = apply_settings(content, list(settings))
    given: dict[str, Any] = {"task": task, "output_dir": str(output_dir) if output_dir is not None else None}
    content |= {key: value for key, value in given.items() if value is not None}
    named = content.setdefault("data", {})
    for key, paths in (("train", data), ("validation", validation)):
        named |= {key: list(paths)} if paths else {}
        named |= {key: [absolute(path) for path in named[key]]} if isinstance(named.get(key), list) else {}
    if isinstance(vectors := content.get("train", {}).get("word_vectors"), str):
        content["train"]["word_vectors"] = absolute(vectors)
    if model is not None:
        name, _, size = model.partition(":")
        content.setdefault("model", {}).update({"name": name} | ({"size": size} if size else {}))
    if "task" not in content or "output_dir" not in content:
        raise UsageError(
            "a training needs TASK, DATA and --output-dir, or --config with a run file, or --resume DIR"
        )
    if start is not None:
        content.setdefault("model", {})["from"] = (
            str(start) if is_hub_name(str(start)) else absolute(str(start))
        )
    begun = content.get("model", {}).get("from")
    if isinstance(content["task"], str):
        named_task = task_named(content["task"])
        defaults: dict[str, Any] = {
            "decode": named_task.decode,
            "data": {} if begun else named_task.data,
            "train": dict(named_task.train)
            | (_training_of_readers(content) if content["task"] in READING_TASKS else {}),
        }
        content |= {section: {**values, **content.get(section, {})} for section, values in defaults.items()}
    run_config = parse(RunConfig, content)
    if not run_config.data.train:
        raise UsageError(
            "a training needs data: name its files after the task, or data.train in the run file"
        )
    known = task_named(run_config.task).models
    chosen = {"name": known[0], "size": "small"} | dict(task_named(run_config.task).model) | run_config.model
    if begun:
        chosen = begun_with(chosen, run_config)
    if chosen["name"] not in known:
        raise UsageError(
            f"the model of {run_config.task} must be one of {', '.join(known)}, but is {printable(repr(chosen['name']))}"
        )
    if run_config.head != HeadConfig() and run_config.task not in READING_TASKS:
        raise UsageError(f"head.* belongs to readers, but the task is {run_config.task}; leave it out")
    if run_config.task in READING_TASKS:
        refuse_idle(run_config)
    if run_config.train.shift and run_config.task not in run_folder.OF_IMAGES:
        raise UsageError(f"train.shift moves images, but the task is {run_config.task}; leave it out")
    best = task_named(run_config.task).best
    if run_config.train.best not in best:
        raise UsageError(
            f"train.best must be {' or '.join(best)} for {run_config.task}, but is {run_config.train.best!r}"
        )
    if not begun:
        run_folder.model_config(
            chosen["name"], chosen["size"], run_config.data.vocabulary, model_fields(chosen)
        )  # said before the work
    run_folder.choose_device(run_config.train.device)
    return replace(run_config, model=chosen)


def _training_of_readers(content: dict[str, Any]) -> dict[str, Any]:
    """Settings of training where a reader has other defaults: one that begins with a checkpoint, or one of a
    family."""
    model = content.get("model", {})
    if model.get("from"):
        return FINE_TUNING
    name = model.get("name")
    steps = {} if "epochs" in content.get("train", {}) else {"min_steps": READING_STEPS}
    return steps | ({"learning_rate": RATES[name]} if isinstance(name, str) and name in RATES else {})


def refuse_unread(task: str, data: DataConfig) -> None:
    """Raises UsageError where a setting of data is not its default and changes nothing for a reading task."""
    read = {*TASKS[task].reads, *READ_BY_ALL}
    for one in fields(DataConfig):
        if one.name not in read and getattr(data, one.name) != one.default:
            others = [other for other, its in TASKS.items() if one.name in its.reads]
            whose = f" (it is for {', '.join(others)})" if others else ""
            raise UsageError(f"data.{one.name} changes nothing for {task}{whose}; leave it out")


def refuse_idle(run: RunConfig) -> None:
    """Raises UsageError where a setting changes nothing for the reading task of a run."""
    refuse_unread(run.task, run.data)
    if run.head.pair != "auto" and run.task not in ("text-classification", "sentence-similarity"):
        raise UsageError(
            f"head.pair is for two texts and their label or score, but the task is {run.task}; leave it out"
        )
    if run.head.pooling != "auto" and run.task in ("token-classification", "question-answering"):
        raise UsageError(
            f"head.pooling makes one state of a text, but {run.task} asks each word; leave it out"
        )
    if run.train.label_smoothing and run.task == "sentence-similarity":
        raise UsageError(
            "train.label_smoothing is for labels, but the task is sentence-similarity, which answers a number; leave it out"
        )
    if run.train.window is not None:
        raise UsageError(f"train.window is for language models, but the task is {run.task}; leave it out")


BROUGHT = ("tokenizer", "vocabulary", "normalisation")
"""Settings of data that a model to begin with brings along."""


def begun_with(model: dict[str, Any], run_config: RunConfig) -> dict[str, Any]:
    """The model settings of a run that begins with the weights of another folder, whose family is its own.
    Raises UsageError where another is asked for, or where the task cannot begin so."""
    if run_config.task not in (*READING_TASKS, run_folder.IMAGES):
        raise UsageError(
            f"--from is for {', '.join((*READING_TASKS, run_folder.IMAGES))}, but the task is {run_config.task}"
        )
    found = run_folder.encoder_of(model["from"])
    named = run_config.model.get("name", found)
    own = [name for name in BROUGHT if getattr(run_config.data, name) != getattr(DataConfig(), name)]
    if own and run_config.task in READING_TASKS:
        raise UsageError(f"--from brings its own tokenizer, so data.{own[0]} changes nothing; leave it out")
    if named != found or "size" in run_config.model:
        raise UsageError(
            f"--from brings its own model ({found}), so --model must be left out, but is {printable(str(named))}"
        )
    return model | {"name": found, "size": "small"}


def absolute(path: Any) -> Any:
    """A path that a run finds again from wherever it is resumed."""
    return os.path.abspath(path) if isinstance(path, str) and path != "-" else path


def model_fields(model: dict[str, Any]) -> dict[str, Any]:
    """Of the model's settings those that its own configuration has."""
    return {key: value for key, value in model.items() if key not in ("name", "size", "from")}


def keep_standard_input(run_config: RunConfig, folder: Path) -> RunConfig:
    """Data from standard input is read several times, and again on resume: it is kept in the run folder."""
    if "-" not in run_config.data.train:
        return run_config
    place = folder / STANDARD_INPUT
    files.write_atomic(place, lambda file: shutil.copyfileobj(files.open_binary("-"), file))
    train_files = tuple(str(place) if path == "-" else path for path in run_config.data.train)
    return replace(run_config, data=replace(run_config.data, train=train_files))


def read_resumed(folder: Path) -> RunConfig:
    """The configuration that a run folder was made with."""
    if not (folder / run_folder.RUN).is_file():
        raise FolderError(
            f"{printable(str(folder))}: must be a run folder to be resumed, but holds no {run_folder.RUN}"
        )
    run_config = parse(RunConfig, read_run_file(str(folder / run_folder.RUN)))
    own = folder / STANDARD_INPUT
    kept = tuple(
        str(own) if Path(path).name == STANDARD_INPUT and own.exists() else path
        for path in run_config.data.train
    )
    return replace(run_config, data=replace(run_config.data, train=kept))  # the folder may have moved


AS_TRAINED = ("source", "target", "text", "document", "encoding", "delimiter", "header", "quoting")
"""How the texts and pairs of a training are read."""


def trained_on(folder: Path) -> dict[str, Any] | None:
    """The settings of data of a run; None where the folder is a checkpoint of others."""
    return (
        dict(read_run_file(str(folder / run_folder.RUN))["data"])
        if (folder / run_folder.RUN).is_file()
        else None
    )


def as_trained(folder: Path, given: Mapping[str, Any]) -> DataConfig:
    """Settings of reading texts and pairs: those that are given, else those of the training."""
    return kept(trained_on(folder) or {}, given, AS_TRAINED)


def kept(before: Mapping[str, Any], given: Mapping[str, Any], names: Iterable[str]) -> DataConfig:
    """Settings that are given, and of these names else those from before. One that is given as its default
    stands."""
    return parse(DataConfig, {name: before[name] for name in names if name in before} | dict(given), "data.")


ADJUSTABLE = (
    "learning_rate",
    "clip_norm",
    "dtype",
    "device",
    "threads",
    "accumulate",
    "log_every",
    "patience",
    "tensorboard",
)
"""Settings of training that may be changed in a run.yaml before it is resumed; from there on, the bits are
others."""


def fixed_settings(run_config: RunConfig) -> dict[str, Any]:
    """What must not change within a run (the data is told by its hash), as key -> value."""
    plain = to_plain(run_config)
    kept = {section: plain[section] for section in ("model", "data", "head", "train")}
    names = {"data": ("train", "validation", "on_bad_line", "max_line_bytes"), "train": ADJUSTABLE}
    return {
        f"{s}.{key}": value
        for s, fields in kept.items()
        for key, value in fields.items()
        if key not in names.get(s, ())
    }


def check_unchanged(folder: Path, before: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    """The settings of a run. Raises FolderError where a resumed run would not be the one that was begun."""
    # a setting that is newer than the run cannot have changed
    if "data.tokenizer" in before:
        before = before | {"data.tokenizer": tokenizer_kind(before["data.tokenizer"])}
    changed = [key for key in sorted(before) if before[key] != now.get(key)]
    if changed:
        was = ", ".join(f"{key} was {before.get(key)!r} and is {now.get(key)!r}" for key in changed[:5])
        raise FolderError(
            f"{printable(str(folder / run_folder.RUN))}: a resumed run must keep its settings, but {printable(was)}; "
            "put them back, or train a new run"
        )
    return now
