"""Probes which recurrent cell remembers over which distance: trains a reader for each pair, and keeps each
result as soon as there is one."""

from __future__ import annotations

import json
import logging
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, final

from seqloom import files
from seqloom.data.synthetic.long_memory import MemoryTask, examples, task_named
from seqloom.errors import DataError, MissingExtraError, UsageError, printable
from seqloom.explaining.charts import MOST_SERIES, line_chart, save_chart
from seqloom.explaining.memory_probe import READERS, TEST_ROWS, ProbeBudget, probe, reader_named
from seqloom.manifest import checksum
from seqloom.run_file import parse
from seqloom.training.loop import Progress
from seqloom.workflows.locked_folder import locked_folder
from seqloom.workflows.train import stop_signals

logger = logging.getLogger(__name__)

RESULTS, CHART = "results.jsonl", "chart.png"
STEPS_OF_OVERHEAD = 20
"""What an update costs besides its steps, in steps; for the estimate alone."""

REQUIRED = {"cell", "distance", "budget", "steps", "seconds", "parameters", "learned", "check"}

Row = dict[str, Any]
"""A line of results.jsonl: task, cell, distance, budget, a ProbeResult with its metrics beside the rest, and
the checksum of all of these."""
Pair = tuple[str, int]
"""A cell and a distance."""


@final
@dataclass(kw_only=True)
class ProbeReport:
    task_name: str
    task: MemoryTask
    folder: Path
    budget: ProbeBudget
    rows: list[Row] = field(default_factory=list)
    """Everything in the folder."""
    stopped: str | None = None
    """The signal that stopped it."""

    @property
    def identity(self) -> dict[str, object]:
        """What all results in a folder have in common."""
        return {"task": self.task_name, **asdict(self.budget)}

    def cells(self) -> list[str]:
        """In the order in which they are listed."""
        probed = {row["cell"] for row in self.rows}
        return [reader for reader in READERS if reader in probed]

    def table(self) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        """(header, rows): for each cell and distance, in how many updates it was learned, or what it reached.
        Parameters are those of the recurrent layer."""
        distances = sorted({row["distance"] for row in self.rows})
        results = {(row["cell"], row["distance"]): row for row in self.rows}
        lines: list[tuple[str, ...]] = []
        for cell in self.cells():
            row_of_cell = [results.get((cell, distance)) for distance in distances]
            parameters = next(row["parameters"] for row in row_of_cell if row is not None)
            lines.append((cell, f"{parameters:,}", *map(_shown, row_of_cell)))
        chance = f"{self.task.chance:.1%}" if self.task.classes else f"mse {self.task.chance:.3f}"
        lines.append(("(chance)", "", *[chance] * len(distances)))
        if self.task.last_noun is not None:
            last_noun = {row["distance"]: f"{row['last_noun']:.1%}" for row in self.rows}
            lines.append(("(last noun)", "", *(last_noun[distance] for distance in distances)))
        return ("cell", "parameters", *map(str, distances)), lines


def run_probe(
    task_name: str,
    *,
    output: str | None,
    cells: Sequence[str],
    distances: Sequence[int],
    settings: Mapping[str, object],
    progress: Callable[[Progress], None],
) -> ProbeReport:
    """Probes every cell at every distance that the folder has no result of yet, and draws the chart.

    `settings` are fields of `ProbeBudget`. Raises UsageError for an unknown cell or task, or a folder that
    contains something other than a probe of this task with these settings; FolderError if another process
    probes into it.
    """
    task = task_named(task_name)
    budget = parse(ProbeBudget, {"shorter": task.shorter, **settings})
    cells, distances = list(dict.fromkeys(cells)), sorted(set(distances or task.distances))
    for cell in cells:
        reader_named(cell)
    for distance in distances:
        examples(task, 0, "test", 0, 1, distance)
    pairs = [(cell, distance) for distance in distances for cell in cells]
    folder = Path(output or f"seqloom-probe-{task_name}")
    report = ProbeReport(task_name=task_name, task=task, folder=folder, budget=budget)
    with locked_folder(folder, RESULTS, kind="probe", activity="probing", option="--output"):
        report.rows = read_results(report)
        done = {(row["cell"], row["distance"]) for row in report.rows}
        missing = [pair for pair in pairs if pair not in done]
        if len(missing) < len(pairs):
            logger.info(
                f"{printable(str(folder))} has {len(pairs) - len(missing)} of these results already"
            )
        report.stopped = _probe_pairs(report, missing, progress)
        if report.rows:
            _draw(report)
    return report


