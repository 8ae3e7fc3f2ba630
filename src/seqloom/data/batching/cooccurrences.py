"""How often words are near each other in a corpus, counted once into a file that is mapped into memory.

    .seqloom-cache/HASH/   beside the store of the corpus
        cells.bin          row and column (int32) and count (float32) of each cell that is not 0, shuffled
        meta.json          what it was counted from

Two words of a sentence at a distance d of at most `window` count 1/d in both directions. Memory grows neither
with the text nor with the number of cells: pairs are counted a piece of text at a time, each piece is written
as a sorted part, and the parts are merged, as in GloVe's program (Pennington et al. 2014). Cells are shuffled
as they are written, so that any piece of the file is a sample of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from seqloom import files
from seqloom.data.batching.corpus_store import CorpusStore
from seqloom.data.batching.token_store import open_or_build
from seqloom.json_values import JsonObject
from seqloom.text.special_tokens import SPECIAL_TOKENS

FORMAT = 1
"""Raised whenever what is written changes its meaning."""
PAIRS = 2**23
"""Pairs of words, and cells, that are in memory at one time."""
CELL = np.dtype([("row", np.int32), ("column", np.int32), ("count", np.float32)])
DISTANCES = 2**6
"""More than any distance."""

CellArray = NDArray[np.void]


class Part(NamedTuple):
    """Cells in the order of their keys, each with row ≤ column."""

    keys: NDArray[np.int64]
    """row · vocabulary + column"""
    counts: NDArray[np.float64]
    """In units of 1 / lcm(1..window): these sums are exact, in whatever order."""


class NearWords(NamedTuple):
    """A piece of text, after the last words of the one before it."""

    ids: NDArray[np.int64]
    sentences: NDArray[np.int64]
    """The number of the sentence of each word."""
    new: int
    """Where the words begin that no piece before had."""


def build_cells(
    corpus: CorpusStore, vocabulary: int, window: int, progress: Callable[[int], None]
) -> CellArray:
    """The cells of this corpus: opened where they were counted before, counted where not. `progress` hears
    how many tokens are counted so far."""
    meta = {"cooccurrences": FORMAT, "corpus": corpus.folder.name, "window": window}

    def write(place: Path) -> JsonObject:
        parts = []
        for number, piece in enumerate(_pieces(corpus, PAIRS // window, window, progress)):
            parts.append(_on_disk(place / f"{number}", _counted(piece, vocabulary, window)))
        unit = math.lcm(*range(1, window + 1))
        _write_shuffled(place, parts, vocabulary, unit)
        for path in place.glob("*.npy"):
            path.unlink()
        return {}

    return open_or_build(meta, corpus.folder.parent, write, _opened)


def _opened(place: Path) -> CellArray | None:
    path = place / "cells.bin"
    if not path.stat().st_size:
        return np.empty(0, CELL)
    return np.memmap(files.regular(path), dtype=CELL, mode="r")


def _pieces(
    corpus: CorpusStore, size: int, window: int, progress: Callable[[int], None]
) -> Iterator[NearWords]:
    """Special tokens and unknown words are left out; the words around them become neighbours."""
    ids = sentences = np.empty(0, np.int64)
    for start in range(0, len(corpus.tokens), size):
        stop = min(start + size, len(corpus.tokens))
        tokens = corpus.tokens[start:stop].astype(np.int64)
        numbers = np.searchsorted(corpus.offsets, np.arange(start, stop), side="right")
        is_word = tokens >= len(SPECIAL_TOKENS)
        before = ids[-window:], sentences[-window:]
        ids = np.concatenate([before[0], tokens[is_word]])
        sentences = np.concatenate([before[1], numbers[is_word]])
        yield NearWords(ids, sentences, len(before[0]))
        progress(stop)


def _counted(piece: NearWords, vocabulary: int, window: int) -> Part:
    """The pairs whose second word is new. A key has the distance in its last digits, so that sorting keys
    alone brings pairs of the same words together."""
    found = []
    for distance in range(1, min(window, len(piece.ids) - 1) + 1):
        is_pair = piece.sentences[:-distance] == piece.sentences[distance:]
        is_pair[: max(piece.new - distance, 0)] = False
        left, right = piece.ids[:-distance][is_pair], piece.ids[distance:][is_pair]
        keys = np.minimum(left, right) * vocabulary + np.maximum(left, right)
        found.append(keys * DISTANCES + distance)
    sorted_keys = np.sort(np.concatenate([np.empty(0, np.int64), *found]))
    weights = np.array([0, *(math.lcm(*range(1, window + 1)) / d for d in range(1, DISTANCES))])
    return _summed(Part(sorted_keys // DISTANCES, weights[sorted_keys % DISTANCES]))


def _summed(cells: Part) -> Part:
    """Cells in the order of their keys, some more than once -> each once."""
    if not len(cells.keys):
        return cells
    first = np.flatnonzero(np.diff(cells.keys, prepend=-1))
    return Part(cells.keys[first], np.add.reduceat(cells.counts, first))


def _on_disk(path: Path, part: Part) -> Part:
    """The same, mapped into memory."""
    names = [path.with_suffix(f".{name}.npy") for name in ("keys", "counts")]
    for name, values in zip(names, part, strict=True):
        np.save(name, values)
    return Part(np.load(names[0], mmap_mode="r"), np.load(names[1], mmap_mode="r"))


def _merged(parts: Sequence[Part]) -> Iterator[Part]:
    """All cells in the order of their keys, at most PAIRS at one time."""
    waiting = [part for part in parts if len(part.keys)]
    while waiting:
        size = max(PAIRS // len(waiting), 1)
        # what is in no part's next block is behind the last of one block
        limit = min(part.keys[:size][-1] for part in waiting)
        blocks, rest = [], []
        for keys, counts in waiting:
            end = int(np.searchsorted(keys[:size], limit, side="right"))
            blocks.append(Part(keys[:end], counts[:end]))
            rest.append(Part(keys[end:], counts[end:]))
        keys = np.concatenate([block.keys for block in blocks])
        counts = np.concatenate([block.counts for block in blocks])
        order = keys.argsort(kind="stable")
        yield _summed(Part(keys[order], counts[order]))
        waiting = [part for part in rest if len(part.keys)]


def _write_shuffled(place: Path, parts: Sequence[Part], vocabulary: int, unit: int) -> None:
    """Each cell goes to a bucket that is drawn; then each bucket is shuffled in memory."""
    random = np.random.default_rng(0)
    most = 2 * sum(len(part.keys) for part in parts)
    paths = [place / f"{number}.bucket" for number in range(-(-most // PAIRS) or 1)]
    for path in paths:
        path.touch()
    for part in _merged(parts):
        cells = _both_directions(part, vocabulary, unit)
        drawn = random.integers(len(paths), size=len(cells))
        for number, path in enumerate(paths):
            with open(path, "ab") as bucket:
                bucket.write(cells[drawn == number].tobytes())
    with open(place / "cells.bin", "wb") as whole:
        for path in paths:
            cells = np.frombuffer(path.read_bytes(), CELL)
            whole.write(cells[random.permutation(len(cells))].tobytes())
            path.unlink()


def _both_directions(part: Part, vocabulary: int, unit: int) -> CellArray:
    """A word near itself is so twice, once in each direction."""
    rows, columns = np.divmod(part.keys, vocabulary)
    counts = part.counts / unit * np.where(rows == columns, 2, 1)
    mirrored = rows != columns
    cells = np.empty(len(rows) + int(mirrored.sum()), CELL)
    cells["row"] = np.concatenate([rows, columns[mirrored]])
    cells["column"] = np.concatenate([columns, rows[mirrored]])
    cells["count"] = np.concatenate([counts, counts[mirrored]])
    return cells
