"""GloVe's training: a pass over cells of the matrix of counts that updates the vectors in place.

    e      = w_i · w~_j + b_i + b~_j - log X_ij
    loss   = ½ f(X_ij) e²,  f(x) = min(1, (x / x_max)^α)        the ½ is the original program's
    step   = AdaGrad (Duchi et al. 2011) after each cell:  x -= η g / √s,  then s += (η g)²

Pennington et al.: GloVe: Global Vectors for Word Representation, EMNLP 2014. η is inside of the sums, and the
sums begin at 1, as in their program.

Cells are read in 16 rounds of 16 blocks. Of two blocks of a round neither has rows of the other nor columns
(Gemulla et al. 2011), so that several threads can read them at the same time, and the result has the same
bits for any number of threads.

`native/glove.h` has the same compiled.
"""

from __future__ import annotations

import ctypes
from typing import NamedTuple, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from seqloom.native.library import KINDS, library

BLOCKS = 16
"""As in `glove.h`."""


@final
class Cells(NamedTuple):
    """Cells of the matrix of counts that are not 0."""

    rows: NDArray[np.int32]
    """The word i of each."""
    columns: NDArray[np.int32]
    """The word j."""
    counts: NDArray[np.float32]
    """X_ij."""


@final
class Factors(NamedTuple):
    """What the counts are explained by, or the sums of its squared gradients."""

    rows: Tensor
    """w: `(vocabulary, width)`."""
    columns: Tensor
    """w~."""
    row_biases: Tensor
    """b: `(vocabulary,)`."""
    column_biases: Tensor
    """b~."""


@final
class CountWeights(NamedTuple):
    """f."""

    x_max: float
    alpha: float

    def of(self, counts: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.minimum(counts / self.x_max, 1.0) ** self.alpha


def train_cells(
    factors: Factors,
    squares: Factors,
    cells: Cells,
    weights: CountWeights,
    rate: float,
    threads: int = 1,
) -> float:
    """One pass over the cells, in their order within each block; the factors and their sums of squares are
    updated in place. A rate of 0 only measures. Returns the loss, summed up over the cells, each before its
    own update."""
    order, starts = in_rounds(cells)
    dtype = factors.rows.dtype
    exact = cells.counts[order].astype(np.float64)
    f, logs = (torch.from_numpy(array).to(dtype) for array in (weights.of(exact), np.log(exact)))
    rows, columns = cells.rows[order], cells.columns[order]
    compiled = library()
    if compiled is None or dtype not in KINDS or not factors.rows.is_cpu:
        places = zip(rows.tolist(), columns.tolist(), strict=True)
        return sum(
            plain_cell(factors, squares, place, weight, log, rate)
            for place, weight, log in zip(places, f, logs, strict=True)
        )
    tensors = [*factors, *squares]
    assert all(tensor.is_contiguous() for tensor in tensors)
    loss = np.zeros(BLOCKS)
    arguments = _GloveArguments(
        rows.ctypes.data,
        columns.ctypes.data,
        f.data_ptr(),
        logs.data_ptr(),
        starts.ctypes.data,
        *(tensor.data_ptr() for tensor in tensors),
        loss.ctypes.data,
        rate,
        factors.rows.shape[1],
    )
    compiled.by_type[dtype].glove(ctypes.byref(arguments), threads)
    return float(loss.sum())


def in_rounds(cells: Cells) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The order in which cells are read, and where each block begins in it, and where the last ends."""
    rounds, lanes = (cells.columns - cells.rows) % BLOCKS, cells.rows % BLOCKS
    blocks = (rounds * BLOCKS + lanes).astype(np.uint8)
    sizes = np.bincount(blocks, minlength=BLOCKS**2)
    return blocks.argsort(kind="stable"), np.concatenate([[0], sizes.cumsum()])


class _GloveArguments(ctypes.Structure):
    """`Glove` in `glove.h`."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("rows", "columns", "weights", "logs", "starts")),
        *((name, ctypes.c_void_p) for name in ("w", "c", "b", "d")),
        *((f"{name}_squares", ctypes.c_void_p) for name in ("w", "c", "b", "d")),
        ("loss", ctypes.c_void_p),
        ("rate", ctypes.c_double),
        ("width", ctypes.c_long),
    ]


def plain_cell(
    factors: Factors,
    squares: Factors,
    place: tuple[int, int],
    weight: Tensor,
    log: Tensor,
    rate: float,
) -> float:
    """What the compiled pass does with one cell (i, j)."""
    i, j = place
    w, c = factors.rows[i].clone(), factors.columns[j].clone()
    error = w @ c + factors.row_biases[i] + factors.column_biases[j] - log
    step = rate * weight * error
    if rate:
        gradients = (step * c, step * w, step, step)
        for factor, sums, row, gradient in zip(
            factors, squares, (i, j, i, j), gradients, strict=True
        ):
            factor[row] -= gradient / sums[row].sqrt()
            sums[row] += gradient**2
    return float(0.5 * weight * error**2)
