"""Which model is worth it: the same data, the same budget, each with the learning rate that suits it, several
seeds; a leaderboard.

    DIR/plan.json               what is compared; another plan is refused
    DIR/grid/MODEL-RATE/        a short run for each learning rate; gone when they have chosen
    DIR/choices.json            what they chose: rate, steps and width of each model
    DIR/MODEL-seedN/            a run folder for each cell, with score.json and predictions.jsonl beside its own files
    DIR/leaderboard.*           json, csv, png, svg, html

What stands there is not done again: finished runs are kept, a half-trained one goes on. A model that cannot
be trained (its loss does not stay finite) is said and left out.
"""

from __future__ import annotations

import math
import shutil
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, final

import torch

from seqloom import files
from seqloom.config import TrainConfig
from seqloom.errors import TrainingError, UsageError, printable
from seqloom.run_file import to_plain
from seqloom.runs.progress import Say
from seqloom.runs.settings import resolve
from seqloom.tasks.registry import READING_TASKS
from seqloom.training.loop import Progress
from seqloom.workflows.compare.budget import SHORT, Budget, check_budget, short_steps, solved_width, steps_in
from seqloom.workflows.compare.cells import TOOLS, CellResult, CellRun, CellSteps, fields_at
from seqloom.workflows.compare.leaderboard import Leaderboard, TableCell, leaderboard, write_leaderboard
from seqloom.workflows.compare.models import ModelEntry, learning_rates, read_entries, set_value, settings_of
from seqloom.workflows.compare.plan import ComparisonPlan, fingerprints, held, planned
from seqloom.workflows.compare.time_left import Ahead
from seqloom.workflows.train import stop_signals

GRID, CHOICES, SCORE, PREDICTIONS = "grid", "choices.json", "score.json", "predictions.jsonl"
SPLIT_SEED = 0
"""Of the part that is split off for validation: the same for all."""
SIGNALS = ("SIGINT", "SIGTERM")


@final
@dataclass(frozen=True, kw_only=True)
class Comparison:
    """How it ended."""

    folder: Path
    plan: ComparisonPlan
    leaderboard: Leaderboard | None
    """None where it was stopped before."""
    stopped: str | None
    """The signal that asked to stop."""


class ChosenRate(NamedTuple):
    """What the short runs decided for a model."""

    steps: int
    learning_rate: float
    fields: dict[str, int]
    """Of the model, where its width was solved."""
    pace: float
    """Seconds a step."""


class Stopped(Exception):
    """A signal asked to stop; its name."""


def run_compare(
    task: str,
    data: Sequence[str],
    *,
    models: str,
    output_dir: str | Path,
    validation: Sequence[str] = (),
    test: Sequence[str] = (),
    settings: Sequence[str] = (),
    seeds: int = 3,
    match: str = "steps",
    parameters: int | None = None,
    seconds: float | None = None,
    grid: int = 3,
    say: Say = lambda _: None,
    progress: Callable[[Progress], None] = lambda _: None,
    tools: CellSteps = TOOLS,
) -> Comparison:
    """Trains and measures each of `models` with each seed; see the module.

    Raises UsageError, DataError, FolderError and TrainingError, each with one line for the user.
    """
    if task not in READING_TASKS:
        raise UsageError(f"compare is for {', '.join(READING_TASKS)}, but TASK is {printable(repr(task))}")
    entries, folder = read_entries(models, task), Path(output_dir)
    budget = Budget(seeds=seeds, match=match, parameters=parameters, seconds=seconds, grid=grid)
    check_budget(budget, settings, entries)
    configs = [
        resolve(task, data, folder, entry.model, validation, settings_of(entry, settings), None, entry.start)
        for entry in entries
    ]
    plan = planned(task, (data, validation, test), entries, settings, budget, configs)
    threads_given = set_value(settings, "train.threads") is not None
    with held(folder, plan, threads_given) as plan, stop_signals(say) as interrupted:
        torch.set_num_threads(plan.threads)
        work = _Work(folder, plan, entries, configs[0].train, tools, say, progress, interrupted)
        try:
            return Comparison(folder=folder, plan=plan, leaderboard=work.done(), stopped=None)
        except Stopped as stopped:
            return Comparison(folder=folder, plan=plan, leaderboard=None, stopped=str(stopped))


