"""Files to pictures, with their labels or without: IDX (as MNIST comes), arrays of NumPy, folders of image
files.

    IMAGES LABELS    two IDX files, such as train-images-idx3-ubyte.gz and train-labels-idx1-ubyte.gz
                     (LeCun et al. 1998)
    DATA.npz         arrays `images` (uint8; number, height, width, and where there are colours 3) and
                     `labels` (integers or texts)
    FOLDER           a folder of image files for each label, FOLDER/LABEL/NAME.png (needs Pillow, the extra
                     `images`)

Without labels the same are read, and labels need not exist: images by themselves, single image files, a
folder of image files however deep. One picture is in memory at a time, but for `.npz`, which is read whole.
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
from typing import BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from seqloom.errors import DataError, MissingExtraError, UsageError, place, printable
from seqloom.files import open_binary

IMAGE_ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
IMAGES, LABELS = bytes([0, 0, 8, 3]), bytes([0, 0, 8, 1])
"""How IDX files begin: two zeros, the type (8: unsigned bytes), the number of dimensions."""
MOST_PIXELS = 2**26
"""An IDX file with larger pictures is not believed."""
MOST_ARRAY_BYTES = 2**31
"""Of an array in an `.npz`, unpacked."""
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
    """The pictures of what a user named, in order; not `labelled`: without their labels, which need not
    exist.

    Raises DataError if a file is not what it must be, UsageError if nothing that can be read was named.
    """
    for source in sources(paths, labelled=labelled):
        if source.kind == "idx":
            yield from _read_idx(source.path, source.labels)
        elif source.kind == "npz":
            yield from _read_npz(source.path, labelled)
        else:
            for label, path in _image_files(source, labelled):
                yield Picture(decoded(path), label, path, None)


def image_files(paths: Sequence[str], *, labelled: bool = True) -> list[str]:
    """Every file behind what was named, in the order of reading."""
    files: list[str] = []
    for source in sources(paths, labelled=labelled):
        if source.kind in ("folder", "file"):
            files += [path for _, path in _image_files(source, labelled)]
        else:
            files += [source.path] if source.labels is None else [source.path, source.labels]
    return files


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
                raise DataError(
                    f"is one image without a label; images with labels are {FORMS}", path
                )
            found.append(Source("file", path))
        elif labelled or not found or found[-1].kind != "idx" or _first_bytes(path) != LABELS:
            _check_idx_images(path)
            labels = next(remaining, None) if labelled else None
            if labelled and labels is None:
                raise DataError(
                    "these images must be followed by their labels: name the second IDX file too",
                    path,
                )
            if labels is not None:
                _first_bytes(labels)  # raises DataError where there is no such file
            found.append(Source("idx", path, labels))
    return found


def _check_idx_images(path: str) -> None:
    """Raises DataError if a file does not hold IDX images."""
    begin = _first_bytes(path)
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


def _first_bytes(path: str) -> bytes:
    """They say what an IDX file holds."""
    if path == "-":
        raise UsageError("images are read from files, and not from standard input; name them")
    with opened(path) as file:
        return file.read(4)


@contextmanager
def opened(path: str) -> Iterator[BinaryIO]:
    """A file; what is raised where it is damaged becomes a DataError."""
    with open_binary(path, pipe=False) as file:
        try:
            yield file
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise DataError(
                f"the gzip data is damaged or cut off ({printable(str(error))}); fetch it again",
                path,
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
    with opened(path) as images:
        count, height, width = _header(images, IMAGES, path, "images")
        labels = None if labels_path is None else _idx_labels(labels_path, path, count)
        if not 0 < height * width <= MOST_PIXELS:
            raise DataError(
                f"must hold images of 1 to {MOST_PIXELS:,} pixels, but says {height} x {width}; fetch it"
                " again",
                path,
            )
        for index in range(count):
            content = images.read(height * width)
            if len(content) < height * width:
                raise DataError(
                    f"must hold {count:,} images, but ends after {index:,}: was the download cut off? Fetch"
                    " it again",
                    path,
                )
            pixels = np.frombuffer(content, np.uint8).reshape(height, width, 1)
            label = None if labels is None else str(labels[index])
            yield Picture(pixels, label, path, index + 1)
        if images.read(1):
            raise DataError(
                f"must end after the {count:,} images that it announces, but goes on; fetch it again",
                path,
            )


def _idx_labels(path: str, images: str, count: int) -> bytes:
    """One byte for each image."""
    with opened(path) as file:
        (given,) = _header(file, LABELS, path, "labels")
        if given != count:
            raise DataError(
                f"must hold a label for each of the {count:,} images of {printable(images)}, but holds"
                f" {given:,}",
                path,
            )
        labels = file.read(count + 1)
    if len(labels) != count:
        problem = (
            f"ends after {len(labels):,}: was the download cut off?"
            if len(labels) < count
            else "goes on:"
        )
        raise DataError(f"must hold {count:,} labels, but {problem} Fetch it again", path)
    return labels


def _read_npz(path: str, labelled: bool) -> Iterator[Picture]:
    names = ("images", "labels") if labelled else ("images",)
    images, *others = _arrays(path, names)
    labels = others[0] if others else None
    colours = images.ndim == 4
    right_shape = images.ndim == 3 or (colours and images.shape[3] in (1, 3))
    if images.dtype != np.uint8 or not right_shape or 0 in images.shape:
        raise DataError(
            "`images` must be uint8 (0 to 255) of shape (number, height, width) or (number, height, width, 1"
            f" or 3), but is {images.dtype} of shape {images.shape}",
            path,
        )
    if labels is not None and (labels.shape != images.shape[:1] or labels.dtype.kind not in "iuU"):
        raise DataError(
            f"`labels` must be {len(images):,} integers or texts, one for each image, but is {labels.dtype}"
            f" of shape {labels.shape}",
            path,
        )
    pictures = images if colours else images[..., None]
    for index, pixels in enumerate(pictures):
        label = None if labels is None else str(labels[index])
        yield Picture(pixels, label, path, index + 1)


def _arrays(path: str, names: Sequence[str]) -> list[NDArray[np.generic]]:
    """Arrays of an .npz; nothing in it is run."""
    with open_binary(path, pipe=False) as file:
        try:
            archive = np.load(file, allow_pickle=False)
            if not isinstance(archive, np.lib.npyio.NpzFile):
                raise DataError(
                    "must be an .npz with the arrays `images` and `labels`, but is one array", path
                )
            for name in names:
                if name not in archive:
                    known = printable(", ".join(archive.files)) or "none"
                    raise DataError(f"must hold an array `{name}`, but holds {known}", path)
                assert archive.zip is not None
                size = archive.zip.getinfo(f"{name}.npy").file_size
                if size > MOST_ARRAY_BYTES:
                    raise DataError(
                        f"`{name}` must have at most {MOST_ARRAY_BYTES} bytes, for it is read whole, but"
                        f" has {size}; IDX files may be larger",
                        path,
                    )
            return [archive[name] for name in names]
        except _NOT_NPZ as error:
            reason = printable(" ".join(str(error).split()))[:200]
            raise DataError(
                f"must be a whole .npz of NumPy without objects, but cannot be read ({reason})",
                path,
            ) from None


_NOT_NPZ = (
    ValueError, OSError, EOFError, KeyError, IndexError, TypeError, RuntimeError, OverflowError, MemoryError,
    SyntaxError, struct.error, zipfile.BadZipFile, zlib.error,
)  # fmt: skip


def _image_files(source: Source, labelled: bool) -> list[tuple[str | None, str]]:
    """(label, path) of an image file, or of all in a folder in order; without labels also of those beside the
    folders of labels."""
    if source.kind == "file":
        return [(None, source.path)]
    endings, found = ", ".join(IMAGE_ENDINGS), list[tuple[str | None, str]]()
    if not labelled:
        found += [(None, path) for path in sorted(_images_in(source.path))]
        if not found:
            raise DataError(
                f"must hold image files ({endings}), however deep, but holds none", source.path
            )
        return found
    labels = _folders_in(source.path)
    for label in labels:
        found += [(label, path) for path in sorted(_images_in(os.path.join(source.path, label)))]
    if not found:
        missing = "none of its folders holds one" if labels else "holds no folder"
        raise DataError(
            f"must hold a folder of image files ({endings}) for each label, but {missing}",
            source.path,
        )
    return found


def _folders_in(folder: str) -> list[str]:
    """The names of its folders in order, hidden ones left out."""
    try:
        return sorted(
            entry.name
            for entry in os.scandir(folder)
            if entry.is_dir() and not entry.name.startswith(".")
        )
    except OSError as error:
        raise DataError(f"the folder cannot be read ({error.strerror})", folder) from None


def _images_in(folder: str) -> Iterator[str]:
    for inner, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in names:
            if name.lower().endswith(IMAGE_ENDINGS) and not name.startswith("."):
                yield os.path.join(inner, name)


def decoded(path: str) -> NDArray[np.uint8]:
    """An image file as `(height, width, channels)`, turned upright as its camera says; transparency is
    dropped.

    Raises MissingExtraError if Pillow is not installed, DataError if the file is no whole image of 8
    bits a channel.
    """
    try:
        image, operations = (
            importlib.import_module("PIL.Image"),
            importlib.import_module("PIL.ImageOps"),
        )
    except ImportError:
        raise MissingExtraError("reading image files", "images") from None
    with open_binary(path, pipe=False) as file, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about metadata
        warnings.simplefilter("error", image.DecompressionBombWarning)
        try:
            with image.open(file) as picture:
                mode = picture.mode
                upright = operations.exif_transpose(picture)
                colours = "L" if mode in ("1", "L", "LA") else "RGB"
                pixels = np.array(upright.convert(colours), dtype=np.uint8)
        except (image.DecompressionBombWarning, image.DecompressionBombError):
            raise DataError(
                f"must have at most {image.MAX_IMAGE_PIXELS:,} pixels, but has more; make it smaller",
                path,
            ) from None
        except _NOT_IMAGE as error:
            reason = printable(" ".join(str(error).split()))[:120]
            raise DataError(
                f"must be a whole image, but cannot be read ({reason}); repair or remove it", path
            ) from None
    if mode.startswith(("I", "F")):
        raise DataError(
            f"must have 8 bits a channel, but is of Pillow's mode {mode}; convert it", path
        )
    return pixels if pixels.ndim == 3 else pixels[..., None]


_NOT_IMAGE = (
    OSError, SyntaxError, ValueError, EOFError, IndexError, TypeError, KeyError, struct.error, zlib.error,
)  # fmt: skip
"""What Pillow raises for damaged files."""
