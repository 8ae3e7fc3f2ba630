"""Trackers are told what metrics.jsonl holds; without the extra it is named. TensorBoard is the real one, the
others are stand-ins with the functions that their documentation names."""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace

import pytest

from seqloom.errors import MissingExtraError, SeqloomError
from seqloom.runs.settings import read_resumed
from seqloom.runs.trackers import open_trackers
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


def trained(place: Path, *more: str) -> Path:
    (place / "text.txt").write_text(
        "".join(f"a line of number {number % 7}\n" for number in range(60))
    )
    train(
        "text-generation",
        [str(place / "text.txt")],
        output_dir=place / "run",
        model="recurrent_lm:tiny",
        settings=[*SETTINGS, *more],
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


class StandIn:
    """wandb, mlflow or trackio, as far as their documentation says."""

    def __init__(self) -> None:
        self.logged: list[tuple[int, dict[str, float]]] = []
        self.settings: dict[str, object] = {}
        self.open = False
        self.runs: list[Mapping[str, str]] = []
        self.resumed: list[str] = []

    def init(self, *, config: dict[str, object], **_: object) -> StandIn:
        self.settings, self.open = config, True
        return self

    def log(self, metrics: dict[str, float], step: int) -> None:
        assert self.open
        self.logged.append((step, metrics))

    def finish(self) -> None:
        self.open = False

    def start_run(
        self, *, run_name: str = "", run_id: str = "", tags: Mapping[str, str] | None = None
    ) -> None:
        if tags is not None:
            self.runs.append(tags)
        self.resumed.append(run_id)
        self.open = bool(run_name or run_id)

    def search_runs(
        self, *, filter_string: str, output_format: str, max_results: int
    ) -> list[SimpleNamespace]:
        assert (output_format, max_results) == ("list", 1)
        return [
            SimpleNamespace(info=SimpleNamespace(run_id=str(number)))
            for number, tags in enumerate(self.runs)
            for key, value in tags.items()
            if filter_string == f"tags.`{key}` = '{value}'"
        ]

    def log_param(self, name: str, value: str) -> None:
        self.settings[name] = value

    log_metrics = log
    end_run = finish


@pytest.mark.parametrize("name", ["wandb", "mlflow", "trackio"])
def test_a_tracker_is_told_the_same_and_is_closed(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tracker = StandIn()
    monkeypatch.setitem(sys.modules, name, tracker)
    folder = trained(tmp_path, f"train.trackers={name}", "train.tensorboard=false")
    assert not tracker.open
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [step for step, _ in tracker.logged] == [line["step"] for line in lines]
    for (_, metrics), line in zip(tracker.logged, lines, strict=True):
        assert metrics.get("training/loss") == line.get("loss")
        assert metrics.get("validation/loss") == line.get("validation_loss")
    assert str(tracker.settings["train.max_steps"]) == "4"
    assert str(tracker.settings["model.name"]) == "recurrent_lm"


def test_a_training_that_goes_on_is_the_same_run_of_mlflow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tracker = StandIn()
    monkeypatch.setitem(sys.modules, "mlflow", tracker)
    folder = trained(tmp_path, "train.trackers=mlflow", "train.tensorboard=false")
    with open_trackers(read_resumed(folder), folder, 2):
        assert tracker.resumed == ["", "0"]
    with open_trackers(read_resumed(folder), tmp_path / "another", 2):
        assert tracker.resumed == ["", "0", ""]


@pytest.mark.parametrize("name", ["wandb", "mlflow", "trackio"])
def test_a_tracker_that_is_not_installed_is_named(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingExtraError, match=rf"pip install 'seqloom\[{name}\]'"):
        trained(tmp_path, f"train.trackers={name}")


def test_a_tracker_that_does_not_begin_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Broken(StandIn):
        def init(self, **_: object) -> StandIn:
            raise ConnectionError("no network")

    monkeypatch.setitem(sys.modules, "wandb", Broken())
    with pytest.raises(
        SeqloomError, match=r"train.trackers=wandb: it does not begin \(no network\)"
    ):
        trained(tmp_path, "train.trackers=wandb", "train.tensorboard=false")


def test_a_tracker_is_closed_where_the_next_one_does_not_begin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = StandIn()
    monkeypatch.setitem(sys.modules, "mlflow", first)
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(MissingExtraError, match="wandb"):
        trained(tmp_path, "train.trackers=[mlflow,wandb]", "train.tensorboard=false")
    assert first.settings
    assert not first.open
