"""Files of labelled pictures: each form gives what was written, and whatever is wrong is said in one line
with its place."""

from __future__ import annotations

import gzip
import re
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from seqloom.data.images.image_files import IMAGES, LABELS, Picture, image_files, read_pictures
from seqloom.errors import DataError, MissingExtraError, SeqloomError, UsageError

PIXELS: NDArray[np.uint8] = np.arange(3 * 4 * 5, dtype=np.uint8).reshape(3, 4, 5)
NAMES = bytes([7, 0, 255])


def idx(array: NDArray[np.uint8] | bytes) -> bytes:
    """As LeCun's files are written."""
    values = np.frombuffer(array, np.uint8) if isinstance(array, bytes) else array
    magic = {1: LABELS, 3: IMAGES}[values.ndim]
    return magic + struct.pack(f">{values.ndim}I", *values.shape) + values.tobytes()


def pair(
    folder: Path, images: bytes = idx(PIXELS), labels: bytes = idx(NAMES), packed: str = ""
) -> list[str]:
    """The two files; `packed` is "" or ".gz"."""
    paths = [folder / f"images-idx3-ubyte{packed}", folder / f"labels-idx1-ubyte{packed}"]
    for path, content in zip(paths, (images, labels), strict=True):
        path.write_bytes(gzip.compress(content) if packed else content)
    return [str(path) for path in paths]


def archive(folder: Path, **arrays: Any) -> str:
    np.savez(folder / "data.npz", allow_pickle=True, **arrays)
    return str(folder / "data.npz")


def read(paths: list[str], labelled: bool = True) -> list[Picture]:
    return list(read_pictures(paths, labelled=labelled))


def assert_same(
    found: list[Picture], pixels: Any, labels: list[str | None], numbers: list[int | None]
) -> None:
    assert [picture.label for picture in found] == labels
    assert [picture.number for picture in found] == numbers
    for picture, expected in zip(found, pixels, strict=True):
        assert picture.pixels.dtype == np.uint8
        np.testing.assert_array_equal(
            picture.pixels, expected if expected.ndim == 3 else expected[..., None]
        )


# What is read


@pytest.mark.parametrize("packed", ["", ".gz"])
def test_idx(packed: str, tmp_path: Path) -> None:
    paths = pair(tmp_path, packed=packed)
    assert_same(read(paths), PIXELS, ["7", "0", "255"], [1, 2, 3])
    assert_same(read(paths[:1], labelled=False), PIXELS, [None] * 3, [1, 2, 3])
    assert_same(read(paths, labelled=False), PIXELS, [None] * 3, [1, 2, 3])
    assert image_files(paths) == paths
    assert image_files([*paths, paths[0]], labelled=False) == [paths[0], paths[0]]
    assert read(paths)[1].place == f"{paths[0]}:2"


@pytest.mark.parametrize("images", [PIXELS, PIXELS[..., None], np.stack([PIXELS] * 3, axis=-1)])
@pytest.mark.parametrize(
    "labels", [np.array([4, -1, 4]), np.array(["cat", "dog", "cat"]), np.array([4, 0, 4], np.uint8)]
)
def test_npz(images: NDArray[np.uint8], labels: NDArray[Any], tmp_path: Path) -> None:
    path = archive(tmp_path, images=images, labels=labels)
    assert_same(read([path]), images, [str(label) for label in labels.tolist()], [1, 2, 3])
    assert_same(read([path], labelled=False), images, [None] * 3, [1, 2, 3])
    assert_same(
        read([archive(tmp_path, images=images)], labelled=False), images, [None] * 3, [1, 2, 3]
    )


def save(path: Path, pixels: NDArray[np.uint8], **options: Any) -> None:
    pillow: Any = pytest.importorskip("PIL.Image")
    path.parent.mkdir(parents=True, exist_ok=True)
    pillow.fromarray(pixels).save(path, **options)


