"""Convolution over time: at each step, filters over a window of steps.

    c_t = w · [x_t; ...; x_{t+h-1}] + b          Collobert et al. 2011; Kim 2014, equation 2, before its ReLU

Beyond a text stand zeros, so its padding must be zeros too.
"""

from __future__ import annotations

from typing import final

from torch import Tensor, nn
from torch.nn import functional as F


@final
class TimeConvolution(nn.Module):
    """`maps` filters over windows of `window` steps that begin at each step or, where `centred`, have it in
    the middle (of an even window the second half is the longer one). The parameters are those of a
    `nn.Conv1d`."""

    def __init__(self, width: int, maps: int, window: int, *, centred: bool) -> None:
        super().__init__()
        self.window = window
        before = (window - 1) // 2 if centred else 0
        self.margins = before, window - 1 - before
        """Steps of zeros before and after a row."""
        self.filters = nn.Conv1d(width, maps, window)
        nn.init.xavier_uniform_(self.filters.weight)
        nn.init.zeros_(self.filters.bias)  # type: ignore[arg-type]  # it has one

    def forward(self, inputs: Tensor) -> Tensor:
        """`(rows, steps, width)`, 0 at padding -> `(rows, steps, maps)`."""
        if not inputs.shape[1]:
            return inputs.new_zeros(len(inputs), 0, self.filters.out_channels)
        maps: Tensor = self.filters(F.pad(inputs.transpose(1, 2), self.margins))
        return maps.transpose(1, 2)
