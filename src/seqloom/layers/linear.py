"""The linear map of decoding: a product of few rows with a large weight, as fast as memory delivers the
weight.

Torch's float32 product for such shapes (`F.linear`, by MKL) reads the weight in the order in which training
left it. While a `PackedWeights` is open, weights in a layout of their own are read instead
(`packed_linear.py`). Where nothing is compiled or a gradient is needed, for many rows, and for anything but
float32 on a CPU, this is `F.linear`.
"""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from seqloom.layers.packed_linear import is_readable, packed_product
from seqloom.layers.rounded_rows import are_rows_rounded, with_rounded_rows
from seqloom.native.library import decoding_functions, in_memory
from seqloom.packed_weights import current

MOST_ROWS = 1024
"""With more rows the layout of the weight hardly matters."""
LARGE, MUCH = 2**17, 2**21
"""Entries of a weight, or multiplications, from which packing pays: a call costs as much as reading a small
weight."""


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x `(..., width)`, weight `(out, width)`, bias `(out)` -> x Wᵀ + b `(..., out)`."""
    weights = current()
    if weights is None or (
        weights.storage == "float32" and not (_pays(x, weight) and can_be_packed(x, weight))
    ):
        if not are_rows_rounded(x):
            return F.linear(x, weight, bias)
        rows = x.reshape(x.shape[:-1].numel(), x.shape[-1])
        y = F.linear(with_rounded_rows(rows), weight, bias)
        if len(y) > len(rows):  # the gradient of a slice is a copy
            y = y[: len(rows)]
        return y.view(*x.shape[:-1], len(weight))
    return packed_product(weights, x, weight, bias)


@final
class Linear(nn.Linear):
    """`nn.Linear` by `linear`."""

    def forward(self, x: Tensor) -> Tensor:
        """`(..., in_features)` -> `(..., out_features)`."""
        return linear(x, self.weight, self.bias)


def _pays(x: Tensor, weight: Tensor) -> bool:
    rows = x.numel() // x.shape[-1]
    return 0 < rows <= MOST_ROWS and (weight.numel() >= LARGE or rows * weight.numel() >= MUCH)


def can_be_packed(x: Tensor, weight: Tensor) -> bool:
    """Whether products of x and a weight can be compiled ones."""
    return (
        isinstance(weight, nn.Parameter)  # a tensor made for one call is not worth packing
        and in_memory(x, torch.float32)
        and is_readable(weight)
        and not torch.is_grad_enabled()
        and not torch.is_autocast_enabled("cpu")
        and decoding_functions() is not None
    )
