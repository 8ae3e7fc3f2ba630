"""Long work says how far it is where there is no terminal, and `check` what a training would cost."""

from __future__ import annotations

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import seqloom
from seqloom.long_work import LongWork, duration, log_progress

SENTENCES = [f"the {a} sees a {b} near the {c}" for a in "abcd" for b in "efgh" for c in "ijk"]


@pytest.fixture
def book(tmp_path: Path) -> Path:
    (tmp_path / "t.txt").write_text("\n".join(SENTENCES) + "\n")
    return tmp_path / "t.txt"


LANGUAGE_MODEL = (
    "--model",
    "recurrent_lm:tiny",
    "--set=data.tokenizer=words",
    "--set=model.width=8",
)


def test_a_training_writes_a_line_now_and_then(book: Path, command: Any, tmp_path: Path) -> None:
    ran = command(
        *("train", "text-generation", book, "--output-dir", tmp_path / "run", *LANGUAGE_MODEL),
        *("--max-steps", 60, "--set=train.log_every=10", "--set=train.evaluate_every=30"),
    )
    assert ran.code == 0
    lines = ran.err.splitlines()
    steps = [line for line in lines if ": loss " in line]
    assert [line.split(":")[0] for line in steps] == [f"step {n} of 60" for n in range(10, 61, 10)]
    assert all("tokens/s" in line and line.endswith(" left") for line in steps)
    (estimate,) = [line for line in lines if line.startswith("about ")]
    assert estimate.endswith("for the other 55 steps")
    assert lines.index(estimate) < lines.index(steps[0])
    validations = [line for line in lines if ": validation loss " in line]
    assert len(validations) == 2
    assert validations[0].endswith("the best so far")
    last = ran.out.splitlines()[-1]
    assert last.startswith("finished: 60 steps; the best checkpoint is that of step ")
    assert "with the lowest validation loss, " in last


def test_the_reason_of_an_early_end_is_said(book: Path, command: Any, tmp_path: Path) -> None:
    ran = command(
        *("train", "text-generation", book, "--output-dir", tmp_path / "run", *LANGUAGE_MODEL),
        *("--max-steps", 90, "--patience", 1, "--lr", 9, "--set=train.evaluate_every=2"),
        "--set=train.warmup_steps=0",
    )
    assert "finished: no validation was better for train.patience, at step " in ran.out
    again = command("train", "--resume", tmp_path / "run")
    assert again.out.splitlines()[-1].startswith("finished: ")


def test_a_library_call_logs_lines_too_unless_it_is_given_the_progress(
    book: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = ["data.tokenizer=words", "model.width=8", "train.max_steps=4", "train.log_every=2"]
    seen: list[int] = []
    for name, progress in (("a", None), ("b", lambda now: seen.append(now.step))):
        caplog.clear()
        with caplog.at_level(logging.INFO, "seqloom"):
            seqloom.train(
                "text-generation",
                [str(book)],
                output_dir=tmp_path / name,
                model="recurrent_lm:tiny",
                settings=settings,
                progress=progress,
            )
        assert ("step 2 of 4: loss" in caplog.text) == (name == "a")
    assert seen == [1, 2, 3, 4]


@pytest.mark.parametrize("total", [None, 40])
def test_work_is_counted_with_what_is_left(
    total: int | None, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    # not the clock of the whole process, which the loop of a server in another thread reads too
    monkeypatch.setattr("seqloom.long_work.time", SimpleNamespace(monotonic=lambda: now))
    work = LongWork("pairs read", total)
    with caplog.at_level(logging.INFO, "seqloom"):
        for _ in range(10):
            now += 1
            work.add(2)
    lines = [record.getMessage() for record in caplog.records]
    left = ["12 of 40 pairs read, 14 s left (2/s)"]
    assert lines == (left if total else ["12 pairs read (2/s)"])
    assert list(log_progress(range(5), "numbers")) == [0, 1, 2, 3, 4]


def test_durations_are_said_as_people_do() -> None:
    assert [duration(s) for s in (0, 89, 90, 720, 5399, 7200)] == [
        *("0 s", "89 s", "2 min", "12 min", "90 min", "2.0 h")
    ]


@pytest.mark.parametrize(
    ("task", "model"),
    [
        ("text-generation", "recurrent_lm:tiny"),
        ("translation", "seq2seq:tiny"),
        ("text-classification", "bag_of_words:tiny"),
        ("denoising", "t5:tiny"),
        ("word-vectors", "word2vec:tiny"),
    ],
)
def test_check_says_parameters_memory_and_time(
    task: str, model: str, book: Path, command: Any, tmp_path: Path
) -> None:
    data = book
    if task in ("translation", "text-classification"):
        data = tmp_path / "d.csv"
        header = "source,target" if task == "translation" else "text,label"
        rows = [f"{text},{text[4] if header[0] == 't' else text}" for text in SENTENCES]
        data.write_text("\n".join([header, *rows]) + "\n")
    training = command("check", task, data, "--model", model, "--json").json["training"]
    assert training["parameters"] > 0
    assert training["seconds_a_step"] > 0
    assert training["memory_of_the_model_mib"] >= 0
    assert "minutes_without_validations" in training


def test_a_model_that_is_counted_has_no_cost_of_training(book: Path, command: Any) -> None:
    ran = command("check", "text-generation", book, "--model", "ngram:bigram", "--json")
    assert "seconds_a_step" not in ran.json["training"]
