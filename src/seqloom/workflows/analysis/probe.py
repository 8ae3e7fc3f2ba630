"""What which cell remembers over which distance: trains a reader for each pair, keeps each result as it
comes."""

from __future__ import annotations

import json
import logging
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, final

from seqloom import files
from seqloom.data.synthetic.long_memory import MemoryTask, examples, task_named
from seqloom.errors import DataError, FolderError, MissingExtraError, UsageError, printable
from seqloom.explaining.charts import MOST_SERIES, line_chart, save_chart
from seqloom.explaining.memory_probe import READERS, TEST_ROWS, ProbeBudget, probe, reader_named
from seqloom.run_file import parse
from seqloom.training.loop import Progress
from seqloom.workflows.train import stop_signals

logger = logging.getLogger(__name__)

RESULTS, CHART = "results.jsonl", "chart.png"
STEPS_OF_OVERHEAD = 20
"""What an update costs besides its steps, in steps; for the estimate alone."""

NEEDED = {"cell", "distance", "budget", "steps", "seconds", "parameters", "learned"}

Row = dict[str, Any]
"""A line of results.jsonl: task, cell, distance, budget, and a ProbeResult with its metrics beside the rest.
"""


@final
@dataclass(frozen=True, kw_only=True)
class ProbeReport:
    task: MemoryTask
    folder: Path
    budget: ProbeBudget
    rows: list[Row]
    """All that the folder holds."""
    stopped: str | None
    """The signal that asked to stop."""

    def table(self) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        """(header, rows): for each cell and distance, in how many updates it was learned, or what it reached.
        Parameters are those of the recurrent layer."""
        distances = sorted({row["distance"] for row in self.rows})
        found = {(row["cell"], row["distance"]): row for row in self.rows}
        lines = []
        for cell in readers_of(self.rows):
            parameters = next(row["parameters"] for row in self.rows if row["cell"] == cell)
            cells = (
                _shown(found[cell, distance]) if (cell, distance) in found else "-" for distance in distances
            )
            lines.append((cell, f"{parameters:,}", *cells))
        chance = f"{self.task.chance:.1%}" if self.task.classes else f"mse {self.task.chance:.3f}"
        lines.append(("(chance)", "", *[chance] * len(distances)))
        if self.task.last_noun is not None:
            of = {row["distance"]: row["last_noun"] for row in self.rows}
            lines.append(("(last noun)", "", *(f"{of[distance]:.1%}" for distance in distances)))
        return ("cell", "parameters", *map(str, distances)), lines


def run_probe(
    task_name: str,
    *,
    output: str | None,
    cells: Sequence[str],
    distances: Sequence[int],
    settings: dict[str, Any],
    progress: Callable[[Progress], None],
) -> ProbeReport:
    """Probes every cell at every distance that the folder has no result of yet, and draws the chart.

    `settings` are fields of `ProbeBudget`. Raises UsageError where something unknown is asked for, or the
    folder holds something else than a probe of this task with these settings; FolderError where another
    process probes into it.
    """
    task = task_named(task_name)
    budget = parse(ProbeBudget, {"shorter": task.shorter} | settings)
    cells, distances = list(dict.fromkeys(cells)), sorted(set(distances or task.distances))
    for cell in cells:
        reader_named(cell)
    for distance in distances:
        examples(task, 0, "test", 0, 1, distance)
    folder = Path(output or f"seqloom-probe-{task_name}")
    with _held(folder):
        rows = read_results(folder, task, task_name, budget)
        known = {(row["cell"], row["distance"]) for row in rows}
        wanted = [
            (cell, distance) for distance in distances for cell in cells if (cell, distance) not in known
        ]
        if len(wanted) < len(cells) * len(distances):
            logger.info(
                f"{printable(str(folder))} has {len(cells) * len(distances) - len(wanted)} of these results"
                " already"
            )
        stopped = _run(task, task_name, budget, wanted, rows, folder, progress)
        report = ProbeReport(task=task, folder=folder, budget=budget, rows=rows, stopped=stopped)
        if rows:
            _draw(report, task_name)
    return report


