"""The verb probe."""

from __future__ import annotations

import logging
from typing import Any

from seqloom.cli.options import EXIT_CODES, Flag
from seqloom.cli.terminal import progress_bar, put, put_json, put_table
from seqloom.errors import UsageError, printable

logger = logging.getLogger(__name__)


def probe(
    task: str,
    /,
    *,
    cells: str = "elman,lstm,gru,mut1,attention",
    distances: str | None = None,
    output: str | None = None,
    steps: int | None = None,
    width: int | None = None,
    shorter: float | None = None,
    seed: int = 0,
    json: Flag = False,
) -> int:
    """Train small recurrent readers on a long-memory task: which of them remembers over which distance, as a
    table and a chart.

    Args:
        task: adding, copy, recall, agreement or cloze.
        cells: Any of elman, elman-relu, elman-sigmoid, lstm, gru, gru-torch, mut1, mut2, mut3, and attention
            (an Elman that looks back).
        distances: Such as 20,50,100,200.
        output: Folder for results.jsonl and chart.png, by default seqloom-probe-TASK; with the same settings
            it goes on.
        steps: Updates of each reader, at most (3,000); one that has learned the task ends earlier.
        width: Of the state (64).
        shorter: Share of the updates at shorter distances (adding and copy: 0, as published; the others:
            0.5).
        seed: Of the data and the first weights.
        json: One JSON line instead of a table.
    """
    from seqloom.workflows.analysis.probe import run_probe

    given = {"steps": steps, "width": width, "shorter": shorter, "seed": seed}
    settings: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
    with progress_bar(task) as progress:
        report = run_probe(
            task,
            output=output,
            cells=_words(cells),
            distances=_numbers(distances) if distances is not None else (),
            settings=settings,
            progress=progress,
        )
    if json:
        put_json(
            {"task": task, "output": str(report.folder), "stopped": report.stopped, "results": report.rows}
        )
    elif report.rows:
        header, rows = report.table()
        put_table(
            f"{task} ({report.task.about}) by distance: learned in so many updates, or what it reached",
            rows,
            header,
        )
        put(f"folder: {report.folder}")
    if report.stopped is not None:
        logger.info("go on with the same command")
        return EXIT_CODES[report.stopped]
    return 0


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",")]


def _numbers(text: str) -> list[int]:
    try:
        return [int(word) for word in _words(text)]
    except ValueError:
        raise UsageError(
            "--distances must be whole numbers with commas between, such as 20,50,100, but is"
            f" {printable(text)}"
        ) from None


VERBS = (probe,)
