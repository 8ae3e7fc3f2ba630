"""The store of a corpus: the ids of all documents, one after the other, in one file that is mapped into
memory.

    u₁ .. u_L </s> v₁ .. v_M </s> ..

Where the marks of a tokenizer have no end, documents follow each other without one.

A stream for truncated backpropagation is the file itself, and so are packed windows (`windows.py`). The files
are those of `store.py` with one column; `meta.json` also has the totals, without which no bits per byte nor
perplexity per word can be told.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import final

import numpy as np
from numpy.typing import NDArray

from seqloom import files
from seqloom.data.batching.corpus_windows import CorpusIds
from seqloom.data.batching.token_store import (
    META,
    TokenIds,
    TokenType,
    array_files,
    dtype_of,
    map_arrays,
    open_or_build,
)
from seqloom.data.readers.documents import DocumentPiece
from seqloom.errors import DataError, FolderError, place
from seqloom.json_values import JsonObject
from seqloom.protocols import Tokenizer

FORMAT = 1
"""Raised whenever what is written changes its meaning."""
CHUNK = 2**19
"""Characters that are tokenised together; two such chunks are in memory at one time."""
SMALL = 256
"""Characters that a piece counts for at least, since it costs memory too."""


@final
@dataclass(kw_only=True)
class Totals:
    """What a corpus holds. Bytes, characters and words are those of the texts as they were read."""

    documents: int = 0
    ids: int = 0
    """With one `</s>` for each document, where there is one: the number of predictions."""
    unknown: int = 0
    """`<unk>` among the ids."""
    bytes: int = 0
    """Of the texts in UTF-8."""
    characters: int = 0
    words: int = 0
    """The pieces between white space."""


@final
@dataclass(frozen=True, eq=False)
class CorpusStore:
    """Documents as ids: `store.document(number)`; and all of them in a row: `store.tokens`. As a key it is
    equal to no other."""

    tokens: TokenIds
    """`(ids,)`"""
    offsets: NDArray[np.int64]
    """`(documents + 1,)`: where each document starts, and where the last ends."""
    lines: NDArray[np.int64]
    """`(documents,)`: the line of its file where each document starts."""
    totals: Totals
    folder: Path
    ended: bool = True
    """Whether each document has its `</s>`."""

    @classmethod
    def of(cls, documents: Sequence[CorpusIds], eos: int | None) -> CorpusStore:
        """One in memory, of these ids, which come from no file."""
        end = [] if eos is None else [np.asarray([eos], documents[0].dtype)]
        parts = [part for document in documents for part in (document, *end)]
        lengths = [len(document) + len(end) for document in documents]
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        totals = Totals(documents=len(documents), ids=int(offsets[-1]))
        lines = np.zeros(len(documents), np.int64)
        return cls(np.concatenate(parts), offsets, lines, totals, Path(), bool(end))

    def __len__(self) -> int:
        """How many documents there are."""
        return len(self.lines)

    def document(self, number: int) -> TokenIds:
        """The ids of one document, without its `</s>`."""
        return self.tokens[self.offsets[number] : self.offsets[number + 1] - self.ended]

    def place(self, position: int) -> str:
        """`path:line` where the document of the id at `position` starts; the path is that of the first
        reading."""
        number = int(np.searchsorted(self.offsets, position, side="right")) - 1
        path = ""
        with files.open_regular(self.folder / "files.jsonl") as file:
            for line in file:
                first, name = json.loads(line)
                if first > number:
                    break
                path = name
        return place(path, int(self.lines[number]))


def build_corpus(
    pieces: Callable[[], Iterable[DocumentPiece]],
    tokenizer: Tokenizer,
    identity: JsonObject,
    folder: Path,
    progress: Callable[[Totals], None] = lambda totals: None,
) -> CorpusStore:
    """The store of these documents: opened where it exists, built where not.

    `identity` tells what the documents are (hashes, read options, what is held out) and what tokenises them.
    `progress` hears the totals so far. Raises DataError if there is no document at all, FolderError if
    the disk is full.
    """
    meta = {"corpus": FORMAT, "end": tokenizer.special_ids.eos, **identity}

    def write(place: Path) -> JsonObject:
        return {"totals": asdict(_write(pieces(), tokenizer, place, progress))}

    return open_or_build(meta, folder, write, open_corpus)


def open_corpus(place: Path) -> CorpusStore | None:
    """Maps a finished store; None if its files are not as long as they must be."""
    try:
        meta = files.read_json(place / META)
        totals, ended = Totals(**meta["totals"]), meta["end"] is not None
        tokens, offsets, lines = map_arrays(place)
    except (FolderError, OSError, ValueError, KeyError, TypeError):
        return None
    fits = (
        len(offsets) == len(lines) + 1 == totals.documents + 1
        and len(tokens) == offsets[-1] == totals.ids
    )
    if not fits or not files.is_there(place / "files.jsonl"):
        return None
    return CorpusStore(tokens, offsets, lines, totals, place, ended)


def _write(
    pieces: Iterable[DocumentPiece],
    tokenizer: Tokenizer,
    folder: Path,
    progress: Callable[[Totals], None],
) -> Totals:
    totals, dtype = Totals(), dtype_of(tokenizer)
    unk, eos = tokenizer.special_ids.unk, tokenizer.special_ids.eos
    with (
        array_files(folder, dtype) as (tokens, offsets, lines),
        open(folder / "files.jsonl", "w", encoding="utf-8") as names,
    ):
        offsets.write(np.zeros(1, np.int64).data)
        path, begins = "", True  # the file that was named last; whether a piece begins a document
        for chunk, rows in _encoded(pieces, tokenizer, dtype):
            last = np.array([piece.last for piece in chunk])
            first = np.concatenate([[begins], last[:-1]])
            begins = bool(last[-1])
            for number, index in enumerate(np.flatnonzero(first).tolist(), totals.documents):
                if chunk[index].path != path:
                    path = chunk[index].path
                    names.write(json.dumps([number, path]) + "\n")
            ids = b"".join(rows)
            ends = totals.ids + np.cumsum([len(row) // dtype.itemsize for row in rows])
            tokens.write(ids)
            offsets.write(ends[last].tobytes())
            lines.write(np.array([piece.line for piece in chunk])[first].tobytes())
            totals.ids = int(ends[-1])
            totals.documents += int(last.sum())
            if unk is not None and unk != eos:
                totals.unknown += int(np.count_nonzero(np.frombuffer(ids, dtype) == unk))
            _count(totals, chunk)
            progress(totals)
        if not totals.documents:
            raise DataError("there must be at least one document, but there is none")
    return totals


def _encoded(
    pieces: Iterable[DocumentPiece], tokenizer: Tokenizer, dtype: np.dtype[TokenType]
) -> Iterator[tuple[list[DocumentPiece], list[bytes]]]:
    """Chunks of pieces with their ids, which the end of a document follows. While one is tokenised the next
    is read."""
    eos = tokenizer.special_ids.eos
    ends = array(dtype.char, [] if eos is None else [eos])

    def encode(chunk: list[DocumentPiece]) -> list[bytes]:
        encoded = tokenizer.encode([piece.text for piece in chunk])
        rows = [array(dtype.char, ids) for ids in encoded]
        return [
            (row + ends if piece.last else row).tobytes()
            for row, piece in zip(rows, chunk, strict=True)
        ]

    with ThreadPoolExecutor(1) as background:
        waiting: tuple[list[DocumentPiece], Future[list[bytes]]] | None = None
        for chunk in _chunks(pieces):
            ahead = chunk, background.submit(encode, chunk)
            if waiting is not None:
                yield waiting[0], waiting[1].result()
            waiting = ahead
        if waiting is not None:
            yield waiting[0], waiting[1].result()


def _chunks(pieces: Iterable[DocumentPiece]) -> Iterator[list[DocumentPiece]]:
    chunk: list[DocumentPiece] = []
    size = 0
    for piece in pieces:
        chunk.append(piece)
        size += len(piece.text) + SMALL
        if size >= CHUNK:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def _count(totals: Totals, chunk: list[DocumentPiece]) -> None:
    """Adds up texts. A piece is cut before white space, so no word is in two."""
    text = "\n".join(piece.text for piece in chunk)
    between = len(chunk) - 1
    totals.characters += len(text) - between
    totals.bytes += len(text.encode()) - between
    totals.words += len(text.split())
