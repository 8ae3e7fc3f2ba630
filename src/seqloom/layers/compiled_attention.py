"""Attention of a training step, compiled (`native/attention.h`): of small heads torch's gradients take
several times as long as their products, and in bfloat16 a new number of steps would compile new products.
"""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple, final

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from seqloom.native.library import in_memory, team_size, training_functions

GRAIN = 2**16
"""Multiplications for which one more thread is worth while."""

Context = Any
"""Of `torch.autograd.Function`: what `forward` leaves for `backward`, under any names."""


class HeadsArguments(ctypes.Structure):
    """`Heads` in `attention.h`."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        *((name, ctypes.c_long) for name in ("row", "head", "step")),
    ]


class HeadAttentionArguments(ctypes.Structure):
    """`Attention` in `attention.h`."""

    _fields_ = [
        *((name, ctypes.c_long) for name in ("rows", "heads", "queries", "keys", "width")),
        *((name, ctypes.c_long) for name in ("bfloat16", "causal")),
        ("scale", ctypes.c_float),
        *((name, HeadsArguments) for name in ("query", "key", "value", "mixed")),
        *((name, HeadsArguments) for name in ("d_query", "d_key", "d_value")),
        ("mask", ctypes.c_void_p),
        *((f"mask_{name}", ctypes.c_long) for name in ("row", "head", "query")),
        ("log_sums", ctypes.c_void_p),
    ]


class Looks(NamedTuple):
    """Where queries look, and how sharply."""

    mask: Tensor | None
    """bool, broadcastable to `(rows, heads, queries, keys)`: true where a query looks; None: everywhere, or
    causal."""
    causal: bool
    scale: float


def has_compiled_attention(query: Tensor, keys: Tensor, values: Tensor, looks: Looks) -> bool:
    """Whether a gradient is wanted of `(rows, heads, steps, head_width)` each, and compiled attention can
    give it."""
    tensors = (query, keys, values)
    if not torch.is_grad_enabled() or not any(tensor.requires_grad for tensor in tensors):
        return False
    shape = (query.shape[0], query.shape[1], keys.shape[2], query.shape[3])
    return (
        keys.shape == values.shape == shape
        and all(tensor.numel() and tensor.stride(3) == 1 for tensor in tensors)
        and (looks.mask is None or in_memory(looks.mask, torch.bool))
        and training_functions(*tensors) is not None
    )


def compiled_attention(query: Tensor, keys: Tensor, values: Tensor, looks: Looks) -> Tensor:
    """softmax(Q Kᵀ · scale + mask) V, where `has_compiled_attention`: `(rows, heads, steps, head_width)`,
    whose memory is `(rows, steps, heads, head_width)`."""
    mixed: Tensor = _Attention.apply(query, keys, values, looks)  # type: ignore[no-untyped-call]
    return mixed


@final
class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Context, query: Tensor, keys: Tensor, values: Tensor, looks: Looks) -> Tensor:
        log_sums = query.new_empty(query.shape[:3], dtype=torch.float32)
        mixed = _empty_heads(query)
        _run((query, keys, values), mixed, looks, log_sums, None)
        ctx.looks = looks
        ctx.save_for_backward(query, keys, values, log_sums)
        return mixed

    @staticmethod
    @once_differentiable
    def backward(ctx: Context, d_mixed: Tensor) -> tuple[Tensor | None, ...]:
        query, keys, values, log_sums = ctx.saved_tensors
        if d_mixed.dtype is not query.dtype or d_mixed.stride(3) != 1:
            d_mixed = d_mixed.to(query.dtype).contiguous()
        gradients = tuple(_empty_heads(tensor) for tensor in (query, keys, values))
        _run((query, keys, values), d_mixed, ctx.looks, log_sums, gradients)
        return *gradients, None


def _empty_heads(like: Tensor) -> Tensor:
    """Of this shape, with the steps before the heads in memory, as products have them."""
    rows, heads, steps, width = like.shape
    return like.new_empty(rows, steps, heads, width).transpose(1, 2)


def _run(
    inputs: tuple[Tensor, Tensor, Tensor],
    mixed: Tensor,
    looks: Looks,
    log_sums: Tensor,
    gradients: tuple[Tensor, ...] | None,
) -> None:
    """From query, keys and values to `mixed` and `log_sums`; or from the gradient `mixed` to `gradients`."""
    functions = training_functions(*inputs, mixed)
    assert functions is not None
    query, keys, values = inputs
    rows, heads, queries, width = query.shape
    arguments = HeadAttentionArguments(
        rows=rows,
        heads=heads,
        queries=queries,
        keys=keys.shape[2],
        width=width,
        bfloat16=query.dtype is torch.bfloat16,
        causal=looks.causal,
        scale=looks.scale,
        query=_heads(query),
        key=_heads(keys),
        value=_heads(values),
        mixed=_heads(mixed),
        log_sums=log_sums.data_ptr(),
    )
    if gradients is not None:
        arguments.d_query, arguments.d_key, arguments.d_value = map(_heads, gradients)
    mask = looks.mask
    if mask is not None:
        mask = mask.expand(rows, heads, queries, keys.shape[2])
        if mask.stride(3) != 1 and mask.shape[3] > 1:
            mask = mask.contiguous()
        arguments.mask = mask.data_ptr()
        arguments.mask_row, arguments.mask_head, arguments.mask_query = mask.stride()[:3]
    operations = rows * heads * queries * keys.shape[2] * width
    functions.attention(ctypes.byref(arguments), team_size(operations, GRAIN, rows * heads))


def _heads(tensor: Tensor) -> HeadsArguments:
    return HeadsArguments(tensor.data_ptr(), *tensor.stride()[:3])
