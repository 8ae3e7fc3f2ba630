"""Attention of a Transformer's decoder to its encoder: the memory of an input is its keys and values of each
layer.

All rows that read one input (the hypotheses of a beam) are grouped and ask together. So the memory of an
input is read once a step, and is never copied for a row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, final

import torch
from torch import Tensor

from seqloom.layers.attention import HeadAttention
from seqloom.layers.joined_inputs import joined_sources, padded
from seqloom.layers.linear import Linear
from seqloom.layers.transformer.block_config import BlockConfig
from seqloom.layers.transformer.key_value_cache import KeysValues, KeyValueCache
from seqloom.protocols import Shared


class KeyValueMemory(NamedTuple):
    """What all rows that read an input share."""

    layers: tuple[KeysValues, ...]
    """`(inputs, heads, source, head_width)` of each layer."""
    mask: Tensor | None
    """`(inputs, source)`: true at tokens; None where there is no padding."""
    inputs: Tensor
    """`(inputs,)`: 0, 1, 2, ...; a state whose `source` is this very tensor has one row per input, in order.
    """

    def select(self, inputs: Tensor) -> KeyValueMemory:
        """Of these inputs `(n,)` only."""
        layers = tuple(KeysValues(keys[inputs], values[inputs]) for keys, values in self.layers)
        mask = None if self.mask is None else self.mask[inputs]
        return KeyValueMemory(layers, mask, torch.arange(len(inputs), device=inputs.device))

    def joined(self, others: Sequence[KeyValueMemory]) -> KeyValueMemory:
        """The inputs of all, padded to the longest."""
        memories = [self, *others]
        longest = max(memory.layers[0].keys.shape[2] for memory in memories)
        layers = []
        for number in range(len(self.layers)):
            keys, values = (
                torch.cat([padded(memory.layers[number][part], longest, 2) for memory in memories])
                for part in (0, 1)
            )
            layers.append(KeysValues(keys, values))
        masks = []
        for memory in memories:
            keys = memory.layers[0].keys
            mask = memory.mask
            if mask is None:
                shape = (keys.shape[0], keys.shape[2])
                mask = torch.ones(shape, dtype=torch.bool, device=keys.device)
            masks.append(padded(mask, longest, 1))
        mask = torch.cat(masks)
        return KeyValueMemory(tuple(layers), mask, torch.arange(len(mask), device=mask.device))


class QueryGroups(NamedTuple):
    """The rows of one call, grouped by the input that they read: each input has `size` slots."""

    source: Tensor
    """`(rows,)`: the input that each row reads."""
    size: int
    """The most rows that read one input."""
    slots: Tensor | None
    """`(rows,)`: the slot of each row, input * size + its number among the rows of that input. None where the
    rows fill all slots in order."""

    @classmethod
    def of(cls, source: Tensor, memory: KeyValueMemory) -> QueryGroups:
        """source `(rows,)`, in any order."""
        inputs = memory.inputs.shape[0]
        if source is memory.inputs:
            return cls(source, 1, None)
        counts = torch.bincount(source, minlength=inputs)
        size = int(counts.max())
        order = source.argsort(stable=True)
        first = counts.cumsum(0) - counts  # of each input, its first place in the sorted rows
        number = torch.empty_like(source)
        number[order] = torch.arange(len(source), device=source.device) - first[source[order]]
        slots = source * size + number
        full = len(slots) == inputs * size and bool((slots[1:] > slots[:-1]).all())
        return cls(source, size, None if full else slots)


class DecoderState(NamedTuple):
    """The state of a Transformer's decoder. A `ReorderableState` and a `JoinableState`."""

    past: KeyValueCache | None
    """What it has written; None before the first token."""
    source: Tensor
    """`(rows,)`: the input that each row reads."""
    memory: Shared[KeyValueMemory]
    groups: Shared[QueryGroups | None]
    """The groups of the last call: they still hold if their `source` is this very tensor."""

    @classmethod
    def first(cls, layers: tuple[KeysValues, ...], mask: Tensor | None) -> DecoderState:
        """Before the first token, one row per input; mask `(inputs, source)`."""
        inputs = torch.arange(layers[0].keys.shape[0], device=layers[0].keys.device)
        return cls(None, inputs, Shared(KeyValueMemory(layers, mask, inputs)), Shared(None))

    def query_groups(self) -> QueryGroups:
        """The groups of the rows now."""
        groups = self.groups.value
        if groups is not None and groups.source is self.source:
            return groups
        return QueryGroups.of(self.source, self.memory.value)

    def reordered(self, rows: Tensor) -> DecoderState:
        """These rows `(n,)`, in place. The memory of inputs that no row reads any more is dropped when they
        are half of it."""
        source = self.source.index_select(0, rows)
        past = self.past and self.past.reordered(rows, self.source)
        if torch.equal(source, self.source):
            return self._replace(past=past)
        used = source.unique()  # type: ignore[no-untyped-call]
        if 2 * len(used) <= len(self.memory.value.inputs):
            memory = self.memory.value.select(used)
            return DecoderState(
                past, torch.searchsorted(used, source), Shared(memory), Shared(None)
            )
        return self._replace(past=past, source=source)

    def joined(self, others: Sequence[DecoderState]) -> DecoderState:
        """These rows and those of the others. The memory of inputs that no row reads is dropped."""
        states = [self, *others]
        memories, sources, pasts = [], [], []
        for state in states:
            used, source = state.source.unique(return_inverse=True)  # type: ignore[no-untyped-call]
            memories.append(state.memory.value.select(used))
            sources.append(source)
            assert state.past is not None, "a state that is joined has read something"
            pasts.append(state.past)
        memory = memories[0].joined(memories[1:])
        past = pasts[0].joined(pasts[1:])
        source = joined_sources(sources, memory.inputs)
        return DecoderState(past, source, Shared(memory), Shared(None))


