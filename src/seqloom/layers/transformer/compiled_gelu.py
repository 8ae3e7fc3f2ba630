"""GELU of a training step, compiled (`native/gelu.h`): torch's takes several times as long as reading its
input."""

from __future__ import annotations

import ctypes
from typing import Any, final

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from seqloom.native.library import team_size, training_functions

GRAIN = 2**14
"""Values for which one more thread is worth while."""

Context = Any
"""Of `torch.autograd.Function`: what `forward` leaves for `backward`, under any names."""


class GeluArguments(ctypes.Structure):
    """`Gelu` in `gelu.h`."""

    _fields_ = [
        *((name, ctypes.c_long) for name in ("size", "bfloat16", "tanh")),
        *((name, ctypes.c_void_p) for name in ("x", "d_y", "to")),
    ]


def gelu(x: Tensor, *, tanh: bool) -> Tensor:
    """x Φ(x), or its approximation by tanh, as `F.gelu`, which it is without gradients and where nothing is
    compiled."""
    if torch.is_grad_enabled() and x.requires_grad and training_functions(x) is not None:
        y: Tensor = _Gelu.apply(x, tanh)  # type: ignore[no-untyped-call]
        return y
    return F.gelu(x, approximate="tanh" if tanh else "none")


@final
class _Gelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Context, x: Tensor, tanh: bool) -> Tensor:
        ctx.tanh = tanh
        x = x.contiguous()
        ctx.save_for_backward(x)
        return _run(x, None, tanh)

    @staticmethod
    @once_differentiable
    def backward(ctx: Context, d_y: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        return _run(x, d_y.to(x.dtype).contiguous(), ctx.tanh), None


def _run(x: Tensor, d_y: Tensor | None, tanh: bool) -> Tensor:
    """y, or given its gradient that of x."""
    functions = training_functions(x) if d_y is None else training_functions(x, d_y)
    assert functions is not None
    to = torch.empty_like(x)
    arguments = GeluArguments(
        size=x.numel(),
        bfloat16=x.dtype is torch.bfloat16,
        tanh=tanh,
        x=x.data_ptr(),
        d_y=None if d_y is None else d_y.data_ptr(),
        to=to.data_ptr(),
    )
    functions.gelu(ctypes.byref(arguments), team_size(x.numel(), GRAIN))
    return to
