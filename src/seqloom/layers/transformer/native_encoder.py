"""Rows through a stack of Transformer blocks in one compiled call: `native/encoder.h`.

It serves while a `PackedWeights` is open, in float32 on a CPU. Everything else is the blocks' own work, and
all is where there is no compiled library.
"""

from __future__ import annotations

import ctypes
from typing import cast

import torch
from torch import Tensor
from torch.nn import functional as F

from seqloom.layers.packed_linear import require_floats, threads_for
from seqloom.layers.transformer.blocks import Packing, Stack
from seqloom.layers.transformer.native_stack import PackedStack, packed_stack
from seqloom.layers.transformer.step_arguments import LONG, POINTER, StackArguments
from seqloom.native.library import DecodingFunctions, decoding_functions, in_memory


class EncoderArguments(ctypes.Structure):
    """`Encoder` in `encoder.h`."""

    _fields_ = [
        ("stack", StackArguments),
        ("rows", LONG),
        *((name, POINTER) for name in ("starts", "bias", "places")),
        *((name, LONG) for name in ("row_bias", "steps")),
        ("x", POINTER),
    ]


def encode(stack: Stack, x: Tensor, mask: Tensor | None, bias: Tensor | None = None) -> Tensor:
    """As `stack.encode(x, mask, bias)`, in one call where that can be."""
    packed = packed_stack(stack, x, torch.float32)
    found = None if packed is None else encode_packed(packed, x, mask, bias)
    return stack.encode(x, mask, bias) if found is None else found


def encode_packed(
    packed: PackedStack, x: Tensor, mask: Tensor | None, bias: Tensor | None
) -> Tensor | None:
    """As `Stack.encode`; None where it does not serve. Raises ValueError for sizes or types that do not
    fit."""
    functions = cast("DecodingFunctions", decoding_functions())
    require_floats(x, 3, packed.width)
    rows, steps, _ = x.shape
    if not x.numel():
        return None
    arguments = EncoderArguments(stack=packed.arguments)
    hidden = x.detach().clone(memory_format=torch.contiguous_format)
    lengths, places = torch.full((rows,), steps), torch.zeros(rows, dtype=torch.long)
    packing = None
    if mask is not None:
        if mask.shape != (rows, steps) or not in_memory(mask, torch.bool):
            raise ValueError(f"a mask must be bool, {rows} x {steps}, but is {mask.dtype}")
        lengths, places = mask.sum(dim=1), mask.to(torch.uint8).argmax(dim=1)
        packing = Packing.of(mask)
        hidden = packing.pack(hidden)
    if bias is not None:
        require_floats(bias, 4, steps)
        if bias.shape[:3] not in ((1, packed.heads, steps), (rows, packed.heads, steps)):
            raise ValueError(f"a bias must be of {packed.heads} heads, but is {tuple(bias.shape)}")
        if mask is not None and _are_apart(mask):
            return None
        bias = bias.contiguous()
        arguments.bias, arguments.steps = bias.data_ptr(), steps
        arguments.row_bias = 0 if len(bias) == 1 else bias.stride(0)
    starts = F.pad(lengths.cumsum(dim=0), (1, 0))
    arguments.rows, arguments.starts = rows, starts.data_ptr()
    arguments.places, arguments.x = places.data_ptr(), hidden.data_ptr()
    operations = 2 * (hidden.numel() // packed.width) * packed.numbers
    functions.encode(ctypes.byref(arguments), threads_for(operations))
    return hidden if packing is None else packing.pad(hidden)


def _are_apart(mask: Tensor) -> bool:
    """Whether padding is between the tokens of any row, whose bias is then not one block."""
    begins = (mask[:, 1:] & ~mask[:, :-1]).sum(dim=1) + mask[:, 0]
    return bool((begins > 1).any())
