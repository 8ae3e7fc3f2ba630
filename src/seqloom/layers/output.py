"""The output layer: hidden states to a vocabulary, and the cross-entropy that never holds all logits."""

from __future__ import annotations

from typing import Any, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from seqloom.protocols import Loss
from seqloom.shapes import IGNORE

CHUNK = 1024
"""Positions whose logits exist at one time."""


@final
class FullOutput(nn.Module):
    """`logits = W h + b` over the whole vocabulary; `tied` takes the embedding `(vocabulary, width)` as W (Press and Wolf 2017)."""

    def __init__(self, width: int, vocabulary: int, tied: nn.Parameter | None = None) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(vocabulary, width)) if tied is None else tied
        self.bias = nn.Parameter(torch.zeros(vocabulary))
        if tied is None:
            nn.init.normal_(self.weight, std=width**-0.5)

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden `(..., width)` -> logits `(..., vocabulary)`."""
        return F.linear(hidden, self.weight, self.bias)

    def loss(self, hidden: Tensor, targets: Tensor, smoothing: float = 0.0) -> Loss:
        """hidden `(..., width)`, targets `(...)` with IGNORE where nothing is trained -> cross-entropy in nats.

        With `smoothing` ε the target distribution is `(1 - ε) one-hot + ε uniform` (Szegedy et al. 2016).
        """
        flat = targets.reshape(-1)
        trained = (flat != IGNORE).nonzero()[:, 0]
        hidden, flat = hidden.reshape(-1, hidden.shape[-1])[trained], flat[trained]
        trains = torch.is_grad_enabled()  # asked here, since inside a Function it is always off
        total: Tensor = _LinearCrossEntropy.apply(hidden, self.weight, self.bias, flat, smoothing, trains)  # type: ignore[no-untyped-call]
        return Loss(total, torch.tensor(len(flat), device=total.device))


@final
class _LinearCrossEntropy(torch.autograd.Function):
    """Σ cross-entropy of softmax(W h + b), chunk by chunk, with the gradients formed on the way.

    The gradient of a cross-entropy with respect to its logits is `softmax - target`, known as soon as the logits are;
    so each chunk of logits is used for both and dropped. Under autocast the products are in low precision, all else
    in float32 or better.
    """

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor, targets: Tensor, smoothing: float, trains: bool) -> Tensor:
        needs = trains and any(ctx.needs_input_grad[:3])
        exact = torch.promote_types(hidden.dtype, torch.float32)
        low = torch.get_autocast_dtype(hidden.device.type) if torch.is_autocast_enabled(hidden.device.type) else hidden.dtype
        matrix = weight.to(low)
        d_hidden, d_weight, d_bias = torch.empty_like(hidden), torch.zeros_like(weight), torch.zeros_like(bias)
        total = hidden.new_zeros((), dtype=exact)
        for start in range(0, len(targets), CHUNK):
            h, y = hidden[start : start + CHUNK].to(low), targets[start : start + CHUNK, None]
            logp = (h @ matrix.T).to(exact).add_(bias).log_softmax(dim=-1)
            total -= (1 - smoothing) * logp.gather(1, y).sum()
            if smoothing:
                total -= smoothing * logp.mean(dim=-1).sum()
            if not needs:
                continue
            d_logits = logp.exp_()
            if smoothing:
                d_logits -= smoothing / weight.shape[0]
            d_logits.scatter_add_(1, y, d_logits.new_full((1, 1), smoothing - 1).expand_as(y))
            d_bias += d_logits.sum(dim=0)
            d_low = d_logits.to(low)
            d_hidden[start : start + CHUNK] = d_low @ matrix
            d_weight += d_low.T @ h
        ctx.save_for_backward(d_hidden, d_weight, d_bias)
        return total

    @staticmethod
    def backward(ctx: Any, d_total: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():  # create_graph=True
            raise RuntimeError("the output layer has no second derivative: its backward pass is written by hand")
        d_hidden, d_weight, d_bias = ctx.saved_tensors
        return d_total * d_hidden, d_total * d_weight, d_total * d_bias, None, None, None
