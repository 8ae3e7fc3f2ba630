"""The verb probe as a user gives it."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from seqloom.explaining import memory_probe
from seqloom.workflows.analysis import probe as workflow

SMALL = ("--steps", "10", "--width", "8", "--cells", "elman,attention", "--distances", "2, 3")


@pytest.fixture
def no_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """A chart takes longer than the rest of a test."""
    monkeypatch.setattr(workflow, "_draw", lambda *_: None)


def test_a_table_and_a_folder(command: Any, tmp_path: Path) -> None:
    ran = command("probe", "recall", "--output", tmp_path / "p", *SMALL)
    assert ran.code == 0
    assert "parameters" in ran.out
    assert "attention" in ran.out
    assert f"folder: {tmp_path / 'p'}" in ran.out
    assert sorted(path.name for path in (tmp_path / "p").iterdir()) == [
        ".lock",
        "chart.png",
        "results.jsonl",
    ]


def test_one_line_of_json(command: Any, tmp_path: Path, no_pictures: None) -> None:
    ran = command("probe", "recall", "--output", tmp_path / "p", *SMALL, "--json")
    assert ran.code == 0
    assert ran.json["task"] == "recall"
    assert ran.json["stopped"] is None
    assert ran.json["results"] == [
        json.loads(line) for line in (tmp_path / "p" / "results.jsonl").read_text().splitlines()
    ]
    assert [(row["cell"], row["distance"]) for row in ran.json["results"]] == [
        ("elman", 2),
        ("attention", 2),
        ("elman", 3),
        ("attention", 3),
    ]


def test_the_folder_is_named_after_the_task(
    command: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_pictures: None
) -> None:
    monkeypatch.chdir(tmp_path)
    assert command("probe", "copy", *SMALL).code == 0
    assert (tmp_path / "seqloom-probe-copy" / "results.jsonl").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("nonsense",), "must be one of adding, copy, recall, agreement, cloze"),
        (("recall", "--cells", "elman,nonsense"), "'nonsense'"),
        (("recall", "--distances", "2,x"), "whole numbers with commas"),
        (("recall", "--cells", "elman", "--distances", "2,0"), "at least 1"),
        (("recall", "--steps", "0"), "steps"),
        (("recall", "--shorter", "2"), "shorter"),
    ],
)
def test_a_mistake_is_one_line(
    command: Any, tmp_path: Path, words: tuple[str, ...], message: str
) -> None:
    ran = command("probe", *words, "--output", tmp_path / "p")
    (line,) = ran.err.splitlines()
    assert ran.code == 2
    assert ran.out == ""
    assert line.startswith("seqloom: ")
    assert message in line
    assert not (tmp_path / "p").exists()


def test_a_stopped_probe_shows_what_it_has_and_how_to_go_on(
    command: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_pictures: None
) -> None:
    one = memory_probe.probe

    def stopping(task: Any, cell: str, *rest: Any) -> Any:
        if cell == "attention":
            os.kill(os.getpid(), signal.SIGINT)
        return one(task, cell, *rest)

    monkeypatch.setattr(workflow, "probe", stopping)
    ran = command("probe", "recall", "--output", tmp_path / "p", *SMALL)
    assert ran.code == 130
    assert "elman" in ran.out
    assert ran.err.splitlines()[-1] == "to continue: run the same command again"
    assert len((tmp_path / "p" / "results.jsonl").read_text().splitlines()) == 1
