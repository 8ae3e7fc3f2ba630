"""The sizes and choices of a Transformer block: what attention, feed-forward layer, norms and stack are built
from."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Literal, Self, final

from torch import nn


@final
@dataclass(frozen=True, kw_only=True)
class BlockConfig:
    """One block; all blocks of a stack are alike."""

    width: int
    """Width of a hidden state."""
    heads: int
    """Heads of attention."""
    head_width: int | None = None
    """Width of a head; by default the heads share the width."""
    feed_forward_width: int | None = None
    """Width of the feed-forward layer's hidden state; by default four times the width."""
    activation: str = "gelu"
    """φ of the feed-forward layer."""
    gated: bool = False
    """Whether the feed-forward layer has a gate."""
    norm: Literal["before", "after"] = "before"
    """Whether a norm comes before or after each sub-block."""
    norm_kind: Literal["layer", "rms"] = "layer"
    norm_epsilon: float = 1e-5
    biases: bool = True
    """Whether linear layers and norms have a bias."""
    dropout: float = 0.0
    """Share of what each sub-block adds that is dropped in training."""
    attention_dropout: float = 0.0
    """Share of the weights of attention dropped in training."""
    hidden_dropout: float = 0.0
    """Share of the feed-forward layer's hidden features dropped in training."""
    scaled: bool = True
    """Whether scores of attention are multiplied by 1/√d_K, d_K the width of a head."""
    cross_attention: bool = False
    """Whether the block looks at an encoder too."""

    @classmethod
    def of(cls, config: object, **more: object) -> Self:
        """The blocks of a model whose configuration has fields of the same names; `more` comes first."""
        names = {field.name for field in fields(cls)}
        shared = {name: value for name, value in vars(config).items() if name in names}
        return cls(**shared | more)

    @property
    def inner_width(self) -> int:
        """Of all heads together."""
        return self.heads * (self.head_width or self.width // self.heads)

    @property
    def scale(self) -> float:
        """Of the scores of attention."""
        return 1 / math.sqrt(self.inner_width // self.heads) if self.scaled else 1.0

    @property
    def hidden_width(self) -> int:
        """Of the feed-forward layer."""
        return self.feed_forward_width or 4 * self.width


def make_norm(config: BlockConfig, width: int | None = None) -> nn.Module:
    """layer: γ (x - μ) / √(σ² + ε) + β over the features (Ba et al. 2016); rms: γ x / √(mean x² + ε) (Zhang
    and Sennrich 2019). As wide as a hidden state unless another width is given."""
    width = width or config.width
    if config.norm_kind == "rms":
        return nn.RMSNorm(width, eps=config.norm_epsilon)
    return nn.LayerNorm(width, eps=config.norm_epsilon, bias=config.biases)
