"""A product of large matrices, compiled (`seqloom/native/gemm.h`), which takes the rows of each in any
order."""

from __future__ import annotations

import ctypes
import functools

import torch
from torch import Tensor

from seqloom.native.library import KINDS, in_memory, library, team_size

GRAIN = 1_000_000
"""Operations for which one more thread is worth while."""


class Matrix(ctypes.Structure):
    """`Matrix` in `product.h`."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("row_stride", ctypes.c_long),
        ("column_stride", ctypes.c_long),
        ("index", ctypes.c_void_p),
    ]


class ProductArguments(ctypes.Structure):
    """`Gemm` in `gemm.h`."""

    _fields_ = [
        ("a", Matrix),
        ("b", Matrix),
        ("c", Matrix),
        ("bias", ctypes.c_void_p),
        ("add", ctypes.c_long),
        ("rows", ctypes.c_long),
        ("columns", ctypes.c_long),
        ("depth", ctypes.c_long),
    ]


def gemm(
    a: Tensor,
    b: Tensor,
    out: Tensor,
    bias: Tensor | None = None,
    *,
    add: bool = False,
    a_index: Tensor | None = None,
    b_index: Tensor | None = None,
    out_index: Tensor | None = None,
) -> Tensor:
    """`out = a b + bias`, or `out += a b` where `add`: a `(rows, depth)`, b `(depth, columns)`, bias
    `(columns,)`. No gradient passes.

    An index picks the rows of a matrix: row i of the product's operand is row `index[i]` of the tensor; other
    rows of `out` keep their values. All are CPU tensors (`in_memory`); those with an index, and `out`, have
    contiguous rows. Raises ValueError if sizes do not fit.
    """
    rows = len(a) if a_index is None else len(a_index)
    inner = len(b) if b_index is None else len(b_index)
    out_rows = len(out) if out_index is None else len(out_index)
    columns, depth = b.shape[1], a.shape[1]
    if inner != depth or out.shape[1] != columns or out_rows != rows:
        raise ValueError(
            f"sizes must fit, but are {tuple(a.shape)} times {tuple(b.shape)} into {tuple(out.shape)}"
        )
    if bias is not None and (bias.shape != (columns,) or add):
        raise ValueError(
            f"a bias must have {columns} numbers and nothing else to be added to, but has the shape"
            f" {tuple(bias.shape)}"
        )
    a, b, bias = (
        _with_a_unit_stride(a),
        _with_a_unit_stride(b),
        None if bias is None else bias.contiguous(),
    )
    compiled = library()
    tensors = [a, b, out] if bias is None else [a, b, out, bias]
    supported = out.dtype in KINDS and all(in_memory(tensor, out.dtype) for tensor in tensors)
    if compiled is None or not supported:
        raise ValueError(
            "all must be numbers of one type in memory, and the compiled product there"
        )
    if out.stride(1) != 1:
        raise ValueError(f"the result must lie row by row, but has the strides {out.stride()}")
    if depth == 0:
        if not add:
            out[... if out_index is None else out_index] = 0 if bias is None else bias
        return out
    arguments = ProductArguments(
        a=_matrix(a, a_index),
        b=_matrix(b, b_index),
        c=_matrix(out, out_index),
        bias=None if bias is None else bias.data_ptr(),
        add=add,
        rows=rows,
        columns=columns,
        depth=depth,
    )
    compiled.by_type[out.dtype].gemm(
        ctypes.byref(arguments), threads_for(2 * rows * columns * depth)
    )
    return out


@functools.cache
def beats_torch() -> bool:
    """Whether the product was written for this kind of processor; on others torch's library is likely
    faster."""
    return torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512")


def threads_for(operations: int) -> int:
    return team_size(operations, GRAIN)


def _with_a_unit_stride(tensor: Tensor) -> Tensor:
    """With contiguous rows or contiguous columns."""
    return tensor if 1 in tensor.stride() else tensor.contiguous()


def _matrix(tensor: Tensor, index: Tensor | None) -> Matrix:
    row_stride, column_stride = tensor.stride()
    if index is None:
        return Matrix(tensor.data_ptr(), row_stride, column_stride, None)
    if column_stride != 1:
        raise ValueError(
            f"rows in an order of their own must lie row by row, but have the strides {tensor.stride()}"
        )
    if not (in_memory(index, torch.long) and index.dim() == 1 and index.is_contiguous()):
        raise ValueError(
            f"the order of rows must be numbers of 64 bits that lie one after the other, but is {index.dtype}"
            f" with the strides {index.stride()}"
        )
    return Matrix(tensor.data_ptr(), row_stride, column_stride, index.data_ptr())