def _probe_pairs(
    report: ProbeReport, pairs: Sequence[Pair], progress: Callable[[Progress], None]
) -> str | None:
    """Adds a row for each pair, in the file too. A signal stops it before the next update; its name is
    returned."""
    budget, rows = report.budget, report.rows
    with stop_signals() as signal_number:
        for index, (cell, distance) in enumerate(pairs):

            def show(now: Progress, done: int = index * budget.steps) -> None:
                progress(now._replace(step=done + now.step, total_steps=len(pairs) * budget.steps))

            result = probe(report.task, cell, distance, budget, show, signal_number)
            if result is None:
                return signal.Signals(signal_number()).name
            row: Row = {"task": report.task_name, "cell": cell, "distance": distance}
            row |= {"budget": asdict(budget), **result._asdict()}
            row |= row.pop("metrics")
            stored: Row = json.loads(files.json_line(row))  # as it will be read again
            rows.append({**stored, "check": checksum(stored)})
            files.write_json_lines(report.folder / RESULTS, rows)
            remaining = pairs[index + 1 :]
            rest = (
                f"; {len(remaining)} to go, {_at_most(rows, remaining)} at most"
                if remaining
                else ""
            )
            reached = "learned" if result.learned else _shown(rows[-1])
            logger.info(
                f"{cell} at {distance}: {reached} after {result.steps:,} updates, {result.seconds:.0f}"
                f" s{rest}"
            )
    return None


def _at_most(rows: Sequence[Row], pairs: Sequence[Pair]) -> str:
    """How long the pairs take if none is learned, judged by what an update has cost so far for each step of a
    sequence."""
    costs = {
        row["cell"]: row["seconds"] / (row["steps"] * _update_steps(row["distance"]))
        for row in rows
    }
    mean = sum(costs.values()) / len(costs)
    update = sum(costs.get(cell, mean) * _update_steps(distance) for cell, distance in pairs)
    minutes = update * rows[-1]["budget"]["steps"] / 60
    return f"{max(minutes, 1):.0f} min"


def _update_steps(distance: int) -> int:
    return distance + STEPS_OF_OVERHEAD


def read_results(report: ProbeReport) -> list[Row]:
    """The results that a folder has so far. Raises UsageError if they are of another task or budget,
    DataError if a line is damaged."""
    path, rows = report.folder / RESULTS, []
    if not files.is_there(path):
        return []
    for number, line in enumerate(files.read_text(path).splitlines(), start=1):
        try:
            row = json.loads(line)
            theirs = {"task": row["task"], **row["budget"]}
            if not row.keys() >= {*REQUIRED, report.task.metric}:
                raise KeyError
            if row["check"] != checksum(row, "check"):
                raise ValueError
        except (ValueError, KeyError, TypeError):
            raise DataError(
                "must be a result of seqloom probe as it was written, but is not; move the file",
                str(path),
                number,
            ) from None
        ours = report.identity
        if theirs != ours:
            changes = [
                f"{key} {theirs.get(key)}, not {value}"
                for key, value in ours.items()
                if theirs.get(key) != value
            ]
            raise UsageError(
                f"{printable(str(report.folder))}: holds a probe with other settings"
                f" ({printable(', '.join(changes))}); name another --output"
            )
        rows.append(row)
    return rows


def _shown(row: Row | None) -> str:
    if row is None:
        return "-"
    if row["learned"]:
        return f"in {row['steps']:,}"
    if "accuracy" in row:
        return f"{row['accuracy']:.1%}"
    error = row.get("mse", 0.0)
    return "not finite" if error is None else f"mse {error:.3f}"


def _draw(report: ProbeReport) -> None:
    """The chart of all rows, in the folder; a notice where the extra `plot` is not installed."""
    task, budget = report.task, report.budget
    series: dict[str, list[tuple[float, float]]] = {cell: [] for cell in report.cells()}
    for row in sorted(report.rows, key=lambda row: int(row["distance"])):
        if row[task.metric] is not None:
            series[row["cell"]].append((row["distance"], row[task.metric]))
    series = dict([(cell, points) for cell, points in series.items() if points][:MOST_SERIES])
    if len(series) < MOST_SERIES:
        distances = sorted({row["distance"] for row in report.rows})
        series["chance"] = [(distance, task.chance) for distance in distances]
    metric = "accuracy" if task.classes else "mean squared error"
    try:
        chart = line_chart(
            series,
            x=task.distance,
            y=metric,
            references=("chance",),
            title=f"{report.task_name}: {task.about}",
            subtitle=(
                f"{TEST_ROWS:,} test examples; width {budget.width}, at most {budget.steps:,} updates of"
                f" {budget.rows} sequences"
            ),
        )
        save_chart(chart, report.folder / CHART)
    except MissingExtraError as error:
        logger.info(f"no chart: {error}")
