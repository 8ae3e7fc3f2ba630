"""Batch normalisation of recurrent layers (Cooijmans et al. 2017): statistics of each step, over the rows
where it is no padding."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor, nn

STEPS = 100
"""Steps with statistics of their own; later ones share the last."""

MOMENTUM, EPSILON = 0.1, 1e-5


@final
class StepBatchNorm(nn.Module):
    """Features minus their mean, over their standard deviation, times a gain that starts at 0.1.

    In training the statistics are those of the step's real rows (a single row has none, so the running ones
    are used); else the running ones of the step, or of the last step that was seen in training.
    """

    running_mean: Tensor
    running_variance: Tensor
    seen: Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.full((width,), 0.1))
        self.register_buffer("running_mean", torch.zeros(STEPS, width))
        self.register_buffer("running_variance", torch.ones(STEPS, width))
        self.register_buffer("seen", torch.zeros((), dtype=torch.long))

    def forward(self, values: Tensor, step: int, features: slice = slice(None)) -> Tensor:
        """values `(rows, width)`, which are these `features` of the layer, of all rows that have this step ->
        the same, normalised."""
        step = min(step, STEPS - 1)
        if self.training and len(values) > 1:
            variance, mean = torch.var_mean(values, dim=0, correction=0)
            with torch.no_grad():
                for running, value in (
                    (self.running_mean, mean),
                    (self.running_variance, variance),
                ):
                    running[step, features] += MOMENTUM * (value - running[step, features])
                self.seen.clamp_(min=step + 1)
        else:
            known = min(step, max(int(self.seen) - 1, 0))
            mean, variance = (
                self.running_mean[known, features],
                self.running_variance[known, features],
            )
        return (values - mean) * torch.rsqrt(variance + EPSILON) * self.gain[features]
