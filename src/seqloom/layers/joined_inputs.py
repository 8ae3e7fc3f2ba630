"""Rows of several states that read inputs of their own, in one state."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F


def padded(tensor: Tensor, size: int, dim: int) -> Tensor:
    """With zeros at the end of dimension `dim`, up to `size`."""
    return F.pad(tensor, [0, 0] * (tensor.dim() - 1 - dim) + [0, size - tensor.shape[dim]])


def joined_sources(sources: Sequence[Tensor], inputs: Tensor) -> Tensor:
    """Which input each row of a joined state reads, where `sources` have 0, 1, 2, ... inputs each; `inputs`
    itself where each row reads its own."""
    offset, moved = 0, []
    for source in sources:
        moved.append(source + offset)
        offset += int(source.max()) + 1
    joined = torch.cat(moved)
    return inputs if torch.equal(joined, inputs) else joined
