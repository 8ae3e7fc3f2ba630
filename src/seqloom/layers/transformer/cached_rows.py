"""Rows of caches of keys and values over other rows, for all layers in one compiled call:
`native/cached_rows.h`."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from seqloom.native.library import decoding_functions, in_memory

_LONG, _POINTER = ctypes.c_long, ctypes.c_void_p


class CachedRowsArguments(ctypes.Structure):
    """`CachedRows` in `cached_rows.h`."""

    _fields_ = [
        ("parts", _POINTER),
        *((name, _LONG) for name in ("part_count", "rows", "heads", "slots", "head_bytes")),
        ("tokens", _POINTER),
        ("tokens_stride", _LONG),
        *((name, _POINTER) for name in ("inputs", "order")),
        *((name, _LONG) for name in ("kept", "length")),
    ]


def reorder_rows(
    parts: Sequence[Tensor], tokens: Tensor, length: int, order: Tensor, inputs: Tensor | None
) -> bool:
    """Row k of each part `(rows, heads, slots, head_width)` and of the tokens `(rows, slots)` becomes what
    row order[k] was. Rows agree as long as their tokens do, and the inputs that they read `(rows,)`.

    False where this cannot be done in one call: then nothing was done.
    """
    functions, first = decoding_functions(), parts[0]
    numbers = [tokens, order] if inputs is None else [tokens, order, inputs]
    if (
        functions is None
        or not all(in_memory(one, torch.long) and one.stride(-1) == 1 for one in numbers)
        or not all(
            in_memory(part, first.dtype) and part.is_contiguous() and part.shape == first.shape
            for part in parts
        )
        or len({len(one) for one in (first, tokens, *numbers[2:])}) > 1
        or not length <= min(first.shape[2], tokens.shape[1])
    ):
        return False
    rows, heads, slots, head_width = first.shape
    addresses = (_POINTER * len(parts))(*(part.data_ptr() for part in parts))
    arguments = CachedRowsArguments(
        ctypes.addressof(addresses),
        len(parts),
        rows,
        heads,
        slots,
        head_width * first.itemsize,
        tokens.data_ptr(),
        tokens.stride(0),
        None if inputs is None else inputs.data_ptr(),
        order.data_ptr(),
        len(order),
        length,
    )
    return functions.reorder(ctypes.byref(arguments))
