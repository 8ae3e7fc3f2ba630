"""Files to pictures, with their labels or without: IDX (as MNIST comes), arrays of NumPy, folders of image
files.

    IMAGES LABELS    two IDX files, such as train-images-idx3-ubyte.gz and train-labels-idx1-ubyte.gz (LeCun et al. 1998)
    DATA.npz         arrays `images` (uint8; number, height, width, and where there are colours 3) and `labels` (integers or texts)
    FOLDER           a folder of image files for each label, FOLDER/LABEL/NAME.png (needs Pillow, the extra `images`)

Without labels the same are read, and what is not there of labels is not missed: images by themselves, single
image files, a folder of image files however deep. One picture is in memory at a time, but for `.npz`, which
is read whole.
"""

from __future__ import annotations

import gzip
import importlib
import os
import struct
import warnings
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from seqloom.errors import DataError, MissingExtraError, UsageError, place, printable
from seqloom.files import open_binary

IMAGE_ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
IMAGES, LABELS = bytes([0, 0, 8, 3]), bytes([0, 0, 8, 1])
"""How IDX files begin: two zeros, the type (8: unsigned bytes), the number of dimensions."""
MOST_PIXELS = 2**26
"""A larger picture in an IDX file is none."""
FORMS = (
    "two IDX files (images, then labels), an .npz with images and labels, or a folder with a folder of image"
    " files for each label"
)


class Picture(NamedTuple):
    pixels: NDArray[np.uint8]
    """`(height, width, channels)`: one channel of grey, or red, green and blue."""
    label: str | None
    path: str
    number: int | None
    """From 1, in a file of many."""

    @property
    def place(self) -> str:
        return place(self.path, self.number)


class Source(NamedTuple):
    """A file or folder that holds pictures."""

    kind: str
    """idx, npz, folder or file."""
    path: str
    labels: str | None = None
    """Of idx the second file."""


def read_pictures(paths: Sequence[str], *, labelled: bool = True) -> Iterator[Picture]:
    """The pictures of what a user named, in order; not `labelled`: without their labels, and where there are
    none.

    Raises DataError where a file is not what it must be, UsageError where nothing that can be read was named.
    """
    for source in sources(paths, labelled=labelled):
        if source.kind == "idx":
            yield from _read_idx(source.path, source.labels)
        elif source.kind == "npz":
            yield from _read_npz(source.path, labelled)
        elif source.kind == "file":
            yield Picture(decoded(source.path), None, source.path, None)
        else:
            yield from (
                Picture(decoded(path), label, path, None) for label, path in _files_in(source.path, labelled)
            )


def image_files(paths: Sequence[str], *, labelled: bool = True) -> list[str]:
    """Every file behind what was named, in the order of reading."""
    found: list[str] = []
    for source in sources(paths, labelled=labelled):
        found += (
            [path for _, path in _files_in(source.path, labelled)]
            if source.kind == "folder"
            else [source.path, source.labels or ""]
        )
    return [path for path in found if path]


def sources(paths: Sequence[str], *, labelled: bool = True) -> list[Source]:
    """What each of the named paths is."""
    if not paths:
        raise UsageError(f"images must be given: {FORMS}")
    found: list[Source] = []
    remaining = iter(paths)
    for path in remaining:
        if os.path.isdir(path):
            found.append(Source("folder", path))
        elif path.endswith(".npz"):
            found.append(Source("npz", path))
        elif path.lower().endswith(IMAGE_ENDINGS):
            if labelled:
                raise DataError(f"is one image without a label; images with labels are {FORMS}", path)
            found.append(Source("file", path))
        elif labelled:
            found.append(_idx_source(path, next(remaining, None)))
        elif not (
            found and found[-1].kind == "idx" and _begin(path) == LABELS
        ):  # their labels are not needed
            _check_idx_images(path)
            found.append(Source("idx", path))
    return found


def _idx_source(path: str, labels: str | None) -> Source:
    _check_idx_images(path)
    if labels is None:
        raise DataError("these images must be followed by their labels: name the second IDX file too", path)
    return Source("idx", path, labels)


