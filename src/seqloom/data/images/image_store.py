"""The image store: pictures read and resized once, into files that are mapped into memory; its batches.

    .seqloom-cache/HASH/   beside the data
        pixels.bin         uint8 (rows, size, size, channels)
        labels.npy         int64: the number of each row's label; 0 where images are read without labels
        places.json        names of the labels, in order; which file each row came from
        meta.json          what it was built from

The order of an epoch is a function of (seed, epoch). A row of a batch is `epoch * len(store) + row`, so that
what is random about it can be a function of these two.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from seqloom import files
from seqloom.data.batching.order import order
from seqloom.data.batching.token_store import open_or_build
from seqloom.data.formats.columns import first_few
from seqloom.data.images.image_files import Picture
from seqloom.data.images.preprocessing import Preprocessing, shifted
from seqloom.data.readers.labels import label_order
from seqloom.errors import DataError, FolderError, place
from seqloom.json_values import JsonObject
from seqloom.protocols import Rows
from seqloom.shapes import IGNORE

FORMAT = 1
"""Raised whenever what is written changes its meaning."""


class ImageBatch(NamedTuple):
    images: Tensor
    """`(rows, channels, height, width)`"""
    labels: Tensor
    """`(rows,)`, IGNORE where nothing is trained."""


@final
@dataclass(frozen=True)
class ImageStore:
    """Rows of pictures of one size."""

    pixels: NDArray[np.uint8]
    labels: NDArray[np.int64]
    names: tuple[str, ...]
    """Of the labels, in order: whole numbers by size, else texts; none where images are read without labels.
    """
    places: list[tuple[str, int, bool]]
    """(path, its first row, whether it holds many)."""
    changed: dict[str, int]
    """How many pictures were resized and recoloured, in words."""

    def __len__(self) -> int:
        return len(self.labels)

    def place(self, row: int) -> str:
        """Where a row came from, such as `digits.npz:17`."""
        index = bisect.bisect_right(self.places, row, key=lambda file: file[1]) - 1
        path, first, many = self.places[index]
        number = row - first + 1 if many else None
        return place(path, number)

    def numbered(self, names: tuple[str, ...]) -> ImageStore:
        """The same with the labels of a model. Raises DataError if a label is not one of these."""
        ids = {name: index for index, name in enumerate(names)}
        for number, name in enumerate(self.names):
            if name not in ids:
                first = int(np.flatnonzero(self.labels == number)[0])
                raise DataError(f"{self.place(first)}: {unknown_label(name, names)}")
        labels = np.array([ids[name] for name in self.names])[self.labels]
        return replace(self, labels=labels, names=names)


def unknown_label(name: str, names: Iterable[str]) -> str:
    """The message for a label that a model was not trained for."""
    shown = first_few([repr(known) for known in names], 20)
    return f"the label must be one of those of the training ({shown}), but is {name!r}"


def build_image_store(
    pictures: Callable[[], Iterable[Picture]],
    preprocessing: Preprocessing,
    identity: JsonObject,
    folder: Path,
) -> ImageStore:
    """The store of these pictures: opened where it exists, built where not.

    Raises DataError if there is no picture, FolderError if the disk is full.
    """
    meta = {"format": FORMAT, "preprocessing": preprocessing.to_json(), **identity}

    def write(folder: Path) -> JsonObject:
        _write(pictures(), preprocessing, folder)
        return {}

    return open_or_build(meta, folder, write, open_image_store)


def _write(pictures: Iterable[Picture], preprocessing: Preprocessing, folder: Path) -> None:
    size = [preprocessing.size, preprocessing.size, preprocessing.channels]
    labels: list[int] = []
    numbers: dict[str | None, int] = {}  # of labels, in the order in which they occur
    places: list[tuple[str, int, bool]] = []
    resized = recoloured = 0
    with open(folder / "pixels.bin", "wb") as file:
        for row, picture in enumerate(pictures):
            if not places or places[-1][0] != picture.path:
                places.append((picture.path, row, picture.number is not None))
            labels.append(numbers.setdefault(picture.label, len(numbers)))
            fitted = preprocessing.fitted(picture.pixels)
            resized += picture.pixels.shape[:2] != fitted.shape[:2]
            recoloured += picture.pixels.shape[2] != fitted.shape[2]
            file.write(fitted.tobytes())
    if not labels:
        raise DataError("there must be at least one image, but there is none")
    names = label_order(name for name in numbers if name is not None)
    rank = {name: index for index, name in enumerate(names)}
    ranks = np.array([rank.get(str(name), 0) for name in numbers], np.int64)
    np.save(folder / "labels.npy", ranks[labels], allow_pickle=False)
    changed = {}
    if resized:
        changed[f"are resized to {size[0]} x {size[1]} (model.image_size)"] = resized
    if recoloured:
        changed["change colours (model.channels)"] = recoloured
    files.write_json(
        folder / "places.json", {"names": names, "places": places, "size": size, "changed": changed}
    )


def open_image_store(folder: Path) -> ImageStore | None:
    """Maps a finished store; None if its files are not as long as they must be."""
    try:
        stored = files.read_json(folder / "places.json", limit=2**32)
        labels = np.load(files.regular(folder / "labels.npy"), mmap_mode="r", allow_pickle=False)
        pixels = np.memmap(files.regular(folder / "pixels.bin"), np.uint8, mode="r")
        shape = (len(labels), *stored["size"])
        if pixels.size != np.prod(shape):
            return None
        places = [(path, first, many) for path, first, many in stored["places"]]
        return ImageStore(
            pixels.reshape(shape), labels, tuple(stored["names"]), places, stored["changed"]
        )
    except (FolderError, OSError, ValueError, KeyError, TypeError):
        return None


@final
@dataclass(frozen=True, kw_only=True)
class ImagePlan:
    """Which rows of a store are trained together, and how they are changed."""

    store: ImageStore
    preprocessing: Preprocessing
    trained: Rows
    """The rows of the store that are not held out."""
    seed: int
    batch_rows: int
    shift: int = 0
    """Each picture is moved by up to so many pixels."""

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Rows]:
        """The global batches of an epoch from the `start`-th on."""
        count = len(self.trained)
        for first in range(start * self.batch_rows, count, self.batch_rows):
            chosen = order(self.seed, epoch, first, min(first + self.batch_rows, count), count)
            yield epoch * len(self.store) + self.trained[chosen]

    def count(self) -> int:
        """How many global batches an epoch has."""
        return -(-len(self.trained) // self.batch_rows)

    def load(self, rows: Rows, whole: Rows) -> ImageBatch:
        """The batch of these rows. No rows: the first of the `whole` batch with nothing trained, since a
        worker must take part."""
        used = rows if len(rows) else whole[:1]
        pixels, store_rows, _ = self.pixels(used)
        labels = torch.from_numpy(np.asarray(self.store.labels[store_rows]))
        if not len(rows):
            labels = torch.full_like(labels, IGNORE)
        return ImageBatch(self.preprocessing.scaled(pixels), labels)

    def pixels(self, rows: Rows) -> tuple[NDArray[np.uint8], Rows, Rows]:
        """(pixels as they are trained, their rows in the store, their epochs) of the rows of a batch."""
        epochs, store_rows = np.divmod(rows, len(self.store))
        pixels = self.store.pixels[store_rows]
        if self.shift:
            pixels = shifted(pixels, self.shift, store_rows, epochs, len(self.store), self.seed)
        return pixels, store_rows, epochs

    def describe(self, rows: Rows) -> str:
        """Where the rows of a batch come from, for messages."""
        places = [self.store.place(int(row) % len(self.store)) for row in rows[:9]]
        return f"the images {first_few(places, 8)}"
