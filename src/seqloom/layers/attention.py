"""Attention of a recurrent decoder: scores of one query against the vectors of an input, and their weighted
mean.

    additive   e_i = v · tanh(W s + U h_i)    Bahdanau, Cho and Bengio 2015
    dot        e_i = s · h_i                  Luong, Pham and Manning 2015
    bilinear   e_i = s · W h_i                the same ("general")

Each scorer has two halves: `keys(memory)`, which depends on the input only and is formed once per input, and
`scores(query, keys)`, once per step.

Whatever has weights of attention, in any model, is a `WatchedAttention`: `watched_attention` shows its
weights, and can change them.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from seqloom.errors import UsageError
from seqloom.layers.compiled_attention import Looks, compiled_attention, has_compiled_attention
from seqloom.protocols import modules_of

Watcher = Callable[[Tensor], Tensor]
"""Sees weights of attention, and returns those that are used in their place."""


class WatchedAttention(nn.Module):
    """A module that has weights of attention."""

    watcher: Watcher | None = None

    def seen(self, weights: Tensor) -> Tensor:
        """The weights that are used."""
        return weights if self.watcher is None else self.watcher(weights)


@contextmanager
def watched_attention(
    model: nn.Module, change: Callable[[str, Tensor], Tensor] = lambda _, weights: weights
) -> Iterator[dict[str, list[Tensor]]]:
    """Inside, the weights of each module of attention are in the list of its name, one for each call:
    `(rows, heads, queries, keys)` in a Transformer, `(rows, ..., keys)` elsewhere. `change`, given a name and
    weights, may return others, which are used and seen."""
    modules = modules_of(model, WatchedAttention)
    seen: dict[str, list[Tensor]] = {name: [] for name in modules}

    def watch(name: str, weights: Tensor) -> Tensor:
        used = change(name, weights)
        seen[name].append(used)
        return used

    try:
        for name, module in modules.items():
            module.watcher = partial(watch, name)
        yield seen
    finally:
        for module in modules.values():
            module.watcher = None


class HeadAttention(WatchedAttention):
    """softmax(Q Kᵀ · scale + mask) V in each head (Vaswani et al. 2017, 3.2). A query with nothing to see
    gets 0."""

    def __init__(self, heads: int, scale: float, dropout: float) -> None:
        super().__init__()
        self.heads, self.scale, self.dropout = heads, scale, dropout

    def mixed(
        self,
        query: Tensor,
        keys: Tensor,
        values: Tensor,
        mask: Tensor | None,
        *,
        causal: bool = False,
    ) -> Tensor:
        """`(rows, heads, steps, head_width)` each -> the same. The weights are formed only where they are
        watched: `scaled_dot_product_attention` never holds them."""
        if self.watcher is None:
            dropout = self.dropout if self.training else 0.0
            looks = Looks(mask, causal, self.scale)
            if not dropout and has_compiled_attention(query, keys, values, looks):
                return compiled_attention(query, keys, values, looks)
            return F.scaled_dot_product_attention(
                query,
                keys,
                values,
                attn_mask=mask,
                dropout_p=dropout,
                is_causal=causal,
                scale=self.scale,
            )
        scores = query @ keys.transpose(2, 3) * self.scale
        if mask is None:
            mask = torch.ones(scores.shape[2:], dtype=torch.bool, device=scores.device)
            mask = mask.tril() if causal else mask
        elif mask.dtype != torch.bool:
            scores, mask = scores + mask.clamp(min=torch.finfo(mask.dtype).min), mask > -torch.inf
        return self.watcher(attention_weights(scores, mask)) @ values


class AttentionMemory(NamedTuple):
    """What a recurrent decoder attends to: one for each input, shared by all rows that read it."""

    values: Tensor
    """`(inputs, source, memory_width)`: h_i; without attention the one context vector, `source` = 1."""
    keys: Tensor
    """`(inputs, source, attention_width)`: U h_i, formed once per input."""
    mask: Tensor
    """`(inputs, source)`: true at real tokens."""
    inputs: Tensor
    """`(inputs,)`: 0, 1, 2, ...; a state whose `source` is this very tensor has one row per input, in order.
    """


class AttentionScores(WatchedAttention):
    """Scores of a query of a recurrent decoder."""

    @abstractmethod
    def keys(self, memory: Tensor) -> Tensor:
        """`(inputs, source, memory_width)` -> `(inputs, source, width)`."""

    @abstractmethod
    def scores(self, query: Tensor, keys: Tensor) -> Tensor:
        """query `(rows, ..., query_width)`, keys `(rows, source, width)` -> `(rows, ..., source)`."""

    def query_maps(self) -> list[nn.Module]:
        """The linear maps that read a query."""
        return []

    def weights(self, query: Tensor, keys: Tensor, mask: Tensor) -> Tensor:
        """`(rows, ..., source)`, 0 where the mask `(rows, ..., source)` is false."""
        return self.seen(attention_weights(self.scores(query, keys), mask))


@final
class AdditiveScores(AttentionScores):
    """`v · tanh(W s + U h)`."""

    def __init__(self, query_width: int, memory_width: int, width: int) -> None:
        super().__init__()
        self.query = nn.Linear(query_width, width)
        self.memory = nn.Linear(memory_width, width, bias=False)
        self.score = nn.Linear(width, 1, bias=False)

    def query_maps(self) -> list[nn.Module]:
        return [self.query]

    def keys(self, memory: Tensor) -> Tensor:
        """`(inputs, source, memory_width)` -> `(inputs, source, width)`: U h."""
        keys: Tensor = self.memory(memory)
        return keys

    def scores(self, query: Tensor, keys: Tensor) -> Tensor:
        """query `(rows, ..., query_width)`, keys `(rows, source, width)` -> `(rows, ..., source)`."""
        s = self.query(query).unsqueeze(-2)
        h = keys.view(keys.shape[0], *[1] * (query.dim() - 2), *keys.shape[1:])
        return torch.tanh(s + h) @ self.score.weight[0]


@final
class DotScores(AttentionScores):
    """`s · h`. Raises UsageError if the widths differ."""

    def __init__(self, query_width: int, memory_width: int, _: int) -> None:
        super().__init__()
        if query_width != memory_width:
            raise UsageError(
                f"dot attention needs a decoder as wide as the encoder's output, but {query_width} is not"
                f" {memory_width}; set model.width to the encoder's output width (twice model.encoder_width"
                " where bidirectional), or take bilinear"
            )

    def keys(self, memory: Tensor) -> Tensor:
        return memory

    def scores(self, query: Tensor, keys: Tensor) -> Tensor:
        """query `(rows, ..., width)`, keys `(rows, source, width)` -> `(rows, ..., source)`."""
        return _products(query, keys)


@final
class BilinearScores(AttentionScores):
    """`s · W h`."""

    def __init__(self, query_width: int, memory_width: int, _: int) -> None:
        super().__init__()
        self.memory = nn.Linear(memory_width, query_width, bias=False)

    def keys(self, memory: Tensor) -> Tensor:
        """`(inputs, source, memory_width)` -> `(inputs, source, query_width)`: W h."""
        keys: Tensor = self.memory(memory)
        return keys

    def scores(self, query: Tensor, keys: Tensor) -> Tensor:
        """query `(rows, ..., query_width)`, keys `(rows, source, query_width)` -> `(rows, ..., source)`."""
        return _products(query, keys)


def _products(query: Tensor, keys: Tensor) -> Tensor:
    rows = query.view(query.shape[0], -1, query.shape[-1])
    return (rows @ keys.transpose(1, 2)).view(*query.shape[:-1], keys.shape[1])


SCORES: dict[str, Callable[[int, int, int], AttentionScores]] = {
    "additive": AdditiveScores,
    "dot": DotScores,
    "bilinear": BilinearScores,
}


def attention_weights(scores: Tensor, mask: Tensor) -> Tensor:
    """Softmax over the true positions: scores `(..., source)`, mask broadcastable to it.

    Padding gets exactly 0; a row with nothing to see gets 0 everywhere, not NaN.
    """
    masked = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    return masked.softmax(dim=-1) * mask


def weighted_mean(weights: Tensor, values: Tensor) -> Tensor:
    """weights `(rows, ..., source)`, values `(rows, source, width)` -> `(rows, ..., width)`."""
    rows = weights.reshape(weights.shape[0], -1, weights.shape[-1])
    return (rows @ values).view(*weights.shape[:-1], values.shape[-1])
