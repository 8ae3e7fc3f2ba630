"""The data doctor for language models: what it counts, what it finds, what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from seqloom.errors import UsageError
from seqloom.tasks.data_report import DataReport
from seqloom.workflows.check import check

WORDS = ("data.tokenizer=words", "train.window=8", "train.batch_rows=4", "train.max_steps=7")


def checked(
    place: Path, train: str, validation: str = "", test: str = "", *settings: str
) -> DataReport:
    for name, text in (("train", train), ("val", validation), ("test", test)):
        (place / f"{name}.txt").write_text(text)
    given = [
        [str(place / f"{name}.txt")] if text else []
        for name, text in (("train", train), ("val", validation), ("test", test))
    ]
    return check("text-generation", given[0], given[1], given[2], [*WORDS, *settings])


TRAIN = "".join(f"line {number} of a text\n" for number in range(40))


def test_counts_and_lengths(tmp_path: Path) -> None:
    report = checked(tmp_path, TRAIN, "a new line\n", "another new text of a line\n\n")
    assert report.splits["train"]["documents"] == 40
    assert report.splits["train"]["tokens"] == 40 * 6
    assert report.splits["train"]["bytes"] == len(TRAIN) - 40
    assert report.splits["test"]["documents"] == 1
    assert report.splits["test"]["unknown_percent"] == pytest.approx(100 * 2 / 6)
    assert report.lengths["test"]["max"] == 7
    assert report.training["windows a batch"] in (3, 4)  # 30 or 31 windows in 8 batches
    assert {name: report.training[name] for name in ("window", "batches an epoch", "steps")} == {
        "window": 8,
        "batches an epoch": 8,
        "steps": 7,
    }
    assert report.errors == []
    assert report.problems() == ["nothing found that is likely to do harm"]
    assert all(len(row) == len(header) for _, header, rows in report.tables for row in rows)


def test_the_first_batch_is_what_a_model_gets(tmp_path: Path) -> None:
    report = checked(tmp_path, TRAIN, "a new line\n")
    for row in report.first_batch:
        pairs = [
            (one, other)
            for one, other in zip(row["inputs"][1:], row["targets"], strict=False)
            if other is not None
        ]
        assert all(
            one == ("<s>" if other == "</s>" else other) or one == "<pad>" for one, other in pairs
        )
        assert "train.txt:" in row["line"]


def test_repeated_documents_and_those_of_two_splits_are_found(tmp_path: Path) -> None:
    report = checked(tmp_path, TRAIN + "line 3 of a text\n", "line 5 of a text\na new line\n")
    told = {one.what: (one.number, one.first) for one in report.findings or ()}
    assert told["documents that stood before"] == (1, f"{tmp_path}/train.txt:41")
    assert told["documents of validation in train"] == (1, f"{tmp_path}/val.txt:1")
    assert report.errors == []


def test_a_validation_set_out_of_the_training_set_is_an_error(tmp_path: Path) -> None:
    report = checked(tmp_path, TRAIN, TRAIN[:85])
    assert "validation must hold other documents than train" in report.errors[0]
    assert report.problems()[0].startswith("error: ")


def test_settings_of_a_model_are_checked_too(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"model\.widht"):
        checked(tmp_path, TRAIN, "", "", "model.widht=3")
