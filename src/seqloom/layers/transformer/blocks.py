"""The Transformer's blocks: self-attention, attention to an encoder, feed-forward, and a stack of them.

    A(x)   Q = x W^Q,  K = x W^K,  V = x W^V,  softmax(Q Kᵀ / √d_K + mask) V in each head, side by side, times W^O
    norm after    z = LN(x + A(x)),  y = LN(z + F(z))                                   Vaswani et al. 2017
    norm before   z = x + A(LN x),   y = z + F(LN z),  and one LN after the last block  Radford et al. 2019

d_K is the width of one head. A query with nothing to see gets 0. The weights of attention are formed only
when somebody looks (`weights`): `scaled_dot_product_attention` never holds them.

An encoder's rows are packed: only attention knows that they are rows, all else works on `(tokens, width)`
without padding.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from seqloom.layers.attention import attention_weights
from seqloom.layers.linear import Linear
from seqloom.layers.transformer.cross_attention import CrossAttention, Looking
from seqloom.layers.transformer.feed_forward import FeedForward
from seqloom.layers.transformer.key_value_cache import KeysValues, Seen, appended
from seqloom.layers.transformer.positions import Rotation, rotate


class Packing(NamedTuple):
    """Which places of `(rows, steps)` hold a token."""

    places: Tensor
    """`(tokens,)`, in order."""
    rows: int
    steps: int

    @classmethod
    def of(cls, mask: Tensor) -> Packing:
        """mask `(rows, steps)`, true at tokens."""
        return cls(mask.flatten().nonzero()[:, 0], *mask.shape)

    def pack(self, x: Tensor) -> Tensor:
        """`(rows, steps, width)` -> `(tokens, width)`."""
        return x.reshape(-1, x.shape[-1]).index_select(0, self.places)

    def pad(self, x: Tensor) -> Tensor:
        """`(tokens, width)` -> `(rows, steps, width)`, 0 where there is no token."""
        padded = x.new_zeros(self.rows * self.steps, x.shape[-1]).index_copy_(0, self.places, x)
        return padded.view(self.rows, self.steps, -1)


class AttentionInputs(NamedTuple):
    """How the tokens of one call are read: the same in all layers."""

    seen: Seen
    filled: int = 0
    """Keys that earlier calls left."""
    rotation: Rotation | None = None
    """Of rotary positions."""
    packing: Packing | None = None
    """Where x is packed."""


def read_places(mask: Tensor) -> tuple[Tensor | None, Tensor]:
    """mask `(rows, steps)`, true at tokens -> the mask, None where there is no padding; and the positions of
    the tokens, `(steps,)` or `(rows, steps)`: padding left, right or none agree."""
    in_order = torch.arange(mask.shape[1], device=mask.device)
    if bool(mask.all()):
        return None, in_order
    return mask, (mask.cumsum(1) - 1).clamp(min=0) if bool((mask[:, 1:] & ~mask[:, :-1]).any()) else in_order


def seen_of(mask: Tensor, bias: Tensor | None = None) -> Tensor:
    """mask `(rows, steps)`, true at tokens -> what every query sees: `(rows, 1, 1, steps)`, or bias `(1 or
    rows, heads, queries, steps)` and -inf at padding."""
    seen = mask[:, None, None]
    return seen if bias is None else bias.masked_fill(~seen, -math.inf)


@final
class SelfAttention(nn.Module):
    """Self-attention with `heads` heads; query, key and value of all heads in one product."""

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        head_width: int | None = None,
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
        """By which scores are multiplied: 1/√d_K unless said."""
        self.query_key_value = Linear(width, 3 * inner, bias=biases)
        self.output = Linear(inner, width, bias=biases)

    def forward(
        self, x: Tensor, reading: AttentionInputs, past: KeysValues | None = None
    ) -> tuple[Tensor, KeysValues]:
        """x `(rows, steps, width)` or packed -> the same shape; and the keys and values, those of x behind
        the ones of `past`."""
        query, keys, values = self._heads(x, reading)
        kept = KeysValues(keys, values)  # without a past nothing is copied
        if past is not None:
            kept = KeysValues(
                appended(past.keys, reading.filled, keys), appended(past.values, reading.filled, values)
            )
            keys, values = (part[:, :, : reading.filled + x.shape[1]] for part in kept)
        masked = isinstance(reading.seen, Tensor)
        mixed = F.scaled_dot_product_attention(
            query,
            keys,
            values,
            attn_mask=reading.seen if masked else None,  # type: ignore[arg-type]
            is_causal=not masked and reading.seen == "causal",
            dropout_p=self.dropout if self.training else 0.0,
            scale=self.scale,
        )
        mixed = mixed.transpose(1, 2).flatten(2)
        output: Tensor = self.output(mixed if reading.packing is None else reading.packing.pack(mixed))
        return output, kept

    def weights(self, x: Tensor, reading: AttentionInputs) -> Tensor:
        """Where x, read from the start, looks: `(rows, heads, steps, steps)`; 0 at what is not seen."""
        query, keys, _ = self._heads(x, reading)
        scores = query @ keys.transpose(2, 3) * self.scale
        mask = reading.seen
        if not isinstance(mask, Tensor):
            mask = torch.ones(scores.shape[2:], dtype=torch.bool, device=x.device)
            mask = mask.tril() if reading.seen == "causal" else mask
        elif mask.dtype != torch.bool:
            scores, mask = scores + mask.clamp(min=torch.finfo(mask.dtype).min), mask > -math.inf
        return attention_weights(scores, mask)

    def _heads(self, x: Tensor, reading: AttentionInputs) -> tuple[Tensor, Tensor, Tensor]:
        """Query, key and value of each token: `(rows, heads, steps, head_width)` each."""
        parts = self.query_key_value(x)
        if reading.packing is not None:
            parts = reading.packing.pad(parts)
        query, keys, values = parts.unflatten(-1, (3, self.heads, -1)).transpose(1, 3).unbind(2)
        if reading.rotation is not None:
            query, keys = rotate(query, reading.rotation), rotate(keys, reading.rotation)
        return query, keys, values


def make_norm(kind: Literal["layer", "rms"], width: int, epsilon: float, *, biases: bool = True) -> nn.Module:
    """layer: γ (x - μ) / √(σ² + ε) + β over the features (Ba et al. 2016); rms: γ x / √(mean x² + ε) (Zhang
    and Sennrich 2019)."""
    return nn.RMSNorm(width, eps=epsilon) if kind == "rms" else nn.LayerNorm(width, eps=epsilon, bias=biases)


@final
class Block(nn.Module):
    """Attention, attention to an encoder (`cross`), feed-forward; each added to what it read, with the norm
    before or after."""

    def __init__(
        self,
        width: int,
        heads: int,
        hidden_width: int,
        *,
        activation: str = "gelu",
        norm: Literal["before", "after"] = "before",
        biases: bool = True,
        dropout: float = 0.0,
        attention_dropout: float = 0.0,
        hidden_dropout: float = 0.0,
        norm_kind: Literal["layer", "rms"] = "layer",
        norm_epsilon: float = 1e-5,
        head_width: int | None = None,
        scale: float | None = None,
        gated: bool = False,
        cross: bool = False,
    ) -> None:
        super().__init__()
        self.norm_first = norm == "before"
        self.attention_norm = make_norm(norm_kind, width, norm_epsilon, biases=biases)
        self.attention = SelfAttention(
            width, heads, head_width=head_width, biases=biases, dropout=attention_dropout, scale=scale
        )
        if cross:
            self.cross_attention_norm = make_norm(norm_kind, width, norm_epsilon, biases=biases)
            self.cross_attention = CrossAttention(
                width, heads, head_width=head_width, biases=biases, dropout=attention_dropout, scale=scale
            )
        self.feed_forward_norm = make_norm(norm_kind, width, norm_epsilon, biases=biases)
        self.feed_forward = FeedForward(
            width, hidden_width, activation, gated=gated, biases=biases, dropout=hidden_dropout
        )
        self.dropout = nn.Dropout(dropout)

    def forward(
        self,
        x: Tensor,
        reading: AttentionInputs,
        past: KeysValues | None = None,
        looking: Looking | None = None,
        layer: int = 0,
    ) -> tuple[Tensor, KeysValues]:
        """x `(rows, steps, width)` or packed -> the same shape; and the keys and values read so far."""
        attended, kept = self.attention(self._before(self.attention_norm, x), reading, past)
        x = self._after(self.attention_norm, x, attended)
        if looking is not None:
            looked = self.cross_attention(self._before(self.cross_attention_norm, x), looking, layer)
            x = self._after(self.cross_attention_norm, x, looked)
        x = self._after(self.feed_forward_norm, x, self.feed_forward(self._before(self.feed_forward_norm, x)))
        return x, kept

    def _before(self, norm: nn.Module, x: Tensor) -> Tensor:
        return norm(x) if self.norm_first else x

    def _after(self, norm: nn.Module, x: Tensor, added: Tensor) -> Tensor:
        x = x + (self.dropout(added) if self.training else added)
        return x if self.norm_first else norm(x)

    def weights(self, x: Tensor, reading: AttentionInputs) -> Tensor:
        """Where attention looks: `(rows, heads, steps, steps)`."""
        return self.attention.weights(self._before(self.attention_norm, x), reading)

    def cross_weights(self, x: Tensor, reading: AttentionInputs, looking: Looking, layer: int) -> Tensor:
        """Where it looks at the encoder: `(rows, heads, steps, source)`. x is read from the start."""
        attended, _ = self.attention(self._before(self.attention_norm, x), reading)
        x = self._after(self.attention_norm, x, attended)
        return self.cross_attention.weights(self._before(self.cross_attention_norm, x), looking, layer)


@final
class Stack(nn.Module):
    """Blocks one above the other, and a final norm, which a stack has whose norms come before."""

    def __init__(self, blocks: list[Block], norm: nn.Module | None) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)
        self.norm = norm or nn.Identity()

    def forward(
        self,
        x: Tensor,
        reading: AttentionInputs,
        past: tuple[KeysValues, ...] | None = None,
        looking: Looking | None = None,
    ) -> tuple[Tensor, tuple[KeysValues, ...]]:
        """x `(rows, steps, width)` or packed -> the same shape; and the keys and values of each layer."""
        kept = []
        for layer, block in enumerate(self.blocks):
            x, read = block(x, reading, None if past is None else past[layer], looking, layer)
            kept.append(read)
        return self.norm(x), tuple(kept)

    def encode(self, x: Tensor, mask: Tensor | None, bias: Tensor | None = None) -> Tensor:
        """x `(rows, steps, width)`, in which every token sees every one -> the same shape, 0 at padding, on
        which no work is done.

        mask `(rows, steps)` is true at tokens, None where there is no padding; bias `(1 or rows, heads,
        steps, steps)` is added to the scores.
        """
        if mask is None:
            return self(x, AttentionInputs("all" if bias is None else bias))[0]  # type: ignore[no-any-return]
        packing = Packing.of(mask)
        packed, _ = self(packing.pack(x), AttentionInputs(seen_of(mask, bias), packing=packing))
        return packing.pad(packed)

    def weights(self, x: Tensor, reading: AttentionInputs, looking: Looking | None = None) -> Tensor:
        """Where x, read from the start, looks: `(rows, layers, heads, steps, steps)`; with `looking` at the
        encoder, `(..., source)`."""
        looks = []
        for layer, block in enumerate(self.blocks):
            looks.append(
                block.weights(x, reading)  # type: ignore[operator]
                if looking is None
                else block.cross_weights(x, reading, looking, layer)  # type: ignore[operator]
            )
            x, _ = block(x, reading, None, looking, layer)
        return torch.stack(looks, dim=1)
