"""Pixels: what transformers' image processor makes of the same picture, and the laws of shifts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from seqloom.data.images.preprocessing import Preprocessing, shifted
from seqloom.errors import UsageError

pytestmark = pytest.mark.usefixtures("one_thread")


def picture(height: int, width: int, channels: int, seed: int = 0) -> NDArray[np.uint8]:
    """Smooth enough that a filter has something to do."""
    random = np.random.default_rng(seed).integers(0, 256, (height, width, channels))
    return ((random + np.roll(random, 1, 0) + np.roll(random, 1, 1)) // 3).astype(np.uint8)


@pytest.mark.parametrize("resampling", ["bilinear", "bicubic"])
@pytest.mark.parametrize(("height", "width"), [(16, 16), (40, 23), (9, 30)])
def test_equals_pillow(height: int, width: int, resampling: str) -> None:
    """As `ViTImageProcessor` and Pillow resize: within rounding."""
    pillow: Any = pytest.importorskip("PIL.Image")
    pixels = picture(height, width, 3)
    ours = Preprocessing(
        size=16, channels=3, mean=(0.5,) * 3, deviation=(0.5,) * 3, resampling=resampling
    )
    number = {"bilinear": 2, "bicubic": 3}[resampling]
    theirs = np.asarray(pillow.fromarray(pixels).resize((16, 16), resample=number)).astype(int)
    found = ours.fitted(pixels)
    assert np.abs(found.astype(int) - theirs).max() <= 1
    grey = Preprocessing.published(16, 1).fitted(picture(16, 16, 3))
    assert (
        np.abs(
            grey[..., 0].astype(int)
            - np.asarray(pillow.fromarray(picture(16, 16, 3)).convert("L")).astype(int)
        ).max()
        <= 1
    )
    np.testing.assert_array_equal(
        Preprocessing.published(16, 3).fitted(picture(16, 16, 1)), picture(16, 16, 1).repeat(3, 2)
    )


def test_scaled() -> None:
    pixels = np.array([[[[0, 51, 255]]]], np.uint8)
    preprocessing = Preprocessing(
        size=1, channels=3, mean=(0.5, 0.1, 0.0), deviation=(0.5, 0.2, 2.0)
    )
    np.testing.assert_allclose(preprocessing.scaled(pixels)[0, :, 0, 0], [-1, 0.5, 0.5], rtol=1e-6)
    assert preprocessing.scaled(np.zeros((5, 2, 3, 3), np.uint8)).shape == (5, 3, 2, 3)


def test_written_and_read_again() -> None:
    one = Preprocessing(
        size=7, channels=3, mean=(0.1, 0.2, 0.3), deviation=(1.0, 2.0, 3.0), resampling="bicubic"
    )
    assert Preprocessing.from_json(one.to_json(), 9, 3) == one
    assert Preprocessing.from_json({"size": 5, "do_normalize": False}, 9, 1) == Preprocessing(
        size=5, channels=1, mean=(0.0,), deviation=(1.0,)
    )
    assert Preprocessing.from_json({}, 9, 1) == Preprocessing.published(9, 1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"size": {"shortest_edge": 7}}, "size must be one number of pixels"),
        ({"size": {"height": 7, "width": 8}}, "size must be one number of pixels"),
        ({"size": 0}, "size must be one number of pixels"),
        ({"do_center_crop": True}, "another preparation is not done"),
        ({"do_rescale": False}, "another preparation is not done"),
        ({"rescale_factor": 1.0}, "rescale_factor must be 1/255, but is 1.0"),
        ({"resample": 0}, "resample must be 2"),
        ({"image_mean": [0.5]}, "image_mean must be 3 numbers"),
        ({"image_std": ["a", "b", "c"]}, "image_std must be 3 numbers"),
        ({"image_std": [1, 0, 1]}, "image_std must not be 0"),
    ],
)
def test_a_preparation_that_is_not_done_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Preprocessing.from_json(Preprocessing.published(7, 3).to_json() | changes, 7, 3)


# Shifts


@given(
    by=st.integers(1, 3),
    seed=st.integers(0, 2**63 - 1),
    epoch=st.integers(0, 100),
    rows=st.permutations(range(6)),
)
def test_a_shift_is_a_function_of_seed_epoch_and_row(
    by: int, seed: int, epoch: int, rows: list[int]
) -> None:
    """Whatever else is in the batch; and each picture is moved as a whole, its edge repeated."""
    pixels = np.stack([picture(5, 7, 2, row) for row in rows])
    at, epochs = np.array(rows), np.full(6, epoch)
    moved = shifted(pixels, by, at, epochs, 6, seed)
    alone = np.concatenate(
        [
            shifted(pixels[i : i + 1], by, at[i : i + 1], epochs[i : i + 1], 6, seed)
            for i in range(6)
        ]
    )
    np.testing.assert_array_equal(moved, alone)
    padded = np.pad(pixels, [(0, 0), (by, by), (by, by), (0, 0)], mode="edge")
    offsets = range(2 * by + 1)
    for one, roomy in zip(moved, padded, strict=True):
        assert any(
            np.array_equal(one, roomy[down : down + 5, right : right + 7])
            for down in offsets
            for right in offsets
        )


def test_all_shifts_are_equally_frequent_and_epochs_differ() -> None:
    rows, count = np.arange(9 * 4), 9 * 4
    pixels = np.zeros((count, 5, 5, 1), np.uint8)
    pixels[:, 2, 2] = 1
    found = [
        shifted(pixels, 1, rows, np.full(count, epoch), count, seed)
        for epoch, seed in ((0, 0), (1, 0), (0, 1), (0, 0))
    ]
    for moved in found:
        np.testing.assert_array_equal(moved.sum(0)[1:4, 1:4, 0], np.full((3, 3), 4))
    assert not np.array_equal(found[0], found[1])
    assert not np.array_equal(found[0], found[2])
    np.testing.assert_array_equal(found[0], found[3])
    mixed = shifted(pixels, 1, rows, np.where(rows % 2, 1, 0), count, 0)
    np.testing.assert_array_equal(
        mixed, np.where((rows % 2)[:, None, None, None], found[1], found[0])
    )