def _run(
    task: MemoryTask,
    task_name: str,
    budget: ProbeBudget,
    wanted: list[tuple[str, int]],
    rows: list[Row],
    folder: Path,
    progress: Callable[[Progress], None],
) -> str | None:
    """Adds a row for each wanted pair, in the file too; a signal ends it before the next update and is
    returned."""
    with stop_signals() as interrupted:
        for at, (cell, distance) in enumerate(wanted):

            def show(now: Progress, done: int = at * budget.steps) -> None:
                progress(now._replace(step=done + now.step, total_steps=len(wanted) * budget.steps))

            result = probe(task, cell, distance, budget, show, interrupted)
            if result is None:
                return signal.Signals(interrupted()).name
            named = {"task": task_name, "cell": cell, "distance": distance, "budget": asdict(budget)}
            row = (
                named
                | {key: value for key, value in result._asdict().items() if key != "metrics"}
                | result.metrics
            )
            rows.append(json.loads(files.json_line(row)))  # as it will be read again
            files.write_atomic(folder / RESULTS, "".join(files.json_line(row) + "\n" for row in rows))
            left = wanted[at + 1 :]
            rest = f"; {len(left)} to go, {_at_most(rows, left)} at most" if left else ""
            reached = "learned" if result.learned else _shown(rows[-1])
            logger.info(
                f"{cell} at {distance}: {reached} after {result.steps:,} updates, {result.seconds:.0f}"
                f" s{rest}"
            )
    return None


def _at_most(rows: list[Row], wanted: list[tuple[str, int]]) -> str:
    """How long the wanted pairs take if none is learned, by what an update cost so far for each step of a
    sequence."""
    costs: dict[str, float] = {}
    for row in rows:
        costs[row["cell"]] = row["seconds"] / (row["steps"] * (row["distance"] + STEPS_OF_OVERHEAD))
    mean = sum(costs.values()) / len(costs)
    minutes = (
        sum(costs.get(cell, mean) * (distance + STEPS_OF_OVERHEAD) for cell, distance in wanted)
        * rows[-1]["budget"]["steps"]
        / 60
    )
    return f"{minutes:.0f} min" if minutes >= 1 else "1 min"


def read_results(folder: Path, task: MemoryTask, task_name: str, budget: ProbeBudget) -> list[Row]:
    """What a folder holds so far. Raises UsageError where it is of another task or budget, DataError where a
    line is damaged."""
    path, rows = folder / RESULTS, []
    if not path.exists():
        return []
    for number, line in enumerate(path.read_text("utf-8").splitlines(), start=1):
        try:
            row = json.loads(line)
            theirs = {"task": row["task"], **row["budget"]}
            if not row.keys() >= {*NEEDED, task.metric}:
                raise KeyError
        except (ValueError, KeyError, TypeError):
            raise DataError(
                "must be a result of seqloom probe, but is not; mend or move the file", str(path), number
            ) from None
        ours = {"task": task_name, **asdict(budget)}
        if theirs != ours:
            other = ", ".join(
                f"{key} {theirs.get(key)}, not {value}"
                for key, value in ours.items()
                if theirs.get(key) != value
            )
            raise UsageError(
                f"{printable(str(folder))}: holds a probe with other settings ({printable(other)}); name"
                " another --output"
            )
        rows.append(row)
    return rows


@contextmanager
def _held(folder: Path) -> Iterator[None]:
    """The folder, made where it is missing, and nobody else probing into it."""
    if files.holds_something(folder) and not (folder / RESULTS).is_file():
        raise UsageError(
            f"{printable(str(folder))}: must be new, empty or of an earlier probe, but holds something else;"
            " name another --output"
        )
    with files.writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    with files.locked(folder / files.LOCK) as held:
        if not held:
            raise FolderError(
                f"{printable(str(folder))}: another process is probing into this folder; wait for it or"
                " stop it"
            )
        yield


def readers_of(rows: list[Row]) -> list[str]:
    """The cells of these rows, in the order of the lists."""
    return [reader for reader in READERS if any(row["cell"] == reader for row in rows)]


def _shown(row: Row) -> str:
    if row["learned"]:
        return f"in {row['steps']:,}"
    error = row.get("mse", 0.0)
    return (
        f"{row['accuracy']:.1%}"
        if "accuracy" in row
        else "not finite"
        if error is None
        else f"mse {error:.3f}"
    )


def _draw(report: ProbeReport, task_name: str) -> None:
    """The chart of all rows, in the folder; a notice where the extra `plot` is not installed."""
    task, budget = report.task, report.budget
    rows = [
        row
        for row in sorted(report.rows, key=lambda row: int(row["distance"]))
        if row[task.metric] is not None
    ]
    named = {
        cell: [(row["distance"], row[task.metric]) for row in rows if row["cell"] == cell]
        for cell in readers_of(rows)[:MOST_SERIES]
    }
    if len(named) < MOST_SERIES:
        named["chance"] = [
            (distance, task.chance) for distance in sorted({row["distance"] for row in report.rows})
        ]
    try:
        chart = line_chart(
            named,
            x=task.distance,
            y="accuracy" if task.classes else "mean squared error",
            title=f"{task_name}: {task.about}",
            subtitle=(
                f"{TEST_ROWS:,} test examples; width {budget.width}, at most {budget.steps:,} updates of"
                f" {budget.rows} sequences"
            ),
        )
        save_chart(chart, report.folder / CHART)
    except MissingExtraError as error:
        logger.info(f"no chart: {error}")
