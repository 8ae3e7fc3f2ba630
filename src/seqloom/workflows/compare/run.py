"""Compares models: the same data, the same budget, for each model the learning rate that suits it, several
seeds; the result is a leaderboard.

    DIR/plan.json               what is compared; another plan is refused
    DIR/grid/MODEL-RATE/        a short run for each learning rate; deleted once they have chosen
    DIR/choices.json            what they chose: rate, steps and width of each model
    DIR/MODEL-seedN/            a run folder for each cell, with score.json and predictions.jsonl added
    DIR/leaderboard.*           json, csv, png, svg, html

The same command continues a comparison that was stopped: finished runs are kept, a half-trained one is
resumed. A model whose loss does not stay finite is reported and left out.
"""

from __future__ import annotations

import logging
import math
import multiprocessing
import shutil
import signal
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import final

import torch

from seqloom import files, manifest
from seqloom.config import RunConfig, TrainConfig
from seqloom.errors import FolderError, TrainingError, UsageError, counted, printable
from seqloom.long_work import LongWork
from seqloom.registry import all_tasks, find_task, task_to_train
from seqloom.run_file import to_plain
from seqloom.runs.progress import log_once
from seqloom.tasks.settings import resolve
from seqloom.training.loop import Progress
from seqloom.workflows.compare.cells import (
    CellRun,
    cell_latency,
    fields_at,
    measure_cell,
    parameter_count,
    solve_width,
    train_cell,
    train_quietly,
)
from seqloom.workflows.compare.floor import floor_of
from seqloom.workflows.compare.leaderboard import (
    PREDICTIONS,
    SCORE,
    CellScore,
    Leaderboard,
    leaderboard,
    require_same_words,
    write_leaderboard,
)
from seqloom.workflows.compare.plan import (
    PLAN,
    CompareConfig,
    ComparisonPlan,
    ModelEntry,
    TrainingChoice,
    check_budget,
    fingerprints,
    learning_rates,
    make_plan,
    read_entries,
    set_value,
    settings_of,
    started_plan,
)
from seqloom.workflows.locked_folder import locked_folder
from seqloom.workflows.train import stop_signals

logger = logging.getLogger(__name__)

GRID, CHOICES = "grid", "choices.json"
SHORTENING = 3
"""How much shorter a run is that chooses a learning rate."""
SPLIT_SEED = 0
"""Of the part that is split off for validation: the same for all."""
SIGNALS = ("SIGINT", "SIGTERM")
BUDGETS = {
    "steps": "the same steps",
    "time": "the same seconds of training",
    "parameters": "the same steps and parameters",
}


@final
@dataclass(frozen=True, kw_only=True)
class Comparison:
    """How a comparison ended."""

    folder: Path
    plan: ComparisonPlan
    leaderboard: Leaderboard | None
    """None if it was stopped before."""
    stopped: str | None
    """The signal that stopped it."""


class StoppedBySignal(Exception):
    """A signal asked the comparison to stop; its name is the message."""


def run_compare(
    config: CompareConfig,
    *,
    progress: Callable[[Progress], None] = lambda _: None,
) -> Comparison:
    """Trains and measures each model with each seed; see the module.

    Raises UsageError, DataError, FolderError and TrainingError, each with one line for the user.
    """
    task, folder = config.task, Path(config.output_dir)
    found = find_task(task)
    if found is None or not found.comparable:
        able = ", ".join(task.name for task in all_tasks() if task.comparable)
        raise UsageError(f"compare is for {able}, but TASK is {printable(repr(task))}")
    entries = read_entries(config.models, task)
    check_budget(config, entries)
    runs = []
    for entry in entries:
        settings = settings_of(entry, config.settings)
        runs.append(
            resolve(
                task,
                config.data,
                folder,
                entry.model,
                config.validation,
                settings,
                None,
                entry.checkpoint,
            )
        )
    plan = make_plan(config, entries, runs)
    threads_given = set_value(config.settings, "train.threads") is not None
    with (
        locked_folder(folder, PLAN, kind="comparison", activity="comparing"),
        stop_signals() as signal_number,
    ):
        plan = started_plan(folder, plan, threads_given)
        torch.set_num_threads(plan.threads)
        runner = _Runner(
            folder, plan, entries, _first_trained(entries, runs).train, progress, signal_number
        )
        runner.processes = config.processes
        board, stopped = None, None
        try:
            board = runner.run()
        except StoppedBySignal as error:
            stopped = str(error)
    return Comparison(folder=folder, plan=plan, leaderboard=board, stopped=stopped)


