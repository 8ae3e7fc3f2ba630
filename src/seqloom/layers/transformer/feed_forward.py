"""The Transformer's feed-forward layer and its activations.

F(x) = W_2 φ(W_1 x + b_1) + b_2            Vaswani et al. 2017, equation 2
F(x) = W_2 (φ(W_1 x) ⊙ V x)                gated: Shazeer 2020 (GEGLU with φ = gelu)

gelu       x Φ(x), exactly                                   Hendrycks and Gimpel 2016
gelu-tanh  x/2 (1 + tanh(√(2/π) (x + 0.044715 x³)))          its approximation there, as in GPT and T5 v1.1
silu       x σ(x)                                            Elfwing et al. 2018
swish      x σ(β x), β trained, 1 at the start               Ramachandran, Zoph and Le 2017
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from seqloom.layers.linear import Linear
from seqloom.layers.transformer.block_config import BlockConfig
from seqloom.layers.transformer.compiled_gelu import gelu


@final
class Swish(nn.Module):
    """`x σ(β x)`."""

    def __init__(self) -> None:
        super().__init__()
        self.beta = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        """`(...)` -> the same shape."""
        return x * torch.sigmoid(self.beta * x)


ACTIVATIONS: dict[str, Callable[[], Callable[[Tensor], Tensor]]] = {
    "gelu": lambda: partial(gelu, tanh=False),
    "gelu-tanh": lambda: partial(gelu, tanh=True),
    "relu": lambda: F.relu,
    "silu": lambda: F.silu,
    "swish": Swish,
    "tanh": lambda: torch.tanh,
}
"""φ, made for each layer: one of them has a parameter. `native/transformer.h` counts them in this order."""


@final
class FeedForward(nn.Module):
    """`W_2 φ(W_1 x + b_1) + b_2`, or gated, with W_1 above V in one product."""

    def __init__(self, config: BlockConfig) -> None:
        super().__init__()
        self.gated = config.gated
        self.dropout = config.hidden_dropout
        self.activation_name = config.activation
        self.activation = ACTIVATIONS[config.activation]()
        self.hidden = Linear(
            config.width, (2 if config.gated else 1) * config.hidden_width, bias=config.biases
        )
        self.output = Linear(config.hidden_width, config.width, bias=config.biases)

    def forward(self, x: Tensor) -> Tensor:
        """`(..., width)` -> the same shape."""
        hidden = self.hidden(x)
        if self.gated:
            gate, hidden = hidden.chunk(2, dim=-1)
            hidden = self.activation(gate) * hidden
        else:
            hidden = self.activation(hidden)
        if self.training and self.dropout:
            hidden = F.dropout(hidden, self.dropout)
        output: Tensor = self.output(hidden)
        return output
