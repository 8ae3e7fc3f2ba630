"""Data sets of the hub as files: hf://datasets/NAME[:SPLIT], by the library `datasets`."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

from seqloom.errors import (
    DataError,
    FolderError,
    MissingExtraError,
    UsageError,
    one_line,
    printable,
)
from seqloom.files import write_atomic

SCHEME = "hf://datasets/"
FOLDER = Path(".seqloom-cache") / "datasets"
"""Where the files are, and stay."""
_NAME = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?(#[\w.-]+)?")


def fetched_dataset(word: str) -> str:
    """The parquet file of `hf://datasets/NAME[#CONFIGURATION][:SPLIT]` (train where none is named), fetched
    where it is not there yet.

    Raises UsageError for a name that is none, MissingExtraError without the extra `datasets`, and DataError
    if it cannot be fetched, such as offline.
    """
    name, _, split = word.removeprefix(SCHEME).partition(":")
    split = split or "train"
    if not _NAME.fullmatch(name) or not re.fullmatch(r"[\w.-]+", split):
        raise UsageError(
            f"{printable(word)}: a data set of the hub must be hf://datasets/NAME, NAME#CONFIGURATION or"
            " NAME:SPLIT, such as hf://datasets/stanfordnlp/imdb:test"
        )
    target = FOLDER / f"{re.sub(r'[^A-Za-z0-9.-]+', '--', name)}-{split}.parquet"
    if target.is_file():
        return str(target)
    try:
        datasets: Any = importlib.import_module("datasets")
    except ImportError:
        raise MissingExtraError(f"{SCHEME}NAME", "datasets") from None
    place, _, configuration = name.partition("#")
    try:
        data = datasets.load_dataset(place, configuration or None, split=split)
        target.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(target, data.to_parquet)
    except FolderError:  # of a disk that is full
        raise
    except Exception as error:  # noqa: BLE001  # of the network, the hub and the library
        raise DataError(
            f"{printable(word)}: cannot be fetched ({one_line(str(error), 300)}); go online, or give a file"
        ) from None
    return str(target)
