"""Masked patches: half of them, 80 / 10 / 10, a function of seed, epoch and row; colours as by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from seqloom.data.images.masked_patches import colours, corruption, masked_patches
from seqloom.data.images.preprocessing import Preprocessing
from seqloom.shapes import IGNORE

MANY = 12_000


def drawn(
    patches: int, rows: int = MANY, epoch: int = 0, seed: int = 0
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    return corruption(np.arange(rows), np.full(rows, epoch), patches, seed)


def assert_as_likely(count: int, of: int, share: float) -> None:
    """Within five standard deviations."""
    assert abs(count - of * share) < 5 * (of * share * (1 - share)) ** 0.5 + 1, (count, of, share)


# Corruption


@pytest.mark.parametrize("patches", [2, 3, 4, 15, 16, 49])
def test_half_of_the_patches_of_each_image_is_corrupted(patches: int) -> None:
    sources, corrupted = drawn(patches, 50)
    np.testing.assert_array_equal(corrupted.sum(1), np.full(50, round(patches / 2)))
    own = np.broadcast_to(np.arange(patches), sources.shape)
    np.testing.assert_array_equal(sources[~corrupted], own[~corrupted])


def test_of_ten_corrupted_patches_eight_are_masked_and_one_is_another() -> None:
    patches = 6
    sources, corrupted = drawn(patches)
    own = np.broadcast_to(np.arange(patches), sources.shape)
    total = int(corrupted.sum())
    masked, kept = sources == -1, corrupted & (sources == own)
    other = corrupted & ~masked & ~kept
    for found, share in ((masked, 0.8), (other, 0.1), (kept, 0.1)):
        assert_as_likely(int(found.sum()), total, share)
    for patch in range(patches):
        assert_as_likely(int(corrupted[:, patch].sum()), MANY, 0.5)
        assert_as_likely(int(masked[:, patch].sum()), int(corrupted[:, patch].sum()), 0.8)
    assert sources.max() == patches - 1
    replaced = int(other.sum())
    for away in range(1, patches):  # every other patch is as likely
        assert_as_likely(
            int(((sources - own) % patches == away)[other].sum()), replaced, 1 / (patches - 1)
        )
    both = corrupted[:, 0] & corrupted[:, 1]
    assert_as_likely(int(both.sum()), MANY, 0.5 * 2 / 5)  # without replacement: any pair


@given(
    seed=st.integers(0, 2**63 - 1),
    rows=st.lists(st.tuples(st.integers(0, 10**9), st.integers(0, 5)), min_size=1, max_size=6),
    patches=st.integers(2, 20),
)
def test_corruption_is_a_function_of_seed_epoch_and_row(
    seed: int, rows: list[tuple[int, int]], patches: int
) -> None:
    """Whatever else is in the batch."""
    at, epochs = (np.array(column) for column in zip(*rows, strict=True))
    together = corruption(at, epochs, patches, seed)
    for i in range(len(rows)):
        alone = corruption(at[i : i + 1], epochs[i : i + 1], patches, seed)
        for whole, one in zip(together, alone, strict=True):
            np.testing.assert_array_equal(whole[i : i + 1], one)


def test_epochs_seeds_and_rows_differ() -> None:
    found = [drawn(16, 20, epoch, seed)[0] for epoch, seed in ((0, 0), (1, 0), (0, 1))]
    assert len({one.tobytes() for one in found}) == 3
    assert len({row.tobytes() for row in found[0]}) == 20


# Colours


def test_colours_by_hand() -> None:
    """Two by two patches of 2 x 2 pixels, with means 0, 31.5, 32 and 255: of 8 levels of 31.875 each 0, 0, 1
    and 7."""
    grey = np.array(
        [[0, 0, 31, 32], [0, 0, 32, 31], [32, 32, 255, 255], [64, 0, 255, 255]], np.uint8
    )[None, ..., None]
    assert colours(grey, 2, 8).tolist() == [[0, 0, 1, 7]]
    assert colours(grey, 4, 8).tolist() == [[2]]  # a mean of 79.6
    almost = np.full((1, 4, 4, 1), 32, np.uint8)
    almost[0, 0, 0] = 31
    assert colours(almost, 4, 8).tolist() == [[1]]  # 31.94: a mean of 0.1252, over 1/8
    assert colours(grey, 1, 8)[0].tolist() == [0, 0, 0, 1, 0, 0, 1, 0, 1, 1, 7, 7, 2, 0, 7, 7]
    coloured = np.zeros((1, 2, 4, 3), np.uint8)
    coloured[0, :, :2] = [255, 0, 32]
    coloured[0, :, 2:] = [0, 254, 128]
    assert colours(coloured, 2, 8).tolist() == [[7 * 64 + 1, 7 * 8 + 4]]


@given(st.integers(0, 255), st.integers(1, 5))
def test_a_patch_of_one_shade_has_the_colour_of_a_pixel(shade: int, size: int) -> None:
    """No rounding: the level is floor(8 shade / 255), at most 7."""
    image = np.full((1, size, size, 1), shade, np.uint8)
    assert colours(image, size, 8).tolist() == [[min(8 * shade // 255, 7)]]


def test_a_batch_asks_for_corrupted_patches_alone() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (5, 6, 6, 3)).astype(np.uint8)
    how = Preprocessing.published(6, 3)
    at, epochs = np.array([4, 0, 3, 7, 1]), np.array([0, 0, 2, 0, 0])
    batch = masked_patches(pixels, at, epochs, 3, how, 2, 8)
    sources, corrupted = corruption(at, epochs, 9, 3)
    np.testing.assert_array_equal(batch.sources, sources)
    np.testing.assert_array_equal(batch.targets, np.where(corrupted, colours(pixels, 2, 8), IGNORE))
    # the model corrupts embeddings; images stay whole
    np.testing.assert_array_equal(batch.images, how.scaled(pixels))
    for i in range(5):
        alone = masked_patches(pixels[i : i + 1], at[i : i + 1], epochs[i : i + 1], 3, how, 2, 8)
        for whole, one in zip(batch, alone, strict=True):
            np.testing.assert_array_equal(whole[i : i + 1], one)
