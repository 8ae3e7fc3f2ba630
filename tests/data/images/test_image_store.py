"""The image store: what was read is what a batch holds; its order is a function of seed and epoch."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from seqloom.data.images.image_files import Picture
from seqloom.data.images.image_store import (
    ImagePlan,
    ImageStore,
    build_image_store,
    open_image_store,
)
from seqloom.data.images.preprocessing import Preprocessing
from seqloom.errors import DataError
from seqloom.shapes import IGNORE

HOW = Preprocessing.published(4, 1)
COUNT = 11


def pictures(count: int = COUNT) -> list[Picture]:
    """Picture i is i everywhere; the first ones come one from each file, the others from one."""
    pixels = [np.full((4, 4, 1), i, np.uint8) for i in range(count)]
    return [
        Picture(
            pixels[i], str(10 - i % 3), f"{i}.png" if i < 4 else "all.npz", None if i < 4 else i - 3
        )
        for i in range(count)
    ]


def built(folder: Path, given: list[Picture] | None = None, **identity: object) -> ImageStore:
    return build_image_store(lambda: pictures() if given is None else given, HOW, identity, folder)


@pytest.fixture
def store(tmp_path: Path) -> ImageStore:
    return built(tmp_path)


def plan(
    store: ImageStore,
    trained: NDArray[np.int64] | None = None,
    batch_rows: int = 3,
    shift: int = 0,
    seed: int = 5,
) -> ImagePlan:
    rows = np.arange(len(store)) if trained is None else trained
    return ImagePlan(
        store=store, preprocessing=HOW, trained=rows, seed=seed, batch_rows=batch_rows, shift=shift
    )


def test_a_store_holds_what_was_read(store: ImageStore) -> None:
    assert store.pixels.shape == (COUNT, 4, 4, 1)
    assert store.pixels[:, 0, 0, 0].tolist() == list(range(COUNT))
    assert store.names == ("8", "9", "10")
    assert [store.names[label] for label in store.labels] == [
        picture.label for picture in pictures()
    ]
    assert [store.place(row) for row in range(COUNT)] == [picture.place for picture in pictures()]
    assert store.changed == {}


def test_it_is_made_once_and_again_where_damaged(tmp_path: Path) -> None:
    def never() -> list[Picture]:
        raise AssertionError

    built(tmp_path)
    (folder,) = (path for path in tmp_path.iterdir() if path.is_dir())
    assert build_image_store(never, HOW, {}, tmp_path).names == ("8", "9", "10")
    with pytest.raises(AssertionError):
        build_image_store(never, HOW, {"files": ["other"]}, tmp_path)
    with pytest.raises(AssertionError):
        build_image_store(never, Preprocessing.published(5, 1), {}, tmp_path)
    for name in ("pixels.bin", "labels.npy", "places.json"):
        whole = (folder / name).read_bytes()
        (folder / name).write_bytes(whole[:-2])
        assert open_image_store(folder) is None
        assert len(built(tmp_path)) == COUNT
        assert (folder / name).read_bytes() == whole


def test_what_is_resized_is_counted(tmp_path: Path) -> None:
    other = [Picture(np.zeros((6, 4, 3), np.uint8), "a", "x.png", None), *pictures(2)]
    found = built(tmp_path, other)
    assert found.pixels.shape == (3, 4, 4, 1)
    assert found.changed == {
        "are resized to 4 x 4 (model.image_size)": 1,
        "change colours (model.channels)": 1,
    }
    with pytest.raises(DataError, match="at least one image"):
        built(tmp_path / "none", [])


def test_images_without_labels_have_no_names(tmp_path: Path) -> None:
    found = built(
        tmp_path, [picture._replace(label=None) for picture in pictures()], labelled=False
    )
    assert found.names == ()
    assert found.labels.tolist() == [0] * COUNT
    assert [found.place(row) for row in range(COUNT)] == [picture.place for picture in pictures()]


def test_labels_of_other_data_take_the_numbers_of_the_training(
    tmp_path: Path, store: ImageStore
) -> None:
    other = built(tmp_path / "other", pictures(2))
    assert other.names == ("9", "10")
    renamed = other.numbered(store.names)
    assert [renamed.names[label] for label in renamed.labels] == ["10", "9"]
    with pytest.raises(
        DataError,
        match=r"^1\.png: the label must be one of those of the training \('10', '8'\), but is '9'$",
    ):
        store.numbered(("10", "8"))


@pytest.mark.parametrize("batch_rows", [1, 3, 11, 50])
def test_an_epoch_trains_each_row_once_and_may_begin_anywhere(
    store: ImageStore, batch_rows: int
) -> None:
    trained = np.array([0, 2, 3, 5, 7, 10])
    one = plan(store, trained, batch_rows)
    epochs = [[batch.tolist() for batch in one.epoch(epoch)] for epoch in range(3)]
    for epoch, batches in enumerate(epochs):
        assert len(batches) == one.count()
        assert sorted(itertools.chain(*batches)) == (trained + epoch * COUNT).tolist()
        for start in range(len(batches) + 1):
            assert [batch.tolist() for batch in one.epoch(epoch, start)] == batches[start:]
    if batch_rows == 1:
        assert [row % COUNT for (row,) in epochs[0]] != [row % COUNT for (row,) in epochs[1]]
        assert epochs[0] != [batch.tolist() for batch in plan(store, trained, 1, seed=6).epoch(0)]


def test_a_batch_holds_its_rows(store: ImageStore) -> None:
    one = plan(store)
    rows = np.array([4, COUNT + 2, 7 * COUNT])
    batch = one.load(rows, rows)
    assert batch.images.shape == (3, 1, 4, 4)
    np.testing.assert_allclose((batch.images[:, 0, 0, 0] * 0.5 + 0.5) * 255, [4, 2, 0], atol=1e-4)
    assert batch.labels.tolist() == [1, 0, 2]
    assert one.describe(rows) == "the images all.npz:1, 2.png, 0.png"
    assert one.describe(np.arange(9)).endswith("all.npz:4, ...")
    nothing = one.load(rows[:0], rows)
    assert nothing.labels.tolist() == [IGNORE]
    assert nothing.images.shape == (1, 1, 4, 4)


def test_what_is_random_is_of_the_row_and_the_epoch(tmp_path: Path) -> None:
    """Not of the batch or of the share that a row is in."""
    noise = np.random.default_rng(0).integers(0, 256, (8, 4, 4, 1)).astype(np.uint8)
    store = built(
        tmp_path, [Picture(pixels, str(i % 2), "n.npz", i + 1) for i, pixels in enumerate(noise)]
    )
    one = plan(store, shift=2)

    def load(rows: list[int]) -> NDArray[np.float32]:
        return one.load(np.array(rows), np.array(rows)).images.numpy()

    together = load([3, 5, 8 + 3, 8 + 5])
    np.testing.assert_array_equal(
        together, np.concatenate([load([row]) for row in (3, 5, 8 + 3, 8 + 5)])
    )
    everything = [load([epoch * 8 + row for row in range(8)]) for epoch in range(4)]
    assert all(not np.array_equal(a, b) for a, b in itertools.combinations(everything, 2))
