"""The verb compare as a user gives it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from seqloom.workflows.compare import leaderboard
from seqloom.workflows.compare import run as workflow
from seqloom.workflows.compare.cells import CellResult, CellRun

MODELS = (
    "--models",
    "bag_of_words:tiny,recurrent+cell=gru",
    "--seeds",
    "2",
    "--set",
    "train.max_steps=9",
    "--set",
    "train.threads=1",
)


class Toy:
    """Trains nothing; stops where it is told to."""

    def __init__(self) -> None:
        self.stop_at, self.trained = 0, 0

    def train(
        self, place: Path, entry: Any, settings: list[str], plan: Any, progress: Any
    ) -> CellRun:
        self.trained += 1
        if self.trained == self.stop_at:
            return CellRun("SIGTERM", 1, 9, {}, 0.1, 1)
        place.mkdir(parents=True, exist_ok=True)
        return CellRun("max_steps", 9, 9, {"accuracy": 0.5, "loss": 0.7}, 2.0, 100)

    def measure(self, place: Path, plan: Any) -> CellResult:
        right = [1.0, 1.0, float(place.name.startswith("rec")), 0.0]
        return CellResult({"accuracy": sum(right) / 4, "loss": 0.5}, right, 1234, 2.0, "t")


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> Toy:
    found = Toy()
    monkeypatch.setattr(workflow, "train_cell", found.train)
    monkeypatch.setattr(workflow, "measure_cell", found.measure)
    monkeypatch.setattr(workflow, "cell_latency", lambda folder, plan: 0.004)
    monkeypatch.setattr(workflow, "floor_of", lambda *_: None)
    monkeypatch.setattr(workflow, "parameter_count", lambda *_: lambda fields: 100)
    monkeypatch.setattr(leaderboard, "PICTURES", (".svg",))
    return found


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    (tmp_path / "train.tsv").write_text("text\tlabel\ngood\tpos\nbad\tneg\n")
    (tmp_path / "test.tsv").write_text("text\tlabel\nfine\tpos\n")
    return tmp_path


@pytest.mark.usefixtures("one_thread")
def test_a_table_a_chart_and_a_folder(
    command: Any, texts: Path, toy: Toy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    ran = command(
        "compare",
        "text-classification",
        texts / "train.tsv",
        "--test",
        texts / "test.tsv",
        "--output-dir",
        texts / "c",
        *MODELS,
    )
    assert ran.code == 0
    assert "recurrent+cell=gru" in ran.out
    assert "0.7500 ± 0.0000" in ran.out
    assert "measured on the test part" in ran.out
    assert "all read by the same tokenizer" in ran.out
    assert "the same for all" in ran.err
    names = sorted(path.name for path in (texts / "c").iterdir())
    cells = [
        "bag_of_words-tiny-seed0",
        "bag_of_words-tiny-seed1",
        "recurrent-cell-gru-seed0",
        "recurrent-cell-gru-seed1",
    ]
    written = ["leaderboard.csv", "leaderboard.json", "leaderboard.svg", "plan.json"]
    assert names == sorted([".lock", "choices.json", *cells, *written])


@pytest.mark.usefixtures("one_thread")
def test_one_line_of_json(command: Any, texts: Path, toy: Toy) -> None:
    ran = command(
        "compare",
        "text-classification",
        texts / "train.tsv",
        "--output-dir",
        texts / "c",
        *MODELS,
        "--json",
    )
    assert ran.code == 0
    assert ran.json["stopped"] is None
    assert [(row["model"], row["mean"]) for row in ran.json["rows"]] == [
        ("recurrent+cell=gru", 0.75),
        ("bag_of_words:tiny", 0.5),
    ]
    assert "also chose" in ran.json["notes"][0]


@pytest.mark.usefixtures("one_thread")
def test_a_stopped_comparison_says_how_to_go_on(command: Any, texts: Path, toy: Toy) -> None:
    toy.stop_at = 8
    words = (
        "compare",
        "text-classification",
        texts / "train.tsv",
        "--output-dir",
        texts / "c",
        *MODELS,
        "--json",
    )
    ran = command(*words)
    assert ran.code == 143
    assert ran.json == {"output_dir": str(texts / "c"), "stopped": "SIGTERM"}
    assert ran.err.splitlines()[-1] == "to continue: run the same command again"
    assert command(*words).code == 0


def test_a_mistake_is_one_line(command: Any, texts: Path) -> None:
    ran = command(
        "compare",
        "text-classification",
        texts / "train.tsv",
        "--output-dir",
        texts / "c",
        "--models",
        "bag_of_words",
    )
    (line,) = ran.err.splitlines()
    assert (ran.code, ran.out) == (2, "")
    assert line.startswith("seqloom: --models must name at least two models")
    assert not (texts / "c").exists()
