"""The leaderboard of a comparison: mean and interval over seeds, a test against the best, what each model
costs."""

from __future__ import annotations

import csv
import io
import json
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple, final

import numpy as np

from seqloom import files, manifest
from seqloom.errors import FolderError, MissingExtraError, UsageError, printable
from seqloom.evaluation.corpus_scores import OF_SUMS
from seqloom.evaluation.significance import (
    Difference,
    ScoreFunction,
    mean_interval,
    paired_bootstrap,
    permutation_p_value,
)
from seqloom.explaining.charts import save_chart
from seqloom.explaining.leaderboard import MOST_MODELS, RankedModel, leaderboard_chart
from seqloom.json_values import as_list
from seqloom.run_file import to_plain
from seqloom.version import VERSION
from seqloom.workflows.compare.cells import TOLERANCE
from seqloom.workflows.compare.curves import draw_curves
from seqloom.workflows.compare.floor import Floor
from seqloom.workflows.compare.plan import ComparisonPlan, TrainingChoice

logger = logging.getLogger(__name__)

NAME = "leaderboard"
CURVES = "curves"
SHARES = ("accuracy", "macro_f1")
"""Scores between 0 and 1, which an interval by Student's t may leave."""
LIKELIHOODS = ("bits_per_byte", "loss", "perplexity")
SCORE, PREDICTIONS = "score.json", "predictions.jsonl"
PICTURES = (".png", ".svg", ".html")
SIGNIFICANT = 0.05
COLUMNS = (
    "model",
    "mean",
    "low",
    "high",
    "p",
    "parameters",
    "training_seconds",
    "tokens_per_second",
    "latency_ms",
    "learning_rate",
    "steps",
)
"""Of leaderboard.csv, before the scores of the seeds."""


class CellScore(NamedTuple):
    """A model with a seed, as its folder has it."""

    model: str
    folder: str
    choice: TrainingChoice
    metrics: dict[str, float]
    parameters: int
    training_seconds: float
    trained_tokens: int
    steps: int
    latency_seconds: float
    tokenizer: str
    """SHA-256 of its file."""
    by_item: list[Any]
    """How right each answer is; empty if that is not known."""

    @classmethod
    def read(cls, folder: Path, model: str, choice: TrainingChoice) -> CellScore:
        """From score.json and predictions.jsonl. Raises FolderError if they are damaged."""
        score = manifest.read_checked(folder / SCORE, needed=False)
        if "predictions" in score and (
            problem := manifest.problem(folder, {PREDICTIONS: score["predictions"]})
        ):
            raise FolderError(f"{problem}; delete {SCORE} there and give the command again", folder)
        lines = files.read_text(folder / PREDICTIONS, limit=2**32).splitlines()
        try:
            by_item = [_score(json.loads(line)["score"]) for line in lines]
            fields = {name: score[name] for name in cls._fields if name in score}
            # JSON has no nan: it was written as null
            fields["metrics"] = {
                name: math.nan if value is None else value
                for name, value in fields["metrics"].items()
            }
            return cls(model=model, folder=folder.name, choice=choice, by_item=by_item, **fields)
        except (ValueError, KeyError, TypeError):
            raise FolderError(
                f"{printable(str(folder))}: its score is damaged; delete score.json there and give the"
                " command again"
            ) from None


def _score(content: object) -> float | list[float]:
    """How right an answer is, or the counts that its score is a function of."""
    counts = as_list(content)
    return float(str(content)) if counts is None else [float(str(count)) for count in counts]


def require_same_words(plan: ComparisonPlan, cells: Sequence[CellScore]) -> None:
    """Raises UsageError if likelihoods cannot be compared: some texts have unknown words, whose spelling
    is not scored, and not all models have the same vocabulary."""
    unknown = [cell for cell in cells if cell.metrics.get("unknown_percent", 0) > 0]
    if plan.score in LIKELIHOODS and unknown and len({cell.tokenizer for cell in cells}) > 1:
        raise UsageError(
            f"{plan.score} compares models with the same vocabulary where it hides words, but"
            f" {printable(unknown[0].model)} reads {unknown[0].metrics['unknown_percent']:.2f} % as <unk>"
            " and the tokenizers differ; give all the same tokenizer, or one without unknown words"
            " (data.tokenizer=bpe)"
        )


