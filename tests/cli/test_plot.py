"""The verb plot."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from seqloom.workflows.train import train


def test_plot_draws_runs_without_any_tracker(tmp_path: Path, command: Any) -> None:
    (tmp_path / "t.txt").write_text("a line of text\n" * 40)
    runs = [tmp_path / name / "run" for name in ("a", "b")]
    for run in runs:
        run.parent.mkdir()
        train(
            "text-generation",
            [str(tmp_path / "t.txt")],
            output_dir=run,
            model="recurrent_lm:tiny",
            settings=["data.tokenizer=words", "train.max_steps=4", "model.width=8"],
        )
    ran = command("plot", *runs, "--output", tmp_path / "c.svg", "--json")
    assert ran.json["runs"] == ["run", str(runs[1])]
    assert "loss by step" in (tmp_path / "c.svg").read_text()
    assert "must be a new file" in command("plot", *runs, "--output", tmp_path / "c.svg").err
    other = command("plot", *runs, "--output", tmp_path / "d.svg", "--metric", "blue")
    assert "a run that has logged blue" in other.err
    assert "validation_perplexity" in other.err
