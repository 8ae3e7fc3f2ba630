"""Data sets of the hub, by a stand-in for the library `datasets`: nothing here has a network."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from seqloom.errors import DataError, MissingExtraError, UsageError
from seqloom.interop.hub_datasets import fetched_dataset


class Datasets:
    """`load_dataset(name, configuration, split=...)`, and `to_parquet` of what it gives."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str | None, str]] = []

    def load_dataset(self, name: str, configuration: str | None, *, split: str) -> Datasets:
        self.asked.append((name, configuration, split))
        if name == "no/network":
            raise ConnectionError("Couldn't reach\nthe hub")
        return self

    def to_parquet(self, file: BinaryIO) -> None:
        pq.write_table(pa.table({"text": ["a", "b"], "label": ["x", "y"]}), file)


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Datasets:
    monkeypatch.chdir(tmp_path)
    found = Datasets()
    monkeypatch.setitem(sys.modules, "datasets", found)
    return found


def test_a_data_set_is_fetched_once_and_read_as_parquet(library: Datasets) -> None:
    path = fetched_dataset("hf://datasets/a/films#plain:test")
    assert path == ".seqloom-cache/datasets/a--films--plain-test.parquet"
    assert pq.read_table(path).column_names == ["text", "label"]
    assert fetched_dataset("hf://datasets/a/films#plain:test") == path
    assert library.asked == [("a/films", "plain", "test")]
    fetched_dataset("hf://datasets/glue")
    assert library.asked[-1] == ("glue", None, "train")


def test_offline_is_one_line(library: Datasets) -> None:
    with pytest.raises(DataError, match=r"cannot be fetched \(Couldn't reach the hub\); go online"):
        fetched_dataset("hf://datasets/no/network")
    assert not list(Path(".seqloom-cache/datasets").glob("*.parquet"))


@pytest.mark.parametrize("name", ["", "a/b/c", "../x", "a:b/c"])
def test_a_name_that_is_none_is_refused(name: str, library: Datasets) -> None:
    with pytest.raises(UsageError, match="must be hf://datasets/NAME"):
        fetched_dataset(f"hf://datasets/{name}")


def test_without_the_library_its_extra_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(MissingExtraError, match=r"seqloom\[datasets\]"):
        fetched_dataset("hf://datasets/glue")