@final
class _Work:
    """A comparison at work in its folder."""

    def __init__(
        self,
        folder: Path,
        plan: ComparisonPlan,
        entries: list[ModelEntry],
        first: TrainConfig,
        tools: CellSteps,
        say: Say,
        progress: Callable[[Progress], None],
        interrupted: Callable[[], int],
    ) -> None:
        self.folder, self.plan, self.entries, self.first, self.tools = folder, plan, entries, first, tools
        self.say, self.progress, self.interrupted = say, progress, interrupted
        self.told: set[str] = set()
        self.ahead = Ahead(plan.names, plan.grid if plan.grid > 1 else 0, plan.seeds)
        self.left_out: set[str] = set()
        """Models that could not be trained."""

    def done(self) -> Leaderboard:
        """All of it. Raises Stopped, and TrainingError where no model could be trained."""
        self._introduce()
        choices = self._choices()
        runs: dict[tuple[ModelEntry, int], CellRun] = {}
        for seed in range(self.plan.seeds):
            for entry in self._left_in():
                run = self._cell(entry, seed, choices[entry.name])
                runs |= {} if run is None else {(entry, seed): run}
        entries = self._left_in()
        if not entries:
            raise TrainingError("no model of the comparison could be trained: set train.learning_rate lower")
        rows: list[TableCell] = []
        for (
            entry,
            seed,
        ), run in runs.items():  # the test is read here, when everything is chosen and trained
            if entry in entries:
                rows.append(self._measured(entry, seed, choices[entry.name], run))
                self._stop_if_asked()
        found = leaderboard(self.plan, [entry.name for entry in entries], rows)
        write_leaderboard(self.folder, found, self.say)
        return found

    def _left_in(self) -> list[ModelEntry]:
        return [entry for entry in self.entries if entry.name not in self.left_out]

    def _leave_out(self, entry: ModelEntry, why: str) -> None:
        self.left_out.add(entry.name)
        self.ahead.leave_out(entry.name)
        self.say(f"{entry.name} is left out: {why}")

    def _introduce(self) -> None:
        plan = self.plan
        split = (
            "validation files given"
            if plan.validation
            else f"a validation part is split off, by seed {SPLIT_SEED}, the same for all"
        )
        on = (
            "the test files, read once at the end"
            if plan.test
            else "the validation part, which also chooses: scores are a little too good"
        )
        budget = {
            "steps": "the same steps",
            "time": "the same seconds of training",
            "parameters": "the same steps and parameters",
        }
        self.say(
            f"comparing {len(self.entries)} models, {plan.seeds} seed{'s' if plan.seeds > 1 else ''},"
            f" {budget[plan.match]}, threads: {plan.threads}; {split}; measured by {plan.metric} on {on}"
        )

    # choosing

    def _choices(self) -> dict[str, ChosenRate]:
        path = self.folder / CHOICES
        if not path.is_file():
            chosen, rows = self._choose()
            files.write_json(
                path, {"choices": {name: one._asdict() for name, one in chosen.items()}, "grid": rows}
            )
        shutil.rmtree(self.folder / GRID, ignore_errors=True)
        found = files.read_json(path)["choices"]
        for entry in self.entries:
            if entry.name not in found:
                self._leave_out(
                    entry, "no learning rate of its grid can be trained; set train.learning_rate lower"
                )
        choices = {name: ChosenRate(**one) for name, one in found.items()}
        for name, choice in choices.items():
            self.ahead.chosen(name, choice.steps * choice.pace)
        return choices

    def _choose(self) -> tuple[dict[str, ChosenRate], list[dict[str, Any]]]:
        """What each model is trained with, and a line for each short run."""
        steps, seconds = self.plan.steps, self.plan.seconds
        chosen: dict[str, ChosenRate] = {}
        rows: list[dict[str, Any]] = []
        for entry in self.entries:
            if self.plan.grid == 1 and steps is not None:
                chosen[entry.name] = ChosenRate(
                    steps, learning_rates(entry, self.plan.task, self.plan.settings, 1)[0], {}, 0.0
                )
                continue
            fields = {} if self.plan.match != "parameters" else self._solved(entry)
            found: list[tuple[float, CellRun]] = []
            for rate in learning_rates(entry, self.plan.task, self.plan.settings, self.plan.grid):
                run = self._tried(entry, rate, fields, steps)
                if run is None:
                    continue
                steps = steps or SHORT * run.planned
                found.append((rate, run))
                rows.append({"model": entry.name, "learning_rate": rate, **run._asdict()})
            if not found:
                self.ahead.leave_out(entry.name)
                continue
            rate, pace = (
                self._best(entry, found),
                sum(run.seconds for _, run in found) / sum(run.steps for _, run in found),
            )
            assert steps is not None
            if self.plan.match == "time":
                seconds = seconds or pace * steps
            fitting = steps if self.plan.match != "time" or seconds is None else steps_in(seconds, pace)
            chosen[entry.name] = ChosenRate(fitting, rate, fields, pace)
            self._say_choice(entry, chosen[entry.name], len(found))
        return chosen, rows

    def _tried(
        self, entry: ModelEntry, rate: float, fields: dict[str, int], steps: int | None
    ) -> CellRun | None:
        """A short run with a learning rate; None where it did not stay finite."""
        place = self.folder / GRID / f"{entry.slug}-{rate:g}"
        if steps is None:
            budget = [
                f"train.epochs={self.first.epochs / SHORT!r}",
                f"train.min_steps={self.first.min_steps // SHORT}",
            ]
        else:
            budget = [f"train.max_steps={short_steps(steps)}"]
        try:
            return self._trained(
                place,
                entry,
                [*budget, *_of(fields), f"train.learning_rate={rate!r}"],
                0,
                f"learning rate {rate:g}",
            )
        except TrainingError as error:
            self.ahead.done(entry.name, short=True, seconds=None)
            self.say(f"{entry.name}: learning rate {rate:g} is too high, and is left out ({error})")
            return None

    def _best(self, entry: ModelEntry, found: list[tuple[float, CellRun]]) -> float:
        """The rate with the best score, of equal ones that with the smaller loss."""

        def merit(one: tuple[float, CellRun]) -> tuple[float, float]:
            score = one[1].metrics.get(self.plan.metric, math.nan)
            known = -math.inf if math.isnan(score) else score if self.plan.higher else -score
            return (known, -one[1].metrics.get("loss", 0.0))

        return max(found, key=merit)[0]

    def _say_choice(self, entry: ModelEntry, choice: ChosenRate, tried: int) -> None:
        rates = learning_rates(entry, self.plan.task, self.plan.settings, self.plan.grid)
        edge = (
            ""
            if choice.learning_rate not in (rates[0], rates[-1])
            else ", an end of its grid: a better one may lie beyond"
        )
        width = f", {', '.join(_of(choice.fields))}" if choice.fields else ""
        self.say(
            f"{entry.name}: learning rate {choice.learning_rate:g} of {tried}{edge}; {choice.steps:,}"
            f" steps{width}"
        )

    def _solved(self, entry: ModelEntry) -> dict[str, int]:
        """The fields with which a model has as many parameters as is asked for, or as the first has."""
        first, like = self.entries[0], self.folder / GRID / "sizes"
        if entry is first and self.plan.parameters is None:
            return {}
        if entry.start is not None:
            self.say(f"{entry.name}: a checkpoint is as large as it is; its parameters stay as they are")
            return {}
        anew = next(one for one in self.entries if one.start is None)
        self._trained(
            like, anew, ["train.max_steps=1"], 0, None
        )  # says what the data are: vocabulary, labels
        wanted = self.plan.parameters or self.tools.parameters(
            first, settings_of(first, self.plan.settings), like, self.plan
        )({})
        own = settings_of(entry, self.plan.settings)
        count = self.tools.parameters(entry, own, like, self.plan)
        assert wanted is not None
        sized = solved_width(entry.name, lambda width: count(fields_at(entry, own, width)), wanted)
        self.say(
            f"{entry.name}: {sized.parameters:,} parameters at width {sized.width} (asked for: {wanted:,})"
        )
        return fields_at(entry, own, sized.width)

    # training and measuring

    def _cell(self, entry: ModelEntry, seed: int, choice: ChosenRate) -> CellRun | None:
        """A cell trained; None where it did not stay finite, and then the model is left out."""
        budget = [
            f"train.max_steps={choice.steps}",
            *_of(choice.fields),
            f"train.learning_rate={choice.learning_rate!r}",
        ]
        try:
            return self._trained(self.place(entry, seed), entry, budget, seed, f"seed {seed}")
        except TrainingError as error:
            self._leave_out(entry, f"seed {seed}: {error}")
            return None

    def place(self, entry: ModelEntry, seed: int) -> Path:
        return self.folder / f"{entry.slug}-seed{seed}"

    def _trained(
        self, place: Path, entry: ModelEntry, budget: list[str], seed: int, what: str | None
    ) -> CellRun:
        """A run folder, new or gone on with. Raises Stopped."""
        settings = [
            *settings_of(entry, self.plan.settings),
            *budget,
            f"train.seed={seed}",
            f"train.threads={self.plan.threads}",
        ]
        settings += [
            f"train.best={self.plan.metric}",
            *([] if self.plan.validation else [f"data.split_seed={SPLIT_SEED}"]),
        ]

        def show(now: Progress) -> None:
            each, begun = max(now.total_steps, 1), self.ahead.begun
            self.progress(
                now._replace(step=begun * each + now.step, total_steps=(begun + self.ahead.left) * each)
            )

        try:
            run = self.tools.train(place, entry, settings, self.plan, self._once, show)
        except UsageError as error:
            raise UsageError(f"{printable(entry.name)}: {error}") from None
        if run.stopped in SIGNALS:
            raise Stopped(run.stopped)
        self._stop_if_asked()
        if what is not None:
            anew = run.stopped != "finished"
            self.ahead.done(
                entry.name, short=place.parent.name == GRID, seconds=run.seconds if anew else None
            )
            if anew:
                score = run.metrics.get(self.plan.metric, math.nan)
                self.say(
                    f"{entry.name}, {what}: {self.plan.metric} {score:.4g} in {run.seconds:.0f} s{self.ahead}"
                )
        return run

    def _measured(self, entry: ModelEntry, seed: int, choice: ChosenRate, run: CellRun) -> TableCell:
        """What a cell came to, kept in its folder; measured again only where the test is another."""
        place, on = self.place(entry, seed), to_plain(fingerprints(self.plan.test))
        kept = files.read_json(place / SCORE) if (place / SCORE).is_file() else {}
        if not kept or kept.get("measured_on") != on:
            found: CellResult = self.tools.measure(place, self.plan, self._once)
            kept = {
                "measured_on": on,
                "metrics": found.metrics,
                "parameters": found.parameters,
                "training_seconds": run.seconds,
                "trained_tokens": round(run.trained * found.tokens_each),
                "steps": run.steps,
                "tokenizer": found.tokenizer,
                "latency_seconds": self.tools.latency(place, self.plan),
            }
            files.write_atomic(
                place / PREDICTIONS, "".join(files.json_line({"score": one}) + "\n" for one in found.by_item)
            )
            files.write_atomic(place / SCORE, files.json_line(kept) + "\n")
        lines = (place / PREDICTIONS).read_text("utf-8").splitlines()
        return TableCell.read(
            entry.name,
            seed,
            place,
            choice.learning_rate,
            choice.fields,
            files.read_json(place / SCORE),
            lines,
        )

    def _once(self, message: str) -> None:
        """Every notice of a training once: the data are the same for all."""
        if message not in self.told:
            self.told.add(message)
            self.say(message)

    def _stop_if_asked(self) -> None:
        if self.interrupted():
            raise Stopped(signal.Signals(self.interrupted()).name)


def _of(fields: dict[str, int]) -> list[str]:
    return [f"model.{name}={value}" for name, value in fields.items()]