@final
@dataclass(frozen=True, kw_only=True)
class LeaderboardRow:
    """A model of the leaderboard."""

    model: str
    scores: tuple[float, ...]
    """One for each seed."""
    mean: float
    low: float | None
    """Lower end of the 95 % interval of the mean over seeds (Student's t); None with one seed."""
    high: float | None
    item_difference: Difference | None
    """How right its answers are compared with the best model's, as means over seeds: interval by paired
    bootstrap over items, p by permutation. None for the best, and where single answers are not known."""
    p: float | None
    """The same p, corrected for the number of models tested (Holm 1979)."""
    parameters: int
    training_seconds: float
    tokens_per_second: float
    """Of training, counted by the model's own tokenizer."""
    latency_ms: float
    """For one item at a time."""
    learning_rate: float
    steps: int
    fields: dict[str, int]
    """Of the model, where its width was solved for."""
    tokenizer: str
    metrics: dict[str, float]
    """Everything that was measured, as means over seeds."""
    folders: tuple[str, ...]

    def shown(self) -> tuple[str, ...]:
        """As a line of the table."""
        score = f"{self.mean:.4f}" + (
            "" if self.high is None else f" ± {self.high - self.mean:.4f}"
        )
        p = ""
        if self.p is not None:
            p = "<0.001" if self.p < 0.001 else f"{self.p:.3f}"
        return (
            self.model,
            score,
            p,
            f"{self.parameters:,}",
            f"{self.training_seconds:,.1f}",
            f"{self.tokens_per_second:,.0f}",
            f"{self.latency_ms:.2f}" if self.latency_ms else "",
        )


@final
@dataclass(frozen=True, kw_only=True)
class Leaderboard:
    plan: ComparisonPlan
    rows: tuple[LeaderboardRow, ...]
    """The best first."""
    floor: Floor | None = None
    """What is scored by who has learnt nothing."""

    def table(self) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        """(header, rows), for people."""
        header = ("model", self.plan.score, "p", "parameters", "train s", "tokens/s", "ms")
        rows = [row.shown() for row in self.rows]
        if self.floor is not None:
            blank = ("",) * (len(header) - 2)
            rows.append((f"({self.floor.name})", f"{self.floor.score:.4f}", *blank))
        return header, rows

    def no_better(self) -> list[str]:
        """The models that do no better than the floor, or whose interval reaches it."""
        if self.floor is None:
            return []
        sign = 1 if self.plan.higher_is_better else -1
        found = []
        for row in self.rows:
            worst = row.low if sign > 0 else row.high
            reached = row.mean if worst is None else worst
            if not sign * reached > sign * self.floor.score:
                found.append(row.model)
        return found

    def notes(self) -> list[str]:
        """What must be known to read it."""
        plan, rows = self.plan, self.rows
        caveat = ", which also chose learning rates and checkpoints: scores are a little too good"
        notes = [f"measured on the {plan.measured_on} part{'' if plan.test else caveat}"]
        if plan.seeds > 1:
            notes.append("±: 95 % interval of the mean over seeds (Student's t)")
        if any(row.p is not None for row in rows):
            notes.append(
                "p: that a model is no worse than the best and only had bad luck with these items (paired"
                " permutation test of single answers, Holm's correction)"
            )
        elif len(rows) > 1:
            notes.append("no test against the best: single answers are not known for this task")
        if (none := self.no_better()) and self.floor is not None:
            notes.append(
                f"no better than {self.floor.name} ({self.floor.score:.4g}): {', '.join(none)}"
            )
        trained = {row.model for row in rows}
        if missing := [name for name in plan.names if name not in trained]:
            notes.append(f"left out, as the loss did not stay finite: {', '.join(missing)}")
        if level := [row.model for row in rows if row.p is not None and row.p > SIGNIFICANT]:
            notes.append(f"not told apart from the best at {SIGNIFICANT:.0%}: {', '.join(level)}")
        notes.append(self._tokenizer_note())
        if plan.match == "parameters":
            notes += self._size_notes()
        return notes

    def _tokenizer_note(self) -> str:
        models: dict[str, list[str]] = {}
        for row in self.rows:
            models.setdefault(row.tokenizer, []).append(row.model)
        if len(models) == 1:
            return "all read by the same tokenizer"
        return f"tokenizers differ: {' | '.join(map(', '.join, models.values()))}"

    def _size_notes(self) -> list[str]:
        """Names the models whose number of parameters is not the one asked for."""
        sizes = {row.model: row.parameters for row in self.rows}
        wanted = self.plan.parameters or sizes.get(self.plan.names[0], self.rows[0].parameters)
        others = [
            f"{model} ({size:,})"
            for model, size in sizes.items()
            if abs(size - wanted) > TOLERANCE * wanted
        ]
        if not others:
            return []
        return [f"not within {TOLERANCE:.0%} of {wanted:,} parameters: {', '.join(others)}"]

    def to_json(self) -> dict[str, object]:
        rows = []
        for row in self.rows:
            difference = row.item_difference
            rows.append(asdict(row) | {"item_difference": difference and difference._asdict()})
        return {
            "seqloom_version": VERSION,
            "plan": to_plain(self.plan),
            "notes": self.notes(),
            "floor": None if self.floor is None else self.floor._asdict(),
            "rows": rows,
        }


