"""Attention of a recurrent decoder: scores of one query against the vectors of an input, and their weighted
mean.

    additive   e_i = v · tanh(W s + U h_i)    Bahdanau, Cho and Bengio 2015
    dot        e_i = s · h_i                  Luong, Pham and Manning 2015
    bilinear   e_i = s · W h_i                the same ("general")

Each scorer has two halves: `keys(memory)`, which depends on the input only and is formed once per input, and
`scores(query, keys)`, once per step.
"""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor, nn

from seqloom.errors import UsageError


@final
class AdditiveScores(nn.Module):
    """`v · tanh(W s + U h)`."""

    def __init__(self, query_width: int, memory_width: int, width: int) -> None:
        super().__init__()
        self.query = nn.Linear(query_width, width)
        self.memory = nn.Linear(memory_width, width, bias=False)
        self.score = nn.Linear(width, 1, bias=False)

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
class DotScores(nn.Module):
    """`s · h`. Raises UsageError where the widths differ."""

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
class BilinearScores(nn.Module):
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


Scores = AdditiveScores | DotScores | BilinearScores

SCORES: dict[str, type[AdditiveScores] | type[DotScores] | type[BilinearScores]] = {
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