def _check_idx_images(path: str) -> None:
    """Raises DataError where a file holds no IDX images."""
    begin = _begin(path)
    if begin == LABELS:
        raise DataError(
            "must be the images, but holds labels; name the images first, then their labels", path
        )
    if begin != IMAGES:
        packed = "; it is gzip data, so name it .gz" if begin[:2] == b"\x1f\x8b" else ""
        raise DataError(
            f"must hold images, but begins with the bytes {begin.hex(' ') or '(none)'}{packed}; images are"
            f" {FORMS}",
            path,
        )


def _begin(path: str) -> bytes:
    """The first bytes of a file, which say what an IDX file holds."""
    if path == "-":
        raise UsageError("images are read from files, and not from standard input; name them")
    with open_binary(path) as file, whole(path):
        return file.read(4)


@contextmanager
def whole(path: str) -> Iterator[None]:
    """Turns what is raised where a file is damaged into a DataError."""
    try:
        yield
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(
            f"the gzip data is damaged or cut off ({printable(str(error))}); fetch it again", path
        ) from None
    except OSError as error:
        raise DataError(f"cannot be read on ({error.strerror or error})", path) from None


def _header(file: BinaryIO, magic: bytes, path: str, what: str) -> tuple[int, ...]:
    """The sizes that an IDX file gives."""
    begin = file.read(4)
    if begin != magic:
        raise DataError(
            f"must hold {what} and begin with the bytes {magic.hex(' ')}, but begins with"
            f" {begin.hex(' ') or '(none)'}; name another",
            path,
        )
    sizes = file.read(4 * magic[3])
    if len(sizes) < 4 * magic[3]:
        raise DataError("ends inside its header: was the download cut off? Fetch it again", path)
    return struct.unpack(f">{magic[3]}I", sizes)


def _read_idx(path: str, labels_path: str | None) -> Iterator[Picture]:
    with open_binary(path) as images, whole(path):
        count, height, width = _header(images, IMAGES, path, "images")
        labels = None if labels_path is None else _idx_labels(labels_path, path, count)
        if not 0 < height * width <= MOST_PIXELS:
            raise DataError(
                f"must hold images of 1 to {MOST_PIXELS:,} pixels, but says {height} x {width}; fetch it"
                " again",
                path,
            )
        for at in range(count):
            content = images.read(height * width)
            if len(content) < height * width:
                raise DataError(
                    f"must hold {count:,} images, but ends after {at:,}: was the download cut off? Fetch it"
                    " again",
                    path,
                )
            pixels = np.frombuffer(content, np.uint8).reshape(height, width, 1)
            yield Picture(pixels, None if labels is None else str(labels[at]), path, at + 1)
        if images.read(1):
            raise DataError(
                f"must end after the {count:,} images that it announces, but goes on; fetch it again", path
            )


def _idx_labels(path: str, images: str, count: int) -> bytes:
    """One byte for each image."""
    with open_binary(path) as file, whole(path):
        (given,) = _header(file, LABELS, path, "labels")
        if given != count:
            raise DataError(
                f"must hold a label for each of the {count:,} images of {printable(images)}, but holds"
                f" {given:,}",
                path,
            )
        labels = file.read(count + 1)
    if len(labels) != count:
        less = f"ends after {len(labels):,}: was the download cut off?" if len(labels) < count else "goes on:"
        raise DataError(f"must hold {count:,} labels, but {less} Fetch it again", path)
    return labels


def _read_npz(path: str, labelled: bool) -> Iterator[Picture]:
    images, labels = _arrays(path, labelled)
    if (
        images.dtype != np.uint8
        or images.ndim not in (3, 4)
        or (images.ndim == 4 and images.shape[3] not in (1, 3))
        or 0 in images.shape
    ):
        raise DataError(
            "`images` must be uint8 (0 to 255) of shape (number, height, width) or (number, height, width, 1"
            f" or 3), but is {images.dtype} of shape {images.shape}",
            path,
        )
    if labels is not None and (
        labels.ndim != 1 or labels.dtype.kind not in "iuU" or len(labels) != len(images)
    ):
        raise DataError(
            f"`labels` must be {len(images):,} integers or texts, one for each image, but is {labels.dtype}"
            f" of shape {labels.shape}",
            path,
        )
    channels = images if images.ndim == 4 else images[..., None]
    for at, pixels in enumerate(channels):
        yield Picture(pixels, None if labels is None else str(labels[at]), path, at + 1)


