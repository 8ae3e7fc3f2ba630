"""One law for all tasks: the same rows give the same examples, the same skips and the same counts, in
whatever form they are written."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from seqloom.config import DataConfig
from seqloom.data.formats.columns import Record
from seqloom.data.formats.read_report import ReadReport
from seqloom.data.readers.documents import read_documents
from seqloom.data.readers.examples import ChoiceQuestion, LabelledText, Question
from seqloom.data.readers.labelled import read_labelled
from seqloom.data.readers.multiple_choice import read_choices
from seqloom.data.readers.records import read_pairs, read_texts
from seqloom.data.readers.squad import read_questions
from seqloom.errors import DataError

Row = dict[str, Any]
Read = Callable[[Sequence[str], DataConfig, ReadReport], Iterable[Any]]


def documents(paths: Sequence[str], data: DataConfig, report: ReadReport) -> Iterator[str]:
    return (piece.text for piece in read_documents(paths, data, report))


GOOD: dict[str, tuple[Read, list[Row]]] = {
    "text-classification": (
        read_labelled,
        [
            {"text": "fine, and 'good'", "label": "pos"},
            {"text": 'a "bad" one', "label": "neg"},
        ],
    ),
    "text-classification of pairs": (
        partial(read_labelled, pairs=True),
        [
            {"premise": "it rains", "hypothesis": "it is wet", "label": "yes"},
            {"premise": "it snows", "hypothesis": "it is hot", "label": "no"},
        ],
    ),
    "sentence-similarity": (
        partial(read_labelled, pairs=True, number=True),
        [
            {"sentence1": "a", "sentence2": "b", "score": "2.5"},
            {"sentence1": "c", "sentence2": "c", "score": "5"},
        ],
    ),
    "translation": (
        read_pairs,
        [{"source": "a cat", "target": "un chat"}, {"source": "a dog", "target": "un chien"}],
    ),
    "text-generation": (documents, [{"text": " one, two"}, {"text": "three"}]),
    "question-answering": (
        read_questions,
        [
            {"id": "1", "question": "who?", "context": "Ada ran", "answer": "Ada", "answer_start": "0"},
            {"id": "2", "question": "what?", "context": "Ada ran", "answer": "ran", "answer_start": "4"},
        ],
    ),
    "multiple-choice": (
        read_choices,
        [
            {"question": "2 + 2?", "option_a": "three", "option_b": "four", "label": "B"},
            {"question": "1 + 1?", "option_a": "two", "option_b": "five", "label": "A"},
        ],
    ),
}  # fmt: skip
"""Task -> how it is read, and rows. The first column is that of the text."""


def as_table(path: Path, rows: list[Row], delimiter: str) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), delimiter=delimiter)
        writer.writeheader()
        writer.writerows(rows)


def as_plain_tsv(path: Path, rows: list[Row]) -> None:
    lines = ["\t".join(rows[0])]
    lines += ["\t".join("" if cell is None else cell for cell in row.values()) for row in rows]
    path.write_text("\n".join(lines) + "\n")


def as_spaced_csv(path: Path, rows: list[Row]) -> None:
    """With a blank after each comma, and quotes around all cells."""
    cells = [
        list(rows[0]),
        *(["" if cell is None else cell for cell in row.values()] for row in rows),
    ]
    quoted = [", ".join('"' + cell.replace('"', '""') + '"' for cell in row) for row in cells[1:]]
    path.write_text("\n".join([", ".join(cells[0]), *quoted]) + "\n")


def as_parquet(path: Path, rows: list[Row]) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    columns = {name: arrow.array([row[name] for row in rows], arrow.string()) for name in rows[0]}
    parquet.write_table(arrow.table(columns), path)


def without_nothing(row: Row) -> Row:
    return {name: value for name, value in row.items() if value is not None}


WRITE: dict[str, Callable[[Path, list[Row]], object]] = {
    "a.csv": partial(as_table, delimiter=","),
    "spaced.csv": as_spaced_csv,
    "a.tsv": as_plain_tsv,
    "a.jsonl": lambda path, rows: path.write_text("".join(json.dumps(row) + "\n" for row in rows)),
    "absent.jsonl": lambda path, rows: path.write_text(
        "".join(json.dumps(without_nothing(row)) + "\n" for row in rows)
    ),
    "a.json": lambda path, rows: path.write_text(json.dumps(rows, indent=1)),
    "a.parquet": as_parquet,
}
"""Name of a file -> how rows are written to it."""


def plain(example: Any) -> object:
    """An example without its place."""
    match example:
        case Record():
            return example.fields
        case LabelledText() | Question() | ChoiceQuestion():
            return example._replace(path="", line=0)
    return example


def read(task: str, path: Path, **options: Any) -> tuple[list[object], int, int]:
    """The examples, how many rows were used, and how many were skipped."""
    report = ReadReport()
    examples = list(GOOD[task][0]([str(path)], DataConfig(**options), report))
    assert report.read == report.used + report.skipped
    return [plain(example) for example in examples], report.used, report.skipped


@pytest.mark.parametrize("task", GOOD)
def test_good_rows(task: str, tmp_path: Path) -> None:
    rows = GOOD[task][1]
    found = {}
    for name, write in WRITE.items():
        write(tmp_path / name, rows)
        found[name] = read(task, tmp_path / name)
    examples, used, skipped = found["a.csv"]
    assert (len(examples), used, skipped) == (2, 2, 0)
    # The blank before a text is one of those after a comma.
    if task == "text-generation":
        del found["spaced.csv"]
    assert [name for name, one in found.items() if one != found["a.csv"]] == []


@pytest.mark.parametrize("missing", ["text", "answer"])
@pytest.mark.parametrize("task", GOOD)
def test_rows_in_which_something_is_missing(task: str, missing: str, tmp_path: Path) -> None:
    """They are left out and counted, where that is asked for; else JSON Lines and JSON are refused with their
    line."""
    first, second = GOOD[task][1]
    empty = next(iter(first)) if missing == "text" else list(first)[-1]
    if task == "question-answering":
        empty = "question" if missing == "text" else "context"
    rows = [first, {**second, empty: None}, second]
    found = {}
    for name, write in WRITE.items():
        write(tmp_path / name, rows)
        found[name] = read(task, tmp_path / name, on_bad_line="skip")
    examples, used, skipped = found["a.csv"]
    assert (len(examples), used, skipped) == (2, 2, 1)
    if task == "text-generation":
        del found["spaced.csv"]
    assert [name for name, one in found.items() if one != found["a.csv"]] == []
    if (task, missing) == ("sentence-similarity", "answer"):
        # A pair without a score is always left out.
        return
    for name in ("a.jsonl", "absent.jsonl", "a.json"):
        with pytest.raises(DataError) as refusal:
            read(task, tmp_path / name)
        assert str(refusal.value).startswith(f"{tmp_path / name}:2: ")


@pytest.mark.parametrize("form", ["a.jsonl", "a.json", "a.parquet"])
@pytest.mark.parametrize("task", ["translation", "text-generation", "text-classification"])
def test_lists_of_texts_are_joined_where_it_is_said_how(
    task: str, form: str, tmp_path: Path
) -> None:
    first, second = GOOD[task][1]
    role = next(iter(first))
    rows = [{**first, role: ["one.", "two."]}, {**second, role: ["three."]}]
    path = tmp_path / form
    if form == "a.parquet":
        arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        parquet.write_table(arrow.Table.from_pylist(rows), path)
    else:
        WRITE[form](path, rows)
    with pytest.raises(
        DataError, match=r":1: .* must be a text, but is a list; .*--set data\.join="
    ):
        read(task, path)
    joined = [{**first, role: "one. two."}, {**second, role: "three."}]
    as_table(tmp_path / "joined.csv", joined, ",")
    assert read(task, path, join=" ") == read(task, tmp_path / "joined.csv")


@pytest.mark.parametrize("form", WRITE)
@pytest.mark.parametrize("task", ["translation", "text-generation", "text-classification"])
def test_several_columns_are_joined(task: str, form: str, tmp_path: Path) -> None:
    if form == "absent.jsonl":
        return
    rows = GOOD[task][1]
    setting = next(iter(rows[0]))
    parts = [{"before": f"<{at}>", **row} for at, row in enumerate(rows)]
    WRITE[form](tmp_path / form, parts)
    names = f"before,{setting}"
    joined = [{**row, setting: f"<{at}>~{row[setting].strip()}"} for at, row in enumerate(rows)]
    as_table(tmp_path / "joined.csv", joined, ",")
    given = {setting: names, "join": "~", **({"target": "target"} if task == "translation" else {})}
    found = read(task, tmp_path / form, **given)
    assert str(found).replace("~ ", "~") == str(read(task, tmp_path / "joined.csv"))


@pytest.mark.parametrize("form", [name for name in WRITE if name != "absent.jsonl"])
@pytest.mark.parametrize("setting", ["text", "source"])
def test_inputs_of_a_table_are_its_rows(setting: str, form: str, tmp_path: Path) -> None:
    """Not its lines: what is to be translated or scored is in a column. A blank one is answered."""
    rows = [
        {"id": "1", setting: "a cat, black"},
        {"id": "2", setting: ""},
        {"id": "3", setting: "b"},
    ]
    WRITE[form](tmp_path / form, rows)
    names: list[dict[str, Any]] = [{}, {setting: setting}]
    for named in names:
        report = ReadReport()
        found = list(read_texts(str(tmp_path / form), DataConfig(**named), report, every_line=True))
        assert [record.fields["text"] for record in found] == ["a cat, black", "", "b"]
        assert (report.used, report.skipped) == (3, 0)
    assert [
        record.fields["text"]
        for record in read_texts(str(tmp_path / form), DataConfig(text="id"), ReadReport())
    ] == ["1", "2", "3"]
