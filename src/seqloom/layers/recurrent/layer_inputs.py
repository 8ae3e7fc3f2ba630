"""The inputs of a layer, as its products take them: real steps only, in the packed order (`packing.py`)."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor

from seqloom.layers.recurrent.compiled_products import gemm
from seqloom.layers.recurrent.large_pages import fresh
from seqloom.layers.recurrent.onednn_products import product
from seqloom.layers.recurrent.packing import (
    IndexedRows,
    PackedOrder,
    is_time_first,
    pack,
    packed_in_place,
    sorted_with_positions,
    unpack,
)


@final
class LayerInputs:
    """The compiled product reads the inputs where they lie, and writes their gradient there. Without it they
    are packed first."""

    def __init__(self, sequences: Tensor, order: PackedOrder, *, compiled: bool) -> None:
        self.sequences, self.order, self.compiled = sequences, order, compiled

    @functools.cached_property
    def packed(self) -> Tensor:
        """`(real steps, input)`"""
        return pack(self.sequences, self.order)

    @functools.cached_property
    def _rows(self) -> IndexedRows:
        return packed_in_place(self.sequences, self.order)

    def times(self, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """`x Wᵀ + bias`: `(real steps, out)`."""
        if not self.compiled:
            return product(self.packed, weight, bias)
        out = fresh(weight, sum(self.order.batch_sizes), len(weight))
        return gemm(self._rows.matrix, weight.T, out, bias, a_index=self._rows.row_index)

    def weight_gradient(self, d: Tensor, out: Tensor) -> None:
        """`out = dᵀ x`, for d `(real steps, out)`."""
        if self.compiled:
            gemm(d.T, self._rows.matrix, out, b_index=self._rows.row_index)
        else:
            torch.mm(d.T, self.packed, out=out)

    def gradient(self, terms: Sequence[tuple[Tensor, Tensor | None]]) -> Tensor:
        """The gradient of the inputs, 0 at padding: `Σ d W` over products with d `(real steps, out)` and W
        `(out, input)`; without W the term is d itself."""
        return self._gradient_in_place(terms) if self.compiled else self._gradient_packed(terms)

    def _gradient_packed(self, terms: Sequence[tuple[Tensor, Tensor | None]]) -> Tensor:
        total: Tensor | None = None
        for d, weight in terms:
            if weight is not None:
                total = product(d, weight.T, total)
            else:
                total = d if total is None else total + d
        assert total is not None
        return unpack(total, self.order, self.sequences.shape)

    def _gradient_in_place(self, terms: Sequence[tuple[Tensor, Tensor | None]]) -> Tensor:
        matrix, index = self._rows
        # The product writes its rows in ascending order, so that neighbours in memory are written together,
        # and picks the row of d that belongs to each.
        targets, sources = (
            (None, None) if index is None else sorted_with_positions(index, len(matrix))
        )
        out = fresh(matrix, *matrix.shape) if targets is None else torch.zeros_like(matrix)
        add = False
        # a term without a weight is copied, so it must come first; the others are added to it
        for d, weight in sorted(terms, key=lambda term: term[1] is not None):
            if weight is None:
                assert not add
                out = out.copy_(d) if index is None else out.index_copy_(0, index, d)
            else:
                gemm(d, weight, out, add=add, a_index=sources, out_index=targets)
            add = True
        rows, steps, width = self.sequences.shape
        if is_time_first(self.sequences):
            return out.view(steps, rows, width).transpose(0, 1)
        return out.view(rows, steps, width)
