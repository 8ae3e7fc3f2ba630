"""What was asked for is checked before any work, kept with the folder, and the same on resume."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

import seqloom
from seqloom.data.synthetic.pairs import reverse_task
from seqloom.errors import FolderError, UsageError
from seqloom.runs.settings import check_unchanged, read_resumed
from seqloom.tasks.settings import resolve
from seqloom.workflows.evaluate import evaluate

WIDTHS = [
    f"model.{name}=8"
    for name in ("embedding_width", "encoder_width", "width", "attention_width", "readout_width")
]
SETTINGS = [
    *WIDTHS,
    "model.name=seq2seq",
    "model.size=tiny",
    "data.tokenizer=bytes",
    "train.max_steps=4",
    "train.evaluate_every=2",
]


def resolved(*settings: str, data: tuple[str, ...] = ("a.en", "a.de")) -> Any:
    return resolve("translation", data, "out", None, (), settings, None)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("model.widht=3", r"model.widht; did you mean model.width"),
        ("model.size=huge", "size of seq2seq must be one of"),
        ("model.name=gpt9", "must be one of seq2seq"),
        ("model.dropout=2", "model.dropout must be in"),
        ("model.pad_id=7", "comes from the tokenizer"),
        ("train.device=tpu", "device must be auto, cpu or cuda"),
    ],
)
def test_settings_are_checked_before_any_file_is_read(setting: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        resolved(setting)


def test_paths_are_kept_as_absolute_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert resolved().data.train == (str(tmp_path / "a.en"), str(tmp_path / "a.de"))
    assert resolved(data=("-",)).data.train == ("-",)


@pytest.fixture
def stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run that was started in another folder and stopped after its first step."""
    (tmp_path / "pairs.tsv").write_text(
        "here\tthere\n" + "".join(f"{s}\t{t}\n" for s, t in reverse_task(0, 60))
    )
    (tmp_path / "sub").mkdir()
    monkeypatch.chdir(tmp_path / "sub")
    result = seqloom.train(
        "translation",
        ["../pairs.tsv"],
        output_dir="../run",
        settings=[*SETTINGS, "data.source=there", "data.target=here"],
        progress=lambda now: signal.raise_signal(signal.SIGTERM) if now.step == 1 else None,
    )
    assert (result.stopped, result.step) == ("SIGTERM", 1)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "run"


def test_a_run_is_resumed_from_wherever_one_is(stopped: Path) -> None:
    assert seqloom.train(resume="run").step == 4


@pytest.mark.parametrize(
    "change",
    [
        ("max_steps: 4", "max_steps: 6"),
        ("width: 8", "width: 9"),
        ("tokenizer: bytes", "tokenizer: characters"),
    ],
)
def test_a_changed_setting_is_refused_on_resume(stopped: Path, change: tuple[str, str]) -> None:
    text = (stopped / "run.yaml").read_text()
    assert change[0] in text
    (stopped / "run.yaml").write_text(text.replace(*change))
    with pytest.raises(
        FolderError, match=r"must be this model's|must keep its settings, but .* was .* and is"
    ):
        seqloom.train(resume=stopped)


def test_the_learning_rate_may_be_changed_on_resume(stopped: Path) -> None:
    text = (stopped / "run.yaml").read_text()
    (stopped / "run.yaml").write_text(text.replace("learning_rate: 0.001", "learning_rate: 0.0001"))
    assert seqloom.train(resume=stopped).stopped == "max_steps"


def test_a_model_is_measured_in_the_direction_it_was_trained_for(stopped: Path) -> None:
    seqloom.train(resume=stopped)
    pairs = str(stopped.parent / "pairs.tsv")
    same = evaluate(stopped, [pairs], {}, {"beam": 1, "n_best": 1})
    said = evaluate(
        stopped, [pairs], {"source": "there", "target": "here"}, {"beam": 1, "n_best": 1}
    )
    turned = evaluate(
        stopped, [pairs], {"source": "here", "target": "there"}, {"beam": 1, "n_best": 1}
    )
    assert same.metrics == said.metrics
    assert same.metrics["loss"] != turned.metrics["loss"]


def test_what_was_piped_in_is_found_by_a_moved_run_and_by_its_run_file(stopped: Path) -> None:
    kept = stopped.parent / "sub" / "standard-input"
    (stopped.parent / "pairs.tsv").rename(kept)
    text = (
        (stopped / "run.yaml")
        .read_text()
        .replace(str(stopped.parent / "pairs.tsv"), str(kept))
        .replace("format: auto", "format: tsv")
    )
    (stopped.parent / "other.yaml").write_text(text)
    assert (
        seqloom.train(
            config=str(stopped.parent / "other.yaml"), output_dir=stopped.parent / "again"
        ).step
        == 4
    )
    moved = kept.rename(stopped.parent / "again" / "standard-input")
    assert read_resumed(moved.parent).data.train == (str(moved),)


def test_a_run_with_the_old_name_of_its_tokenizer_kind_can_be_resumed(tmp_path: Path) -> None:
    now = {"data.tokenizer": "whitespace", "train.seed": 1}
    assert check_unchanged(tmp_path, now | {"data.tokenizer": "blanks"}, now) == now
    with pytest.raises(FolderError, match="a resumed run must keep its settings"):
        check_unchanged(tmp_path, now | {"data.tokenizer": "words"}, now)
