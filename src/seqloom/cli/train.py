"""Verbs that train models: train, demo, compare, ensemble."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from seqloom.cli.options import (
    EXIT_CODES,
    Data,
    Files,
    Flag,
    From,
    Settings,
    Verb,
    exit_code,
    read_settings,
)
from seqloom.cli.terminal import progress_bar, put, put_json, put_metrics, put_table
from seqloom.errors import counted
from seqloom.registry import IMPORTED, TASKS

if TYPE_CHECKING:
    from seqloom.workflows.compare.leaderboard import Leaderboard
    from seqloom.workflows.compare.plan import CompareConfig
    from seqloom.workflows.train import TrainResult

TRAINED = ", ".join(name for name in TASKS if name not in IMPORTED)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """Options of train, with the names that the library has for them."""

    model: str | None = None
    """NAME or NAME:SIZE. `seqloom models` lists them."""
    output_dir: str | None = None
    """The new run folder."""
    validation: Files = ()
    """Validation files, in the same form as the training data. By default 2 % of the data (10 % of labelled
    data), at most 1,000 examples, is split off."""
    config: str | None = None
    """A run file (YAML). Other arguments and --set override its values."""
    resume: str | None = None
    """A run folder whose training was stopped. It continues to the same bits as if it had never stopped."""
    start: From = None
    """A run folder, a Hugging Face directory or hf://NAME to fine-tune: the model starts with its weights and
    tokenizer."""


def train(
    task: Annotated[str | None, Parameter(help=f"One of {TRAINED}; or that of a plugin.")] = None,
    /,
    *data: Data,
    options: TrainOptions = TrainOptions(),
    settings: Settings = (),
    json: Flag = False,
) -> int:
    """Train a model, or continue a training that was stopped.

    A new training writes a new run folder. To continue one: seqloom train --resume DIR.

    Args:
        data: Two parallel files, a prefix such as data/train (for train.en and train.de), or one .tsv, .csv
            or .jsonl file. For text-generation and denoising: any number of text files, tables, folders and
            patterns such as 'news/*.txt'. For image-classification: two IDX files (images, labels), an .npz
            file with images and labels, or a folder with a folder of image files for each label. For
            masked-image-modeling: the same, labels not needed. For labels, tags, answers and choices:
            tables, a folder with a folder or file for each label, __label__ lines, CoNLL, CoNLL-U and
            SQuAD; docs/encoder-tasks.md describes them all. Every file may be .gz.
        settings: key=value, such as train.max_steps=60 or model.width=300. `seqloom models NAME` lists all
            keys.
        json: One line of JSON instead of a table.
    """
    if options.config is not None:
        # refused before anything large is imported
        from seqloom.run_file import read_run_file

        read_run_file(options.config)
    from seqloom.workflows.train import train as run_train

    with progress_bar("training") as progress:
        result = run_train(task, data, settings=settings, progress=progress, **vars(options))
    if not result.first:  # of several workers the first reports the result
        return EXIT_CODES.get(result.stopped, 0)
    code = exit_code(result.stopped, _resume(result.folder))
    if json:
        summary = {
            "output_dir": str(result.folder),
            "step": result.step,
            "best_step": result.best_step,
        }
        put_json(summary | {"stopped": result.stopped} | result.metrics)
        return code
    if result.metrics:  # none before the first validation
        put_metrics(f"Validation at step {result.best_step}", result.metrics)
    put(f"{_ending(result)}; folder: {result.folder}")
    return code


def _ending(result: TrainResult) -> str:
    """How a training ended, and which checkpoint is kept, in words."""
    match result.stopped:
        case "max_steps" | "finished":
            how = f"finished: {counted(result.step, 'step')}"
        case "patience":
            how = f"finished: no validation was better for train.patience, at step {result.step:,}"
        case signal:
            how = f"stopped by {signal} at step {result.step:,}"
    value = result.metrics.get(result.chosen_by)
    if value is None or result.step == 1:
        return how
    which = "lowest" if result.chosen_by == "loss" else "highest"
    return (
        f"{how}; the best checkpoint is that of step {result.best_step:,}, with the {which} validation"
        f" {result.chosen_by}, {value:.4g}"
    )


def demo(*, output_dir: str = "seqloom-demo", steps: int = 900, json: Flag = False) -> int:
    """Train a model that reads dates, in about a minute.

    It is a recurrent encoder-decoder with attention. Shows its score and examples, and draws where it looks.

    Args:
        output_dir: Run folder. If it is not empty, a number is added to the name.
        steps: Training steps.
        json: Only the line of JSON on standard output.
    """
    from seqloom.workflows.demo import demo as run_demo

    with progress_bar("demo") as progress:
        result = run_demo(output_dir, steps, progress)
    code = exit_code(result.stopped, _resume(result.summary["output_dir"]))
    if not json and not code:
        put_table("Dates it never saw", result.examples, ("written", "read as", "right"))
    put_json(result.summary)
    return code


def _resume(folder: object) -> str:
    return f"seqloom train --resume {shlex.quote(str(folder))}"


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class CompareOptions:
    """Options of compare, with the names that the library has for them."""

    models: str = ""
    """Model families separated by commas, each with an optional size and settings, such as
    bag_of_words,recurrent:tiny+cell=gru+layers=2. gru+width={32,64} is a grid, NAME=MODEL gives a model a
    short name, and NAME=FOLDER is a checkpoint to fine-tune."""
    output_dir: str
    """Folder of the comparison. If it was stopped, the same command continues it."""
    folders: Files = ()
    """Finished run folders to measure on DATA, in place of models to train."""
    validation: Files = ()
    """Validation files, which choose learning rates and checkpoints. By default a part of the data is split
    off, the same for all models."""
    test: Files = ()
    """Test files, read once after all training. Without them models are measured on the validation data."""
    seeds: int = 3
    """Trainings of each model, each with another seed."""
    match: str = "steps"
    """What is the same for all models. steps: the number of steps (train.max_steps, or the epochs of the
    first model). time: the seconds of training. parameters: the steps and, within 5 %, the number of
    parameters; widths are chosen to fit."""
    parameters: int | None = None
    """With --match parameters: the number of parameters. By default that of the first model."""
    seconds: float | None = None
    """With --match time: seconds of each training. By default what the first model takes."""
    grid: int = 3
    """Learning rates tried for each model, each 3 times the one before, for a third of the steps. 1: no
    search."""
    processes: int = 1
    """Trainings at the same time, each in a process of its own, once the learning rates are chosen."""


def compare(
    task: str, /, *data: Data, options: CompareOptions, settings: Settings = (), json: Flag = False
) -> int:
    """Train several models with the same budget and rank them.

    Shows a leaderboard with confidence intervals, significance tests and costs, as a table and a chart.

    Args:
        task: A task that models can be trained for, such as text-classification.
        data: Training files, as for train.
        settings: key=value for all models, as for train, such as train.max_steps=600.
        json: One line of JSON instead of a table.
    """
    from seqloom.workflows.compare.plan import CompareConfig
    from seqloom.workflows.compare.run import run_compare

    given = {name: value for name, value in vars(options).items() if name != "folders"}
    config = CompareConfig(task=task, data=data, settings=settings, **given)
    if options.folders:
        _compare_folders(config, options.folders, json)
        return 0
    with progress_bar("compare") as progress:
        result = run_compare(config, progress=progress or (lambda _: None))
    leaderboard = result.leaderboard
    if json:
        scores = {} if leaderboard is None else leaderboard.to_json()
        put_json({"output_dir": str(result.folder), "stopped": result.stopped} | scores)
    elif leaderboard is not None:
        _put_leaderboard(leaderboard, result.folder)
    return exit_code(result.stopped)


def _compare_folders(config: CompareConfig, folders: Sequence[str], json: bool) -> None:
    from seqloom.workflows.compare.folders import compare_folders

    leaderboard = compare_folders(config, folders)
    if json:
        put_json({"output_dir": str(config.output_dir), **leaderboard.to_json()})
    else:
        _put_leaderboard(leaderboard, config.output_dir)


def _put_leaderboard(leaderboard: Leaderboard, folder: object) -> None:
    plan = leaderboard.plan
    header, rows = leaderboard.table()
    put_table(f"{plan.task}: {plan.score}, {counted(plan.seeds, 'seed')}", rows, header)
    for note in leaderboard.notes():
        put(note)
    put(f"folder: {folder}")


def ensemble(
    *folders: str,
    output_dir: str,
    weights: str | None = None,
    tune: Files = (),
    settings: Settings = (),
    json: Flag = False,
) -> None:
    """Combine language models into a mixture.

    The mixture is a new run folder. Its weights are given, or fitted to development text.

    Args:
        folders: Two or more run folders of language models with the same tokenizer.
        output_dir: The new run folder.
        weights: One number for each model, such as 0.5,0.3,0.2, scaled to a sum of 1. By default all are
            equal.
        tune: Development text. The weights that make it most likely are found by expectation maximisation.
        settings: key=value for data.*: how the development text is read.
        json: One line of JSON instead of a table.
    """
    from seqloom.tasks.language_modeling.mixture import mix
    from seqloom.tasks.model import refuse_unread_data

    given = read_settings(settings, ("data",) if tune else ())
    refuse_unread_data("text-generation", given.data, tune)
    result = mix(folders, output_dir, weights, tune, given.config)
    if json:
        put_json(result)
        return
    member_weights: Mapping[str, float] = result["weights"]
    rows = [(folder, f"{weight:.4f}") for folder, weight in member_weights.items()]
    put_table(f"Mixture in {output_dir}", rows, ("member", "weight"))


VERBS = (
    Verb(
        train,
        "seqloom train text-classification reviews.csv --model bag_of_words --output-dir runs/reviews",
    ),
    Verb(demo, "seqloom demo"),
    Verb(
        compare,
        "seqloom compare text-classification reviews.csv --models bag_of_words,gpt:tiny --output-dir models",
    ),
    Verb(ensemble, "seqloom ensemble runs/a runs/b --tune dev.txt --output-dir runs/mixture"),
)