def test_a_folder_of_folders(tmp_path: Path) -> None:
    colours = np.stack([PIXELS] * 3, axis=-1) + np.array([0, 60, 120], np.uint8)
    save(tmp_path / "all" / "b" / "2.png", PIXELS[0])
    save(tmp_path / "all" / "b" / "1.PNG", colours[1])
    save(tmp_path / "all" / "a" / "deep" / "x.bmp", PIXELS[2])
    save(tmp_path / "all" / "b" / ".hidden.png", PIXELS[0])
    save(tmp_path / "all" / ".cache" / "x.png", PIXELS[0])
    (tmp_path / "all" / "a" / "notes.txt").write_text("no image")
    (tmp_path / "all" / "readme.txt").write_text("no image")
    (tmp_path / "all" / "empty").mkdir()
    found = read([str(tmp_path / "all")])
    assert_same(found, [PIXELS[2], colours[1], PIXELS[0]], ["a", "b", "b"], [None] * 3)
    assert [Path(picture.path).name for picture in found] == ["x.bmp", "1.PNG", "2.png"]
    assert image_files([str(tmp_path / "all")]) == [picture.path for picture in found]
    assert_same(read([found[1].path], labelled=False), colours[1:2], [None], [None])
    save(tmp_path / "all" / "z.png", PIXELS[1])
    without = read([str(tmp_path / "all")], labelled=False)
    assert_same(without, [PIXELS[2], colours[1], PIXELS[0], PIXELS[1]], [None] * 4, [None] * 4)
    assert image_files([str(tmp_path / "all")], labelled=False) == [
        picture.path for picture in without
    ]


def test_several_at_once_in_order(tmp_path: Path) -> None:
    path = archive(tmp_path, images=PIXELS[:1], labels=np.array([9]))
    found = read([*pair(tmp_path), path, *pair(tmp_path)])
    assert [picture.label for picture in found] == ["7", "0", "255", "9", "7", "0", "255"]


@pytest.mark.parametrize("mode", ["1", "L", "LA", "RGB", "RGBA", "P", "CMYK"])
def test_modes_of_image_files(mode: str, tmp_path: Path) -> None:
    """Grey stays one channel, all else has three; a palette and transparency are only other ways to write
    colours."""
    pillow: Any = pytest.importorskip("PIL.Image")
    colours = np.zeros((6, 4, 3), np.uint8) + np.array([255, 0, 0], np.uint8)
    image = pillow.fromarray(colours).convert(mode)
    path = tmp_path / ("x.tif" if mode == "CMYK" else "x.png")
    image.save(path)
    (found,) = read([str(path)], labelled=False)
    assert found.pixels.shape == (6, 4, 1 if mode in ("1", "L", "LA") else 3)
    if found.pixels.shape[2] == 3:
        np.testing.assert_array_equal(found.pixels, colours)


def test_an_image_is_turned_upright(tmp_path: Path) -> None:
    pillow: Any = pytest.importorskip("PIL.Image")
    image = pillow.fromarray(PIXELS[0])
    exif = image.getexif()
    exif[0x0112] = 6  # the camera was turned: rotate by 270° to see it upright
    image.save(tmp_path / "x.png", exif=exif)
    (found,) = read([str(tmp_path / "x.png")], labelled=False)
    np.testing.assert_array_equal(found.pixels[..., 0], np.rot90(PIXELS[0], 3))


# What is refused

Made = Callable[[Path], list[str]]

