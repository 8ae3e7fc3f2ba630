"""Highway layers (Srivastava et al. 2015): `y = g ⊙ H(x) + (1 - g) ⊙ x`, with `g = σ(W_T x + b_T)`."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor, nn


@final
class HighwayGate(nn.Module):
    """Mixes x with a transformed x. b_T starts at -1, so that x passes almost unchanged at first."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)
        nn.init.constant_(self.linear.bias, -1.0)

    def forward(self, x: Tensor, transformed: Tensor) -> Tensor:
        """Both `(..., width)`."""
        return torch.lerp(x, transformed, torch.sigmoid(self.linear(x)).to(x.dtype))


@final
class HighwayLayer(nn.Module):
    """H(x) = ReLU(W_H x + b_H), and the gate."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.gate = HighwayGate(width)

    def forward(self, x: Tensor) -> Tensor:
        """`(..., width)` -> the same."""
        transformed: Tensor = torch.relu(self.linear(x)).to(x.dtype)
        result: Tensor = self.gate(x, transformed)
        return result
