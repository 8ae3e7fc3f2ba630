"""Files of sentences with tags: written, read, refused."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pytest

from seqloom.config import DataConfig
from seqloom.data.formats.read_report import ReadReport
from seqloom.data.readers.examples import TaggedWords
from seqloom.data.readers.tagged import read_tagged
from seqloom.errors import DataError


def write(folder: Path, name: str, content: str | bytes) -> str:
    path = folder / name
    raw = content if isinstance(content, bytes) else content.encode()
    path.write_bytes(gzip.compress(raw) if name.endswith(".gz") else raw)
    return str(path)


def read(
    *paths: str, report: ReadReport | None = None, answers: bool = True, **options: Any
) -> list[TaggedWords]:
    report = report or ReadReport()
    found = list(read_tagged(paths, DataConfig(**options), report, answers=answers))
    assert report.used == len(found)
    assert report.read == report.used + report.skipped
    assert all(len(one.tags) == (len(one.words) if answers else 0) for one in found)
    return found


def refusal(*paths: str, answers: bool = True, **options: Any) -> str:
    report = ReadReport()
    with pytest.raises(DataError) as caught:
        list(read_tagged(paths, DataConfig(**options), report, answers=answers))
    assert "\n" not in str(caught.value)
    assert report.rejected == (caught.value.line is not None)
    return str(caught.value)
