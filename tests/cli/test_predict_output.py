"""`predict --output`: every row of a file, in order, beside what the model answers."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import seqloom
from seqloom.config import DataConfig
from seqloom.data.readers.input_rows import read_input_rows
from seqloom.errors import DataError
from seqloom.workflows.train import train

WORDS = ["good", "bad", "film", "plot", "boring", "great", "the", "a", "was", "is", "it"]
COLUMNS = ["id", "text", "label", "note", "code"]


def rows_of_reviews(count: int) -> list[list[str]]:
    """Rows with quotes, line breaks, delimiters, other scripts and empty cells."""
    random = Random(1)
    rows = []
    for number in range(count):
        text = " ".join(random.choice(WORDS) for _ in range(random.randint(3, 9)))
        text += ' she said "so", twice' if number % 7 == 0 else ""
        text = text.replace(" ", "\n", 1) if number % 11 == 0 else text
        text += " ünïcödé 日本" if number % 13 == 0 else ""
        label = "pos" if "good" in text or "great" in text else "neg"
        note = "x,y;\tz\n" if number % 3 == 0 else ""
        rows.append([str(number), text, label, note, "007" if number % 5 else ""])
    rows[count // 2][1] = ""
    return rows


def write_csv(path: Path, rows: list[list[str]], header: list[str] = COLUMNS) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([header, *rows])
    return path


def read_csv(path: Path, delimiter: str = ",") -> list[dict[str, Any]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file, delimiter=delimiter))


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


READERS: Mapping[str, Callable[[Path], list[dict[str, Any]]]] = {
    "csv": read_csv,
    "tsv": lambda path: read_csv(path, "\t"),
    "jsonl": read_jsonl,
    "parquet": lambda path: pq.read_table(path).to_pylist(),
}


@pytest.fixture(scope="module")
def reviews(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A table, and a run folder of a model that was trained on a part of it."""
    place = tmp_path_factory.mktemp("reviews")
    rows = rows_of_reviews(2000)
    some = write_csv(place / "train.csv", [row for row in rows[:300] if row[1]])
    train(
        "text-classification",
        [str(some)],
        output_dir=place / "run",
        model="bag_of_words:tiny",
        settings=["train.max_steps=40", "data.tokenizer=words", "train.learning_rate=0.1"],
    )
    return write_csv(place / "rows.csv", rows), place / "run"


@pytest.mark.parametrize("form", READERS)
def test_rows_columns_and_order_are_kept_and_answers_added(
    form: str, reviews: tuple[Path, Path], command: Any, tmp_path: Path
) -> None:
    table, run = reviews
    output = tmp_path / f"answers.{form}"
    ran = command("predict", run, table, "--output", output, "--probabilities")
    assert ran.code == 0
    assert ran.out == f"2,000 rows, 1 without an answer: {output}\n"
    given, found = read_csv(table), READERS[form](output)
    assert [{name: row[name] for name in COLUMNS} for row in found] == given
    texts = [row["text"] for row in given if row["text"]]
    answers = seqloom.load(run).predict(texts)
    answered = [row for row in found if not row["skipped"]]
    assert [row["predicted_label"] for row in answered] == [one["label"] for one in answers]
    for row, answer in zip(answered, answers, strict=True):
        assert float(row["probability"]) == pytest.approx(answer["probability"], abs=1e-6)
        both = [float(row["probability_neg"]), float(row["probability_pos"])]
        assert sum(both) == pytest.approx(1, abs=1e-6)
    (skipped,) = [row for row in found if row["skipped"]]
    assert skipped["id"] == "1000"
    assert skipped["skipped"] == "there is no text"
    assert not skipped["predicted_label"]


def test_a_row_that_is_left_out_stands_in_its_place_with_the_reason(
    reviews: tuple[Path, Path], command: Any, tmp_path: Path
) -> None:
    table = tmp_path / "bad.csv"
    table.write_bytes(b"id,text,label\n1,good,pos\n2,bad\n\n3,\xff,neg\n4,a bad film,neg\n")
    output = tmp_path / "out.jsonl"
    command("predict", reviews[1], table, "--output", output, "--set", "data.on_bad_line=skip")
    found = read_jsonl(output)
    assert [row.get("id") for row in found] == ["1", None, None, None, "4"]
    reasons = [row["skipped"] for row in found]
    assert reasons[1:3] == ["wrong number of cells", "blank"]
    assert [reasons[0], reasons[4]] == [None, None]
    assert "utf-8" in found[3]["skipped"].lower()
    answers = [row.get("predicted_label") for row in found]
    assert answers[1:4] == [None, None, None]
    assert {answers[0], answers[4]} <= {"pos", "neg"}