def leaderboard(
    plan: ComparisonPlan, cells: Sequence[CellScore], floor: Floor | None = None
) -> Leaderboard:
    """The rows of all models, the best first; of equal ones the one with fewer parameters."""
    by_model: dict[str, list[CellScore]] = {}
    for cell in cells:
        by_model.setdefault(cell.model, []).append(cell)

    def rank(model: str) -> tuple[bool, float, int]:
        mean = _mean(by_model[model], lambda cell: cell.metrics[plan.score])  # nan comes last
        return (
            math.isnan(mean),
            -mean if plan.higher_is_better else mean,
            by_model[model][0].parameters,
        )

    best, *others = sorted(by_model, key=rank)
    score = OF_SUMS.get(plan.score)
    tests = {model: item_difference(by_model[model], by_model[best], score) for model in others}
    p_values = {
        model: test.p for model, test in tests.items() if test is not None and math.isfinite(test.p)
    }
    corrected = dict(zip(p_values, holm(list(p_values.values())), strict=True))
    rows = (
        _row(plan, by_model[model], tests.get(model), corrected.get(model))
        for model in (best, *others)
    )
    return Leaderboard(plan=plan, rows=tuple(rows), floor=floor)


def _row(
    plan: ComparisonPlan, cells: list[CellScore], test: Difference | None, p: float | None
) -> LeaderboardRow:
    first = cells[0]
    scores = tuple(cell.metrics[plan.score] for cell in cells)
    mean, low, high = mean_interval(scores)
    interval = (low, high) if len(cells) > 1 else (None, None)
    seconds = _mean(cells, lambda cell: cell.training_seconds)
    tokens = _mean(cells, lambda cell: cell.trained_tokens)
    tokens_per_second = tokens / seconds if seconds else 0.0
    metrics = {}
    for name in first.metrics:
        if not name.endswith(("_low", "_high")) and all(name in cell.metrics for cell in cells):
            metrics[name] = float(np.mean([cell.metrics[name] for cell in cells]))
    return LeaderboardRow(
        model=first.model,
        scores=scores,
        mean=mean,
        low=interval[0],
        high=interval[1],
        item_difference=test,
        p=p,
        parameters=first.parameters,
        training_seconds=seconds,
        tokens_per_second=tokens_per_second,
        latency_ms=1000 * _mean(cells, lambda cell: cell.latency_seconds),
        learning_rate=first.choice.learning_rate,
        steps=first.steps,
        fields=first.choice.fields,
        tokenizer=first.tokenizer,
        metrics=metrics,
        folders=tuple(cell.folder for cell in cells),
    )


