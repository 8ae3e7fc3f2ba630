"""The Transformer's blocks: self-attention, attention to an encoder, feed-forward, and a stack of them.

    A(x)          Q = x W^Q,  K = x W^K,  V = x W^V,  and in each head softmax(Q Kᵀ / √d_K + mask) V;
                  all heads concatenated, times W^O
    norm after    z = LN(x + A(x)),  y = LN(z + F(z))                                   Vaswani et al. 2017
    norm before   z = x + A(LN x),   y = z + F(LN z),  and one LN after the last block  Radford et al. 2019

d_K is the width of one head. A query with nothing to see gets 0.

An encoder's rows are packed: only attention knows that they are rows, all else works on `(tokens, width)`
without padding.
"""

from __future__ import annotations

import math
from typing import NamedTuple, final

import torch
from torch import Tensor, nn

from seqloom.layers.attention import HeadAttention
from seqloom.layers.linear import Linear
from seqloom.layers.transformer.block_config import BlockConfig, make_norm
from seqloom.layers.transformer.cross_attention import CrossAttention, CrossAttentionInputs
from seqloom.layers.transformer.feed_forward import FeedForward
from seqloom.layers.transformer.key_value_cache import AttentionMask, KeysValues, append
from seqloom.layers.transformer.positions import RotaryAngles, apply_rotary


class Packing(NamedTuple):
    """The tokens of `(rows, steps)`, one after the other, without padding."""

    indices: Tensor
    """`(tokens,)`: where each token is in the flattened rows."""
    rows: int
    steps: int

    @classmethod
    def of(cls, mask: Tensor) -> Packing:
        """mask `(rows, steps)`, true at tokens."""
        return cls(mask.flatten().nonzero()[:, 0], *mask.shape)

    def pack(self, x: Tensor) -> Tensor:
        """`(rows, steps, width)` -> `(tokens, width)`."""
        return x.reshape(-1, x.shape[-1]).index_select(0, self.indices)

    def pad(self, x: Tensor) -> Tensor:
        """`(tokens, width)` -> `(rows, steps, width)`, 0 at padding."""
        padded = x.new_zeros(self.rows * self.steps, x.shape[-1]).index_copy_(0, self.indices, x)
        return padded.view(self.rows, self.steps, -1)


class AttentionInputs(NamedTuple):
    """What self-attention takes beside the hidden states: the same in all layers of a call."""

    mask: AttentionMask
    past_length: int = 0
    """Keys from earlier calls."""
    rotary: RotaryAngles | None = None
    """Of rotary positions."""
    packing: Packing | None = None
    """Where the hidden states are packed."""


def padding_and_positions(mask: Tensor) -> tuple[Tensor | None, Tensor]:
    """mask `(rows, steps)`, true at tokens -> the mask, None where there is no padding; and the positions of
    the tokens, `(steps,)` or `(rows, steps)`. They count tokens only, so padding left, right or none agree.
    """
    positions = torch.arange(mask.shape[1], device=mask.device)
    if bool(mask.all()):
        return None, positions
    token_after_padding = mask[:, 1:] & ~mask[:, :-1]
    if bool(token_after_padding.any()):
        positions = (mask.cumsum(1) - 1).clamp(min=0)
    return mask, positions


def padding_mask(mask: Tensor, bias: Tensor | None = None) -> Tensor:
    """mask `(rows, steps)`, true at tokens -> the mask of attention `(rows, 1, 1, steps)`; or with a bias `(1
    or rows, heads, queries, steps)` that bias, -inf at padding."""
    keys = mask[:, None, None]
    return keys if bias is None else bias.masked_fill(~keys, -math.inf)


@final
class SelfAttention(HeadAttention):
    """Self-attention; query, key and value of all heads in one product."""

    def __init__(self, config: BlockConfig) -> None:
        super().__init__(config.heads, config.scale, config.attention_dropout)
        self.query_key_value = Linear(config.width, 3 * config.inner_width, bias=config.biases)
        self.output = Linear(config.inner_width, config.width, bias=config.biases)

    def forward(
        self, x: Tensor, inputs: AttentionInputs, past: KeysValues | None = None
    ) -> tuple[Tensor, KeysValues]:
        """x `(rows, steps, width)` or packed -> the same shape; and the keys and values, those of x after the
        ones of `past`."""
        query, keys, values = self._project(x, inputs)
        cache = KeysValues(keys, values)  # without a past nothing is copied
        if past is not None:
            cache = KeysValues(
                append(past.keys, inputs.past_length, keys),
                append(past.values, inputs.past_length, values),
            )
            length = inputs.past_length + x.shape[1]
            keys, values = cache.keys[:, :, :length], cache.values[:, :, :length]
        mask = inputs.mask if isinstance(inputs.mask, Tensor) else None
        causal = mask is None and inputs.mask == "causal"
        mixed = self.mixed(query, keys, values, mask, causal=causal).transpose(1, 2).flatten(2)
        if inputs.packing is not None:
            mixed = inputs.packing.pack(mixed)
        output: Tensor = self.output(mixed)
        return output, cache

    def _project(self, x: Tensor, inputs: AttentionInputs) -> tuple[Tensor, Tensor, Tensor]:
        """Query, key and value of each token: `(rows, heads, steps, head_width)` each."""
        parts = self.query_key_value(x)
        if inputs.packing is not None:
            parts = inputs.packing.pad(parts)
        query, keys, values = parts.unflatten(-1, (3, self.heads, -1)).transpose(1, 3).unbind(2)
        if inputs.rotary is not None:
            query, keys = apply_rotary(query, inputs.rotary), apply_rotary(keys, inputs.rotary)
        return query, keys, values


