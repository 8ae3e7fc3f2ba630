"""One product of large matrices, compiled (`seqloom/native/gemm.h`): their rows may be taken in an order of
their own."""

from __future__ import annotations

import ctypes
import functools

import torch
from torch import Tensor

from seqloom.native.library import KINDS, in_memory, library

GRAIN = 1_000_000
"""Operations that make one more thread worth while."""


class Matrix(ctypes.Structure):
    """`Matrix` in `product.h`."""

    _fields_ = [
        ("at", ctypes.c_void_p),
        ("down", ctypes.c_long),
        ("right", ctypes.c_long),
        ("order", ctypes.c_void_p),
    ]


class ProductArguments(ctypes.Structure):
    """`Gemm` in `gemm.h`."""

    _fields_ = [
        *((name, Matrix) for name in ("a", "b", "c")),
        ("bias", ctypes.c_void_p),
        *((name, ctypes.c_long) for name in ("add", "rows", "columns", "depth")),
    ]


def gemm(
    a: Tensor,
    b: Tensor,
    out: Tensor,
    bias: Tensor | None = None,
    *,
    add: bool = False,
    a_order: Tensor | None = None,
    b_order: Tensor | None = None,
    out_order: Tensor | None = None,
) -> Tensor:
    """`out = a b + bias`, or `out += a b` where `add`: a `(rows, depth)`, b `(depth, columns)`, bias
    `(columns,)`. No gradient passes.

    With an order, an integer for each row of a matrix, place i is where row `order[i]` stands; `out` then
    keeps what its other rows are. All lie in memory (`in_memory`), those with an order and `out` row by row.
    Raises ValueError where sizes do not fit.
    """
    rows, columns, depth = (len(a) if a_order is None else len(a_order)), b.shape[1], a.shape[1]
    depths = {depth, len(b) if b_order is None else len(b_order)}
    if (
        len(depths) > 1
        or out.shape[1] != columns
        or (len(out) if out_order is None else len(out_order)) != rows
    ):
        raise ValueError(
            f"sizes must fit, but are {tuple(a.shape)} times {tuple(b.shape)} into {tuple(out.shape)}"
        )
    if bias is not None and (bias.shape != (columns,) or add):
        raise ValueError(
            f"a bias must have {columns} numbers and nothing else to be added to, but has the shape"
            f" {tuple(bias.shape)}"
        )
    a, b, bias = _straight(a), _straight(b), None if bias is None else bias.contiguous()
    found, tensors = library(), [a, b, out, *([] if bias is None else [bias])]
    if found is None or out.dtype not in KINDS or not all(in_memory(tensor, out.dtype) for tensor in tensors):
        raise ValueError("all must be numbers of one type in memory, and the compiled product there")
    if out.stride(1) != 1:
        raise ValueError(f"the result must lie row by row, but has the strides {out.stride()}")
    arguments = ProductArguments(
        a=_matrix(a, a_order),
        b=_matrix(b, b_order),
        c=_matrix(out, out_order),
        bias=None if bias is None else bias.data_ptr(),
        add=add,
        rows=rows,
        columns=columns,
        depth=depth,
    )
    getattr(found, f"seqloom_gemm_{KINDS[out.dtype]}")(
        ctypes.byref(arguments), threads_for(2 * rows * columns * depth)
    )
    return out


@functools.cache
def beats_torch() -> bool:
    """Whether this processor is one for which it is written: elsewhere torch's library is likely to know
    more."""
    return torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512")


def threads_for(operations: int) -> int:
    return max(1, min(torch.get_num_threads(), operations // GRAIN))


def _straight(tensor: Tensor) -> Tensor:
    """Row by row or column by column."""
    return tensor if 1 in tensor.stride() else tensor.contiguous()


def _matrix(tensor: Tensor, order: Tensor | None) -> Matrix:
    down, right = tensor.stride()
    if right == 1:
        return Matrix(tensor.data_ptr(), down, right, None if order is None else order.data_ptr())
    if order is not None:
        raise ValueError(
            f"rows in an order of their own must lie row by row, but have the strides {tensor.stride()}"
        )
    return Matrix(tensor.data_ptr(), down, right, None)
