"""The verb probe."""

from __future__ import annotations

from dataclasses import dataclass

from cyclopts import Parameter

from seqloom.cli.options import Flag, Verb, exit_code, whole_numbers
from seqloom.cli.terminal import progress_bar, put, put_json, put_table


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class ProbeOptions:
    """Options of probe."""

    cells: str = "elman,lstm,gru,mut1,attention"
    """Any of elman, elman-relu, elman-sigmoid, lstm, gru, gru-torch, mut1, mut2, mut3, lstm-chrono (whose
    gates start for the distance), and attention (an Elman network that attends to earlier steps)."""
    distances: str | None = None
    """Distances to remember over, such as 20,50,100,200."""
    output: str | None = None
    """Folder for results.jsonl and chart.png. By default seqloom-probe-TASK. The same settings continue
    it."""
    steps: int | None = None
    """The most training steps of each network (3,000). One that has learned the task stops earlier."""
    width: int | None = None
    """Width of the state (64)."""
    shorter: float | None = None
    """Share of the training steps at shorter distances (adding and copy: 0, as published; others: 0.5)."""
    seed: int = 0
    """Seed of the data and the initial weights."""

    def budget(self) -> dict[str, float]:
        """The settings that were given."""
        given = {
            "steps": self.steps,
            "width": self.width,
            "shorter": self.shorter,
            "seed": self.seed,
        }
        return {name: value for name, value in given.items() if value is not None}


def probe(task: str, /, *, options: ProbeOptions = ProbeOptions(), json: Flag = False) -> int:
    """Test how far back recurrent networks remember.

    Trains small networks on a long-memory task. A table and a chart show which cell learns it over which
    distance.

    Args:
        task: adding, copy, recall, agreement or cloze.
        json: One line of JSON instead of a table.
    """
    from seqloom.workflows.analysis.probe import run_probe

    distances: list[int] = []
    if options.distances is not None:
        distances = whole_numbers(options.distances, "--distances", "20,50,100")
    with progress_bar(task) as progress:
        report = run_probe(
            task,
            output=options.output,
            cells=[cell.strip() for cell in options.cells.split(",")],
            distances=distances,
            settings=options.budget(),
            progress=progress or (lambda _: None),
        )
    if json:
        content = {"task": task, "output": str(report.folder), "stopped": report.stopped}
        put_json(content | {"results": report.rows})
    elif report.rows:
        header, rows = report.table()
        about = f"{task} ({report.task.about}) by distance"
        put_table(f"{about}: learned in so many updates, or what it reached", rows, header)
        put(f"folder: {report.folder}")
    return exit_code(report.stopped)


VERB = Verb(probe, "seqloom probe recall --cells lstm,gru --distances 20,50")