CASES: dict[str, tuple[Made, str]] = {
    "nothing": (lambda folder: [], "images must be given"),
    "standard input": (lambda folder: ["-"], "read from files, and not from standard input"),
    "no such file": (
        lambda folder: [str(folder / "images-idx3")],
        "images-idx3: there is no such file",
    ),
    "labels first": (
        lambda folder: pair(folder)[::-1],
        "labels-idx1-ubyte: must be the images, but holds labels; name the images first",
    ),
    "no labels": (
        lambda folder: pair(folder)[:1],
        "images-idx3-ubyte: these images must be followed by their labels",
    ),
    "images twice": (
        lambda folder: pair(folder)[:1] * 2,
        "images-idx3-ubyte: must hold labels and begin with the bytes 00 00 08 01",
    ),
    "another type": (
        lambda folder: pair(folder, b"\0\0\x0d\x03" + bytes(40)),
        "must hold images, but begins with the bytes 00 00 0d 03",
    ),
    "empty": (
        lambda folder: pair(folder, b""),
        r"images-idx3-ubyte: must hold images, but begins with the bytes \(none\)",
    ),
    "cut header": (lambda folder: pair(folder, IMAGES + bytes(5)), "ends inside its header"),
    "cut images": (
        lambda folder: pair(folder, idx(PIXELS)[:-1]),
        "must hold 3 images, but ends after 2: was the download cut off",
    ),
    "longer": (
        lambda folder: pair(folder, idx(PIXELS) + b"x"),
        "must end after the 3 images that it announces, but goes on",
    ),
    "fewer labels": (
        lambda folder: pair(folder, labels=idx(NAMES[:2])),
        "a label for each of the 3 images of .*ubyte, but holds 2",
    ),
    "missing labels": (
        lambda folder: [*pair(folder)[:1], str(folder / "labels.idx")],
        "labels.idx: there is no such file",
    ),
    "labels from standard input": (
        lambda folder: [*pair(folder)[:1], "-"],
        "images are read from files, and not from standard input",
    ),
    "cut labels": (
        lambda folder: pair(folder, labels=idx(NAMES)[:-1]),
        "must hold 3 labels, but ends after 2",
    ),
    "longer labels": (
        lambda folder: pair(folder, labels=idx(NAMES) + b"xyz"),
        "must hold 3 labels, but goes on",
    ),
    "no pixels": (
        lambda folder: pair(folder, IMAGES + struct.pack(">3I", 3, 0, 5)),
        "images of 1 to 67,108,864 pixels, but says 0 x 5",
    ),
    "huge": (
        lambda folder: pair(folder, IMAGES + struct.pack(">3I", 3, 2**31, 2**31)),
        "but says 2147483648 x 2147483648",
    ),
    "one image": (
        lambda folder: [str(folder / "x.png")],
        "x.png: is one image without a label; images with labels are two IDX files",
    ),
    "one array": (
        lambda folder: [np_save(folder, PIXELS)],
        "data.npz: must be an .npz with the arrays .* but is one array",
    ),
    "no labels array": (
        lambda folder: [archive(folder, images=PIXELS)],
        "must hold an array `labels`, but holds images",
    ),
    "floats": (
        lambda folder: [archive(folder, images=PIXELS / 2, labels=[1, 2, 3])],
        "`images` must be uint8 .* is float64 of shape",
    ),
    "two channels": (
        lambda folder: [archive(folder, images=PIXELS[..., None].repeat(2, 3), labels=[1, 2, 3])],
        r"of shape \(3, 4, 5, 2\)",
    ),
    "no images": (
        lambda folder: [archive(folder, images=PIXELS[:0], labels=[])],
        r"of shape \(0, 4, 5\)",
    ),
    "unlike": (
        lambda folder: [archive(folder, images=PIXELS, labels=[1, 2])],
        r"must be 3 integers or texts, .* int64 of shape \(2,\)",
    ),
    "float labels": (
        lambda folder: [archive(folder, images=PIXELS, labels=[1.0, 2.0, 3.0])],
        "is float64 of shape",
    ),
    "objects": (
        lambda folder: [archive(folder, images=PIXELS, labels=np.array([1, "a", None], object))],
        "without objects, but cannot be",
    ),
    "no zip": (
        lambda folder: [written(folder / "data.npz", b"PK\3\4 and no more")],
        "must be a whole .npz of NumPy",
    ),
    "text": (
        lambda folder: [written(folder / "data.npz", b"text")],
        "must be a whole .npz of NumPy",
    ),
    "no folders": (lambda folder: [str(folder)], "holds no folder"),
    "no files": (lambda folder: [made(folder / "a")], "none of its folders holds one"),
}


def written(path: Path, content: bytes) -> str:
    path.write_bytes(content)
    return str(path)


def made(folder: Path) -> str:
    folder.mkdir()
    return str(folder.parent)