def _first_trained(entries: Sequence[ModelEntry], runs: Sequence[RunConfig]) -> RunConfig:
    """The first run that is trained by steps."""
    pairs = zip(entries, runs, strict=True)
    return next((run for entry, run in pairs if not entry.fitted), runs[0])


@final
class _Runner:
    """A comparison that runs in its folder."""

    def __init__(
        self,
        folder: Path,
        plan: ComparisonPlan,
        entries: list[ModelEntry],
        first: TrainConfig,
        progress: Callable[[Progress], None],
        signal_number: Callable[[], int],
    ) -> None:
        """`first` is how the first model is trained."""
        self.folder, self.plan, self.first = folder, plan, first
        self.trainable = entries
        """Models whose loss has stayed finite so far."""
        self.progress, self.signal_number = progress, signal_number
        self.messages: set[str] = set()
        """That cells have logged."""
        self.processes = 1
        """Trainings at the same time."""
        rates = plan.grid if plan.grid > 1 else 0
        self.remaining = RemainingRuns(plan.names, rates, plan.seeds)

    def run(self) -> Leaderboard:
        """Raises StoppedBySignal, and TrainingError if no model could be trained."""
        self._log_plan()
        choices = self._choices()
        if self.processes > 1:
            self._train_in_processes(choices)
        runs: dict[tuple[ModelEntry, int], CellRun] = {}
        for seed in range(self.plan.seeds):
            for entry in self.trainable:
                run = self._train_cell(entry, seed, choices[entry.name])
                if run is not None:
                    runs[entry, seed] = run
        if not self.trainable:
            raise TrainingError(
                "no model of the comparison could be trained: set train.learning_rate lower"
            )
        scores = []
        # the test files are read only now, when everything is chosen and trained
        for (entry, seed), run in runs.items():
            if entry in self.trainable:
                scores.append(self._score(entry, seed, choices[entry.name], run))
                self._stop_if_asked()
        require_same_words(self.plan, scores)
        first = scores[0]
        floor = floor_of(self.plan, self.folder, self.folder / first.folder, first.metrics)
        board = leaderboard(self.plan, scores, floor)
        write_leaderboard(self.folder, board)
        return board

    def _leave_out(self, entry: ModelEntry, reason: str) -> None:
        self.trainable = [other for other in self.trainable if other is not entry]
        self.remaining.drop(entry.name)
        logger.info(f"{entry.name} is left out: {reason}")

    def _log_plan(self) -> None:
        plan = self.plan
        split = f"a validation part is split off, by seed {SPLIT_SEED}, the same for all"
        if task_to_train(plan.task).score:
            split = "a validation part is split off by the seed of each training"
        measured_on = "the validation part, which also chooses: scores are a little too good"
        if plan.validation:
            split = "validation files given"
        if plan.test:
            measured_on = "the test files, read once at the end"
        logger.info(
            f"comparing {counted(len(plan.models), 'model')}, {counted(plan.seeds, 'seed')},"
            f" {BUDGETS[plan.match]}, threads: {plan.threads}; {split}; measured by {plan.score} on"
            f" {measured_on}"
        )

    # choosing learning rates, steps and widths

    def _choices(self) -> dict[str, TrainingChoice]:
        path = self.folder / CHOICES
        if not path.is_file():
            choices, grid = self._choose()
            content = {name: choice._asdict() for name, choice in choices.items()}
            manifest.write_checked(path, {"choices": content, "grid": grid})
        shutil.rmtree(self.folder / GRID, ignore_errors=True)
        choices = read_choices(path)
        reason = "no learning rate of its grid can be trained; set train.learning_rate lower"
        for entry in self.trainable:
            if entry.name not in choices:
                self._leave_out(entry, reason)
        for name, choice in choices.items():
            self.remaining.choose(name, choice.steps * choice.pace)
        return choices

    def _choose(self) -> tuple[dict[str, TrainingChoice], list[dict[str, object]]]:
        """What each model is trained with, and a record of each short run."""
        plan = self.plan
        steps, seconds = plan.steps, plan.seconds
        choices: dict[str, TrainingChoice] = {}
        records: list[dict[str, object]] = []
        for entry in self.trainable:
            if entry.fitted:
                choices[entry.name] = TrainingChoice(1, 0.0, {}, 0.0)
                continue
            rates = learning_rates(entry, plan.task, plan.settings, plan.grid)
            if plan.grid == 1 and steps is not None:
                choices[entry.name] = TrainingChoice(steps, rates[0], {}, 0.0)
                continue
            fields = self._solved_fields(entry) if plan.match == "parameters" else {}
            tried: dict[float, CellRun] = {}
            for rate in rates:
                run = self._short_run(entry, rate, fields, steps)
                if run is not None:
                    steps = steps or SHORTENING * run.planned
                    tried[rate] = run
                    records.append({"model": entry.name, "learning_rate": rate, **run._asdict()})
            if not tried:
                self.remaining.drop(entry.name)
                continue
            assert steps is not None
            pace = sum(run.seconds for run in tried.values()) / sum(
                run.steps for run in tried.values()
            )
            own_steps = steps
            if plan.match == "time":
                seconds = seconds or pace * steps
                own_steps = max(round(seconds / pace), 1)
            choice = TrainingChoice(own_steps, self._best_rate(tried), fields, pace)
            choices[entry.name] = choice
            edge = ""
            if choice.learning_rate in (rates[0], rates[-1]):
                edge = ", an end of its grid: a better one may lie beyond"
            width = "".join(f", {setting}" for setting in _model_settings(fields))
            logger.info(
                f"{entry.name}: learning rate {choice.learning_rate:g} of {len(tried)}{edge};"
                f" {counted(own_steps, 'step')}{width}"
            )
        return choices, records

    def _short_run(
        self, entry: ModelEntry, rate: float, fields: dict[str, int], steps: int | None
    ) -> CellRun | None:
        """A short run with a learning rate; None if its loss did not stay finite."""
        if steps is None:
            budget = [
                f"train.epochs={self.first.epochs / SHORTENING!r}",
                f"train.min_steps={self.first.min_steps // SHORTENING}",
            ]
        else:
            budget = [f"train.max_steps={max(round(steps / SHORTENING), 1)}"]
        settings = [*budget, *_model_settings(fields), f"train.learning_rate={rate!r}"]
        try:
            run = self._train(self.folder / GRID / f"{entry.slug}-{rate:g}", entry, settings)
        except TrainingError as error:
            self.remaining.finish(entry.name, short=True, seconds=None)
            logger.info(
                f"{entry.name}: learning rate {rate:g} is too high, and is left out ({error})"
            )
            return None
        self._report(entry, run, f"learning rate {rate:g}", short=True)
        return run

    def _best_rate(self, tried: dict[float, CellRun]) -> float:
        """The rate with the best score, of equal ones the one with the smaller loss."""

        def merit(rate: float) -> tuple[float, float]:
            metrics = tried[rate].metrics
            score = metrics.get(self.plan.metric, math.nan)
            if self.plan.metric == "loss":
                score = -score
            return -math.inf if math.isnan(score) else score, -metrics.get("loss", 0.0)

        return max(tried, key=merit)

    def _solved_fields(self, entry: ModelEntry) -> dict[str, int]:
        """The fields with which a model has the parameters asked for, or as many as the first model."""
        plan, first = self.plan, self.trainable[0]
        if entry is first and plan.parameters is None:
            return {}
        if entry.checkpoint is not None:
            logger.info(
                f"{entry.name}: a checkpoint is as large as it is; its parameters stay as they are"
            )
            return {}
        # one step of any model trained from scratch: its folder says what the data are (vocabulary, labels)
        like = self.folder / GRID / "sizes"
        scratch = next(other for other in self.trainable if other.checkpoint is None)
        self._train(like, scratch, ["train.max_steps=1"])
        wanted = plan.parameters
        if wanted is None:
            wanted = parameter_count(first, settings_of(first, plan.settings), like, plan)({})
        assert wanted is not None
        settings = settings_of(entry, plan.settings)
        count = parameter_count(entry, settings, like, plan)
        solved = solve_width(
            entry.name, lambda width: count(fields_at(entry, settings, width)), wanted
        )
        logger.info(
            f"{entry.name}: {solved.parameters:,} parameters at width {solved.width} (asked for: {wanted:,})"
        )
        return fields_at(entry, settings, solved.width)

    # training and measuring

    def _cell_folder(self, entry: ModelEntry, seed: int) -> Path:
        return self.folder / f"{entry.slug}-seed{seed}"

    def _train_in_processes(self, choices: dict[str, TrainingChoice]) -> None:
        """Trains all cells, several at once, each into its own folder. What fails or is stopped is left to
        the process that asked, which finds the others finished."""
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(self.processes, mp_context=context) as pool:
            waiting = []
            for seed in range(self.plan.seeds):
                for entry in self.trainable:
                    settings = self._settings(entry, _budget(entry, choices[entry.name]), seed)
                    folder = self._cell_folder(entry, seed)
                    waiting.append(pool.submit(train_quietly, folder, entry, settings, self.plan))
            work = LongWork("trainings are over", len(waiting), every=0.0)
            for future in as_completed(waiting):
                future.exception()
                work.add()
        self._stop_if_asked()

    def _train_cell(self, entry: ModelEntry, seed: int, choice: TrainingChoice) -> CellRun | None:
        """None if the loss did not stay finite, and then the model is left out."""
        try:
            folder = self._cell_folder(entry, seed)
            run = self._train(folder, entry, _budget(entry, choice), seed)
        except TrainingError as error:
            self._leave_out(entry, f"seed {seed}: {error}")
            return None
        self._report(entry, run, f"seed {seed}", short=False)
        return run

    def _settings(self, entry: ModelEntry, budget: list[str], seed: int) -> list[str]:
        plan = self.plan
        settings = [
            *settings_of(entry, plan.settings),
            *budget,
            f"train.seed={seed}",
            f"train.threads={plan.threads}",
        ]
        if not entry.fitted:
            settings.append(f"train.best={plan.metric}")
        if not plan.validation and not task_to_train(plan.task).score:
            settings.append(f"data.split_seed={SPLIT_SEED}")
        return settings

    def _train(self, folder: Path, entry: ModelEntry, budget: list[str], seed: int = 0) -> CellRun:
        """Trains a run folder, or resumes it. Raises StoppedBySignal."""
        plan, settings = self.plan, self._settings(entry, budget, seed)

        def show(now: Progress) -> None:
            """Shows the progress of this run as progress of the whole comparison."""
            steps, finished = max(now.total_steps, 1), self.remaining.finished
            total = (finished + self.remaining.count) * steps
            self.progress(now._replace(step=finished * steps + now.step, total_steps=total))

        try:
            with log_once(self.messages):
                run = train_cell(folder, entry, settings, plan, show)
        except UsageError as error:
            raise UsageError(f"{printable(entry.name)}: {error}") from None
        if run.stopped in SIGNALS:
            raise StoppedBySignal(run.stopped)
        self._stop_if_asked()
        return run

    def _report(self, entry: ModelEntry, run: CellRun, name: str, *, short: bool) -> None:
        """Counts a run as finished, and reports its score unless it was finished before."""
        seconds = None if run.stopped == "finished" else run.seconds
        self.remaining.finish(entry.name, short=short, seconds=seconds)
        if seconds is not None:
            score = run.metrics.get(self.plan.metric, math.nan)
            logger.info(
                f"{entry.name}, {name}: {self.plan.metric} {score:.4g} in {run.seconds:.0f} s{self.remaining}"
            )

    def _score(
        self, entry: ModelEntry, seed: int, choice: TrainingChoice, run: CellRun
    ) -> CellScore:
        """The score in the folder of a cell. It is measured first where it is missing, or the test files have
        changed."""
        folder, plan = self._cell_folder(entry, seed), self.plan
        path, measured_on = folder / SCORE, to_plain(fingerprints(plan.test))
        score = manifest.read_checked(path, needed=False) if files.is_there(path) else {}
        if not score or score.get("measured_on") != measured_on:
            with log_once(self.messages):
                result = measure_cell(folder, plan)
            predictions = folder / PREDICTIONS
            files.write_json_lines(predictions, ({"score": item} for item in result.by_item))
            score = {
                "measured_on": measured_on,
                "metrics": result.metrics,
                "parameters": result.parameters,
                "training_seconds": run.seconds,
                "trained_tokens": round(run.trained * result.tokens_per_target),
                "steps": run.steps,
                "tokenizer": result.tokenizer,
                "latency_seconds": cell_latency(folder, plan),
                "predictions": manifest.entry(predictions),
            }
            manifest.write_checked(path, score)
        return CellScore.read(folder, entry.name, choice)

    def _stop_if_asked(self) -> None:
        if number := self.signal_number():
            raise StoppedBySignal(signal.Signals(number).name)


