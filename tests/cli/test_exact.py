"""The verb exact as a user gives it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

SHORT = ("--beams", "1,2", "--max-length", "6", "--nodes", "300")


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    path = tmp_path / "sources.txt"
    path.write_text("a b\n\nc d a\nb\n")
    return path


def test_outputs_then_the_report(command: Any, trained: Path, sources: Path) -> None:
    ran = command("exact", trained, sources, *SHORT)
    assert ran.code == 0
    assert "proven" in ran.out
    assert "of 3 inputs proven" in ran.out
    assert "its own: beam 5, α 1" in ran.out
    assert ran.err.splitlines() == [f"1 line skipped: blank (first: {sources}:2)"]


def test_json_and_the_file_of_results(
    command: Any, trained: Path, sources: Path, tmp_path: Path
) -> None:
    ran = command(
        "exact",
        trained,
        sources,
        *SHORT,
        "--json",
        "--limit",
        "3",
        "--output",
        tmp_path / "out.jsonl",
    )
    assert ran.code == 0
    *rows, last = [json.loads(line) for line in ran.out.splitlines()]
    assert [row["input"] for row in rows] == ["a b", "c d a"]
    assert [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()] == rows
    assert last["report"]["inputs"] == 2
    assert [one["search"] for one in last["report"]["searches"]] == [
        "beam 1",
        "beam 2",
        "its own: beam 5, α 1",
    ]
    assert command("exact", trained, sources, *SHORT, "--output", tmp_path / "out.jsonl").code == 2


@pytest.mark.parametrize("text", ["", "\n \n"])
def test_a_file_without_inputs_makes_no_results(
    command: Any, trained: Path, tmp_path: Path, text: str
) -> None:
    (tmp_path / "blank.txt").write_text(text)
    ran = command("exact", trained, tmp_path / "blank.txt", "--output", tmp_path / "out.jsonl")
    assert (ran.code, ran.out) == (2, "")
    assert (
        ran.err.splitlines()[-1]
        == f"seqloom: there must be an input, but {tmp_path / 'blank.txt'} has none"
    )
    assert not (tmp_path / "out.jsonl").exists()


def test_a_small_budget_leaves_a_gap(command: Any, trained: Path) -> None:
    ran = command(
        "exact",
        trained,
        "--prompt",
        "a b c d",
        "--beams",
        "1",
        "--nodes",
        "1",
        "--length-penalty",
        "2",
    )
    assert ran.code == 0
    assert "\tgap " in ran.out
    assert "not proven: 1" in ran.out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--prompt", "a", "--beams", "1,x"), "whole numbers with commas"),
        (("--prompt", "a", "--beams", "0"), "from 1 to 1000"),
        (("--prompt", "a", "--nodes", "0"), "the budget of nodes must be at least 1, but is 0"),
        (("--prompt", "a", "--seconds", "0"), "the budget of seconds"),
        (("--prompt", "a", "--prompt", " "), "one is blank"),
        (("--prompt", "a", "--length-penalty", "nan"), "from 0 to 100"),
        (
            ("--prompt", "a", "--set", "decode.strategy=sample", "--set", "decode.top_k=5"),
            "decode.strategy changes nothing",
        ),
        (("--prompt", "a", "--set", "decode.n_best=2"), "decode.n_best changes nothing"),
        (
            ("--prompt", "a", "--set", "decode.temperature=0.5"),
            "decode.temperature changes nothing",
        ),
        (("--prompt", "a", "--limit", "0"), "--limit"),
        (("--prompt", "a", "--set", "decode.stop=[x]"), "decode.stop"),
        (("--prompt", "a", "--set", "train.max_steps=1"), "train"),
        (("-", "--prompt", "a"), "leave one out"),
    ],
)
def test_a_mistake_is_one_line(
    command: Any, trained: Path, words: tuple[str, ...], message: str
) -> None:
    ran = command("exact", trained, *words)
    (line,) = ran.err.splitlines()
    assert (ran.code, ran.out) == (2, "")
    assert line.startswith("seqloom: ")
    assert message in line
