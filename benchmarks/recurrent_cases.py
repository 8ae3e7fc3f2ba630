"""What `benchmarks.recurrent` measures: layers, their peers, sizes, lengths, and what is required of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, final

import torch
from torch import Tensor, nn

from benchmarks import lengths, peers, plain_loops
from seqloom.layers.recurrent.stack import RecurrentStack, RecurrentStackConfig
from seqloom.shapes import mask_of

STEPS = 128
OURS = "seqloom"


class Size(NamedTuple):
    """Of a layer and its batch."""

    rows: int
    width: int
    layers: int

    def __str__(self) -> str:
        return f"{self.rows}x{self.width}x{self.layers}"


ROWS, WIDTHS, LAYERS = (8, 32), (128, 256, 512), (1, 2)
SIZES = [Size(rows, width, layers) for layers in LAYERS for rows in ROWS for width in WIDTHS]

LENGTHS: dict[str, Callable[[int], list[list[int]]]] = {
    "full": lambda rows: [[STEPS] * rows],
    "64 to 128": lambda rows: [lengths.spread(rows, STEPS // 2, STEPS)],
    "captions": lambda rows: lengths.captions(rows, 128 // rows, bucketed=False),
    "captions in buckets": lambda rows: lengths.captions(rows, 128 // rows, bucketed=True),
}
"""Rows -> the lengths in each batch of a run."""

MakePeer = Callable[[RecurrentStack], nn.Module]
"""Our layers -> another model with their weights, called as `Ours`."""


@final
@dataclass(frozen=True, kw_only=True)
class Case:
    """A layer, what its training step is measured against, and what is required of it."""

    name: str
    title: str
    cell: str
    peers: Mapping[str, MakePeer]
    """The first is the one that the requirement speaks of; others are shown beside it."""
    lengths: str = "full"
    options: Callable[[int], dict[str, Any]] = field(default=lambda width: {})
    """Width -> further options of the layer."""
    worst: float
    """At every size ours must be at least so many times as fast."""
    mean: float | None = None
    """And so many times in the geometric mean."""


FULL: dict[str, MakePeer] = {"torch.nn": peers.Full}
PACKED: dict[str, MakePeer] = {"packed torch.nn": peers.Packed}


def beside_loop(
    name: str,
    title: str,
    plain: type[plain_loops.PlainLoop],
    tuned: type[peers.Loop],
    *,
    cell: str = "",
    torch_too: bool = False,
    **options: Any,
) -> Case:
    """A layer whose peer is the loop that a good user writes; the same loop by who knows every fused
    operation is beside it."""
    loops: dict[str, MakePeer] = {
        "loop": partial(peers.Stack, plain),
        "tuned loop": partial(peers.Stack, tuned),
    }
    ways: dict[str, MakePeer] = {**loops, **(FULL if torch_too else {})}
    return Case(
        name=name, title=title, cell=cell or name, peers=ways, worst=1.4, mean=2.0, **options
    )


CASES = [
    Case(name="lstm", title="LSTM", cell="lstm", peers=FULL, worst=0.97),
    Case(
        name="lstm-lengths", title="LSTM", cell="lstm", lengths="64 to 128", peers=PACKED, worst=2.5
    ),
    Case(
        name="lstm-captions", title="LSTM", cell="lstm", lengths="captions", peers=PACKED, worst=1.3
    ),
    Case(
        name="lstm-buckets",
        title="LSTM",
        cell="lstm",
        lengths="captions in buckets",
        peers=PACKED,
        worst=0.95,
    ),
    Case(name="gru-torch", title="GRU as in torch", cell="gru-torch", peers=FULL, worst=1.0),
    Case(
        name="gru-torch-lengths",
        title="GRU as in torch",
        cell="gru-torch",
        lengths="64 to 128",
        peers=PACKED,
        worst=1.2,
        mean=1.5,
    ),
    beside_loop("gru", "GRU as published", plain_loops.GRU, peers.GRULoop),
    beside_loop("mut1", "MUT1", plain_loops.MUT1, peers.MUT1Loop),
    beside_loop("mut2", "MUT2", plain_loops.MUT2, peers.MUT2Loop),
    beside_loop("mut3", "MUT3", plain_loops.MUT3, peers.MUT3Loop),
    beside_loop(
        "lstm-projection",
        "LSTM, projection to half",
        plain_loops.ProjectedLSTM,
        peers.ProjectedLSTMLoop,
        cell="lstm",
        torch_too=True,
        options=lambda width: {"projection": width // 2},
    ),
    beside_loop("elman", "Elman, tanh", plain_loops.Elman, peers.ElmanLoop, torch_too=True),
    beside_loop(
        "elman-relu", "Elman, ReLU", plain_loops.ElmanRelu, peers.ElmanReluLoop, torch_too=True
    ),
    beside_loop(
        "lstm-layer-norm",
        "LSTM, layer-normalised",
        plain_loops.LayerNormLSTM,
        peers.LayerNormLSTMLoop,
        cell="lstm",
        options=lambda width: {"normalisation": "layer"},
    ),
]


class Batch(NamedTuple):
    """What a training step is given."""

    inputs: Tensor
    """`(rows, steps, width)`, whose gradient is wanted."""
    gradient: Tensor
    """Of the outputs, `(rows, steps, width)`."""
    lengths: Tensor | None
    """`(rows,)`; None: all full."""

    @property
    def tokens(self) -> int:
        """Without padding."""
        return (
            self.inputs.shape[0] * self.inputs.shape[1]
            if self.lengths is None
            else int(self.lengths.sum())
        )


@final
class Ours(nn.Module):
    """Our layers as a model has them: the mask is made from the lengths."""

    def __init__(self, layers: RecurrentStack) -> None:
        super().__init__()
        self.layers = layers

    def forward(self, inputs: Tensor, lengths: Tensor | None) -> Tensor:
        mask = None if lengths is None else mask_of(lengths, inputs.shape[1])
        outputs: Tensor = self.layers(inputs, mask)[0]
        return outputs


def layers_of(case: Case, size: Size) -> RecurrentStack:
    torch.manual_seed(0)
    return RecurrentStack(
        RecurrentStackConfig(
            case.cell, size.width, size.width, layers=size.layers, **case.options(size.width)
        )
    )


def ways_of(case: Case, layers: RecurrentStack) -> dict[str, nn.Module]:
    """Our layers and every peer with the same weights."""
    return {OURS: Ours(layers), **{name: make(layers) for name, make in case.peers.items()}}


def batches_of(case: Case, size: Size, layers: RecurrentStack) -> list[Batch]:
    found = []
    for each in LENGTHS[case.lengths](size.rows):
        true = None if case.lengths == "full" else torch.tensor(each)
        inputs = torch.randn(size.rows, max(each), size.width, requires_grad=True)
        found.append(Batch(inputs, torch.randn(size.rows, max(each), layers.output_width), true))
    return found


def training_step(model: nn.Module, batches: Sequence[Batch]) -> Callable[[], None]:
    """Forward and backward, batch by batch; gradients begin as None, as optimisers leave them."""
    parameters = list(model.parameters())

    def run() -> None:
        for batch in batches:
            for tensor in (*parameters, batch.inputs):
                tensor.grad = None
            torch.autograd.backward(model(batch.inputs, batch.lengths), batch.gradient)

    return run


def flops(layers: RecurrentStack, tokens: int) -> int:
    """Of a training step's matrix products: 2 for each weight and true token forward, twice that backward."""
    return (
        6
        * tokens
        * sum(parameter.numel() for parameter in layers.parameters() if parameter.dim() == 2)
    )
