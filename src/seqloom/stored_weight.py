"""Weights that are stored in fewer bits, and a tensor that stands for one of them in a model.

bfloat16    the upper half of each float32
int8        W ≈ s round(W / s), s = max |W| / 127 for each row: an output, or a token of an embedding,
            has one scale
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils._pytree import tree_map_only

from seqloom.packed_weights import Storage

ROWS = 256
"""Of a weight that are rounded at once."""
SCALES = "_scales"
"""How the name of a weight's scales ends in a file."""
DTYPES: dict[Storage, torch.dtype] = {"bfloat16": torch.bfloat16, "int8": torch.int8}


class QuantisedWeight(NamedTuple):
    """A weight `(outputs, inputs)` in one of the storages."""

    values: Tensor
    scales: Tensor | None
    """`(outputs,)` of int8."""

    @classmethod
    def of(cls, weight: Tensor, storage: Storage) -> QuantisedWeight:
        match weight:
            case StoredWeight() if weight.stored_in == storage:
                return weight.stored
            case StoredWeight():
                weight = weight.stored.restored()
            case _:
                weight = weight.detach()
        if weight.is_meta:
            # nothing is computed, for which torch would load a large part of itself
            values = torch.empty(weight.shape, dtype=DTYPES[storage], device="meta")
            scales = torch.empty(len(weight), device="meta") if storage == "int8" else None
            return cls(values, scales)
        if storage != "int8":
            return cls(weight.bfloat16() if storage == "bfloat16" else weight, None)
        largest = torch.maximum(weight.amax(dim=1), -weight.amin(dim=1))
        scales = torch.where(largest > 0, largest / 127, 1.0)
        values = torch.empty_like(weight, dtype=torch.int8)
        # some rows at a time: large tensors that die soon would leave the process larger
        for first in range(0, len(weight), ROWS):
            rows = slice(first, first + ROWS)
            values[rows] = (weight[rows] / scales[rows, None]).round()
        return cls(values, scales)

    def restored(self) -> Tensor:
        """The weight that it approximates, in float32."""
        values = self.values.float()
        return values if self.scales is None else values * self.scales[:, None]


class StoredWeight(Tensor):
    """A float32 weight of a model of which memory holds only what is stored. Whoever computes with it gets
    the restored weight; the compiled products (`packed_linear.py`) read what is stored."""

    stored: QuantisedWeight

    @staticmethod
    def __new__(cls, stored: QuantisedWeight) -> Self:
        # one NaN that every place shares, for code that no Python function leads to
        nothing = torch.full((), math.nan, device=stored.values.device).expand(stored.values.shape)
        made: Self = Tensor._make_subclass(cls, nothing)
        made.stored = stored
        return made

    @property
    def stored_in(self) -> Storage:
        return "int8" if self.stored.scales is not None else "bfloat16"

    # not __torch_dispatch__, for which torch would load a large part of itself
    @classmethod
    def __torch_function__(
        cls,
        function: Any,
        types: Sequence[type],
        given: Sequence[Any] = (),
        named: Mapping[str, Any] | None = None,
    ) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            is_property = function.__name__ == "__get__" and function not in VIEWS
            if is_property or function in OF_NO_VALUES:
                return function(*given, **named or {})
            if function is Tensor.detach:
                return cls(given[0].stored)
            if function is Tensor.split_with_sizes:  # by rows
                values, scales = given[0].stored
                parts = values.split_with_sizes(given[1])
                of_parts = (
                    [None] * len(parts) if scales is None else scales.split_with_sizes(given[1])
                )
                return tuple(map(cls, map(QuantisedWeight, parts, of_parts)))
            if function is F.embedding:
                (values, scales), ids = given[1].stored, given[0].flatten()
                rows = QuantisedWeight(values[ids], None if scales is None else scales[ids])
                return rows.restored().view(*given[0].shape, -1)
            restored, by_name = tree_map_only(
                StoredWeight, lambda weight: weight.stored.restored(), (given, named or {})
            )
            return function(*restored, **by_name)


OF_NO_VALUES = {
    *(Tensor.__len__, Tensor.numel, Tensor.dim, Tensor.size, Tensor.is_floating_point),
    *(Tensor.requires_grad_, Tensor.is_inference),
}
"""Functions of tensors that read no value of theirs."""
_getters: Any = Tensor
VIEWS = {
    getter.__get__ for getter in (_getters.T, _getters.mT, _getters.H, _getters.mH, _getters.data)
}
"""What is read like a property, and is one of values."""
