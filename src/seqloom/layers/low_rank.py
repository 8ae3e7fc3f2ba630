"""Low-rank adaptation of the linear maps of a Transformer: LoRA (Hu et al. 2021, section 4.1).

    y = W x + b + (α/r) B A x            A (r, in), B (out, r)

W and b stay as they are; A and B are trained. B starts at 0, so that a model starts as it was; A starts
uniform in ±1/√in, as in PEFT (Kaiming's initialisation with a = √5). A matrix that holds several maps, such
as query, key and value, has an A and a B for each map that is adapted.

Training sees both terms. Whoever decodes, measures or saves opens `merged`: W + (α/r) B A takes the place of
W, and the model is the plain one.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import cast, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from seqloom.errors import UsageError
from seqloom.layers.linear import Linear
from seqloom.layers.transformer.blocks import SelfAttention
from seqloom.layers.transformer.cross_attention import CrossAttention
from seqloom.layers.transformer.feed_forward import FeedForward
from seqloom.protocols import modules_of


@final
class LowRankLinear(nn.Module):
    """A linear map with trained updates of some blocks of its rows. Its weight and bias keep their names."""

    def __init__(
        self, linear: Linear, blocks: int, adapted: Sequence[int], rank: int, scale: float
    ) -> None:
        super().__init__()
        self.weight, self.bias = linear.weight, linear.bias
        self.height = linear.out_features // blocks
        """Rows of a block."""
        self.scale = scale
        new, width = self.weight.new_zeros, linear.in_features
        self.lora_a = nn.ParameterDict({str(block): new(rank, width) for block in adapted})
        self.lora_b = nn.ParameterDict({str(block): new(self.height, rank) for block in adapted})

    @torch.no_grad()
    def initialise(self, generator: torch.Generator) -> None:
        """The same numbers on every device."""
        for matrix in self.lora_a.values():
            bound = 1 / math.sqrt(matrix.shape[1])
            start = torch.empty(matrix.shape, dtype=torch.float64)
            matrix.copy_(start.uniform_(-bound, bound, generator=generator))

    def forward(self, x: Tensor) -> Tensor:
        """`(..., in)` -> `(..., out)`."""
        y = F.linear(x, self.weight, self.bias)
        for block, rows in self._rows():
            low = F.linear(F.linear(x, self.lora_a[block]), self.lora_b[block])
            y[..., rows] += self.scale * low
        return y

    def plain(self) -> Linear:
        """The same map with one weight."""
        weight = self.weight.detach().clone()
        for block, rows in self._rows():
            weight[rows] += self.scale * (self.lora_b[block].detach() @ self.lora_a[block].detach())
        with torch.device("meta"):
            linear = Linear(weight.shape[1], weight.shape[0], bias=self.bias is not None)
        linear.weight = nn.Parameter(weight, requires_grad=False)
        linear.bias = self.bias
        return linear

    def _rows(self) -> Iterator[tuple[str, slice]]:
        for block in self.lora_a:
            first = int(block) * self.height
            yield block, slice(first, first + self.height)


TARGETS = ("query", "key", "value", "attention-output", "feed-forward")
"""What may be adapted."""


def linear_maps(model: nn.Module) -> dict[str, tuple[str, ...]]:
    """The linear maps of a model's Transformer layers by name -> the target that each of its blocks of rows
    belongs to."""
    maps: dict[str, tuple[str, ...]] = {}
    for name, module in model.named_modules():
        for part, targets in _maps_inside(module).items():
            maps[f"{name}.{part}"] = targets
    return maps


def _maps_inside(module: nn.Module) -> dict[str, tuple[str, ...]]:
    match module:
        case SelfAttention():
            return {"query_key_value": ("query", "key", "value"), "output": ("attention-output",)}
        case CrossAttention():
            return {
                "query": ("query",),
                "key_value": ("key", "value"),
                "output": ("attention-output",),
            }
        case FeedForward():
            hidden = ("feed-forward",) * (2 if module.gated else 1)
            return {"hidden": hidden, "output": ("feed-forward",)}
    return {}


def adapt(
    model: nn.Module,
    targets: Collection[str],
    rank: int,
    alpha: float,
    seed: int,
    trained: Sequence[str] = (),
) -> None:
    """Gives the linear maps of these targets trained updates and freezes all else, but for the parameters
    whose names begin with one of `trained`. Raises UsageError if the model has no such map, or one that is
    smaller than the rank."""
    for name, parameter in model.named_parameters():
        if not name.startswith(tuple(trained)):
            parameter.requires_grad_(False)
    generator = torch.Generator().manual_seed(seed)
    found = False
    for name, blocks in linear_maps(model).items():
        adapted = [number for number, target in enumerate(blocks) if target in targets]
        if not adapted:
            continue
        found = True
        linear = cast(Linear, model.get_submodule(name))
        most = min(linear.in_features, linear.out_features // len(blocks))
        if rank > most:
            raise UsageError(
                f"train.lora_rank must be at most the smaller side of every map, {most} of {name}, but is"
                f" {rank}"
            )
        layer = LowRankLinear(linear, len(blocks), adapted, rank, alpha / rank)
        layer.initialise(generator)
        model.set_submodule(name, layer)
    if not found:
        raise UsageError(
            "train.lora_rank needs a model with the attention or feed-forward layers of a Transformer (bert,"
            " gpt, t5, transformer, vit), but this one has none; leave it out"
        )


def low_rank_layers(model: nn.Module) -> dict[str, LowRankLinear]:
    """The adapted maps of a model by name; none outside of a training with LoRA."""
    return modules_of(model, LowRankLinear)


@contextmanager
def merged(model: nn.Module) -> Iterator[None]:
    """While it lasts, the model is the plain one, with the updates added to its weights."""
    layers = low_rank_layers(model)
    for name, layer in layers.items():
        model.set_submodule(name, layer.plain())
    try:
        yield
    finally:
        for name, layer in layers.items():
            model.set_submodule(name, layer)


def low_rank_tensors(model: nn.Module) -> dict[str, Tensor]:
    """What a training with LoRA needs beside the merged model to go on: of each map its frozen weight, A and
    B, as `NAME.weight`, `NAME.lora_a.BLOCK` and `NAME.lora_b.BLOCK`."""
    return {
        f"{name}.{part}": tensor.detach()
        for name, layer in low_rank_layers(model).items()
        for part, tensor in layer.state_dict().items()
        if part != "bias"
    }


def load_low_rank(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """The inverse, in place."""
    for name, tensor in low_rank_tensors(model).items():
        tensor.copy_(tensors[name])
