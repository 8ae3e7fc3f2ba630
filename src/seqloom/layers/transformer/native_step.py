"""A step of decoding through a stack of Transformer blocks in one compiled call: `native/transformer.h`.

It reads and writes the same cache as the blocks themselves, so the two may take turns at any step. It serves
while a `PackedWeights` is open, for one token of each row after others, in float32 on a CPU. Everything else
is the blocks' own work, and all is where there is no compiled library.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import cast, final

import torch
from torch import Tensor, nn

from seqloom.layers.linear import Linear
from seqloom.layers.packed_linear import LinearArguments, packed_linear, threads_for
from seqloom.layers.transformer.blocks import AttentionInputs, Block, Stack
from seqloom.layers.transformer.feed_forward import ACTIVATIONS, Swish
from seqloom.layers.transformer.key_value_cache import KeysValues, with_room
from seqloom.native.library import DecodingFunctions, decoding_functions, in_memory
from seqloom.packed_weights import PackedWeights, current

_LONG, _POINTER, _FLOAT = ctypes.c_long, ctypes.c_void_p, ctypes.c_float


class NormArguments(ctypes.Structure):
    """`LayerNorm` in `transformer.h`."""

    _fields_ = [("gain", _POINTER), ("bias", _POINTER)]


class BlockArguments(ctypes.Structure):
    """`TransformerBlock` in `transformer.h`."""

    _fields_ = [
        ("attention_norm", NormArguments),
        ("feed_forward_norm", NormArguments),
        ("query_key_value", LinearArguments),
        ("attention_output", LinearArguments),
        ("hidden", LinearArguments),
        ("output", LinearArguments),
        ("beta", _FLOAT),
    ]


class StepArguments(ctypes.Structure):
    """`TransformerStep` in `transformer.h`."""

    _fields_ = [
        ("blocks", _POINTER),
        ("caches", _POINTER),
        ("norm", NormArguments),
        *((name, _LONG) for name in ("layers", "norm_before", "activation")),
        ("epsilon", _FLOAT),
        ("scale", _FLOAT),
        *((name, _LONG) for name in ("rows", "width", "heads", "head_width", "slots", "length")),
        *((name, _POINTER) for name in ("visible", "cosines", "sines")),
        ("angle_stride", _LONG),
        ("x", _POINTER),
        ("workspace", _POINTER),
    ]


def run_stack(
    stack: Stack, x: Tensor, inputs: AttentionInputs, past: tuple[KeysValues, ...] | None
) -> tuple[Tensor, tuple[KeysValues, ...]]:
    """As `stack(x, inputs, past)`, in one call where that can be."""
    weights = current()
    if weights is None or past is None or not _is_a_step(x, inputs):
        return stack(x, inputs, past)  # type: ignore[no-any-return]
    step = weights.get(stack, lambda blocks: native_step(blocks, weights))
    if step is None or stack.training or step.watched():
        return stack(x, inputs, past)  # type: ignore[no-any-return]
    return step(x, inputs, past)


def _is_a_step(x: Tensor, inputs: AttentionInputs) -> bool:
    """One token of each row, in numbers and with a mask that the compiled step knows."""
    mask = inputs.mask
    if isinstance(mask, Tensor):
        known = mask.dtype == torch.bool and mask.shape[:3] == (len(x), 1, 1)
    else:
        known = mask == "all"
    return (
        known
        and x.shape[1] == 1
        and in_memory(x, torch.float32)
        and not torch.is_grad_enabled()
        and not torch.is_autocast_enabled("cpu")
    )


def native_step(stack: Stack, weights: PackedWeights) -> NativeStep | None:
    """The compiled step of a stack; None where there is none."""
    return None if decoding_functions() is None or why_not(stack) else NativeStep(stack, weights)


def why_not(stack: Stack) -> str:
    """Why a stack has no compiled step, as a clause; empty where it has one."""
    for block in _blocks(stack):
        if not all(isinstance(linear, Linear) for linear in _linear_maps(block)):
            return "its linear maps have adapters (LoRA)"
        if not isinstance(block.attention_norm, nn.LayerNorm):
            return "its norms are RMS norms"
        if block.feed_forward.gated:
            return "its feed-forward layers have a gate"
    if not all(in_memory(parameter, torch.float32) for parameter in stack.parameters()):
        return "its weights are not in float32 on a CPU"
    return ""


def _blocks(stack: Stack) -> list[Block]:
    return cast("list[Block]", list(stack.blocks))


def _linear_maps(block: Block) -> tuple[Linear, Linear, Linear, Linear]:
    """In the order of `BlockArguments`."""
    attention, feed_forward = block.attention, block.feed_forward
    return attention.query_key_value, attention.output, feed_forward.hidden, feed_forward.output


@final
class NativeStep:
    """The weights of a stack, packed, and all else that its step needs. Keeps every tensor alive whose
    address it has given away."""

    def __init__(self, stack: Stack, weights: PackedWeights) -> None:
        self._functions = cast("DecodingFunctions", decoding_functions())
        self._weights = weights
        self._alive: list[object] = []
        own = _blocks(stack)
        blocks = (BlockArguments * len(own))(*map(self._block, own))
        self._alive.append(blocks)
        self._attentions = [block.attention for block in own]
        attention, query_key_value = own[0].attention, own[0].attention.query_key_value
        self._arguments = StepArguments(
            blocks=ctypes.addressof(blocks),
            layers=len(own),
            norm_before=own[0].norm_first,
            activation=[*ACTIVATIONS].index(own[0].feed_forward.activation_name),
            epsilon=cast("nn.LayerNorm", own[0].attention_norm).eps,
            scale=attention.scale,
            width=query_key_value.in_features,
            heads=attention.heads,
            head_width=query_key_value.out_features // 3 // attention.heads,
        )
        if own[0].norm_first:
            self._arguments.norm = self._norm(stack.norm)
        self._numbers = sum(parameter.numel() for parameter in stack.parameters())

    def watched(self) -> bool:
        """Whether somebody looks at the weights of attention, which this never shows."""
        return any(attention.watcher is not None for attention in self._attentions)

    def __call__(
        self, x: Tensor, inputs: AttentionInputs, past: Sequence[KeysValues]
    ) -> tuple[Tensor, tuple[KeysValues, ...]]:
        """As `Stack.forward`, one step."""
        layers = past if _has_room(past, inputs.past_length) else _grown(past, inputs.past_length)
        arguments = StepArguments.from_buffer_copy(self._arguments)
        caches = (ctypes.c_void_p * (2 * len(layers)))(
            *(part.data_ptr() for layer in layers for part in layer)
        )
        hidden = x.clone(memory_format=torch.contiguous_format)
        arguments.caches = ctypes.addressof(caches)
        arguments.rows, arguments.slots = len(x), layers[0].keys.shape[2]
        arguments.length, arguments.x = inputs.past_length, hidden.data_ptr()
        visible = inputs.mask.contiguous() if isinstance(inputs.mask, Tensor) else None
        if visible is not None:
            arguments.visible = visible.data_ptr()
        if inputs.rotary is not None:
            cosines, sines = (part.contiguous() for part in inputs.rotary)
            arguments.cosines, arguments.sines = cosines.data_ptr(), sines.data_ptr()
            arguments.angle_stride = cosines.shape[-1] if cosines.dim() > 2 else 0
        threads = threads_for(2 * len(x) * self._numbers)
        address = ctypes.byref(arguments)
        workspace = torch.empty(self._functions.workspace_size(address, threads), device="cpu")
        arguments.workspace = workspace.data_ptr()
        self._functions.transformer_step(address, threads)
        return hidden, tuple(layers)

    def _block(self, block: Block) -> BlockArguments:
        activation = block.feed_forward.activation
        return BlockArguments(
            self._norm(block.attention_norm),
            self._norm(block.feed_forward_norm),
            *map(self._linear, _linear_maps(block)),
            beta=float(activation.beta) if isinstance(activation, Swish) else 1.0,
        )

    def _linear(self, linear: Linear) -> LinearArguments:
        packed = packed_linear(self._weights, linear.weight)
        self._alive += packed, linear.bias
        return packed.arguments(linear.bias)

    def _norm(self, norm: nn.Module) -> NormArguments:
        weights = cast("tuple[Tensor, Tensor | None]", (norm.weight, norm.bias))
        parts = [None if part is None else part.detach() for part in weights]
        self._alive.append(parts)
        return NormArguments(*(None if part is None else part.data_ptr() for part in parts))


def _has_room(layers: Sequence[KeysValues], length: int) -> bool:
    return all(
        part.shape[2] > length and part.is_contiguous() for layer in layers for part in layer
    )


def _grown(layers: Sequence[KeysValues], length: int) -> list[KeysValues]:
    return [KeysValues(*(with_room(part, length, 1) for part in layer)) for layer in layers]
