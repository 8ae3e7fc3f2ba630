"""TensorBoard files hold what metrics.jsonl holds; without the extra it is named."""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path

import pytest

from seqloom.errors import MissingExtraError
from seqloom.workflows.train import train

SETTINGS = [
    "data.tokenizer=words",
    "train.max_steps=4",
    "train.log_every=2",
    "train.evaluate_every=2",
    "train.batch_rows=4",
    "train.tensorboard=true",
    "model.width=8",
    "model.embedding_width=8",
]


def trained(place: Path) -> Path:
    (place / "text.txt").write_text(
        "".join(f"a line of number {number % 7}\n" for number in range(60))
    )
    train(
        "text-generation",
        [str(place / "text.txt")],
        output_dir=place / "run",
        model="recurrent_lm:tiny",
        settings=SETTINGS,
    )
    return place / "run"


def test_the_same_numbers_as_in_metrics(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its own imports
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        folder = trained(tmp_path)
        board = EventAccumulator(str(folder / "tensorboard")).Reload()
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    tags = {
        "training/loss": "loss",
        "validation/perplexity": "validation_perplexity",
        "training/learning_rate": "learning_rate",
    }
    for tag, name in tags.items():
        expected = [(line["step"], line[name]) for line in lines if name in line]
        assert (
            [event.step for event in board.Scalars(tag)] == [step for step, _ in expected] == [2, 4]
        )
        assert [event.value for event in board.Scalars(tag)] == pytest.approx(
            [value for _, value in expected]
        )


def test_without_the_extra_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(MissingExtraError, match=r"seqloom\[tensorboard\]"):
        trained(tmp_path)
