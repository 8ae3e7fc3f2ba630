"""The weight of a linear map as the compiled steps of decoding read it: `native/packed_linear.h`."""

from __future__ import annotations

import ctypes
from typing import final

import torch
from torch import Tensor

from seqloom.native.library import DecodingFunctions

STORAGES = ("float32", "bfloat16", "int8")
"""How weights are stored, in the order of `Storage` there."""


class LinearArguments(ctypes.Structure):
    """`PackedLinear` in `packed_linear.h`."""

    _fields_ = [
        ("storage", ctypes.c_long),
        ("strips", ctypes.c_void_p),
        ("scales", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
        ("inputs", ctypes.c_long),
        ("outputs", ctypes.c_long),
    ]


@final
class PackedLinear:
    """A weight `(outputs, inputs)` and its bias in strips of as many outputs as a vector of this processor
    has lanes."""

    def __init__(
        self,
        functions: DecodingFunctions,
        weight: Tensor,
        bias: Tensor | None,
        storage: str = "float32",
    ) -> None:
        weight = weight.detach()
        outputs, inputs = weight.shape
        strips = -(-outputs // functions.lanes)
        missing = strips * functions.lanes - outputs
        filled = torch.nn.functional.pad(weight, (0, 0, 0, missing))
        by_strip = filled.view(strips, functions.lanes, inputs).transpose(1, 2)
        self.strips = by_strip.contiguous()
        self.bias = None if bias is None else torch.nn.functional.pad(bias.detach(), (0, missing))
        self.arguments = LinearArguments(
            storage=STORAGES.index(storage),
            strips=self.strips.data_ptr(),
            bias=None if self.bias is None else self.bias.data_ptr(),
            inputs=inputs,
            outputs=outputs,
        )
