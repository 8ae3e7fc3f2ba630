"""Files of sentences with tags: written, read, refused."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pytest

from seqloom.config import DataConfig
from seqloom.data.formats.lines import Tally
from seqloom.data.readers.examples import TaggedWords
from seqloom.data.readers.tagged import read_tagged
from seqloom.errors import DataError


def write(folder: Path, name: str, content: str | bytes) -> str:
    path = folder / name
    raw = content if isinstance(content, bytes) else content.encode()
    path.write_bytes(gzip.compress(raw) if name.endswith(".gz") else raw)
    return str(path)


def read(*paths: str, tally: Tally | None = None, answers: bool = True, **options: Any) -> list[TaggedWords]:
    tally = tally or Tally()
    found = list(read_tagged(paths, DataConfig(**options), tally, answers=answers))
    assert tally.used == len(found)
    assert tally.read == tally.used + tally.skipped
    assert all(len(one.tags) == (len(one.words) if answers else 0) for one in found)
    return found


def refusal(*paths: str, answers: bool = True, **options: Any) -> str:
    tally = Tally()
    with pytest.raises(DataError) as caught:
        list(read_tagged(paths, DataConfig(**options), tally, answers=answers))
    assert "\n" not in str(caught.value)
    assert tally.rejected == (caught.value.line is not None)
    return str(caught.value)
