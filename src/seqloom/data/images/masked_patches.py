"""Masked patch prediction: which patches of an image are corrupted and how, and the colours that are to be
predicted.

    Dosovitskiy et al. 2021, section 4.6 and appendix B.1.2

Half of the patches are corrupted: of these 80 % become [mask], 10 % another patch of the same image, 10 %
stay as they are; their mean colours, 3 bits a channel, are the targets. Everything is a function of (seed,
epoch, row) and not of torch's stream: a batch is then a function of its rows, the same in one piece, in
micro-batches, over workers and after a resume.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from seqloom.data.batching.order import permute
from seqloom.data.images.preprocessing import Preprocessing
from seqloom.protocols import Rows
from seqloom.shapes import IGNORE

CORRUPTED = 0.5
"""The share of an image's patches, rounded (of two halves to the even number, as Python does)."""
HIDDEN, REPLACED = 8, 1
"""Of ten corrupted patches: [mask], another patch; the others stay as they are."""
CORRUPTION = 2**32 - 3
"""The corruption's key beside the seed and the epoch: no pool of rows has this number."""
FIXED = 2**32 - 4
"""The epoch of images that are only measured: always the same corruption."""
MANY = 2**60
"""Random whole numbers are below this: their remainder by a small divisor is practically uniform."""


class MaskedPatchBatch(NamedTuple):
    images: Tensor
    """`(rows, channels, height, width)`"""
    sources: Tensor
    """`(rows, patches)`: the patch whose embedding is at each place, -1 for [mask]."""
    targets: Tensor
    """`(rows, patches)`: the colour of each corrupted patch, IGNORE at the others."""


def masked_patches(
    pixels: NDArray[np.uint8],
    rows: Rows,
    epochs: Rows,
    seed: int,
    preprocessing: Preprocessing,
    patch_size: int,
    levels: int,
) -> MaskedPatchBatch:
    """The batch of these pictures `(rows, height, width, channels)`, `rows` being their numbers."""
    patch_colours = colours(pixels, patch_size, levels)
    sources, corrupted = corruption(rows, epochs, patch_colours.shape[1], seed)
    targets = np.where(corrupted, patch_colours, IGNORE)
    return MaskedPatchBatch(
        preprocessing.scaled(pixels), torch.from_numpy(sources), torch.from_numpy(targets)
    )


def colours(pixels: NDArray[np.uint8], patch_size: int, levels: int) -> NDArray[np.int64]:
    """`(rows, height, width, channels)` -> `(rows, patches)`, line by line: the mean colour of each patch.

    Of each channel floor(levels x mean), the mean in 0 to 1, 1 being of the highest level; the first channel
    counts most: `(red x levels + green) x levels + blue`.
    """
    count, height, width, channels = pixels.shape
    grid = pixels.reshape(
        count, height // patch_size, patch_size, width // patch_size, patch_size, channels
    )
    sums = grid.sum(axis=(2, 4), dtype=np.int64).reshape(count, -1, channels)
    # In whole numbers, so that no rounding changes a colour.
    level = np.minimum(levels * sums // (255 * patch_size**2), levels - 1)
    return np.asarray(level @ levels ** np.arange(channels - 1, -1, -1))


def corruption(
    rows: Rows, epochs: Rows, patches: int, seed: int
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """(sources, whether corrupted), both `(rows, patches)`, of pictures `rows` in `epochs`; at least two
    patches an image."""
    own = np.arange(patches)
    random = np.empty((len(rows), patches), np.int64)
    for epoch in np.unique(epochs):
        these = epochs == epoch
        random[these] = permute(
            rows[these, None] * patches + own, MANY, seed, int(epoch), CORRUPTION
        )
    # The patches with the lowest numbers; that says nothing about the last digits.
    corrupted = random.argsort(axis=1).argsort(axis=1) < round(CORRUPTED * patches)
    how = np.where(corrupted, random % 10, 10)
    other = (own + 1 + random // 10 % (patches - 1)) % patches
    sources = np.where(how < HIDDEN, -1, np.where(how < HIDDEN + REPLACED, other, own))
    return sources, corrupted
