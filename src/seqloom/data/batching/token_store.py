"""The token store: a text tokenised once, in parallel, into files that are mapped into memory.

    .seqloom-cache/HASH/   beside the data (where that folder is read-only: $XDG_CACHE_HOME/seqloom/HASH)
        tokens.bin         all ids, row after row, column after column; uint16, or uint32 where they are many
        offsets.npy        int64: where each sequence starts (rows * columns + 1)
        lines.npy          int64: the line of its file that each row came from
        meta.json          what it was built from, and the checksums of the files; HASH is the hash of the
                           former, so any change builds a new store

Memory does not grow with the text: records are read, tokenised and written in chunks.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import BinaryIO, TypeVar, final

import numpy as np
from numpy.typing import NDArray

from seqloom import files, manifest
from seqloom.data.formats.columns import Record
from seqloom.errors import DataError, FolderError, printable
from seqloom.json_values import JsonObject, as_object
from seqloom.protocols import Tokenizer

logger = logging.getLogger(__name__)

META = "meta.json"
FORMAT = 1
"""Raised whenever what is written changes its meaning."""
CHUNK = 1024
"""Records that are in memory at one time."""

Store = TypeVar("Store")
Item = TypeVar("Item")
TokenType = np.uint16 | np.uint32
TokenIds = NDArray[TokenType]


@final
@dataclass(frozen=True)
class TokenStore:
    """Rows of sequences of ids: `store.sequence(row, column)`."""

    columns: tuple[str, ...]
    tokens: TokenIds
    offsets: NDArray[np.int64]
    lines: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.lines)

    def sequence(self, row: int, column: int) -> TokenIds:
        """The ids of one text, without start or end marks."""
        at = row * len(self.columns) + column
        return self.tokens[self.offsets[at] : self.offsets[at + 1]]

    def lengths(self, rows: NDArray[np.int64], column: int) -> NDArray[np.int64]:
        """`(n,)`: how many ids each row has in a column."""
        at = rows * len(self.columns) + column
        return np.asarray(self.offsets[at + 1] - self.offsets[at])


def build_store(
    records: Callable[[], Iterable[Record]],
    tokenizers: Mapping[str, Tokenizer],
    identity: JsonObject,
    folder: Path,
    progress: Callable[[int], None] = lambda rows: None,
) -> TokenStore:
    """The store of these records: opened where it exists, built where not.

    `tokenizers`: the columns in their order, and what tokenises each; their ids are of one vocabulary.
    `identity` tells what the records are (paths, sizes, hashes, read options) and what tokenises them. Raises
    DataError if there is no record at all, FolderError if the disk is full.
    """
    meta = {"format": FORMAT, "columns": list(tokenizers), **identity}

    def write(place: Path) -> JsonObject:
        _write(records(), tokenizers, place, progress)
        return {}

    return open_or_build(meta, folder, write, open_store)


def open_or_build(
    meta: JsonObject,
    folder: Path,
    write: Callable[[Path], JsonObject],
    opened: Callable[[Path], Store | None],
) -> Store:
    """The store in `folder/HASH`, HASH being that of `meta`: opened where it exists and is as it was written,
    written where not, with a `meta.json` of `meta`, what `write` returns and the checksums of the files.

    One process writes, others wait for it; it is seen whole or not at all.
    """
    digest = _digest(meta)[:24]
    place, temporary = folder / digest, folder / f"{digest}.tmp"
    with files.writing(place):
        folder.mkdir(parents=True, exist_ok=True)
        with files.locked(folder / f"{digest}.lock", wait=True):
            if os.path.lexists(place):
                problem = _damage(place, meta)
                if problem is None and (store := opened(place)) is not None:
                    return store
                reason = problem or "its files do not fit together"
                logger.info(
                    f"{printable(str(place))}: this data cache is damaged ({reason}), so it is built again"
                )
            for old in (temporary, place):  # left by a killed process, or damaged since
                files.remove(old)
            temporary.mkdir()
            try:
                content = {**meta, **write(temporary)}
                content["contents"] = {
                    path.name: _checksum(path) for path in sorted(temporary.iterdir())
                }
                manifest.write_checked(temporary / META, content)
                for path in temporary.iterdir():
                    files.flush_file(path)
                os.replace(temporary, place)
                files.flush_folder(folder)
            finally:
                shutil.rmtree(temporary, ignore_errors=True)
    store = opened(place)
    if store is None:
        raise FolderError(
            f"{printable(str(place))}: the token store must be what was just written, but is not; is the disk"
            " sound?"
        )
    return store


def _digest(content: JsonObject) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _checksum(path: Path) -> list[int]:
    """Size and CRC-32: twice as fast as SHA-256, and enough against accidents. Whoever can forge a cache can
    change the data beside it."""
    crc = size = 0
    with files.open_regular(path) as file:
        while block := file.read(2**20):
            crc, size = zlib.crc32(block, crc), size + len(block)
    return [size, crc]


def _damage(place: Path, meta: JsonObject) -> str | None:
    """What is wrong with the files of a finished store; None if they are as they were written."""
    try:
        stored = manifest.read_checked(place / META)
    except FolderError as error:
        return str(error)
    contents = as_object(stored.get("contents"))
    if contents is None:
        return f"{META} has no checksums"
    if _digest({key: stored.get(key) for key in meta}) != _digest(meta):
        return f"{META} is that of another cache"
    for name, expected in contents.items():
        path = place / name
        if path.is_symlink() or not path.is_file():
            return f"{name} is missing"
        if _checksum(path) != expected:
            return f"{name} is not as it was written"
    return None


def open_store(place: Path) -> TokenStore | None:
    """Maps a finished store; None if its files are not as long as they must be."""
    try:
        columns = tuple(files.read_json(place / META)["columns"])
        tokens, offsets, lines = map_arrays(place)
    except (FolderError, OSError, ValueError, KeyError, TypeError):
        return None
    fits = len(offsets) == len(lines) * len(columns) + 1 and len(tokens) == offsets[-1]
    return TokenStore(columns, tokens, offsets, lines) if fits else None


def map_arrays(place: Path) -> tuple[TokenIds, NDArray[np.int64], NDArray[np.int64]]:
    """(tokens, offsets, lines) of a store. Raises OSError or ValueError if a file is missing or
    damaged."""
    dtype = _token_type((place / "tokens.bin.uint16").exists())
    path = place / f"tokens.bin.{dtype.name}"
    tokens: TokenIds = (
        np.memmap(files.regular(path), dtype=dtype, mode="r")
        if path.stat().st_size
        else np.empty(0, dtype)
    )
    offsets, lines = (
        np.lib.format.open_memmap(files.regular(place / f"{name}.npy"), mode="r")
        for name in ("offsets", "lines")
    )
    return tokens, offsets, lines


def _write(
    records: Iterable[Record],
    tokenizers: Mapping[str, Tokenizer],
    folder: Path,
    progress: Callable[[int], None],
) -> None:
    dtype, rows = dtype_of(next(iter(tokenizers.values()))), 0
    with array_files(folder, dtype) as (tokens, offsets, lines):
        end = 0
        offsets.write(np.zeros(1, np.int64).data)
        for chunk in chunked(records, CHUNK):
            columns = []
            for name, tokenizer in tokenizers.items():
                columns.append(tokenizer.encode([record.fields[name] for record in chunk]))
            ids = list(chain.from_iterable(zip(*columns, strict=True)))
            ends = end + np.cumsum([len(sequence) for sequence in ids], dtype=np.int64)
            # tofile() hides why it failed
            tokens.write(np.concatenate([np.asarray(sequence, dtype) for sequence in ids]).data)
            offsets.write(ends.data)
            lines.write(np.asarray([record.line for record in chunk], np.int64).data)
            end, rows = int(ends[-1]), rows + len(chunk)
            progress(rows)
        if not rows:
            raise DataError("there must be at least one usable example, but there is none")


def dtype_of(tokenizer: Tokenizer) -> np.dtype[TokenType]:
    return _token_type(tokenizer.vocabulary_size <= 2**16)


def _token_type(small: bool) -> np.dtype[TokenType]:
    return np.dtype(np.uint16) if small else np.dtype(np.uint32)


@contextmanager
def array_files(
    folder: Path, dtype: np.dtype[TokenType]
) -> Iterator[tuple[BinaryIO, BinaryIO, BinaryIO]]:
    """Files to write the arrays of a store to: tokens, and offsets and lines as raw int64, which become .npy
    in the end."""
    with (
        open(folder / f"tokens.bin.{dtype.name}", "wb") as tokens,
        open(folder / "offsets.raw", "wb") as offsets,
        open(folder / "lines.raw", "wb") as lines,
    ):
        yield tokens, offsets, lines
    for name in ("offsets", "lines"):
        _as_npy(folder / f"{name}.raw", folder / f"{name}.npy")


def _as_npy(raw: Path, path: Path) -> None:
    """Puts the header of an .npy file before raw int64 numbers, without reading them all."""
    values = np.memmap(files.regular(raw), dtype=np.int64, mode="r")
    with open(path, "wb") as file:
        np.lib.format.write_array_header_1_0(file, np.lib.format.header_data_from_array_1_0(values))
        with files.open_regular(raw) as source:
            shutil.copyfileobj(source, file)
    raw.unlink()


def chunked(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    iterator = iter(items)
    while chunk := list(islice(iterator, size)):
        yield chunk


def cache_folder(data: Path) -> Path:
    """Where the stores of a data file are: beside it if a file can be written there."""
    beside = data.parent / ".seqloom-cache"
    try:
        beside.mkdir(exist_ok=True)
        with tempfile.TemporaryFile(dir=beside):
            return beside
    except OSError:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "seqloom"


def fingerprint(path: str) -> dict[str, object]:
    """What distinguishes versions of a data file: name, size and SHA-256."""
    return {"path": path, "bytes": os.path.getsize(path), "sha256": files.sha256(Path(path))}