def _arrays(path: str, labelled: bool) -> tuple[NDArray[Any], NDArray[Any] | None]:
    """`images` and `labels` of an .npz; nothing in it is run."""
    with open_binary(path) as file:
        try:
            archive = np.load(file, allow_pickle=False)
            if not isinstance(archive, np.lib.npyio.NpzFile):
                raise DataError(
                    "must be an .npz with the arrays `images` and `labels`, but is one array", path
                )
            if missing := [name for name in ("images", "labels")[: 1 + labelled] if name not in archive]:
                raise DataError(
                    f"must hold an array `{missing[0]}`, but holds"
                    f" {printable(', '.join(archive.files)) or 'none'}",
                    path,
                )
            return archive["images"], archive["labels"] if labelled else None
        except (
            ValueError,
            OSError,
            EOFError,
            KeyError,
            RuntimeError,
            zipfile.BadZipFile,
            zlib.error,
        ) as error:
            reason = printable(" ".join(str(error).split()))[:200]
            raise DataError(
                f"must be a whole .npz of NumPy without objects, but cannot be read ({reason})", path
            ) from None


def _files_in(folder: str, labelled: bool) -> Sequence[tuple[str | None, str]]:
    """(label, path) of all image files of a folder in order; without labels of those beside the folders of
    labels too."""
    if labelled:
        return _labelled_files(folder)
    found: list[tuple[str | None, str]] = [(None, path) for path in sorted(_image_files_in(folder))]
    if not found:
        raise DataError(
            f"must hold image files ({', '.join(IMAGE_ENDINGS)}), however deep, but holds none", folder
        )
    return found


def _labelled_files(folder: str) -> list[tuple[str, str]]:
    """(label, path) of all image files in the folders of a folder, however deep, in order; hidden ones are
    left out."""
    try:
        labels = sorted(
            entry.name for entry in os.scandir(folder) if entry.is_dir() and not entry.name.startswith(".")
        )
    except OSError as error:
        raise DataError(f"the folder cannot be read ({error.strerror})", folder) from None
    found = [
        (label, path) for label in labels for path in sorted(_image_files_in(os.path.join(folder, label)))
    ]
    if not found:
        raise DataError(
            f"must hold a folder of image files ({', '.join(IMAGE_ENDINGS)}) for each label, "
            f"but {'none of its folders holds one' if labels else 'holds no folder'}",
            folder,
        )
    return found


def _image_files_in(folder: str) -> Iterator[str]:
    for inner, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        yield from (
            os.path.join(inner, name)
            for name in names
            if name.lower().endswith(IMAGE_ENDINGS) and not name.startswith(".")
        )


def decoded(path: str) -> NDArray[np.uint8]:
    """An image file as `(height, width, channels)`, turned upright as its camera says; transparency is
    dropped.

    Raises MissingExtraError where Pillow is not installed, DataError where the file is no whole image of 8
    bits a channel.
    """
    try:
        image, operations = importlib.import_module("PIL.Image"), importlib.import_module("PIL.ImageOps")
    except ImportError:
        raise MissingExtraError("reading image files", "images") from None
    with open_binary(path) as file, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what an image has beside its pixels
        warnings.simplefilter("error", image.DecompressionBombWarning)
        try:
            with image.open(file) as opened:
                mode = opened.mode
                upright = operations.exif_transpose(opened)
                pixels = np.array(upright.convert("L" if mode in ("1", "L", "LA") else "RGB"), dtype=np.uint8)
        except (image.DecompressionBombWarning, image.DecompressionBombError):
            raise DataError(
                f"must have at most {image.MAX_IMAGE_PIXELS:,} pixels, but has more; make it smaller", path
            ) from None
        except (
            OSError,
            SyntaxError,
            ValueError,
            EOFError,
            IndexError,
            TypeError,
            KeyError,
            struct.error,
            zlib.error,
        ) as error:
            reason = printable(" ".join(str(error).split()))[:120]
            raise DataError(
                f"must be a whole image, but cannot be read ({reason}); repair or remove it", path
            ) from None
    if mode.startswith(("I", "F")):
        raise DataError(f"must have 8 bits a channel, but is of Pillow's mode {mode}; convert it", path)
    return pixels if pixels.ndim == 3 else pixels[..., None]
