"""Where a model looks: the weights of attention that it uses while it runs, by part, layer and head.

    self      a decoder (each token sees itself and earlier ones) or an encoder (each token sees all)
    encoder   self-attention of the encoder of an encoder-decoder
    decoder   self-attention of its decoder
    cross     attention of the decoder to the encoder
    pooling   how much each state counts in the one state of a text

A weight says how much of a value was mixed in, not why the model answered so (Jain and Wallace 2019;
Wiegreffe and Pinter 2019).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from seqloom.errors import UsageError
from seqloom.explaining.heat_maps import attention_heat_map, head_heat_maps
from seqloom.layers.attention import AttentionScores, watched_attention
from seqloom.layers.pooling import AttentionPooling
from seqloom.layers.transformer.cross_attention import CrossAttention

if TYPE_CHECKING:
    import altair as alt

NAMES = {
    "self": "Self-attention",
    "encoder": "Self-attention of the encoder",
    "decoder": "Self-attention of the decoder",
    "cross": "Attention of the decoder to the source",
    "pooling": "Attention pooling",
}
HOW_TO_READ = (
    "A row is what looks, a column what is looked at; a row sums to 1. It shows where the model looked, not"
    " why it answered so."
)


LONG = 40
"""Tokens from which on colours do not span 0..1."""


class ChosenMaps(NamedTuple):
    """The maps of one part of a model, or of one head of it."""

    part: str
    layer: int | None
    """From 1; None if all layers and heads are shown."""
    head: int | None
    weights: Tensor
    """`(layers, heads, queries, keys)`, each row summing to 1; of one head `(queries, keys)`."""

    @property
    def title(self) -> str:
        member, _, part = self.part.rpartition(" ")
        name = f"{NAMES[part]} ({member})" if member else NAMES[part]
        if self.layer is not None:
            return f"{name}: layer {self.layer}, head {self.head}"
        layers, heads = self.weights.shape[:2]
        return f"{name}: {layers} layer{'s' * (layers > 1)} of {heads} head{'s' * (heads > 1)}"


@torch.inference_mode()
def attention_maps(model: nn.Module, run: Callable[[], object]) -> dict[str, Tensor]:
    """Part -> the weights of attention `(rows, layers, heads, queries, keys)` while `run` calls the model.
    Empty where it has no attention."""
    with watched_attention(model) as seen:
        run()
    layers: dict[str, list[Tensor]] = {}
    for name, calls in seen.items():
        if calls:
            module = model.get_submodule(name)
            layers.setdefault(part_of(name, module), []).append(_of_all_calls(module, calls))
    return {part: torch.stack(weights, dim=1).cpu() for part, weights in layers.items()}


def part_of(name: str, module: nn.Module) -> str:
    """The part of a model that a module of attention belongs to; `member 2 self` in a mixture."""
    words = name.split(".")
    match module:
        case CrossAttention() | AttentionScores():
            part = "cross"
        case AttentionPooling():
            part = "pooling"
        case _:
            stack = words[words.index("blocks") - 1]
            part = "self" if stack == "stack" else stack
    if "members" in words:
        return f"member {int(words[words.index('members') + 1]) + 1} {part}"
    return part


def _of_all_calls(module: nn.Module, calls: Sequence[Tensor]) -> Tensor:
    """`(rows, heads, queries, keys)`: later calls are further queries."""
    match module:
        case AttentionPooling():
            return calls[0][:, None, None]
        case AttentionScores() if calls[0].dim() == 2:
            return torch.stack(list(calls), dim=1)[:, None]
        case AttentionScores():
            return torch.cat(list(calls), dim=1)[:, None]
    keys = max(weights.shape[3] for weights in calls)
    return torch.cat([F.pad(weights, (0, keys - weights.shape[3])) for weights in calls], dim=2)


def choose_maps(
    maps: Mapping[str, Tensor], part: str | None, layer: int | None, head: int | None
) -> ChosenMaps:
    """The part that is asked for, by default the attention to a source, or else the first; all of its heads,
    or one. Raises UsageError if there is none of that name or number."""
    part = part or ("cross" if "cross" in maps else next(iter(maps)))
    if part not in maps:
        raise UsageError(f"--part must be one of {', '.join(maps)}, but is {part}")
    weights = maps[part]
    if layer is None and head is None:
        return ChosenMaps(part, None, None, weights)
    layers, heads = weights.shape[:2]
    layer, head = layer or layers, head or 1
    for name, number, most in (("--layer", layer, layers), ("--head", head, heads)):
        if not 1 <= number <= most:
            raise UsageError(f"{name} must be 1 to {most} in {part}, but is {number}")
    return ChosenMaps(part, layer, head, weights[layer - 1, head - 1])


def draw_maps(
    maps: ChosenMaps, looked_at: Sequence[str], looking: Sequence[str], *, pieces: bool
) -> alt.Chart:
    """One head with its words, or all of them small; `pieces` as in `attention_heat_map`."""
    weights, few = maps.weights.double().numpy(), maps.weights.shape[:2] == (1, 1)
    subtitle, highest = HOW_TO_READ, 1.0
    if weights.shape[-1] > LONG:
        # attention to many tokens is spread thin: a tenth of the rows reach the darkest colour
        highest = max(0.01, float(np.quantile(weights.max(axis=-1), 0.9)))
        subtitle += f" Weights from {highest:.2g} on are as dark as can be."
    shown: Any = {"title": maps.title, "subtitle": subtitle, "pieces": pieces, "highest": highest}
    if weights.ndim == 2 or few:
        weights = weights.reshape(weights.shape[-2:])
        axes = ("source", "written") if maps.part.endswith("cross") else ("looked at", "looking")
        return attention_heat_map(weights, looked_at, looking, axes=axes, **shown)
    return head_heat_maps(weights, looked_at, looking, **shown)
