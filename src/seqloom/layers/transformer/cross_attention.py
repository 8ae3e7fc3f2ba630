"""What a Transformer's decoder looks at: the encoder's output, as keys and values of each layer, one per
input.

All rows that read one input (the hypotheses of a beam) sit beside each other and ask together, so the memory
of an input is read once a step and is never copied for a row.
"""

from __future__ import annotations

import math
from typing import NamedTuple, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from seqloom.layers.attention import attention_weights
from seqloom.layers.linear import Linear
from seqloom.layers.transformer.key_value_cache import Cache, KeysValues
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
        return KeyValueMemory(
            layers,
            None if self.mask is None else self.mask[inputs],
            torch.arange(len(inputs), device=inputs.device),
        )


class Seats(NamedTuple):
    """Where the rows of one call sit: `width` seats for each input."""

    source: Tensor
    """`(rows,)`: the input that each row reads."""
    width: int
    at: Tensor | None
    """`(rows,)`: the seat of each row, input * width + its number among the rows of that input; None where
    all seats are taken in order."""

    @classmethod
    def of(cls, source: Tensor, memory: KeyValueMemory) -> Seats:
        """source `(rows,)`, in any order."""
        inputs = memory.inputs.shape[0]
        if source is memory.inputs:
            return cls(source, 1, None)
        counts = torch.bincount(source, minlength=inputs)
        width = int(counts.max())
        order = source.argsort(stable=True)
        number = torch.empty_like(source)
        number[order] = (
            torch.arange(len(source), device=source.device) - (counts.cumsum(0) - counts)[source[order]]
        )
        at = source * width + number
        in_order = len(at) == inputs * width and bool((at[1:] > at[:-1]).all())
        return cls(source, width, None if in_order else at)


class DecoderState(NamedTuple):
    """Of a Transformer's decoder."""

    past: Cache | None
    """What it wrote; None before the first token."""
    source: Tensor
    """`(rows,)`: the input that each row reads."""
    memory: Shared[KeyValueMemory]
    seats: Shared[Seats | None]
    """Where the rows sat at the last call: they still do if its `source` is this very tensor."""

    @classmethod
    def first(cls, layers: tuple[KeysValues, ...], mask: Tensor | None) -> DecoderState:
        """Before the first token, one row per input; mask `(inputs, source)`."""
        inputs = torch.arange(layers[0].keys.shape[0], device=layers[0].keys.device)
        return cls(None, inputs, Shared(KeyValueMemory(layers, mask, inputs)), Shared(None))

    def seated(self) -> Seats:
        """Where the rows sit now."""
        before = self.seats.value
        return (
            before
            if before is not None and before.source is self.source
            else Seats.of(self.source, self.memory.value)
        )

    def reordered(self, rows: Tensor) -> DecoderState:
        """These rows `(n,)`, in place. The memory of inputs that no row reads any more goes when they are
        half of it."""
        source = self.source.index_select(0, rows)
        past = self.past and self.past.reordered(rows, self.source)
        if torch.equal(source, self.source):
            return self._replace(past=past)
        used = source.unique()  # type: ignore[no-untyped-call]
        if 2 * len(used) <= len(self.memory.value.inputs):
            memory = self.memory.value.select(used)
            return DecoderState(past, torch.searchsorted(used, source), Shared(memory), Shared(None))
        return self._replace(past=past, source=source)


class Looking(NamedTuple):
    """How the rows of one call look at the memory: the same in all layers."""

    memory: KeyValueMemory
    seats: Seats
    mask: Tensor | None
    """`(inputs, 1, 1, source)`: true at tokens; None where there is no padding."""

    @classmethod
    def of(cls, state: DecoderState) -> Looking:
        memory = state.memory.value
        return cls(memory, state.seated(), None if memory.mask is None else memory.mask[:, None, None])


@final
class CrossAttention(nn.Module):
    """Queries from the decoder; keys and values, in one product, from the encoder. Vaswani et al. 2017,
    3.2.3."""

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        head_width: int | None = None,
        memory_width: int | None = None,
        biases: bool = True,
        dropout: float = 0.0,
        scale: float | None = None,
    ) -> None:
        super().__init__()
        self.heads = heads
        self.dropout = dropout
        """Share of the weights dropped in training."""
        inner = heads * (head_width or width // heads)
        self.scale = scale if scale is not None else 1 / math.sqrt(inner // heads)
        self.query = Linear(width, inner, bias=biases)
        self.key_value = Linear(memory_width or width, 2 * inner, bias=biases)
        self.output = Linear(inner, width, bias=biases)

    def keys_values(self, memory: Tensor) -> KeysValues:
        """memory `(inputs, source, width)` -> keys and values `(inputs, heads, source, head_width)`, formed
        once per input."""
        parts = self.key_value(memory).unflatten(-1, (2, self.heads, -1)).permute(2, 0, 3, 1, 4)
        return KeysValues(*(parts if torch.is_grad_enabled() else parts.contiguous()).unbind(0))

    def forward(self, x: Tensor, looking: Looking, layer: int) -> Tensor:
        """x `(rows, steps, width)` -> the same shape."""
        steps = x.shape[1]
        keys, values = looking.memory.layers[layer]
        inputs, (_, width, at) = keys.shape[0], looking.seats
        query = self.query(x)
        if at is not None:
            query = query.new_zeros(inputs * width, steps, query.shape[2]).index_copy_(0, at, query)
        mixed = F.scaled_dot_product_attention(
            query.view(inputs, width * steps, self.heads, -1).transpose(1, 2),
            keys,
            values,
            attn_mask=looking.mask,
            dropout_p=self.dropout if self.training else 0.0,
            scale=self.scale,
        )
        mixed = mixed.transpose(1, 2).reshape(inputs * width, steps, -1)
        output: Tensor = self.output(mixed if at is None else mixed.index_select(0, at))
        return output

    def weights(self, x: Tensor, looking: Looking, layer: int) -> Tensor:
        """Where x looks: `(rows, heads, steps, source)`; 0 at padding."""
        source = looking.seats.source
        query = self.query(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        keys = looking.memory.layers[layer].keys[source]
        mask = looking.memory.mask
        seen = torch.ones_like(keys[:, :, :, 0], dtype=torch.bool) if mask is None else mask[source][:, None]
        return attention_weights(query @ keys.transpose(2, 3) * self.scale, seen[:, :, None])
