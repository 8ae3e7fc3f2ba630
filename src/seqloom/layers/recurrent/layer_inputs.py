"""What a layer is given, as its products take it: the true steps only, in their order (`packing.py`)."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor

from seqloom.layers.recurrent.compiled_products import gemm
from seqloom.layers.recurrent.large_pages import fresh
from seqloom.layers.recurrent.onednn_products import product
from seqloom.layers.recurrent.packing import Order, Rows, in_rising_order, lying, pack, time_first, unpack


@final
class Inputs:
    """The compiled product reads them where they lie, and writes their gradient there; without it they are
    packed first."""

    def __init__(self, sequences: Tensor, order: Order, *, compiled: bool) -> None:
        self.sequences, self.order, self.compiled = sequences, order, compiled

    @functools.cached_property
    def packed(self) -> Tensor:
        """`(true steps, input)`"""
        return pack(self.sequences, self.order)

    @functools.cached_property
    def _rows(self) -> Rows:
        return lying(self.sequences, self.order)

    def times(self, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """`x Wᵀ + bias`: `(true steps, out)`."""
        if not self.compiled:
            return product(self.packed, weight, bias)
        out = fresh(weight, sum(self.order.sizes), len(weight))
        return gemm(self._rows.numbers, weight.T, out, bias, a_order=self._rows.order)

    def weight_gradient(self, d: Tensor, out: Tensor) -> None:
        """`out = dᵀ x`, for d `(true steps, out)`."""
        if self.compiled:
            gemm(d.T, self._rows.numbers, out, b_order=self._rows.order)
        else:
            torch.mm(d.T, self.packed, out=out)

    def gradient(self, terms: Sequence[tuple[Tensor, Tensor | None]]) -> Tensor:
        """Of the inputs, 0 at padding: from d `(true steps, out)` of each product and its weight `(out,
        input)`; None: d itself."""
        if not self.compiled:
            d_x: Tensor | None = None
            for d, weight in terms:
                if weight is not None:
                    d_x = product(d, weight.T, d_x)
                else:
                    d_x = d if d_x is None else d_x + d
            assert d_x is not None
            return unpack(d_x, self.order, self.sequences.shape)
        numbers, order = self._rows
        places, sources = (
            (None, None) if order is None else in_rising_order(order, len(numbers))
        )  # what is written lies side by side
        out = fresh(numbers, *numbers.shape) if places is None else torch.zeros_like(numbers)
        add = False
        for d, weight in sorted(terms, key=lambda term: term[1] is not None):
            if weight is None:
                assert not add
                out = out.copy_(d) if order is None else out.index_copy_(0, order, d)
            else:
                gemm(d, weight, out, add=add, a_order=sources, out_order=places)
            add = True
        rows, steps, width = self.sequences.shape
        return (
            out.view(steps, rows, width).transpose(0, 1)
            if time_first(self.sequences)
            else out.view(rows, steps, width)
        )
