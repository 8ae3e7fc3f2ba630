"""The Transformer's layers: attention with several heads, feed-forward, a block of both, a stack of blocks.

    A(x)   Q = x W^Q,  K = x W^K,  V = x W^V,  softmax(Q Kᵀ / √d_K + mask) V in each head, side by side, times W^O
    F(x) = W_2 φ(W_1 x + b_1) + b_2
    norm after    z = LN(x + A(x)),  y = LN(z + F(z))                                   Vaswani et al. 2017
    norm before   z = x + A(LN x),   y = z + F(LN z),  and one LN after the last block  Radford et al. 2019

d_K is the width of one head. A query with nothing to see gets 0. The weights of attention are formed only when somebody
looks (`weights`): `scaled_dot_product_attention` never holds them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal, NamedTuple, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from seqloom.layers.attention import attention_weights
from seqloom.layers.linear import Linear
from seqloom.layers.positions import Rotation, rotate

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu-tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
    "silu": F.silu,
}
"""φ. gelu is x Φ(x) exactly; gelu-tanh the approximation of Hendrycks and Gimpel 2016 that GPT has; silu is x σ(x)."""

FEWEST_SLOTS = 64
"""A buffer of keys begins with so many places, then doubles."""

Seen = Tensor | Literal["all", "causal"]
"""Which keys a query sees: all, those up to its own place, or a mask `(rows or 1, 1, steps, keys)`, true where it looks."""


class KeysValues(NamedTuple):
    """What one layer has read: `(rows, heads, slots, head_width)` each, of which the first ones are filled."""

    keys: Tensor
    values: Tensor


class Reading(NamedTuple):
    """How the tokens of one call are read: the same in all layers."""

    seen: Seen
    filled: int = 0
    """Keys that earlier calls left."""
    rotation: Rotation | None = None
    """Of rotary positions."""


class Ragged(NamedTuple):
    """Where rows stand that padding, or an `<s>` in the middle, made different."""

    visible: Tensor
    """`(rows, filled)`: the keys that the row's next token sees."""
    position: Tensor
    """`(rows,)`: the position of the row's next token."""

    @classmethod
    def even(cls, rows: int, filled: int, device: torch.device) -> Ragged:
        """Of rows that have read `filled` tokens each."""
        visible = torch.ones(rows, filled, dtype=torch.bool, device=device)
        return cls(visible, torch.full((rows,), filled, device=device))

    def after(self, true: Tensor, begins: Tensor) -> tuple[Tensor, Tensor, Ragged]:
        """true, begins `(rows, steps)`: where there is a token, and where it begins a document.

        Returns the mask `(rows, 1, steps, filled + steps)`, the positions `(rows, steps)`, and where the rows stand then.
        """
        document = begins.cumsum(1)  # 0 goes on with what was read before
        read = true.cumsum(1)
        origin = torch.where(begins, read - 1, -self.position[:, None]).cummax(1).values  # where position 0 would be
        positions = read - 1 - origin
        old = self.visible[:, None] & (document == 0)[:, :, None]
        new = ((document[:, :, None] == document[:, None]) & true[:, None]).tril()
        last = document[:, -1:]
        visible = torch.cat([self.visible & (last == 0), true & (document == last)], dim=1)
        return torch.cat([old, new], dim=2)[:, None], positions.clamp(min=0), Ragged(visible, positions[:, -1] + 1)


def causal_mask(steps: int, filled: int, device: torch.device) -> Seen:
    """What `steps` tokens see after `filled` others: those, and the new ones up to themselves."""
    if steps == 1:
        return "all"
    if not filled:
        return "causal"
    return torch.ones(1, 1, steps, filled + steps, dtype=torch.bool, device=device).tril(filled)


def appended(past: Tensor, filled: int, new: Tensor, dim: int = 2) -> Tensor:
    """past `(rows, ..., slots, ...)` with `new` `(rows, ..., steps, ...)` behind its first `filled` places of `dim`.

    Written into `past` where it has room and no gradient needs what it held.
    """
    steps = new.shape[dim]
    if torch.is_grad_enabled() and (past.requires_grad or new.requires_grad):
        return torch.cat([past.narrow(dim, 0, filled), new], dim=dim)
    if past.shape[dim] < filled + steps or (past.is_inference() and not torch.is_inference_mode_enabled()):
        shape = list(new.shape)
        shape[dim] = max(FEWEST_SLOTS, 2 * (filled + steps))
        roomy = new.new_empty(shape)
        roomy.narrow(dim, 0, filled).copy_(past.narrow(dim, 0, filled))
        past = roomy
    past.narrow(dim, filled, steps).copy_(new)
    return past


