"""Linear maps as the compiled steps of decoding read them: `native/packed_linear.h`.

Weights are stored in float32 or in fewer bits (`stored_weight.py`). Sums and outputs are in float32. So are
inputs, unless weights are int8 and the processor multiplies int8: then each row of inputs is rounded as a row
of W is.
"""

from __future__ import annotations

import ctypes
import math
from typing import cast, final, get_args

import torch
from torch import Tensor
from torch.nn import functional as F

from seqloom.layers.recurrent.large_pages import fresh
from seqloom.native.library import DecodingFunctions, decoding_functions, in_memory, team_size
from seqloom.packed_weights import PackedWeights, Storage
from seqloom.stored_weight import QuantisedWeight, StoredWeight

GRAIN = 100_000
"""Operations for which one more thread is worth while: meeting it takes microseconds."""

STRIPS = 64
"""Of a weight that are packed at once: large tensors that die soon would leave the process larger."""
BLOCK, LINE = 2**24, 64
"""Bytes of memory that are asked for at once (what nobody has written is none), and of a cache line."""


class LinearArguments(ctypes.Structure):
    """`PackedLinear` in `packed_linear.h`."""

    _fields_ = [
        ("storage", ctypes.c_long),
        ("strips", ctypes.c_void_p),
        ("scales", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
        ("inputs", ctypes.c_long),
        ("outputs", ctypes.c_long),
        ("rounds_inputs", ctypes.c_long),
    ]


class RowsArguments(ctypes.Structure):
    """`Rows` in `product.h`."""

    _fields_ = [("data", ctypes.c_void_p), ("stride", ctypes.c_long)]


class CallArguments(ctypes.Structure):
    """`LinearCall` in `packed_linear.h`."""

    _fields_ = [
        ("linear", LinearArguments),
        ("x", RowsArguments),
        ("y", RowsArguments),
        ("rows", ctypes.c_long),
    ]


@final
class _PackedBlocks:
    """Memory for packed weights: many share a block of large pages, from which a processor reads a third
    faster than from small ones."""

    def __init__(self) -> None:
        self._block = torch.empty(0, dtype=torch.uint8)

    def room(self, like: Tensor, *shape: int) -> Tensor:
        """An uninitialised tensor of this type."""
        size = math.prod(shape) * like.itemsize
        if size > len(self._block):
            self._block = fresh(self._block, max(BLOCK, size))
        taken, self._block = self._block[:size], self._block[-(-size // LINE) * LINE :]
        return taken.view(like.dtype).view(shape)


@final
class PackedLinear:
    """A weight in strips of as many outputs as a vector of this processor has lanes."""

    def __init__(self, weight: Tensor, weights: PackedWeights) -> None:
        functions = cast("DecodingFunctions", decoding_functions())
        values, scales = QuantisedWeight.of(weight, weights.storage)
        self.outputs, self.inputs = weight.shape
        strips = -(-self.outputs // functions.lanes)
        # weights of int8 that are multiplied together are neighbours, and a byte has 128 more
        together = 4 if scales is not None else 1
        filling = strips * functions.lanes - self.outputs
        groups = -(-self.inputs // together)
        self._strips = weights.get(_PackedBlocks, lambda blocks: blocks()).room(
            values, strips, groups, functions.lanes, together
        )
        for first in range(0, strips, STRIPS):
            some = values[first * functions.lanes : (first + STRIPS) * functions.lanes]
            missing = (0, -self.inputs % together, 0, -len(some) % functions.lanes)
            if any(missing):
                some = F.pad(some, missing)
            by_strip = some.reshape(-1, functions.lanes, groups, together).transpose(1, 2)
            self._strips[first : first + STRIPS] = by_strip
        if scales is not None:
            self._strips.view(torch.uint8).bitwise_xor_(128)
        self._scales = None if scales is None else F.pad(scales, (0, filling))
        self._storage = get_args(Storage).index(weights.storage)  # as `Storage` there
        self._rounds_inputs = scales is not None and functions.multiplies_integers

    def arguments(self, bias: Tensor | None) -> LinearArguments:
        """Good for as long as this and the bias live."""
        return LinearArguments(
            self._storage,
            self._strips.data_ptr(),
            None if self._scales is None else self._scales.data_ptr(),
            None if bias is None else bias.data_ptr(),
            self.inputs,
            self.outputs,
            self._rounds_inputs,
        )


def is_readable(weight: Tensor) -> bool:
    """Whether a weight can be packed: it is in memory, in float32 or as it is stored."""
    return in_memory(weight, torch.float32) or (isinstance(weight, StoredWeight) and weight.is_cpu)


def packed_linear(weights: PackedWeights, weight: Tensor) -> PackedLinear:
    """The packed copy of a weight, in the storage of `weights`."""
    return weights.get(weight, lambda tensor: PackedLinear(tensor, weights))


def packed_product(
    weights: PackedWeights, x: Tensor, weight: Tensor, bias: Tensor | None
) -> Tensor:
    """x `(..., width)` in float32 -> x Wᵀ + b `(..., out)`, with W as it is stored. No gradient passes.
    Raises ValueError if x or b are of another type or size."""
    require_floats(x, x.dim(), weight.shape[1])
    if bias is not None:
        require_floats(bias, 1, weight.shape[0])
        bias = bias.contiguous()
    functions = cast("DecodingFunctions", decoding_functions())
    rows = x.detach().reshape(-1, x.shape[-1]).contiguous()
    packed = packed_linear(weights, weight)
    y = x.new_empty(len(rows), packed.outputs)
    call = CallArguments(
        packed.arguments(bias),
        RowsArguments(rows.data_ptr(), packed.inputs),
        RowsArguments(y.data_ptr(), packed.outputs),
        len(rows),
    )
    functions.linear(ctypes.byref(call), threads_for(2 * len(rows) * weight.numel()))
    return y.view(*x.shape[:-1], packed.outputs)


def require_floats(tensor: Tensor, dimensions: int, width: int) -> None:
    """Raises ValueError where compiled code would read other memory than that of the tensor."""
    fits = tensor.dim() == dimensions > 0 and tensor.shape[-1] == width
    if not (fits and in_memory(tensor, torch.float32)):
        raise ValueError(
            f"what compiled code reads must be float32 on a CPU, in {dimensions} dimensions, the last of"
            f" {width}, but is {tensor.dtype} on {tensor.device.type} of {tuple(tensor.shape)}"
        )


def packed_rows(weights: PackedWeights, weight: Tensor, ids: Tensor) -> Tensor:
    """ids `(...)` -> their rows `(..., inputs)` of a weight as it is stored. Raises IndexError for an id
    without one."""
    functions = cast("DecodingFunctions", decoding_functions())
    packed, flat = packed_linear(weights, weight), ids.reshape(-1).contiguous()
    if len(flat) and not 0 <= int(flat.min()) <= int(flat.max()) < packed.outputs:
        raise IndexError(f"ids must be below {packed.outputs}")
    rows = torch.empty(len(flat), packed.inputs, device="cpu")
    functions.rows(
        ctypes.byref(packed.arguments(None)), flat.data_ptr(), len(flat), rows.data_ptr()
    )
    return rows.view(*ids.shape, packed.inputs)


def threads_for(operations: int) -> int:
    return team_size(operations, GRAIN)