class CrossAttentionInputs(NamedTuple):
    """What cross-attention takes beside the hidden states: the same in all layers of a call."""

    memory: KeyValueMemory
    groups: QueryGroups
    mask: Tensor | None
    """`(inputs, 1, 1, source)`: true at tokens; None where there is no padding."""

    @classmethod
    def of(cls, state: DecoderState) -> CrossAttentionInputs:
        memory = state.memory.value
        mask = None if memory.mask is None else memory.mask[:, None, None]
        return cls(memory, state.query_groups(), mask)


@final
class CrossAttention(HeadAttention):
    """Queries from the decoder; keys and values, in one product, from the encoder. Vaswani et al. 2017,
    3.2.3."""

    def __init__(self, config: BlockConfig, memory_width: int | None = None) -> None:
        super().__init__(config.heads, config.scale, config.attention_dropout)
        self.query = Linear(config.width, config.inner_width, bias=config.biases)
        self.key_value = Linear(
            memory_width or config.width, 2 * config.inner_width, bias=config.biases
        )
        self.output = Linear(config.inner_width, config.width, bias=config.biases)

    def keys_values(self, memory: Tensor) -> KeysValues:
        """memory `(inputs, source, width)` -> keys and values `(inputs, heads, source, head_width)`, formed
        once per input."""
        parts = self.key_value(memory).unflatten(-1, (2, self.heads, -1)).permute(2, 0, 3, 1, 4)
        if not torch.is_grad_enabled():
            parts = parts.contiguous()  # decoding reads them at each step
        return KeysValues(*parts.unbind(0))

    def forward(self, x: Tensor, inputs: CrossAttentionInputs, layer: int) -> Tensor:
        """x `(rows, steps, width)` -> the same shape."""
        steps = x.shape[1]
        keys, values = inputs.memory.layers[layer]
        _, size, slots = inputs.groups
        count = keys.shape[0]
        query = self.query(x)
        if slots is not None:
            query = query.new_zeros(count * size, steps, query.shape[2]).index_copy_(
                0, slots, query
            )
        # The rows of one input are further steps of one row, which all look at the same keys.
        query = query.view(count, size * steps, self.heads, -1).transpose(1, 2)
        mixed = self.mixed(query, keys, values, inputs.mask)
        mixed = mixed.transpose(1, 2).reshape(count * size, steps, -1)
        if slots is not None:
            mixed = mixed.index_select(0, slots)
        output: Tensor = self.output(mixed)
        return output
