"""A probe that was stopped goes on to the results that it would have had, and never touches what is not its
own."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import seqloom.explaining.charts
from seqloom.errors import DataError, FolderError, MissingExtraError, UsageError
from seqloom.files import LOCK, locked
from seqloom.training.loop import Progress
from seqloom.workflows.analysis import probe as workflow
from seqloom.workflows.analysis.probe import CHART, RESULTS, ProbeReport, run_probe

SMALL = {"steps": 30, "width": 8, "rows": 8, "check_every": 10}


pytestmark = pytest.mark.usefixtures("one_thread")

DRAW = workflow._draw


@pytest.fixture(autouse=True)
def no_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """A chart takes longer than the rest of a test."""
    monkeypatch.setattr(workflow, "_draw", lambda *_: None)


def probed(
    folder: Path,
    task: str = "recall",
    cells: tuple[str, ...] = ("elman", "attention"),
    distances: tuple[int, ...] = (2, 6),
    *,
    progress: Callable[[Progress], None] = lambda _: None,
    **settings: Any,
) -> ProbeReport:
    return run_probe(
        task,
        output=str(folder),
        cells=cells,
        distances=distances,
        settings=SMALL | settings,
        progress=progress,
    )


def results(folder: Path) -> list[dict[str, Any]]:
    """What the file says, but for how long it took."""
    rows = [json.loads(line) for line in (folder / RESULTS).read_text().splitlines()]
    differing = ("seconds", "check")
    return [{key: value for key, value in row.items() if key not in differing} for row in rows]


def test_every_pair_has_a_line_and_they_make_the_table_and_the_chart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, notices: list[str]
) -> None:
    monkeypatch.setattr(workflow, "_draw", DRAW)
    report = probed(tmp_path / "p")
    rows = results(tmp_path / "p")
    assert [(row["cell"], row["distance"]) for row in rows] == [
        ("elman", 2),
        ("attention", 2),
        ("elman", 6),
        ("attention", 6),
    ]
    assert all(
        row["task"] == "recall" and row["budget"]["width"] == 8 and row["steps"] <= 30
        for row in rows
    )
    assert report.stopped is None
    header, lines = report.table()
    assert header == ("cell", "parameters", "2", "6")
    assert [line[0] for line in lines] == ["elman", "attention", "(chance)"]
    assert lines[0][2] == (
        f"in {rows[0]['steps']}" if rows[0]["learned"] else f"{rows[0]['accuracy']:.1%}"
    )
    assert lines[2][2:] == ("10.0%", "10.0%")
    assert (tmp_path / "p" / CHART).read_bytes().startswith(b"\x89PNG")
    assert [line.split(":")[0] for line in notices] == [
        "elman at 2",
        "attention at 2",
        "elman at 6",
        "attention at 6",
    ]
    assert "3 to go, 1 min at most" in notices[0]
    assert "to go" not in notices[-1]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_probe_goes_on_to_the_same_results(
    tmp_path: Path, number: signal.Signals, notices: list[str]
) -> None:
    probed(tmp_path / "whole")
    calls: list[int] = []

    def stop(now: Progress) -> None:
        calls.append(now.step)
        if now.step == 30 + 5:  # in the second pair
            os.kill(os.getpid(), number)

    report = probed(tmp_path / "cut", progress=stop)
    assert report.stopped == number.name
    assert [(row["cell"], row["distance"]) for row in report.rows] == [("elman", 2)]
    assert results(tmp_path / "cut") == results(tmp_path / "whole")[:1]
    assert calls[-1] == 35
    notices.clear()
    assert probed(tmp_path / "cut").stopped is None
    assert "has 1 of these results already" in notices[0]
    assert results(tmp_path / "cut") == results(tmp_path / "whole")


def test_a_folder_takes_more_cells_and_distances_and_repeats_nothing(tmp_path: Path) -> None:
    probed(tmp_path / "p", cells=("attention",), distances=(2,))
    seen: list[Progress] = []
    report = probed(
        tmp_path / "p",
        distances=(6, 2, 2),
        cells=("attention", "elman", "elman"),
        progress=seen.append,
    )
    assert [(row["cell"], row["distance"]) for row in report.rows] == [
        ("attention", 2),
        ("elman", 2),
        ("attention", 6),
        ("elman", 6),
    ]
    assert seen[-1].total_steps == 3 * 30
    assert [line[0] for line in report.table()[1]][:2] == ["elman", "attention"]
    before = (tmp_path / "p" / RESULTS).read_bytes()
    assert probed(tmp_path / "p", progress=lambda _: pytest.fail("nothing is left")).stopped is None
    assert (tmp_path / "p" / RESULTS).read_bytes() == before


def test_a_pair_that_is_missing_is_a_dash(tmp_path: Path) -> None:
    probed(tmp_path / "p", cells=("elman",), distances=(2,))
    _, lines = probed(tmp_path / "p", cells=("gru",), distances=(6,)).table()
    assert [line[2:].index("-") for line in lines[:2]] == [1, 0]


def test_the_last_noun_and_the_error_of_adding_have_their_place(tmp_path: Path) -> None:
    _, lines = probed(tmp_path / "a", "agreement", ("elman",)).table()
    assert [line[0] for line in lines] == ["elman", "(chance)", "(last noun)"]
    assert lines[2][3] == f"{results(tmp_path / 'a')[1]['last_noun']:.1%}"
    _, lines = probed(tmp_path / "b", "adding", ("elman",)).table()
    assert lines[0][3].startswith("mse ")
    assert lines[1][2] == "mse 0.167"


def test_an_error_that_is_not_finite_is_said_and_not_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, notices: list[str]
) -> None:
    monkeypatch.setattr(workflow, "_draw", DRAW)
    probed(tmp_path, "adding", ("elman-relu", "elman"), (9,), learning_rate=1e30)
    assert results(tmp_path)[0]["mse"] is None
    assert "elman-relu at 9: not finite" in notices[0]
    _, lines = probed(tmp_path, "adding", ("elman-relu",), (9,), learning_rate=1e30).table()
    assert next(line for line in lines if line[0] == "elman-relu")[2] == "not finite"


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"task": "nonsense"}, "task of a probe must be one of"),
        ({"cells": ("elman", "nonsense")}, "cell of the probe must be one of"),
        ({"distances": (2, 0)}, "must be at least 1"),
        ({"steps": 0}, "steps"),
        ({"shorter": 1.5}, "shorter"),
        ({"seed": -1}, "seed"),
    ],
)
def test_what_cannot_be_is_said_before_anything_is_made(
    tmp_path: Path, asked: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        probed(tmp_path / "p", **asked)
    assert not (tmp_path / "p").exists()


def test_a_folder_of_other_settings_or_another_task_is_left_alone(tmp_path: Path) -> None:
    probed(tmp_path / "p", distances=(2,))
    before = {path.name: path.read_bytes() for path in (tmp_path / "p").iterdir()}
    for asked, message in (
        ({"steps": 31}, "steps 30, not 31"),
        ({"task": "cloze", "distances": (9,)}, "task recall, not cloze"),
    ):
        with pytest.raises(UsageError, match=message):
            probed(tmp_path / "p", **asked)
    assert {path.name: path.read_bytes() for path in (tmp_path / "p").iterdir()} == before


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    for path in (tmp_path, tmp_path / "notes.txt"):
        with pytest.raises(UsageError, match="holds something else; name another --output"):
            probed(path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


@pytest.mark.parametrize("line", ["nonsense", "[]", "{}", '{"task": "recall", "budget": {}}', "1"])
def test_a_damaged_line_is_named(tmp_path: Path, line: str) -> None:
    probed(tmp_path, distances=(2,))
    with (tmp_path / RESULTS).open("a") as file:
        file.write(line + "\n")
    with pytest.raises(DataError, match=r"results\.jsonl:3: must be a result of seqloom probe"):
        probed(tmp_path)


def test_a_figure_that_was_changed_is_seen(tmp_path: Path) -> None:
    probed(tmp_path / "p", distances=(2,))
    path = tmp_path / "p" / RESULTS
    path.write_text(path.read_text().replace('"parameters": 2', '"parameters": 3', 1))
    with pytest.raises(DataError, match="as it was written"):
        probed(tmp_path / "p", distances=(2,))


def test_two_processes_do_not_probe_into_one_folder(tmp_path: Path) -> None:
    with locked(tmp_path / LOCK), pytest.raises(FolderError, match="another process is probing"):
        probed(tmp_path)


def test_without_the_extra_plot_there_is_everything_but_the_chart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, notices: list[str]
) -> None:
    def missing() -> None:
        raise MissingExtraError("a picture", "plot")

    monkeypatch.setattr(workflow, "_draw", DRAW)
    monkeypatch.setattr(seqloom.explaining.charts, "require_extra", missing)
    report = probed(tmp_path, cells=("elman",), distances=(2,))
    assert len(report.rows) == 1
    assert notices[-1].startswith("no chart: ")
    assert sorted(path.name for path in tmp_path.iterdir()) == [LOCK, RESULTS]
