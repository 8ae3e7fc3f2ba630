"""Parquet gives the records that the same rows give in other forms."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from seqloom.config import DataConfig
from seqloom.data.formats.read_report import ReadReport
from seqloom.data.readers.documents import read_documents
from seqloom.data.readers.records import read_pairs
from seqloom.errors import DataError, MissingExtraError, UsageError


def write(path: Path, columns: dict[str, list[Any]]) -> str:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    parquet.write_table(arrow.table(columns), path, row_group_size=2)
    return str(path)


def texts(path: str, report: ReadReport | None = None, **options: Any) -> list[tuple[str, int]]:
    return [
        (piece.text, piece.line)
        for piece in read_documents([path], DataConfig(**options), report or ReadReport())
    ]


def test_rows_are_documents(tmp_path: Path) -> None:
    path = write(
        tmp_path / "a.parquet",
        {"id": [1, 2, 3, 4], "text": ["one\ntwo", None, " ", " äé "], "other": list("abcd")},
    )
    report = ReadReport()
    assert texts(path, report) == [("one\ntwo", 1), (" äé ", 4)]
    assert {reason: count.number for reason, count in report.skips.items()} == {"blank": 2}
    assert not report.notes
    assert [text for text, _ in texts(path, text="other")] == list("abcd")
    (tmp_path / "b").write_bytes(Path(path).read_bytes())
    assert len(texts(str(tmp_path / "b"), format="parquet")) == 2


def test_rows_are_pairs(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", {"en": ["one", "two"], "de": ["eins", "zwei"]})
    records = list(read_pairs([path], DataConfig(), ReadReport()))
    assert [record.fields for record in records] == [
        {"source": "one", "target": "eins"},
        {"source": "two", "target": "zwei"},
    ]


def test_large_and_dictionary_columns(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    values = ["one", "two", "one"]
    for kind in (arrow.large_string(), arrow.dictionary(arrow.int32(), arrow.string())):
        path = write(tmp_path / "a.parquet", {"text": arrow.array(values).cast(kind)})
        assert [text for text, _ in texts(path)] == values


def test_what_is_wrong_is_said(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", {"id": [1], "label": ["x"]})
    with pytest.raises(
        DataError,
        match=r"a\.parquet: the column of the text is not known by name \(found: 'id', 'label'\)",
    ):
        texts(path)
    with pytest.raises(DataError, match="parquet:1: 'id' must be a text, but is a number"):
        texts(path, text="id")
    (tmp_path / "b.parquet").write_bytes(Path(path).read_bytes()[:-9])
    with pytest.raises(
        DataError, match=r"b\.parquet: must be a whole Parquet file, but cannot be read \("
    ):
        texts(str(tmp_path / "b.parquet"))
    path = write(tmp_path / "c.parquet", {"text": ["a", "b\0"]})
    with pytest.raises(DataError, match=r"c\.parquet:2: a text holds"):
        texts(path)
    assert texts(path, on_bad_line="skip") == [("a", 1)]
    with pytest.raises(UsageError, match=r"data\.format is text"):
        list(read_pairs([path], DataConfig(format="text"), ReadReport()))


def test_without_pyarrow_the_command_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    with pytest.raises(
        MissingExtraError,
        match=r"reading Parquet needs the extra `hub`.*pip install 'seqloom\[hub\]'",
    ):
        texts(str(tmp_path / "a.parquet"))