def read_choices(path: Path) -> dict[str, TrainingChoice]:
    """What each model is trained with. Raises FolderError if the file is damaged."""
    try:
        choices = manifest.read_checked(path, needed=False)["choices"]
        return {name: TrainingChoice(**choice) for name, choice in choices.items()}
    except (KeyError, TypeError, AttributeError):
        raise FolderError("must say what each model is trained with, but does not", path) from None


def _model_settings(fields: dict[str, int]) -> list[str]:
    return [f"model.{name}={value}" for name, value in fields.items()]


def _budget(entry: ModelEntry, choice: TrainingChoice) -> list[str]:
    """The settings that say how long a model is trained, and with which learning rate."""
    if entry.fitted:
        return []
    return [
        f"train.max_steps={choice.steps}",
        *_model_settings(choice.fields),
        f"train.learning_rate={choice.learning_rate!r}",
    ]


@final
class RemainingRuns:
    """The runs that are still to come, and an estimate of how long they take."""

    def __init__(self, models: Sequence[str], rates: int, seeds: int) -> None:
        self._short = dict.fromkeys(models, rates)
        self._full = dict.fromkeys(models, seeds)
        self._seconds: dict[str, float] = {}
        """Of a full run of each model, as far as known."""
        self.finished = 0

    @property
    def count(self) -> int:
        return sum(self._short.values()) + sum(self._full.values())

    def finish(self, model: str, *, short: bool, seconds: float | None) -> None:
        """A run has ended; `seconds` is None if it had ended before."""
        self.finished += 1
        runs = self._short if short else self._full
        runs[model] = max(runs.get(model, 0) - 1, 0)
        if seconds is not None:
            self._seconds[model] = SHORTENING * seconds if short else seconds

    def choose(self, model: str, seconds: float) -> None:
        """A model has its learning rate, and a full run takes so many seconds; 0 where that is not known."""
        self._short[model] = 0
        if seconds:
            self._seconds[model] = seconds

    def drop(self, model: str) -> None:
        self._short[model] = self._full[model] = 0

    def __str__(self) -> str:
        """A clause that begins with a semicolon; empty if no run remains."""
        if not self.count:
            return ""
        mean = fmean(self._seconds.values()) if self._seconds else 0.0
        total, guess = 0.0, ""
        for model, full in self._full.items():
            runs = full + self._short[model] / SHORTENING
            total += runs * self._seconds.get(model, mean)
            if runs and model not in self._seconds:
                guess = ", if the other models take as long"
        minutes = f"{total / 60:.0f} min" if total >= 90 else f"{total:.0f} s"
        return f"; {self.count} run{'s' if self.count > 1 else ''} to go, about {minutes}{guess}"
