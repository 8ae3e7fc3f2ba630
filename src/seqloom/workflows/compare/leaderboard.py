"""The leaderboard of a comparison: mean and interval over seeds, a test against the best, what each model
costs."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple, final

import numpy as np

from seqloom import files
from seqloom.errors import FolderError, MissingExtraError, printable
from seqloom.evaluation.significance import Difference, mean_interval, paired_bootstrap, permutation_p
from seqloom.explaining.charts import save_chart
from seqloom.explaining.leaderboard import MOST_MODELS, RankedModel, leaderboard_chart
from seqloom.run_file import to_plain
from seqloom.runs.progress import Say
from seqloom.version import VERSION
from seqloom.workflows.compare.budget import CLOSE
from seqloom.workflows.compare.plan import ComparisonPlan

NAME = "leaderboard"
PICTURES = (".png", ".svg", ".html")
SIGNIFICANT = 0.05


class TableCell(NamedTuple):
    """A model with a seed: what its folder says of it."""

    model: str
    seed: int
    folder: str
    learning_rate: float
    fields: dict[str, int]
    """Of the model, where its width was solved."""
    metrics: dict[str, float]
    parameters: int
    training_seconds: float
    trained_tokens: int
    steps: int
    latency_seconds: float
    tokenizer: str
    """SHA-256 of its file."""
    by_item: list[float]
    """How right each answer is; empty where that is not known."""

    @classmethod
    def read(
        cls,
        model: str,
        seed: int,
        place: Path,
        learning_rate: float,
        fields: dict[str, int],
        kept: dict[str, Any],
        lines: Sequence[str],
    ) -> TableCell:
        """From score.json and predictions.jsonl. Raises FolderError where they are damaged."""
        try:
            by_item = [float(json.loads(line)["score"]) for line in lines]
            told = {name: kept[name] for name in cls._fields if name in kept}
            told["metrics"] = {
                name: math.nan if value is None else value for name, value in told["metrics"].items()
            }
            return cls(
                model=model,
                seed=seed,
                folder=place.name,
                learning_rate=learning_rate,
                fields=fields,
                by_item=by_item,
                **told,
            )
        except (ValueError, KeyError, TypeError):
            raise FolderError(
                f"{printable(str(place))}: its score is damaged; delete score.json there and give the command"
                " again"
            ) from None


@final
@dataclass(frozen=True, kw_only=True)
class LeaderboardRow:
    """A model of the leaderboard."""

    model: str
    scores: tuple[float, ...]
    """Of each seed."""
    mean: float
    low: float | None
    """Of the 95 % interval of the mean over seeds (Student's t); None with one seed."""
    high: float | None
    item_difference: Difference | None
    """How right its answers are, less the best one's, means over seeds: interval by paired bootstrap over
    items, p by permutation. None for the best, and where single answers are not known."""
    p: float | None
    """The same p, larger by how many models are tested (Holm 1979)."""
    parameters: int
    training_seconds: float
    tokens_per_second: float
    """Of training, by the model's own tokenizer."""
    latency_ms: float
    """One item at a time."""
    learning_rate: float
    steps: int
    fields: dict[str, int]
    tokenizer: str
    metrics: dict[str, float]
    """All that was measured, means over seeds."""
    folders: tuple[str, ...]


@final
@dataclass(frozen=True, kw_only=True)
class Leaderboard:
    plan: ComparisonPlan
    rows: tuple[LeaderboardRow, ...]
    """The best first."""

    def table(self) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        """(header, rows), for people."""
        header = ("model", self.plan.metric, "p", "parameters", "train s", "tokens/s", "ms")
        return header, [_shown(row) for row in self.rows]

    def notes(self) -> list[str]:
        """What must be known to read it."""
        chosen = (
            ""
            if self.plan.test
            else ", which also chose learning rates and checkpoints: scores are a little too good"
        )
        notes = [f"measured on the {self.plan.measured_on} part{chosen}"]
        notes += ["±: 95 % interval of the mean over seeds (Student's t)"] if self.plan.seeds > 1 else []
        if any(row.p is not None for row in self.rows):
            notes.append(
                "p: that a model is no worse than the best and only had bad luck with these items (paired"
                " permutation test of single answers, Holm's correction)"
            )
        elif len(self.rows) > 1:
            notes.append("no test against the best: single answers are not known for this task")
        there = {row.model for row in self.rows}
        if missing := [name for name in self.plan.names if name not in there]:
            notes.append(f"left out, as the loss did not stay finite: {', '.join(missing)}")
        level = [row.model for row in self.rows if row.p is not None and row.p > SIGNIFICANT]
        if level:
            notes.append(f"not told apart from the best at {SIGNIFICANT:.0%}: {', '.join(level)}")
        tokenizers: dict[str, list[str]] = {}
        for row in self.rows:
            tokenizers.setdefault(row.tokenizer, []).append(row.model)
        same = len(tokenizers) == 1
        notes.append(
            "all read by the same tokenizer"
            if same
            else f"tokenizers differ: {' | '.join(', '.join(some) for some in tokenizers.values())}"
        )
        if self.plan.match == "parameters":
            like = {row.model: row.parameters for row in self.rows}
            wanted = self.plan.parameters or like.get(self.plan.names[0], self.rows[0].parameters)
            others = [
                f"{row.model} ({row.parameters:,})"
                for row in self.rows
                if abs(row.parameters - wanted) > CLOSE * wanted
            ]
            notes += (
                [f"not within {CLOSE:.0%} of {wanted:,} parameters: {', '.join(others)}"] if others else []
            )
        return notes

    def to_json(self) -> dict[str, Any]:
        rows = [
            asdict(row) | {"item_difference": row.item_difference and row.item_difference._asdict()}
            for row in self.rows
        ]
        return {"seqloom_version": VERSION, "plan": to_plain(self.plan), "notes": self.notes(), "rows": rows}


def _shown(row: LeaderboardRow) -> tuple[str, ...]:
    score = f"{row.mean:.4f}" + ("" if row.high is None else f" ± {row.high - row.mean:.4f}")
    p = "" if row.p is None else "<0.001" if row.p < 0.001 else f"{row.p:.3f}"
    costs = (
        f"{row.parameters:,}",
        f"{row.training_seconds:,.1f}",
        f"{row.tokens_per_second:,.0f}",
        f"{row.latency_ms:.2f}",
    )
    return (row.model, score, p, *costs)


def leaderboard(plan: ComparisonPlan, models: Sequence[str], cells: Sequence[TableCell]) -> Leaderboard:
    """The rows of all models, the best first; of equal ones that with fewer parameters."""
    of = {model: [cell for cell in cells if cell.model == model] for model in models}
    means = {
        model: float(np.mean([cell.metrics[plan.metric] for cell in some])) for model, some in of.items()
    }

    def place(model: str) -> tuple[bool, float, int]:
        mean = means[model]  # nan comes last
        return math.isnan(mean), -mean if plan.higher else mean, of[model][0].parameters

    order = sorted(models, key=place)
    tests = {model: compared(of[model], of[order[0]]) for model in order[1:]}
    known = {model: test for model, test in tests.items() if test is not None and math.isfinite(test.p)}
    adjusted = dict(zip(known, holm([test.p for test in known.values()]), strict=True))
    return Leaderboard(
        plan=plan, rows=tuple(_row(plan, of[model], tests.get(model), adjusted.get(model)) for model in order)
    )


def _row(
    plan: ComparisonPlan, cells: list[TableCell], test: Difference | None, p: float | None
) -> LeaderboardRow:
    scores = tuple(cell.metrics[plan.metric] for cell in cells)
    mean, low, high = mean_interval(scores)
    seconds = float(np.mean([cell.training_seconds for cell in cells]))
    tokens = float(np.mean([cell.trained_tokens for cell in cells]))
    names = [
        name
        for name in cells[0].metrics
        if not name.endswith(("_low", "_high")) and all(name in cell.metrics for cell in cells)
    ]
    several = len(cells) > 1
    return LeaderboardRow(
        model=cells[0].model,
        scores=scores,
        mean=mean,
        low=low if several else None,
        high=high if several else None,
        item_difference=test,
        p=p,
        parameters=cells[0].parameters,
        training_seconds=seconds,
        tokens_per_second=tokens / seconds if seconds else 0.0,
        latency_ms=1000 * float(np.mean([cell.latency_seconds for cell in cells])),
        learning_rate=cells[0].learning_rate,
        steps=cells[0].steps,
        fields=cells[0].fields,
        tokenizer=cells[0].tokenizer,
        metrics={name: float(np.mean([cell.metrics[name] for cell in cells])) for name in names},
        folders=tuple(cell.folder for cell in cells),
    )


def compared(ours: Sequence[TableCell], best: Sequence[TableCell]) -> Difference | None:
    """How right a model's answers are, less another's, each item's mean over seeds; None where the items are
    not known, or not the same."""
    items = {len(cell.by_item) for cell in (*ours, *best)}
    if len(items) > 1 or 0 in items:
        return None
    first, second = (np.mean([cell.by_item for cell in cells], axis=0) for cells in (ours, best))
    return paired_bootstrap(first, second)._replace(p=permutation_p(first, second))


def holm(values: Sequence[float]) -> list[float]:
    """p-values of several tests, larger so that the chance of any false alarm is what it says (Holm 1979)."""
    adjusted, largest = [0.0] * len(values), 0.0
    for rank, at in enumerate(sorted(range(len(values)), key=values.__getitem__)):
        largest = max(largest, min((len(values) - rank) * values[at], 1.0))
        adjusted[at] = largest
    return adjusted


def write_leaderboard(folder: Path, found: Leaderboard, say: Say) -> None:
    """leaderboard.json and .csv, and the chart."""
    files.write_atomic(folder / f"{NAME}.json", files.json_line(found.to_json()) + "\n")
    text = io.StringIO()
    columns = [
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
    ]
    writer = csv.writer(text, lineterminator="\n")
    seeds = range(found.plan.seeds)
    writer.writerow([*columns, *(f"seed{seed}" for seed in seeds)])
    writer.writerows([*(getattr(row, name) for name in columns), *row.scores] for row in found.rows)
    files.write_atomic(folder / f"{NAME}.csv", text.getvalue())
    draw(folder, found, say)


def draw(folder: Path, found: Leaderboard, say: Say) -> None:
    """The chart in each of PICTURES; a notice where the extra `plot` is not installed."""
    try:
        chart = leaderboard_chart(
            _standings(found),
            score=found.plan.metric,
            title=f"{found.plan.task}: {found.plan.metric}",
            subtitle=_under(found),
        )
        for suffix in PICTURES:
            save_chart(chart, folder / f"{NAME}{suffix}")
    except MissingExtraError as error:
        say(f"no chart: {error}")


def _standings(found: Leaderboard) -> list[RankedModel]:
    return [
        RankedModel(
            row.model,
            row.mean,
            _or(row.low, row.mean),
            _or(row.high, row.mean),
            max(row.training_seconds, 1e-3),
        )
        for row in found.rows[:MOST_MODELS]
        if math.isfinite(row.mean)
    ]


def _or(value: float | None, other: float) -> float:
    return other if value is None else value


def _under(found: Leaderboard) -> str:
    plan = found.plan
    match = {"steps": "the same steps", "time": "the same seconds", "parameters": "the same parameters"}[
        plan.match
    ]
    bars = "bars: 95 % intervals of the mean" if plan.seeds > 1 else "no intervals"
    return f"{plan.measured_on} part, {plan.seeds} seed{'s' if plan.seeds > 1 else ''}, {match}; {bars}"
