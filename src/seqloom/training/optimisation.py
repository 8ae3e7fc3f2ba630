"""The optimizer, its parameter groups, the learning rate as a function of the step, and clipping by norm."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor, nn

from seqloom.config import TrainConfig
from seqloom.errors import UsageError


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
    """AdamW (Loshchilov and Hutter 2019); only matrices that are not embeddings decay.

    A group has a `scale`: its rate is that of the step times this (`rate_scales`). Raises UsageError where
    nothing would be trained.
    """
    frozen = freeze(model, config.freeze)
    decayed, kept = parameter_groups(model)
    scales = rate_scales(model, config)
    groups: dict[tuple[bool, float], list[nn.Parameter]] = {}
    for decays, parameters in ((True, decayed), (False, kept)):
        for parameter in parameters:
            if parameter.requires_grad:
                groups.setdefault((decays, scales.get(id(parameter), 1.0)), []).append(parameter)
    if not groups:
        raise UsageError(
            f"train.freeze must leave something to train, but all {frozen} parameters are frozen"
        )
    listed = [
        {"params": parameters, "weight_decay": config.weight_decay if decays else 0.0, "scale": scale}
        for (decays, scale), parameters in groups.items()
    ]
    return torch.optim.AdamW(listed, lr=config.learning_rate, betas=(0.9, config.beta2), eps=1e-8, fused=True)


def freeze(model: nn.Module, beginnings: Sequence[str]) -> int:
    """Keeps the parameters whose names begin so as they are; says how many tensors. Raises UsageError where
    no name begins so."""
    names = [name for name, _ in model.named_parameters()]
    for beginning in beginnings:
        if not any(_begins(name, beginning) for name in names):
            parts = sorted({".".join(name.split(".")[:2]) for name in names})
            raise UsageError(
                f"train.freeze must name parameters, but none begins with {beginning!r}; known are"
                f" {', '.join(parts)}"
            )
    chosen = [
        p for name, p in model.named_parameters() if any(_begins(name, beginning) for beginning in beginnings)
    ]
    for parameter in chosen:
        parameter.requires_grad_(False)
    return len(chosen)


def _begins(name: str, beginning: str) -> bool:
    return name == beginning or name.startswith(beginning.rstrip(".") + ".")


def rate_scales(model: nn.Module, config: TrainConfig) -> dict[int, float]:
    """id of a parameter -> what its learning rate is multiplied with, where that is not 1.

    With `layer_decay` ξ, layer l of L has ξ^(L+1-l), the embeddings being layer 0 and the head L+1 (Howard
    and Ruder 2018; Clark et al. 2020). The head is what a model calls so; `head_learning_rate` is its own.
    """
    names = dict(model.named_parameters())
    head = 1.0 if config.head_learning_rate is None else config.head_learning_rate / config.learning_rate
    depths = {name: _depth(name) for name in names}
    top = max((depth for depth in depths.values() if depth is not None), default=0) + 1
    scales = {}
    for name, parameter in names.items():
        depth = depths[name]
        scale = (
            head
            if name.startswith("head.")
            else config.layer_decay ** (top - (top - 1 if depth is None else depth))
        )
        if scale != 1.0:
            scales[id(parameter)] = scale
    return scales


BOTTOM = (
    "embedding",
    "embedding_norm",
    "positions",
    "segments",
    "projection",
    "patches",
    "cls",
    "mask",
    "classes",
)
"""Parts of models that come before their layers."""


def _depth(name: str) -> int | None:
    """Of a parameter: 0 for what comes before the layers, n for the n-th one; None for what comes after them."""
    if set(name.split(".")) & {"letters", "encoder_bias"}:  # before the words' layers; of the first layer
        return 0
    found = re.search(r"(?:blocks|forward_layers|backward_layers)\.(\d+)\.", name)
    if found:
        return int(found[1]) + 1
    return 0 if set(name.split(".")) & set(BOTTOM) else None


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
