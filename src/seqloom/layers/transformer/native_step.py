"""A step of decoding through a stack of Transformer blocks in one compiled call: `native/transformer.h`.

It reads and writes the same cache as the blocks themselves, so the two may take turns at any step. It serves
while a `PackedWeights` is open, for one token of each row, in float32 on a CPU. Everything else is the
blocks' own work, and all is where there is no compiled library.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast, final

import torch
from torch import Tensor

from seqloom.layers.packed_linear import (
    threads_for,
)
from seqloom.layers.recurrent.large_pages import fresh
from seqloom.layers.transformer.blocks import AttentionInputs, Stack
from seqloom.layers.transformer.cross_attention import (
    CrossAttentionInputs,
    DecoderState,
    KeyValueMemory,
)
from seqloom.layers.transformer.key_value_cache import (
    MIN_SLOTS,
    AttentionMask,
    KeysValues,
    KeyValueCache,
    with_room,
)
from seqloom.layers.transformer.native_stack import PackedStack, packed_stack
from seqloom.layers.transformer.step_arguments import (
    POINTER,
    StepArguments,
)
from seqloom.layers.transformer.token_embedding import NativeEmbedding, TokenEmbedding
from seqloom.native.library import DecodingFunctions, decoding_functions, in_memory

LEAST_OWN_SLOTS = 8
"""The first size of the buffers of rows that go on from a context: mostly they are a word long."""


class RowsMemory(NamedTuple):
    """What the rows of a decoder read."""

    memory: KeyValueMemory
    source: Tensor
    """`(rows,)`: the input of each."""


def run_stack(
    stack: Stack,
    x: Tensor,
    inputs: AttentionInputs,
    past: tuple[KeysValues, ...] | None,
    cross: CrossAttentionInputs | None = None,
) -> tuple[Tensor, tuple[KeysValues, ...]]:
    """As `stack(x, inputs, past, cross)`, in one call where that can be."""
    step = None if past is None else _step_of(stack, x, torch.float32)
    # the mask is looked at last: a graph that is traced for any number of rows must not compare sizes
    if step is not None and past is not None and _knows_mask(x, inputs.mask):
        found = step(x, inputs, past, cross and RowsMemory(cross.memory, cross.groups.source))
        if found is not None:
            return found
    return stack(x, inputs, past, cross)  # type: ignore[no-any-return]


def _knows_mask(x: Tensor, mask: AttentionMask) -> bool:
    """Whether the compiled step has such a mask: one for each row, or that all is seen, or a bias."""
    if not isinstance(mask, Tensor):
        return mask == "all"
    if mask.dtype == torch.bool:
        return mask.shape[:3] == (len(x), 1, 1)
    return mask.dtype == torch.float32 and mask.shape[0] in (1, len(x)) and mask.shape[2] == 1


def read_token(
    stack: Stack,
    embedding: Callable[[], TokenEmbedding],
    tokens: Tensor,
    cache: KeyValueCache | None,
    read: RowsMemory | None = None,
) -> tuple[Tensor, KeyValueCache] | None:
    """tokens `(rows, 1)` -> hidden `(rows, 1, width)` and the cache after them, in one call with their
    embedding; None where that cannot be, or rows differ."""
    if cache is not None and cache.ragged is not None:
        return None
    step = _step_of(stack, tokens, torch.long)
    return None if step is None else step.read(embedding, tokens, cache, read)


def read_target(
    stack: Stack, embedding: Callable[[], TokenEmbedding], tokens: Tensor, state: DecoderState
) -> tuple[Tensor, DecoderState] | None:
    """`read_token` of a decoder with an encoder."""
    read = RowsMemory(state.memory.value, state.source)
    found = read_token(stack, embedding, tokens, state.past, read)
    return found and (found[0], state._replace(past=found[1]))


def _step_of(stack: Stack, x: Tensor, dtype: torch.dtype) -> NativeStep | None:
    """The compiled step, for x `(rows, 1, ...)`, where it serves here and now."""
    packed = packed_stack(stack, x, dtype) if x.shape[1] == 1 else None
    return None if packed is None else packed.weights.get(packed, NativeStep)


@final
class _Addresses:
    """Those of the keys and values of all layers: the last ones are known, and mostly asked for again."""

    def __init__(self) -> None:
        self._first: Callable[[], object] = weakref.ref(self)
        self._last: Callable[[], object] = weakref.ref(self)
        self._found: ctypes.Array[Any] | None = None

    def know(self, layers: Sequence[KeysValues]) -> bool:
        return self._first() is layers[0].keys and self._last() is layers[-1].values

    def of(self, layers: Sequence[KeysValues]) -> ctypes.Array[Any] | None:
        """None where they cannot be read."""
        if not self.know(layers):
            parts = [part for layer in layers for part in layer]
            readable = all(
                in_memory(part, torch.float32)
                and part.is_contiguous()
                and part.shape == parts[0].shape
                for part in parts
            )
            pointers = [part.data_ptr() for part in parts]
            self._found = (POINTER * len(parts))(*pointers) if readable else None
            self._first, self._last = weakref.ref(parts[0]), weakref.ref(parts[-1])
        return self._found


@final
class NativeStep:
    """What a step needs to know of a stack, and where the last one found its caches."""

    def __init__(self, packed: PackedStack) -> None:
        self._functions = cast("DecodingFunctions", decoding_functions())
        self._packed = packed
        self._arguments = StepArguments(stack=packed.arguments)
        self._embedding: NativeEmbedding | None = None
        self._caches, self._contexts, self._memories = _Addresses(), _Addresses(), _Addresses()

    def __call__(
        self,
        x: Tensor,
        inputs: AttentionInputs,
        past: Sequence[KeysValues],
        read: RowsMemory | None,
    ) -> tuple[Tensor, tuple[KeysValues, ...]] | None:
        """As `Stack.forward`, one step; None where it cannot be."""
        arguments = StepArguments.from_buffer_copy(self._arguments)
        # what is read through an address must live until the call
        mask = inputs.mask.contiguous() if isinstance(inputs.mask, Tensor) else None
        if mask is not None and mask.dtype == torch.bool:
            arguments.visible = mask.data_ptr()
        elif mask is not None:
            rows, heads, _, keys = mask.shape
            arguments.bias = mask.data_ptr()
            arguments.row_bias = heads * keys if rows > 1 else 0
            arguments.head_bias = keys if heads > 1 else 0
        if inputs.rotary is not None:
            cosines, sines = (part.contiguous() for part in inputs.rotary)
            arguments.cosines, arguments.sines = cosines.data_ptr(), sines.data_ptr()
            arguments.angle_stride = cosines.shape[-1] if cosines.dim() > 2 else 0
        layers = self._with_slot(arguments, tuple(past), inputs.past_length, len(x))
        hidden = x.clone(memory_format=torch.contiguous_format)
        if layers is None or not self._remember(arguments, read, len(x)):
            return None
        return (hidden, layers) if self._run(arguments, hidden) else None

    def read(
        self,
        embedding: Callable[[], TokenEmbedding],
        tokens: Tensor,
        cache: KeyValueCache | None,
        read: RowsMemory | None,
    ) -> tuple[Tensor, KeyValueCache] | None:
        """As `read_token`."""
        if self._embedding is None:
            given = embedding()
            norm = None if given.norm is None else self._packed.norm(given.norm)
            self._embedding = NativeEmbedding(given, self._packed.weights, norm)
        rows, tokens = tokens.shape[0], tokens.contiguous()
        if cache is None:
            nothing = torch.empty(
                rows, self._packed.heads, 0, self._packed.head_width, device="cpu"
            )
            layers = (KeysValues(nothing, nothing),) * self._arguments.stack.layers
            cache = KeyValueCache(layers, tokens.new_empty(rows, 0), 0, None)
        length, known = cache.length, cache.tokens
        if known.shape[1] <= length:
            known = with_room(known, length, 1, 1)
        arguments = StepArguments.from_buffer_copy(self._arguments)
        context = cache.context.value
        least = MIN_SLOTS if context is None else LEAST_OWN_SLOTS
        layers_after = self._with_slot(arguments, cache.layers, length, rows, least)
        if (
            layers_after is None
            or not self._continue(arguments, context)
            or not self._remember(arguments, read, rows)
            or not self._embedding.put(arguments, tokens, known, cache.position)
        ):
            return None
        hidden = torch.empty(rows, 1, self._packed.width, device="cpu")
        if not self._run(arguments, hidden):
            return None
        return hidden, KeyValueCache(layers_after, known, length + 1, None, cache.context)

    def _with_slot(
        self,
        arguments: StepArguments,
        layers: tuple[KeysValues, ...],
        length: int,
        rows: int,
        least: int = MIN_SLOTS,
    ) -> tuple[KeysValues, ...] | None:
        """The layers with room for one more than `length` tokens, where the step finds them; None if they are
        not of these rows."""
        if layers[0].keys.shape[2] <= length or not self._caches.know(layers):
            layers = with_slot(layers, length, least)
        addresses, (has, _, slots, _) = self._caches.of(layers), layers[0].keys.shape
        if addresses is None or has != rows:
            return None
        arguments.caches = ctypes.addressof(addresses)
        arguments.slots, arguments.length = slots, length
        return layers

    def _continue(self, arguments: StepArguments, context: KeyValueCache | None) -> bool:
        """Tells the step what its rows go on from; False where it cannot be told."""
        if context is None:
            return True
        addresses = self._contexts.of(context.layers)
        if addresses is None:
            return False
        arguments.context = ctypes.addressof(addresses)
        arguments.context_slots = context.layers[0].keys.shape[2]
        arguments.context_length = context.length
        return True

    def _remember(self, arguments: StepArguments, read: RowsMemory | None, rows: int) -> bool:
        """Tells the step what its rows read; False where it cannot be told."""
        if read is None:
            return True
        memory, source = read
        addresses = self._memories.of(memory.layers)
        if addresses is None or source.shape[0] != rows or not source.is_contiguous():
            return False
        own = arguments.memory
        own.layers, own.source = ctypes.addressof(addresses), source.data_ptr()
        own.inputs, _, own.steps, _ = memory.layers[0].keys.shape
        if memory.mask is not None:
            own.is_token = memory.mask.data_ptr()
        return memory.mask is None or memory.mask.is_contiguous()

    def _run(self, arguments: StepArguments, hidden: Tensor) -> bool:
        """Whether rows are even, so that the step was made."""
        rows = hidden.shape[0]
        arguments.rows, arguments.x = rows, hidden.data_ptr()
        made: bool = self._functions.transformer_step(
            ctypes.byref(arguments), threads_for(2 * rows * self._packed.numbers)
        )
        return made


def with_slot(
    layers: Sequence[KeysValues], length: int, least: int = MIN_SLOTS
) -> tuple[KeysValues, ...]:
    """The layers with room for one more than `length` tokens; new ones for `least` of them, or more."""
    parts = [part for layer in layers for part in layer]
    if all(part.shape[2] > length and part.is_contiguous() for part in parts):
        return tuple(layers)
    rows, heads, _, head_width = parts[0].shape
    slots = max(least, 2 * (length + 1))
    # in one block, which may have large pages
    larger = fresh(parts[0], len(parts), rows, heads, slots, head_width)
    for new, part in zip(larger, parts, strict=True):
        new[:, :, :length] = part[:, :, :length]
    return tuple(map(KeysValues, larger[::2], larger[1::2]))
