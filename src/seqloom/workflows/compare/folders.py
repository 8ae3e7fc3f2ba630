"""Finished run folders measured on the same files, and tested against the best of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

from seqloom.errors import UsageError, printable
from seqloom.files import atomic_folder
from seqloom.run_file import apply_settings
from seqloom.runs.run_folder import resolve_folder, task_of
from seqloom.runs.settings import read_resumed
from seqloom.workflows.compare.cells import measure_cell, trained_in
from seqloom.workflows.compare.floor import floor_of
from seqloom.workflows.compare.leaderboard import (
    CellScore,
    Leaderboard,
    leaderboard,
    require_same_words,
    write_leaderboard,
)
from seqloom.workflows.compare.plan import (
    CompareConfig,
    ComparisonPlan,
    TrainingChoice,
    fingerprints,
    named_files,
)


def compare_folders(config: CompareConfig, folders: Sequence[str]) -> Leaderboard:
    """Measures each folder on the data, which none may have been trained on, and writes the leaderboard into
    a new folder. Raises UsageError if there are fewer than two folders, or one is of another task."""
    _refuse_unread(config)
    places = {Path(folder).name or folder: resolve_folder(folder) for folder in folders}
    if len(places) < 2 or len(places) < len(folders):
        raise UsageError(
            "--folders must name at least two run folders whose last parts differ, but is"
            f" {printable(' '.join(folders))}"
        )
    for place in places.values():
        if (task := task_of(place)) != config.task:
            raise UsageError(
                f"{printable(str(place))}: must be a model of {config.task}, but is one of {task}"
            )
    plan = _plan(config, places)
    cells = [_cell(name, place, plan) for name, place in places.items()]
    require_same_words(plan, cells)
    with atomic_folder(Path(config.output_dir), "a comparison") as output:
        first = next(iter(places.values()))
        board = leaderboard(plan, cells, floor_of(plan, output, first, cells[0].metrics))
        write_leaderboard(output, board, places)
    return board


def _refuse_unread(config: CompareConfig) -> None:
    """Raises UsageError for what is of trainings alone."""
    measured = ("task", "data", "output_dir", "settings")
    for field in fields(CompareConfig):
        if field.name not in measured and vars(config)[field.name] != field.default:
            name = field.name.replace("_", "-")
            raise UsageError(
                f"--{name} changes nothing with --folders, whose models are trained already and are"
                " measured on DATA; leave it out"
            )
    for section, values in apply_settings({}, list(config.settings)).items():
        if section != "data":
            raise UsageError(
                f"{section}.{next(iter(values))} changes nothing with --folders, whose models are trained"
                " already; leave it out"
            )


def _plan(config: CompareConfig, places: dict[str, Path]) -> ComparisonPlan:
    run = read_resumed(next(iter(places.values())))
    test = named_files(config.task, config.data, run.data)
    return ComparisonPlan(
        task=config.task,
        data=tuple(run.data.train),
        validation=(),
        test=test,
        models=tuple(places),
        settings=tuple(config.settings),
        seeds=1,
        match="steps",
        parameters=None,
        seconds=None,
        grid=1,
        steps=None,
        metric=run.train.best,
        threads=1,
        files=fingerprints(test),
    )


def _cell(name: str, place: Path, plan: ComparisonPlan) -> CellScore:
    result, (trained, seconds) = measure_cell(place, plan), trained_in(place)
    run = read_resumed(place)
    rate = run.train.learning_rate
    steps = run.train.max_steps or 0
    return CellScore(
        model=name,
        folder=str(place),
        choice=TrainingChoice(steps, rate, {}, 0.0),
        metrics=result.metrics,
        parameters=result.parameters,
        training_seconds=seconds,
        trained_tokens=round(trained * result.tokens_per_target),
        steps=steps,
        latency_seconds=0.0,
        tokenizer=result.tokenizer,
        by_item=result.by_item,
    )
