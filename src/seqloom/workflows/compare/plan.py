"""What a comparison is to be: written down before it begins, so that it goes on as it was begun or not at
all."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast, final

import torch

from seqloom import files
from seqloom.config import RunConfig, TrainConfig
from seqloom.data.batching.token_store import fingerprint
from seqloom.errors import FolderError, UsageError, printable
from seqloom.run_file import parse, to_plain
from seqloom.runs.settings import absolute
from seqloom.tasks.text.training_data import files_behind
from seqloom.workflows.compare.budget import Budget, Match
from seqloom.workflows.compare.models import ModelEntry

PLAN = "plan.json"
FROM = " from "
FREE = {"threads", "test"}
"""Of a plan what need not be said again (threads), or is only measured on."""


@final
@dataclass(frozen=True, kw_only=True)
class ComparisonPlan:
    """A comparison."""

    task: str
    data: tuple[str, ...]
    validation: tuple[str, ...]
    """Empty: a part of the data is split off, the same for all."""
    test: tuple[str, ...]
    """Empty: models are measured on the validation part."""
    models: tuple[str, ...]
    """Their names; of checkpoints also the folder and the settings."""
    settings: tuple[str, ...]
    seeds: int
    match: Match
    parameters: int | None
    """That all models have; None: as many as the first."""
    seconds: float | None
    """Of training, that all models have; None: as many as the first takes."""
    grid: int
    """Learning rates tried for each model."""
    steps: int | None
    """Of each training; None: those of the first model's epochs."""
    metric: str
    """What is compared; on the validation part it also chooses learning rates and checkpoints."""
    threads: int
    files: tuple[dict[str, Any], ...]
    """What data and validation were: name, size and SHA-256 of each file."""

    @property
    def higher(self) -> bool:
        """Whether more is better."""
        return self.metric != "loss"

    @property
    def names(self) -> list[str]:
        """Of the models."""
        return [one.partition(FROM)[0] for one in self.models]

    @property
    def measured_on(self) -> str:
        return "test" if self.test else "validation"


def _told(entry: ModelEntry) -> str:
    """A name that says all that makes the model another one."""
    return (
        entry.name
        if entry.start is None
        else entry.name + FROM + "+".join((absolute(entry.start), *entry.settings))
    )


def planned(
    task: str,
    paths: tuple[Sequence[str], Sequence[str], Sequence[str]],
    entries: Sequence[ModelEntry],
    settings: Sequence[str],
    budget: Budget,
    configs: Sequence[RunConfig],
) -> ComparisonPlan:
    """The plan of a comparison of `entries`, whose configurations are `configs`, on (data, validation, test).
    Raises UsageError where they do not go together, DataError where a file is not there."""
    metrics = sorted({one.train.best for one in configs})
    if len(metrics) > 1:
        raise UsageError(
            f"train.best must be the same for all models, but they have {' and '.join(metrics)}; set it for"
            " all with --set"
        )
    data, validation, test = (tuple(map(absolute, given)) for given in paths)
    fingerprints(test)  # said before the work
    return ComparisonPlan(
        task=task,
        data=data,
        validation=validation,
        test=test,
        models=tuple(_told(one) for one in entries),
        settings=tuple(settings),
        seeds=budget.seeds,
        match=cast(Match, budget.match),
        parameters=budget.parameters,
        seconds=budget.seconds,
        grid=budget.grid,
        steps=configs[0].train.max_steps,
        metric=metrics[0],
        threads=configs[0].train.threads or torch.get_num_threads(),
        files=fingerprints([*data, *validation]),
    )


def fingerprints(paths: Sequence[str]) -> tuple[dict[str, Any], ...]:
    """Of files, and of all files in folders. Raises DataError for a path that is not there."""
    if "-" in paths:
        raise UsageError(
            "a comparison reads its data several times, so standard input cannot be compared on; name a file"
        )
    return tuple(fingerprint(path) for path in files_behind(paths))


@contextmanager
def held(folder: Path, plan: ComparisonPlan, threads_given: bool) -> Iterator[ComparisonPlan]:
    """The folder, made where it is missing, with this plan in it and nobody else at work; gives the plan,
    with the threads that it began with unless others are given.

    Raises UsageError where the folder holds something else or another plan; FolderError where another process
    compares into it.
    """
    if files.holds_something(folder) and not (folder / PLAN).is_file():
        raise UsageError(
            f"{printable(str(folder))}: must be new, empty or of an earlier comparison, but holds something"
            " else; name another --output-dir"
        )
    with files.writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    with files.locked(folder / files.LOCK) as mine:
        if not mine:
            raise FolderError(
                f"{printable(str(folder))}: another process is comparing into this folder; wait for it or"
                " stop it"
            )
        yield _begun(folder, plan, threads_given)


def _begun(folder: Path, plan: ComparisonPlan, threads_given: bool) -> ComparisonPlan:
    path = folder / PLAN
    ours = to_plain(plan)
    if not path.is_file():
        files.write_json(path, ours)
        return plan
    theirs = files.read_json(path)
    if not isinstance(theirs, dict):
        raise FolderError(f"{printable(str(path))}: must be the plan of a comparison, but is none")
    free = FREE - ({"threads"} if threads_given else set())
    other = [key for key in ours if key not in free and theirs.get(key) != ours[key]]
    if other:
        shown = ", ".join(
            (
                f"{key} was {theirs.get(key)!r} and is {ours[key]!r}"
                if key != "files"
                else "the data have changed"
            )
            for key in other
        )
        raise UsageError(
            f"{printable(str(folder))}: a comparison goes on as it was begun, but {printable(shown)[:500]};"
            " name another --output-dir"
        )
    if theirs.get("test") != ours["test"]:
        files.write_json(path, {**theirs, "test": ours["test"]})
    threads = (
        plan.threads
        if threads_given
        else parse(TrainConfig, {"threads": theirs.get("threads")}, "train.").threads
    )
    return replace(plan, threads=threads or plan.threads)