def _mean(cells: Sequence[CellScore], value: Callable[[CellScore], float]) -> float:
    return float(np.mean(list(map(value, cells))))


def item_difference(
    model: Sequence[CellScore], best: Sequence[CellScore], score: ScoreFunction | None = None
) -> Difference | None:
    """How right a model's answers are compared with the best one's, each item's mean over seeds; None if
    the items are not known, or not the same."""
    items = {len(cell.by_item) for cell in (*model, *best)}
    if len(items) > 1 or 0 in items:
        return None
    first = np.mean([cell.by_item for cell in model], axis=0)
    second = np.mean([cell.by_item for cell in best], axis=0)
    if first.ndim == 1:
        score = None
    test = paired_bootstrap(first, second, score)
    return test._replace(p=permutation_p_value(first, second, score))


def holm(values: Sequence[float]) -> list[float]:
    """p-values of several tests, corrected so that the chance of any false alarm is what it says (Holm
    1979)."""
    corrected, largest = [0.0] * len(values), 0.0
    for rank, index in enumerate(sorted(range(len(values)), key=values.__getitem__)):
        largest = max(largest, min((len(values) - rank) * values[index], 1.0))
        corrected[index] = largest
    return corrected


def write_leaderboard(
    folder: Path, board: Leaderboard, runs: Mapping[str, Path] | None = None
) -> None:
    """leaderboard.json and .csv, the chart, and the losses of the `runs`: by default of the first of each."""
    files.write_json_lines(folder / f"{NAME}.json", [board.to_json()])
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*COLUMNS, *(f"seed{seed}" for seed in range(board.plan.seeds))])
    for row in board.rows:
        fields = vars(row)
        writer.writerow([*map(fields.get, COLUMNS), *row.scores])
    files.write_atomic(folder / f"{NAME}.csv", text.getvalue())
    draw(folder, board)
    runs = runs or {row.model: folder / row.folders[0] for row in board.rows}
    try:
        for suffix in PICTURES:
            draw_curves(runs, "loss", folder / f"{CURVES}{suffix}")
    except (MissingExtraError, UsageError) as error:
        logger.info(f"no curves: {error}")


def draw(folder: Path, board: Leaderboard) -> None:
    """The chart in each of PICTURES; a notice where the extra `plot` is not installed."""
    plan = board.plan
    ranked = []
    for row in board.rows[:MOST_MODELS]:
        low = row.mean if row.low is None else row.low
        high = row.mean if row.high is None else row.high
        if plan.score in SHARES:
            low, high = max(low, 0.0), min(high, 1.0)
        if math.isfinite(row.mean):
            ranked.append(
                RankedModel(row.model, row.mean, low, high, max(row.training_seconds, 1e-3))
            )
    seeds, bars = "1 seed", "no intervals"
    if plan.seeds > 1:
        seeds, bars = f"{plan.seeds} seeds", "bars: 95 % intervals of the mean"
    match = "seconds" if plan.match == "time" else plan.match
    try:
        chart = leaderboard_chart(
            ranked,
            score=plan.score,
            title=f"{plan.task}: {plan.score}",
            percent=plan.score in SHARES,
            floor=None if board.floor is None else board.floor.score,
            subtitle=f"{plan.measured_on} part, {seeds}, the same {match}; {bars}",
        )
        for suffix in PICTURES:
            save_chart(chart, folder / f"{NAME}{suffix}")
    except MissingExtraError as error:
        logger.info(f"no chart: {error}")
