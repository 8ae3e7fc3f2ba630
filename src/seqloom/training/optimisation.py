"""The optimizer, its parameter groups, the learning rate as a function of the step, and clipping by norm."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor, nn

from seqloom.config import TrainConfig
from seqloom.errors import UsageError
from seqloom.protocols import modules_of

SMALLEST_SIZE = 1e-3
"""The least root mean square of a parameter that a relative rate is multiplied by."""


def constant(step: int, warmup: int, total: int) -> float:
    return 1.0


def linear(step: int, warmup: int, total: int) -> float:
    """Down to zero one step after the last, so that every step trains."""
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
    """The learning rate of a step (from 1): a linear warm-up from 0, then the schedule."""
    warmup = min(total // 10, 200) if config.warmup_steps is None else config.warmup_steps
    if step < warmup:
        return config.learning_rate * step / warmup
    return config.learning_rate * SCHEDULES[config.schedule](step, warmup, total)


def make_optimizer(model: nn.Module, config: TrainConfig) -> torch.optim.AdamW:
    """AdamW (Loshchilov and Hutter 2019); only matrices that are not embeddings decay.

    Each group has a `scale`, the factor of its learning rate (`rate_scales`). Raises UsageError if nothing
    would be trained.
    """
    frozen = freeze(model, config.freeze)
    decayed, undecayed = parameter_groups(model)
    scales = rate_scales(model, config)
    groups: dict[tuple[float, float, int], list[nn.Parameter]] = {}
    for weight_decay, parameters in ((config.weight_decay, decayed), (0.0, undecayed)):
        for parameter in parameters:
            if parameter.requires_grad:
                scale = scales.get(id(parameter), 1.0)
                # a rate of its own needs a group of its own
                own = id(parameter) if config.relative_rate else 0
                groups.setdefault((weight_decay, scale, own), []).append(parameter)
    if not groups:
        raise UsageError(
            f"train.freeze must leave something to train, but all {frozen} parameters are frozen"
        )
    listed = [
        {"params": parameters, "weight_decay": weight_decay, "scale": scale}
        for (weight_decay, scale, _), parameters in groups.items()
    ]
    return torch.optim.AdamW(
        listed, lr=config.learning_rate, betas=(0.9, config.beta2), eps=1e-8, fused=True
    )


def set_rates(optimizer: torch.optim.Optimizer, rate: float, relative: bool) -> None:
    """Gives each group its learning rate. `relative`: each parameter is a group, whose rate is multiplied by
    the root mean square of its values, at least 1e-3 (Shazeer and Stern 2018, section 8), so that an update
    changes large weights, such as the embeddings of T5, as much as small ones."""
    groups = optimizer.param_groups
    for group in groups:
        group["lr"] = rate * group["scale"]
    if not relative:
        return
    # the numbers of all parameters at once: a GPU is waited for only here
    norms = torch.stack([group["params"][0].detach().norm() for group in groups]).tolist()
    for group, norm in zip(groups, norms, strict=True):
        (parameter,) = group["params"]
        group["lr"] *= max(norm / math.sqrt(parameter.numel()), SMALLEST_SIZE)


def freeze(model: nn.Module, prefixes: Sequence[str]) -> int:
    """Freezes the parameters of the modules named by `prefixes`; returns how many tensors these are. Raises
    UsageError for a prefix of no parameter, or of none that would be trained."""
    parameters = dict(model.named_parameters())
    for prefix in prefixes:
        named = [parameter for name, parameter in parameters.items() if _has_prefix(name, prefix)]
        if not named:
            parts = sorted({".".join(name.split(".")[:2]) for name in parameters})
            raise UsageError(
                f"train.freeze must name parameters, but none begins with {prefix!r}; known are"
                f" {', '.join(parts)}"
            )
        if not any(parameter.requires_grad for parameter in named):
            raise UsageError(
                f"train.freeze={prefix} changes nothing: it is not trained anyway; leave it out"
            )
    frozen = 0
    for name, parameter in parameters.items():
        if any(_has_prefix(name, prefix) for prefix in prefixes):
            parameter.requires_grad_(False)
            frozen += 1
    return frozen


def _has_prefix(name: str, prefix: str) -> bool:
    return name == prefix or name.startswith(prefix.rstrip(".") + ".")


def rate_scales(model: nn.Module, config: TrainConfig) -> dict[int, float]:
    """id of a parameter -> the factor of its learning rate, where that is not 1.

    With `layer_decay` ξ, layer l of L has ξ^(L+1-l), the embeddings being layer 0 and the head L+1 (Howard
    and Ruder 2018; Clark et al. 2020). Parameters of `head` have their own `head_learning_rate`.
    """
    head_scale = 1.0
    if config.head_learning_rate is not None:
        head_scale = config.head_learning_rate / config.learning_rate
    depths = {name: _layer_depth(name) for name, _ in model.named_parameters()}
    deepest = max((depth for depth in depths.values() if depth is not None), default=0)
    scales = {}
    for name, parameter in model.named_parameters():
        depth = depths[name]
        if name.startswith("head."):
            scale = head_scale
        else:
            # what follows the layers, such as a final norm, learns like the last layer
            scale = config.layer_decay ** (deepest + 1 - (deepest if depth is None else depth))
        if scale != 1.0:
            scales[id(parameter)] = scale
    return scales


INPUT_MODULES = {
    "embedding",
    "embedding_norm",
    "positions",
    "segments",
    "projection",
    "patches",
    "cls",
    "mask",
    "classes",
}
"""Modules of models that come before the layers."""


def _layer_depth(name: str) -> int | None:
    """Of a parameter: 0 before the layers, n for the n-th layer, None after them."""
    modules = set(name.split("."))
    # letters read words; the bias belongs to the first layer
    if modules & {"letters", "encoder_bias"}:
        return 0
    layer = re.search(r"(?:blocks|forward_layers|backward_layers)\.(\d+)\.", name)
    if layer:
        return int(layer[1]) + 1
    return 0 if modules & INPUT_MODULES else None


def parameter_groups(model: nn.Module) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """(decayed, not decayed): every parameter in exactly one of them, in the order of the model."""
    embeddings: set[int] = set()
    for table in modules_of(model, nn.Embedding).values():
        embeddings.update(map(id, table.parameters()))
    parameters = list(model.parameters())
    decayed = [p for p in parameters if p.dim() >= 2 and id(p) not in embeddings]
    undecayed = [p for p in parameters if p.dim() < 2 or id(p) in embeddings]
    return decayed, undecayed


def clip_by_norm(parameters: Iterable[nn.Parameter], max_norm: float) -> Tensor:
    """Scales the gradient by min(1, max_norm / ‖g‖), one norm over all parameters; returns ‖g‖ before
    that."""
    return torch.nn.utils.clip_grad_norm_(parameters, max_norm, foreach=True)