@pytest.mark.parametrize(
    ("name", "content", "first"),
    [
        ("a.txt", "good\n\nbad film\n", {"text": "good"}),
        ("a.jsonl", '{"text": "good", "n": 1}\n{"text": "bad", "deep": {"x": [1]}}\n', {"n": 1}),
        ("a.csv", "good\nbad\n", {"1": "good"}),
    ],
)
def test_other_forms_keep_what_their_rows_hold(
    name: str,
    content: str,
    first: dict[str, object],
    reviews: tuple[Path, Path],
    command: Any,
    tmp_path: Path,
) -> None:
    (tmp_path / name).write_text(content)
    settings = ["--set", "data.header=false"] if name == "a.csv" else []
    ran = command(
        "predict", reviews[1], tmp_path / name, "--output", tmp_path / "o.jsonl", *settings
    )
    assert ran.code == 0, ran.err
    found = read_jsonl(tmp_path / "o.jsonl")
    assert len(found) == len(content.splitlines())
    assert found[0].items() >= first.items()
    assert found[-1].get("deep", {"x": [1]}) == {"x": [1]}
    assert all(row["label"] in ("pos", "neg") or row["skipped"] for row in found)
    # a table has the columns of all rows
    command("predict", reviews[1], tmp_path / name, "--output", tmp_path / "o.csv", *settings)
    answer = ["label", "probability", "skipped"]
    own = dict.fromkeys(key for row in found for key in row if key not in answer)
    assert list(read_csv(tmp_path / "o.csv")[0]) == [*own, *answer]


def test_texts_that_become_texts_stand_beside_them(
    trained: Path, command: Any, tmp_path: Path
) -> None:
    (tmp_path / "a.csv").write_text("n,text\n1,a b\n2,\n3,c\n")
    ran = command("predict", trained, tmp_path / "a.csv", "--output", tmp_path / "o.csv")
    assert ran.code == 0, ran.err
    found = read_csv(tmp_path / "o.csv")
    assert [row["n"] for row in found] == ["1", "2", "3"]
    assert [row["skipped"] for row in found] == ["", "there is no text", ""]
    assert [row["output"] for row in found][::2] == seqloom.load(trained).predict(["a b", "c"])
    assert float(found[0]["score"]) < 0


def test_what_cannot_be_written_is_refused_before_the_work(
    reviews: tuple[Path, Path], command: Any, tmp_path: Path
) -> None:
    (tmp_path / "there.csv").touch()
    for output, source, message in (
        ("there.csv", reviews[0], "must be a new file"),
        ("a.xlsx", reviews[0], "must end in .csv, .tsv, .jsonl, .parquet"),
        ("a.csv", "-", "the inputs must be a file, but are standard input"),
    ):
        ran = command("predict", reviews[1], source, "--output", tmp_path / output)
        assert ran.code == 2
        assert message in ran.err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["there.csv"]


def test_nulls_of_parquet_stay_and_a_damaged_file_is_said(
    reviews: tuple[Path, Path], command: Any, tmp_path: Path
) -> None:
    rows: list[dict[str, Any]] = [
        {"text": "good", "n": 1},
        {"text": None, "n": None},
        {"text": "bad", "n": 3},
    ]
    source = tmp_path / "a.parquet"
    pq.write_table(pa.Table.from_pylist(rows), source)
    ran = command("predict", reviews[1], source, "--output", tmp_path / "o.parquet")
    assert ran.code == 0
    found = pq.read_table(tmp_path / "o.parquet").to_pylist()
    assert [{name: row[name] for name in rows[0]} for row in found] == rows
    assert [bool(row["label"]) for row in found] == [True, False, True]
    source.write_bytes(source.read_bytes()[:-40])
    for file in (source, "--output"):
        more = [] if file == source else ["--output", tmp_path / "again.csv"]
        ran = command("predict", reviews[1], source, *more)
        assert ran.code == 2
        assert "a.parquet: must be a whole Parquet file" in ran.err.splitlines()[-1]
    with pytest.raises(DataError, match="must be a whole Parquet file"):
        list(read_input_rows(str(source), "parquet", DataConfig(), 1))


def test_an_error_in_the_middle_leaves_no_file(
    reviews: tuple[Path, Path], command: Any, tmp_path: Path
) -> None:
    (tmp_path / "a.csv").write_text('text,n\ngood,1\n"never closed,2\n')
    ran = command("predict", reviews[1], tmp_path / "a.csv", "--output", tmp_path / "o.csv")
    assert ran.code == 2
    assert "a.csv:3" in ran.err
    assert [path.name for path in tmp_path.iterdir()] == ["a.csv"]
