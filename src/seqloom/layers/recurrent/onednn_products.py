"""Matrix products on oneDNN, where torch has them and they are faster than its own.

Measured on two cores (docs/benchmarks.md): oneDNN is 1.1 times as fast as MKL for the product of many rows,
until its fresh memory costs more than that. It is up to twice as fast for few rows times a large weight in
its own layout, which a recurrent layer needs at every step. Which one runs depends on shapes alone, so a
resumed run computes the same bits. oneDNN keeps compiled code for each number of rows, so it gets multiples
of eight only.
"""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor

from seqloom.layers.recurrent.large_pages import fresh

_MANY = 3_000_000
"""Operations of a product of many rows from which oneDNN is faster."""

_FRESH = 2**22
"""Numbers of a result that should lie in large pages, into which oneDNN does not write."""

_LARGE = 2**18
"""Elements of a weight (1 MiB) from which its own layout makes the product of few rows faster; up to there
MKL is."""

_USES = 8
"""Products with a weight that pay for its own layout."""


def product(x: Tensor, weight: Tensor, plus: Tensor | None = None) -> Tensor:
    """`x Wᵀ + plus` for `x` `(rows, in)`, W `(out, in)` and `plus` `(rows, out)` or `(out,)`. No gradient
    passes."""
    rows = x.shape[0]
    few = 2 * rows * weight.numel() < _MANY
    if not few and rows % 8 == 0 and rows * len(weight) < _FRESH and has_onednn(weight):
        return _onednn(x, weight, plus)
    result = fresh(x, rows, len(weight))
    if plus is None:
        return torch.mm(x, weight.T, out=result)
    return torch.addmm(plus, x, weight.T, out=result)


def _onednn(x: Tensor, weight: Tensor, plus: Tensor | None) -> Tensor:
    if plus is None or plus.dim() == 1:
        result: Tensor = torch.ops.mkldnn._linear_pointwise.default(x, weight, plus, "none", [], "")
    else:
        result = torch.ops.mkldnn._linear_pointwise.binary(x, plus, weight, None, "add")
    return result


def onednn_supports(weight: Tensor) -> bool:
    """Whether torch has oneDNN, and may use it, for weights of this type and on this device."""
    if weight.device.type != "cpu" or weight.dtype != torch.float32:
        return False
    mkldnn = torch.backends.mkldnn
    return bool(mkldnn.is_available() and mkldnn.enabled)  # type: ignore[no-untyped-call]


def has_onednn(weight: Tensor) -> bool:
    """Whether torch has oneDNN's products for this weight (private names of torch, which may be gone one
    day)."""
    names = ("_linear_pointwise", "_reorder_linear_weight")
    return onednn_supports(weight) and all(hasattr(torch.ops.mkldnn, name) for name in names)


@final
class RepeatedProduct:
    """`u -> u Wᵀ` for few rows `(rows, in)`, again and again with the same W `(out, in)`. No gradient
    passes."""

    def __init__(self, weight: Tensor, rows: int, uses: int) -> None:
        """`rows`: how many a call has at most; `uses`: how many calls there will be."""
        self.transposed = weight.T  # once: a view takes as long as a small product
        self.packed: Tensor | None = None
        if rows >= 8 and uses >= _USES and weight.numel() >= _LARGE and has_onednn(weight):
            self.packed = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), rows)

    def __call__(self, u: Tensor, plus: Tensor | None = None) -> Tensor:
        """`plus`: added to it, `(rows, out)` or `(out,)`."""
        if self.packed is not None and u.shape[0] % 8 == 0:
            return _onednn(u, self.packed, plus)
        return (
            torch.mm(u, self.transposed) if plus is None else torch.addmm(plus, u, self.transposed)
        )

    def into(self, u: Tensor, out: Tensor) -> Tensor:
        """The product, written into `out` `(rows, out)`."""
        if self.packed is not None and u.shape[0] % 8 == 0:
            return out.copy_(_onednn(u, self.packed, None))
        return torch.mm(u, self.transposed, out=out)