@final
class Block(nn.Module):
    """Attention, attention to an encoder where `cross_attention` says so, feed-forward. Each is added to its
    input, with the norm before or after."""

    def __init__(self, config: BlockConfig) -> None:
        super().__init__()
        self.norm_first = config.norm == "before"
        self.attention_norm = make_norm(config)
        self.attention = SelfAttention(config)
        self.reads_encoder = config.cross_attention
        if self.reads_encoder:
            self.cross_attention_norm = make_norm(config)
            self.cross_attention = CrossAttention(config)
        self.feed_forward_norm = make_norm(config)
        self.feed_forward = FeedForward(config)
        self.dropout = nn.Dropout(config.dropout)

    def forward(
        self,
        x: Tensor,
        inputs: AttentionInputs,
        past: KeysValues | None = None,
        cross: CrossAttentionInputs | None = None,
        layer: int = 0,
    ) -> tuple[Tensor, KeysValues]:
        """x `(rows, steps, width)` or packed -> the same shape; and all keys and values so far."""
        attended, cache = self.attention(self._before(self.attention_norm, x), inputs, past)
        x = self._after(self.attention_norm, x, attended)
        if cross is not None:
            attended = self.cross_attention(
                self._before(self.cross_attention_norm, x), cross, layer
            )
            x = self._after(self.cross_attention_norm, x, attended)
        x = self._after(
            self.feed_forward_norm, x, self.feed_forward(self._before(self.feed_forward_norm, x))
        )
        return x, cache

    def _before(self, norm: nn.Module, x: Tensor) -> Tensor:
        return norm(x) if self.norm_first else x

    def _after(self, norm: nn.Module, x: Tensor, added: Tensor) -> Tensor:
        x = x + (self.dropout(added) if self.training else added)
        return x if self.norm_first else norm(x)


@final
class Stack(nn.Module):
    """Blocks, one above the other; and a final norm where norms come before."""

    def __init__(self, config: BlockConfig, layers: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(config) for _ in range(layers))
        self.norm = make_norm(config) if config.norm == "before" else nn.Identity()

    def forward(
        self,
        x: Tensor,
        inputs: AttentionInputs,
        past: tuple[KeysValues, ...] | None = None,
        cross: CrossAttentionInputs | None = None,
    ) -> tuple[Tensor, tuple[KeysValues, ...]]:
        """x `(rows, steps, width)` or packed -> the same shape; and the keys and values of each layer."""
        caches = []
        for layer, block in enumerate(self.blocks):
            layer_past = None if past is None else past[layer]
            x, cache = block(x, inputs, layer_past, cross, layer)
            caches.append(cache)
        return self.norm(x), tuple(caches)

    def encode(self, x: Tensor, mask: Tensor | None, bias: Tensor | None = None) -> Tensor:
        """x `(rows, steps, width)`, every token sees every other -> the same shape, 0 at padding, on which no
        work is done.

        mask `(rows, steps)` is true at tokens, None where there is no padding; bias `(1 or rows, heads,
        steps, steps)` is added to the scores.
        """
        if mask is None:
            everything: AttentionMask = "all" if bias is None else bias
            return self(x, AttentionInputs(everything))[0]  # type: ignore[no-any-return]
        packing = Packing.of(mask)
        packed, _ = self(
            packing.pack(x), AttentionInputs(padding_mask(mask, bias), packing=packing)
        )
        return packing.pad(packed)

    def keys_values(self, memory: Tensor) -> tuple[KeysValues, ...]:
        """memory `(inputs, source, width)` -> its keys and values for the cross-attention of each layer."""
        layers = (block.cross_attention for block in self.blocks)
        return tuple(layer.keys_values(memory) for layer in layers)  # type: ignore[operator, union-attr]
