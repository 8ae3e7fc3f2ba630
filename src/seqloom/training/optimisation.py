"""The optimizer, its parameter groups, the learning rate as a function of the step, and clipping by norm."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from seqloom.config import TrainConfig


def constant(step: int, warmup: int, total: int) -> float:
    return 1.0


def linear(step: int, warmup: int, total: int) -> float:
    """Down to nothing one step after the last, so that every step trains."""
    return max(total + 1 - step, 0) / max(total + 1 - warmup, 1)


def cosine(step: int, warmup: int, total: int) -> float:
    """Half a cosine down to a hundredth (Loshchilov and Hutter 2017)."""
    progress = min((step - warmup) / max(total - warmup, 1), 1.0)
    return 0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * progress))


def inverse_sqrt(step: int, warmup: int, total: int) -> float:
    """√(warmup / step) (Vaswani et al. 2017)."""
    return math.sqrt(max(warmup, 1) / max(step, 1))


SCHEDULES: dict[str, Callable[[int, int, int], float]] = {
    "constant": constant,
    "linear": linear,
    "cosine": cosine,
    "inverse_sqrt": inverse_sqrt,
}


def learning_rate(config: TrainConfig, step: int, total: int) -> float:
    """The learning rate of a step (from 1): a linear climb from 0, then the schedule."""
    warmup = min(total // 10, 200) if config.warmup_steps is None else config.warmup_steps
    if step < warmup:
        return config.learning_rate * step / warmup
    return config.learning_rate * SCHEDULES[config.schedule](step, warmup, total)


def make_optimizer(model: nn.Module, config: TrainConfig) -> torch.optim.AdamW:
    """AdamW (Loshchilov and Hutter 2019); only matrices that are not embeddings decay."""
    decayed, kept = parameter_groups(model)
    groups = [{"params": decayed, "weight_decay": config.weight_decay}, {"params": kept, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=config.learning_rate, betas=(0.9, 0.98), eps=1e-8, fused=True)


def parameter_groups(model: nn.Module) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """(decayed, not decayed): every parameter in exactly one of them, in the order of the model."""
    embeddings = {id(p) for m in model.modules() if isinstance(m, nn.Embedding) for p in m.parameters()}
    parameters = list(model.parameters())
    decayed = [p for p in parameters if p.dim() >= 2 and id(p) not in embeddings]
    kept = [p for p in parameters if p.dim() < 2 or id(p) in embeddings]
    return decayed, kept


def clip_by_norm(parameters: Iterable[nn.Parameter], longest: float) -> Tensor:
    """Scales the gradient by min(1, longest / ‖g‖), one norm over all parameters; returns ‖g‖ before that."""
    return torch.nn.utils.clip_grad_norm_(parameters, longest, foreach=True)
