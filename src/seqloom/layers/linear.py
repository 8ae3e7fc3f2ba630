"""A linear map that reads its weight as fast as the memory gives it where there are few rows: a step of
decoding on a CPU.

A product of a few rows with a large matrix waits for the matrix. Torch's float32 product for such shapes
(`F.linear`, by MKL) reads it in the order in which training left it, on one thread for a single row. oneDNN
has kernels for a weight that was laid out for them once, `packed`; torch's own compiler decodes with the same
two operators. Where they are missing, where a gradient is needed, elsewhere than in float32 on a CPU, and for
many rows, it is `F.linear`.
"""

from __future__ import annotations

import weakref
from functools import cache
from typing import Any, NamedTuple, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.optimizer import register_optimizer_step_post_hook

MOST_ROWS = 1024
"""With more rows the layout of the weight hardly matters."""
LARGE, MUCH = 2**17, 2**21
"""Entries of a weight, or multiplications, from which packing pays: a call of oneDNN costs as much as reading
a small weight."""

_pack: Any = getattr(torch.ops.mkldnn, "_reorder_linear_weight", None)
_product: Any = getattr(torch.ops.mkldnn, "_linear_pointwise", None)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x `(..., width)`, weight `(out, width)`, bias `(out)` -> x Wᵀ + b `(..., out)`."""
    if _pays(x, weight):
        result: Tensor = _product(x, _packed(weight), bias, "none", [], "")
        return result
    return F.linear(x, weight, bias)


@final
class Linear(nn.Linear):
    """`nn.Linear` by `linear`."""

    def forward(self, x: Tensor) -> Tensor:
        """`(..., in_features)` -> `(..., out_features)`."""
        return linear(x, self.weight, self.bias)


def _pays(x: Tensor, weight: Tensor) -> bool:
    if torch.is_grad_enabled() or _product is None or _pack is None:
        return False
    rows = x.numel() // x.shape[-1]
    return (
        0 < rows <= MOST_ROWS
        and (weight.numel() >= LARGE or rows * weight.numel() >= MUCH)
        and isinstance(weight, nn.Parameter)  # what is made anew for each call is not worth packing
        and x.dtype == weight.dtype == torch.float32
        and x.device.type == weight.device.type == "cpu"
        and not torch.is_autocast_enabled("cpu")
        and not weight.is_inference()  # has no version
    )


class _Pack(NamedTuple):
    weight: weakref.ref[Tensor]
    changes: tuple[int, int]
    """Changes of the weight, and steps of all optimizers, until it was packed."""
    source: Tensor
    """What was packed: while it is held, no other memory has its address."""
    packed: Tensor


_packs: dict[int, _Pack] = {}
"""By the id of the weight, as long as that lives."""


def _packed(weight: Tensor) -> Tensor:
    """The weight as oneDNN reads it, kept until the weight changes or goes; as large as the weight.

    A change that torch does not count (through `weight.data` in place, or an array of NumPy on its memory) is
    not seen.
    """
    key, changes = id(weight), (weight._version, _updates())
    kept = _packs.get(key)
    if (
        kept is None
        or kept.weight() is not weight
        or kept.changes != changes
        or kept.source.data_ptr() != weight.data_ptr()
    ):
        source = weight.detach()
        kept = _packs[key] = _Pack(
            weakref.ref(weight, lambda _: _packs.pop(key, None)), changes, source, _pack(source)
        )
    return kept.packed


@cache
def _count_updates() -> list[int]:
    """How many steps all optimizers took since the first weight was packed: a fused one leaves the version of
    a weight as it was."""
    count = [0]

    def step_taken(*_: Any) -> None:
        count[0] += 1

    register_optimizer_step_post_hook(step_taken)
    return count


def _updates() -> int:
    return _count_updates()[0]
