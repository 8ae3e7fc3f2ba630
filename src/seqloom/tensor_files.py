"""Safetensors files: opened where they are regular files whose header says one thing of each tensor."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple, TypedDict, final

from safetensors import SafetensorError, safe_open

from seqloom import files
from seqloom.errors import FolderError, printable

LONGEST_HEADER = 2**25
"""Bytes. 100,000 tensors need about half of it."""


class TensorEntry(TypedDict):
    """What the header says of a tensor; the library has checked it."""

    dtype: str
    shape: list[int]
    data_offsets: tuple[int, int]


@final
class SafetensorsHeader(NamedTuple):
    """What the beginning of a file says: a length, and so many bytes of JSON."""

    entries: dict[str, TensorEntry]
    """By the names of the tensors."""
    end: int
    """Where the numbers begin."""


def open_safetensors(path: Path) -> safe_open:
    """The library's view of a file. Raises FolderError for what is missing or damaged."""
    read_header(path)
    return _opened(path)


def read_header(path: Path) -> SafetensorsHeader:
    """The header, which must not say two things: the library takes one of two tensors of the same name.

    Raises FolderError for what is missing, damaged or too large to be believed.
    """
    with files.reading(path), files.open_regular(path) as file:
        length = int.from_bytes(file.read(8), "little")
        if length > LONGEST_HEADER:
            raise FolderError(
                f"must be a safetensors file with a header of at most {LONGEST_HEADER} bytes, but says that"
                f" it has {length}; get the file again",
                path,
            )
        content = file.read(length)
    # The library finds out whether the parts are in order.
    _opened(path)
    entries = files.parse_json(content, path)
    entries.pop("__metadata__", None)
    return SafetensorsHeader(entries, 8 + length)


def _opened(path: Path) -> safe_open:
    files.require_unicode(path)
    try:
        return safe_open(files.regular(path), framework="pt")
    except (OSError, SafetensorError) as error:
        raise FolderError(
            f"must be a safetensors file, but cannot be read ({printable(str(error))}); get it again",
            path,
        ) from None