@final
class Attention(nn.Module):
    """Attention with `heads` heads; query, key and value of all heads in one product."""

    def __init__(self, width: int, heads: int, *, biases: bool = True, dropout: float = 0.0) -> None:
        super().__init__()
        self.heads = heads
        self.dropout = dropout
        """Share of the weights dropped in training."""
        self.query_key_value = Linear(width, 3 * width, bias=biases)
        self.output = Linear(width, width, bias=biases)

    def forward(self, x: Tensor, reading: Reading, past: KeysValues | None = None) -> tuple[Tensor, KeysValues]:
        """x `(rows, steps, width)` -> the same shape; and the keys and values, those of x behind the ones of `past`."""
        query, keys, values = self._heads(x, reading.rotation)
        kept = KeysValues(keys, values)  # without a past nothing is copied
        if past is not None:
            kept = KeysValues(appended(past.keys, reading.filled, keys), appended(past.values, reading.filled, values))
            keys, values = (part[:, :, : reading.filled + x.shape[1]] for part in kept)
        masked = isinstance(reading.seen, Tensor)
        mixed = F.scaled_dot_product_attention(
            query,
            keys,
            values,
            attn_mask=reading.seen if masked else None,  # type: ignore[arg-type]
            is_causal=not masked and reading.seen == "causal",
            dropout_p=self.dropout if self.training else 0.0,
        )
        output: Tensor = self.output(mixed.transpose(1, 2).flatten(2))
        return output, kept

    def weights(self, x: Tensor, reading: Reading) -> Tensor:
        """Where x, read from the start, looks: `(rows, heads, steps, steps)`; 0 at what is not seen."""
        query, keys, _ = self._heads(x, reading.rotation)
        mask = reading.seen
        if not isinstance(mask, Tensor):
            mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device)
            mask = mask.tril() if reading.seen == "causal" else mask
        return attention_weights(query @ keys.transpose(2, 3) / math.sqrt(query.shape[-1]), mask)

    def _heads(self, x: Tensor, rotation: Rotation | None) -> tuple[Tensor, Tensor, Tensor]:
        """Query, key and value of each token: `(rows, heads, steps, head_width)` each."""
        parts = self.query_key_value(x).unflatten(-1, (3, self.heads, -1)).transpose(1, 3)
        query, keys, values = parts.unbind(2)
        if rotation is not None:
            query, keys = rotate(query, rotation), rotate(keys, rotation)
        return query, keys, values


@final
class FeedForward(nn.Module):
    """`W_2 φ(W_1 x + b_1) + b_2`."""

    def __init__(self, width: int, hidden_width: int, activation: str, *, biases: bool = True) -> None:
        super().__init__()
        self.activation = ACTIVATIONS[activation]
        self.hidden = Linear(width, hidden_width, bias=biases)
        self.output = Linear(hidden_width, width, bias=biases)

    def forward(self, x: Tensor) -> Tensor:
        """`(..., width)` -> the same shape."""
        output: Tensor = self.output(self.activation(self.hidden(x)))
        return output


@final
class Block(nn.Module):
    """Attention, then feed-forward, each added to what it read, with the norm before or after."""

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
    ) -> None:
        super().__init__()
        self.norm_first = norm == "before"
        self.attention_norm = nn.LayerNorm(width, bias=biases)
        self.attention = Attention(width, heads, biases=biases, dropout=attention_dropout)
        self.feed_forward_norm = nn.LayerNorm(width, bias=biases)
        self.feed_forward = FeedForward(width, hidden_width, activation, biases=biases)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, reading: Reading, past: KeysValues | None = None) -> tuple[Tensor, KeysValues]:
        """x `(rows, steps, width)` -> the same shape; and the keys and values read so far."""
        if self.norm_first:
            attended, kept = self.attention(self.attention_norm(x), reading, past)
            x = self._with(x, attended)
            return self._with(x, self.feed_forward(self.feed_forward_norm(x))), kept
        attended, kept = self.attention(x, reading, past)
        x = self.attention_norm(self._with(x, attended))
        return self.feed_forward_norm(self._with(x, self.feed_forward(x))), kept

    def _with(self, x: Tensor, added: Tensor) -> Tensor:
        return x + (self.dropout(added) if self.training else added)

    def weights(self, x: Tensor, reading: Reading) -> Tensor:
        """Where attention looks: `(rows, heads, steps, steps)`."""
        return self.attention.weights(self.attention_norm(x) if self.norm_first else x, reading)


@final
class Stack(nn.Module):
    """Blocks one above the other, and a final norm where norms come before."""

    def __init__(self, blocks: list[Block], width: int, *, biases: bool = True) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)
        self.norm = nn.LayerNorm(width, bias=biases) if blocks[0].norm_first else nn.Identity()

    def forward(self, x: Tensor, reading: Reading, past: tuple[KeysValues, ...] | None = None) -> tuple[Tensor, tuple[KeysValues, ...]]:
        """x `(rows, steps, width)` -> the same shape; and the keys and values of each layer."""
        kept = []
        for layer, block in enumerate(self.blocks):
            x, read = block(x, reading, None if past is None else past[layer])
            kept.append(read)
        return self.norm(x), tuple(kept)

    def weights(self, x: Tensor, reading: Reading) -> Tensor:
        """Where x, read from the start, looks: `(rows, layers, heads, steps, steps)`."""
        looks = []
        for block in self.blocks:
            looks.append(block.weights(x, reading))  # type: ignore[operator]
            x, _ = block(x, reading)
        return torch.stack(looks, dim=1)