def np_save(folder: Path, array: NDArray[Any]) -> str:
    with open(folder / "data.npz", "wb") as file:
        np.save(file, array)
    return str(folder / "data.npz")


@pytest.mark.parametrize("name", CASES)
def test_is_refused_in_one_line(name: str, tmp_path: Path) -> None:
    make, message = CASES[name]
    with pytest.raises((DataError, UsageError), match=message) as refused:
        read(make(tmp_path))
    assert str(refused.value).isprintable()


def test_a_missing_file_of_labels_is_found_before_the_images_are_read(tmp_path: Path) -> None:
    paths = [*pair(tmp_path)[:1], str(tmp_path / "labels.idx")]
    with pytest.raises(DataError, match=r"labels\.idx: there is no such file"):
        image_files(paths)


@pytest.mark.parametrize("at", [0, 1])
def test_damaged_gzip_is_named(at: int, tmp_path: Path) -> None:
    paths = pair(tmp_path, packed=".gz")
    whole = Path(paths[at]).read_bytes()
    for content in (whole[:-9], whole[:20], whole[:30] + b"xxxx" + whole[34:]):
        Path(paths[at]).write_bytes(content)
        with pytest.raises(DataError, match=re.escape(paths[at])):
            read(paths)
    Path(paths[at]).write_bytes(idx(PIXELS if at == 0 else NAMES))
    with pytest.raises(DataError, match=r"gzip data is damaged or cut off \(Not a gzipped file"):
        read(paths)
    Path(paths[0]).rename(tmp_path / "unnamed")
    (tmp_path / "unnamed").write_bytes(gzip.compress(idx(PIXELS)))
    with pytest.raises(DataError, match=r"it is gzip data, so name it .gz"):
        read([str(tmp_path / "unnamed"), paths[1]])


def test_every_cut_of_an_image_file_names_it(tmp_path: Path) -> None:
    save(tmp_path / "all" / "a" / "good.png", PIXELS[0])
    noise = np.random.default_rng(0).integers(0, 256, (40, 40, 3)).astype(np.uint8)
    for name in ("x.png", "x.jpg", "x.gif"):
        path = tmp_path / "all" / "b" / name
        save(path, noise)
        whole = path.read_bytes()
        for content in (b"", b"no image", whole[:30], whole[: len(whole) // 2]):
            path.write_bytes(content)
            with pytest.raises(DataError, match=re.escape(str(path))) as refused:
                read([str(tmp_path / "all")])
            assert str(refused.value).isprintable()
        path.unlink()


def test_16_bits_and_too_many_pixels_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pillow: Any = pytest.importorskip("PIL.Image")
    save(tmp_path / "x.png", PIXELS[0].astype(np.uint16) * 200)
    with pytest.raises(
        DataError, match=r"x.png: must have 8 bits a channel, but is of Pillow's mode I;16"
    ):
        read([str(tmp_path / "x.png")], labelled=False)
    save(tmp_path / "y.png", PIXELS[0])
    for most in (15, 5):  # over the limit, and over twice the limit
        monkeypatch.setattr(pillow, "MAX_IMAGE_PIXELS", most)
        with pytest.raises(DataError, match=f"y.png: must have at most {most} pixels"):
            read([str(tmp_path / "y.png")], labelled=False)


def test_without_pillow_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path / "x.png", PIXELS[0])
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(MissingExtraError, match=re.escape("pip install 'seqloom[images]'")):
        read([str(tmp_path / "x.png")], labelled=False)


def test_without_labels_there_must_be_images(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    with pytest.raises(
        SeqloomError, match=r"must hold image files \(.png, .* however deep, but holds none"
    ):
        read([str(tmp_path)], labelled=False)
    for words in (pair(tmp_path)[1:], pair(tmp_path)[::-1]):
        with pytest.raises(
            DataError, match="labels-idx1-ubyte: must be the images, but holds labels"
        ):
            read(words, labelled=False)
    with pytest.raises(UsageError, match="read from files, and not from standard input"):
        read(["-"], labelled=False)
