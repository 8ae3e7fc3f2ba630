"""Pooling: the states of a text, h_1 .. h_n, as one.

    first      h_1                                               [CLS] of BERT (Devlin et al. 2019)
    last       h_n, or [→h_n; ←h_1] of two directions            extract of GPT-1 (Radford et al. 2018)
    mean, sum  Σ h_t / n, Σ h_t                                  Joulin et al. 2017
    max        the largest value of each feature                 Kim 2014; Conneau et al. 2017
    attention  Σ a_t h_t, a = softmax_t(v · tanh(W h_t))         Lin et al. 2017, equation 5; Yang et al. 2016

Padding is never read, not even NaN. A text without steps is 0.
"""

from __future__ import annotations

from typing import Literal, final, get_args

import torch
from torch import Tensor, nn

from seqloom.layers.attention import WatchedAttention, attention_weights, weighted_mean
from seqloom.layers.linear import linear

Pooling = Literal["first", "last", "mean", "max", "sum", "attention"]
POOLINGS: tuple[Pooling, ...] = get_args(Pooling)


def pool_states(
    kind: Pooling,
    hidden: Tensor,
    mask: Tensor,
    directions: int = 1,
    attention: AttentionPooling | None = None,
) -> Tensor:
    """hidden `(rows, steps, width)`, mask `(rows, steps)`, true at steps that count -> `(rows, width)`.

    `attention` is needed for that kind of pooling. With two `directions` each has half of the width.
    """
    if not hidden.shape[1]:
        return hidden.new_zeros(hidden.shape[0], hidden.shape[2])
    hidden = hidden.where(mask[..., None], 0)
    if kind == "first":
        return _at(hidden, _first(mask))
    if kind == "last":
        if directions == 1:
            return _at(hidden, _last(mask))
        forward, backward = hidden.chunk(2, dim=-1)
        return torch.cat([_at(forward, _last(mask)), _at(backward, _first(mask))], dim=-1)
    if kind == "max":
        return (
            hidden.masked_fill(~mask[..., None], -torch.inf)
            .amax(dim=1)
            .where(mask.any(dim=1)[:, None], 0)
        )
    if kind == "sum":
        return hidden.sum(dim=1)
    if kind == "mean":
        return hidden.sum(dim=1) / mask.sum(dim=1, keepdim=True).clamp(min=1)
    assert attention is not None
    return weighted_mean(attention(hidden, mask), hidden)


def _first(mask: Tensor) -> Tensor:
    """The first true step of each row `(rows,)`; 0 if there is none."""
    return mask.int().argmax(dim=1)


def _last(mask: Tensor) -> Tensor:
    """The last true step of each row `(rows,)`; 0 if there is none."""
    return (torch.arange(mask.shape[1], device=mask.device) * mask).amax(dim=1)


def _at(hidden: Tensor, steps: Tensor) -> Tensor:
    return hidden[torch.arange(len(hidden), device=hidden.device), steps]


@final
class AttentionPooling(WatchedAttention):
    """How much each state counts: `a = softmax_t(v · tanh(W h_t))`."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width, width))
        """W, `(features, width)`."""
        self.vector = nn.Parameter(torch.empty(width))
        """v, `(features,)`."""
        for parameter in self.parameters():
            nn.init.normal_(parameter, std=width**-0.5)

    def forward(self, hidden: Tensor, mask: Tensor) -> Tensor:
        """hidden `(rows, steps, width)`, mask `(rows, steps)` -> a `(rows, steps)`, 0 at padding."""
        scores = torch.tanh(linear(hidden, self.weight)) @ self.vector
        return self.seen(attention_weights(scores, mask))
