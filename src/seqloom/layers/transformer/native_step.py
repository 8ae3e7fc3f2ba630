"""A step of decoding through a stack of Transformer blocks in one compiled call: `native/transformer.h`.

It reads and writes the same cache as the blocks themselves, so the two may take turns at any step. It serves
while a `PackedWeights` is open, for one token of each row after others, in float32 on a CPU. Everything else
is the blocks' own work, and all is where there is no compiled library.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast, final

import torch
from torch import Tensor, nn

from seqloom.layers.linear import Linear
from seqloom.layers.packed_linear import (
    LinearArguments,
    is_readable,
    packed_linear,
    threads_for,
)
from seqloom.layers.recurrent.large_pages import fresh
from seqloom.layers.transformer.blocks import AttentionInputs, Block, Stack
from seqloom.layers.transformer.feed_forward import ACTIVATIONS, Swish
from seqloom.layers.transformer.key_value_cache import (
    MIN_SLOTS,
    AttentionMask,
    KeysValues,
    KeyValueCache,
    with_room,
)
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


class TokenArguments(ctypes.Structure):
    """`EvenTokens` in `transformer.h`."""

    _fields_ = [
        *((name, _POINTER) for name in ("ids", "known")),
        ("known_stride", _LONG),
        *((name, _POINTER) for name in ("embedding", "positions")),
        ("stored", LinearArguments),
        *((name, _LONG) for name in ("vocabulary", "pad", "start")),
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
        ("tokens", TokenArguments),
        ("x", _POINTER),
    ]


class TokenEmbedding(NamedTuple):
    """How a model embeds tokens, where the compiled step can do it."""

    weight: Tensor
    """`(vocabulary, width)`"""
    positions: Tensor | None
    """`(context, width)`; None where none is added."""
    pad: int
    start: int
    """The id that begins a document; where none does, that of `<pad>`."""


def run_stack(
    stack: Stack, x: Tensor, inputs: AttentionInputs, past: tuple[KeysValues, ...] | None
) -> tuple[Tensor, tuple[KeysValues, ...]]:
    """As `stack(x, inputs, past)`, in one call where that can be."""
    step = None if past is None else _step_of(stack, x, torch.float32)
    # the mask is looked at last: a graph that is traced for any number of rows must not compare sizes
    if step is None or past is None or not _knows_mask(x, inputs.mask):
        return stack(x, inputs, past)  # type: ignore[no-any-return]
    return step(x, inputs, past)


def _knows_mask(x: Tensor, mask: AttentionMask) -> bool:
    """Whether the compiled step has such a mask: one for each row, or that all is seen."""
    if isinstance(mask, Tensor):
        return mask.dtype == torch.bool and mask.shape[:3] == (len(x), 1, 1)
    return mask == "all"


def read_token(
    stack: Stack, embedding: Callable[[], TokenEmbedding], tokens: Tensor, cache: KeyValueCache
) -> tuple[Tensor, KeyValueCache] | None:
    """tokens `(rows, 1)` -> hidden `(rows, 1, width)` and the cache after them, in one call with their
    embedding; None where that cannot be, or rows differ."""
    if cache.ragged is not None:
        return None
    step = _step_of(stack, tokens, torch.long)
    return None if step is None else step.read(embedding, tokens, cache)


def _step_of(stack: Stack, x: Tensor, dtype: torch.dtype) -> NativeStep | None:
    """The compiled step, for x `(rows, 1, ...)`, where it serves here and now."""
    weights = current()
    if (
        weights is None
        or x.shape[1] != 1
        or not in_memory(x, dtype)
        or torch.is_grad_enabled()
        or torch.is_autocast_enabled("cpu")
        or stack.training
    ):
        return None
    step = weights.get(stack, lambda blocks: native_step(blocks, weights))
    return None if step is None or step.watched() else step


def native_step(stack: Stack, weights: PackedWeights) -> NativeStep | None:
    """The compiled step of a stack; None where there is none."""
    return None if decoding_functions() is None or why_not(stack) else NativeStep(stack, weights)


def why_not(stack: Stack) -> str:
    """Why a stack has no compiled step, as a clause; empty if it has one."""
    for block in _blocks(stack):
        if not all(isinstance(linear, Linear) for linear in _linear_maps(block)):
            return "its linear maps have adapters (LoRA)"
        if not isinstance(block.attention_norm, nn.LayerNorm):
            return "its norms are RMS norms"
        if block.feed_forward.gated:
            return "its feed-forward layers have a gate"
    if not all(is_readable(parameter) for parameter in stack.parameters()):
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
        self._width: int = query_key_value.in_features
        self._embedding: TokenEmbedding | None = None
        # the addresses of the cache that was used last, which are those of the next step mostly
        nothing = weakref.ref(self)
        self._known_cache: tuple[
            Callable[[], object], Callable[[], object], int, ctypes.Array[Any]
        ] = (nothing, nothing, 0, (_POINTER * 0)())

    def watched(self) -> bool:
        """Whether somebody looks at the weights of attention, which this never shows."""
        return any(attention.watcher is not None for attention in self._attentions)

    def __call__(
        self, x: Tensor, inputs: AttentionInputs, past: Sequence[KeysValues]
    ) -> tuple[Tensor, tuple[KeysValues, ...]]:
        """As `Stack.forward`, one step."""
        arguments = StepArguments.from_buffer_copy(self._arguments)
        visible = inputs.mask.contiguous() if isinstance(inputs.mask, Tensor) else None
        if visible is not None:
            arguments.visible = visible.data_ptr()
        if inputs.rotary is not None:
            cosines, sines = (part.contiguous() for part in inputs.rotary)
            arguments.cosines, arguments.sines = cosines.data_ptr(), sines.data_ptr()
            arguments.angle_stride = cosines.shape[-1] if cosines.dim() > 2 else 0
        hidden = x.clone(memory_format=torch.contiguous_format)
        layers = self._with_slot(arguments, tuple(past), inputs.past_length)
        self._run(arguments, hidden)
        return hidden, layers

    def read(
        self,
        embedding: Callable[[], TokenEmbedding],
        tokens: Tensor,
        cache: KeyValueCache,
    ) -> tuple[Tensor, KeyValueCache] | None:
        """As `read_token`."""
        if self._embedding is None:
            self._embedding = embedding()
        weight, positions, pad, start = self._embedding
        length, known, tokens = cache.length, cache.tokens, tokens.contiguous()
        at_position = None
        if positions is not None:
            if length >= positions.shape[0]:
                return None
            at_position = positions.data_ptr() + 4 * self._width * length
        if known.shape[1] <= length:
            known = with_room(known, length, 1, 1)
        arguments = StepArguments.from_buffer_copy(self._arguments)
        arguments.tokens = TokenArguments(
            tokens.data_ptr(),
            known.data_ptr(),
            known.stride(0),
            positions=at_position,
            vocabulary=weight.shape[0],
            pad=pad,
            start=start,
        )
        if self._weights.storage == "float32" and in_memory(weight, torch.float32):
            arguments.tokens.embedding = weight.data_ptr()
        else:
            arguments.tokens.stored = packed_linear(self._weights, weight).arguments(None)
        hidden = torch.empty(tokens.shape[0], 1, self._width, device="cpu")
        layers = self._with_slot(arguments, cache.layers, length)
        if not self._run(arguments, hidden):
            return None
        return hidden, KeyValueCache(layers, known, length + 1, None)

    def _with_slot(
        self, arguments: StepArguments, layers: tuple[KeysValues, ...], length: int
    ) -> tuple[KeysValues, ...]:
        """The layers with room for one more than `length` tokens, where the step finds them."""
        first, last, slots, addresses = self._known_cache
        if first() is not layers[0].keys or last() is not layers[-1].values or slots <= length:
            layers = with_slot(layers, length)
            pointers = [part.data_ptr() for layer in layers for part in layer]
            slots, addresses = layers[0].keys.shape[2], (_POINTER * len(pointers))(*pointers)
            first, last = weakref.ref(layers[0].keys), weakref.ref(layers[-1].values)
            self._known_cache = first, last, slots, addresses
        arguments.caches = ctypes.addressof(addresses)
        arguments.slots, arguments.length = slots, length
        return layers

    def _run(self, arguments: StepArguments, hidden: Tensor) -> bool:
        """Whether rows are even, so that the step was made."""
        rows = hidden.shape[0]
        arguments.rows, arguments.x = rows, hidden.data_ptr()
        made: bool = self._functions.transformer_step(
            ctypes.byref(arguments), threads_for(2 * rows * self._numbers)
        )
        return made

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
        bias = None if linear.bias is None else linear.bias.detach()
        self._alive += packed, bias
        return packed.arguments(bias)

    def _norm(self, norm: nn.Module) -> NormArguments:
        weights = cast("tuple[Tensor, Tensor | None]", (norm.weight, norm.bias))
        parts = [None if part is None else part.detach() for part in weights]
        self._alive.append(parts)
        return NormArguments(*(None if part is None else part.data_ptr() for part in parts))


def with_slot(layers: Sequence[KeysValues], length: int) -> tuple[KeysValues, ...]:
    """The layers with room for one more than `length` tokens."""
    parts = [part for layer in layers for part in layer]
    if all(part.shape[2] > length and part.is_contiguous() for part in parts):
        return tuple(layers)
    rows, heads, _, head_width = parts[0].shape
    slots = max(MIN_SLOTS, 2 * (length + 1))
    # in one block, which may have large pages
    larger = fresh(parts[0], len(parts), rows, heads, slots, head_width)
    for new, part in zip(larger, parts, strict=True):
        new[:, :, :length] = part[:, :, :length]
    return tuple(map(KeysValues, larger[::2], larger[1::2]))
