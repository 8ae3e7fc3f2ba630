"""The linear map of decoding: a product of few rows with a large weight, as fast as memory delivers the
weight.

Torch's float32 product for such shapes (`F.linear`, by MKL) reads the weight in the order in which training
left it, and on one thread for a single row. oneDNN has kernels for a weight in a layout of its own; torch's
compiler decodes with the same two operators. They are used while a `PackedWeights` is open. Otherwise, where
the operators are missing or a gradient is needed, for many rows, and for anything but float32 on a CPU, this
is `F.linear`. Weights that are stored in fewer bits have a product of their own (`packed_linear.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from seqloom.layers.packed_linear import quantised_linear
from seqloom.packed_weights import current

MOST_ROWS = 1024
"""With more rows the layout of the weight hardly matters."""
LARGE, MUCH = 2**17, 2**21
"""Entries of a weight, or multiplications, from which packing pays: a call of oneDNN costs as much as reading
a small weight."""

# private operators of torch, which may be gone one day
_pack: Callable[[Tensor], Tensor] | None = getattr(torch.ops.mkldnn, "_reorder_linear_weight", None)
_product: Callable[..., Tensor] | None = getattr(torch.ops.mkldnn, "_linear_pointwise", None)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x `(..., width)`, weight `(out, width)`, bias `(out)` -> x Wᵀ + b `(..., out)`."""
    weights = current()
    if weights is not None and weights.storage != "float32":
        return quantised_linear(weights, x, weight, bias)
    if weights is None or _product is None or _pack is None or not _pays(x, weight):
        return F.linear(x, weight, bias)
    pack = _pack
    packed = weights.get(weight, lambda tensor: pack(tensor.detach()))
    return _product(x, packed, bias, "none", [], "")


@final
class Linear(nn.Linear):
    """`nn.Linear` by `linear`."""

    def forward(self, x: Tensor) -> Tensor:
        """`(..., in_features)` -> `(..., out_features)`."""
        return linear(x, self.weight, self.bias)


def _pays(x: Tensor, weight: Tensor) -> bool:
    if torch.is_grad_enabled():
        return False
    rows = x.numel() // x.shape[-1]
    return (
        0 < rows <= MOST_ROWS
        and (weight.numel() >= LARGE or rows * weight.numel() >= MUCH)
        and isinstance(weight, nn.Parameter)  # a tensor made for one call is not worth packing
        and x.dtype == weight.dtype == torch.float32
        and x.device.type == weight.device.type == "cpu"
        and not torch.is_autocast_enabled("cpu")
    )
