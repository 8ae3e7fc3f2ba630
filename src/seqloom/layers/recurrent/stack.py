"""Recurrent layers: any cell (`cells.py`), stacked, in one or both directions, under any padding.

A step of padding keeps the state. Layers run on the driver (`unroll.py`), which never computes padding, or on
torch's own kernels where it has one that is faster (`torch_kernels.py`). The plain loop over steps is the
reference, and what autocast, batch normalisation and a watched layer need.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass, fields
from typing import Literal, Self, cast, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from seqloom.errors import UsageError
from seqloom.layers.recurrent.cell_operations import LayerWeights
from seqloom.layers.recurrent.cells import CellState, cell_named
from seqloom.layers.recurrent.compiled_loops import has_compiled_loop
from seqloom.layers.recurrent.highway import HighwayGate
from seqloom.layers.recurrent.layer import Normalisation, RecurrentLayer
from seqloom.layers.recurrent.packing import PackedOrder, full_order, packed_order
from seqloom.layers.recurrent.torch_kernels import (
    KernelPlan,
    has_kernel,
    kernel_cost,
    kernel_plan,
    run_full,
    run_ragged,
)
from seqloom.protocols import modules_of

LARGE_STEP = 8_000_000
"""Operations of a step's product with the state from which our own compiled loop is faster than torch's
kernel (docs/benchmarks.md)."""

MOST_PADDING = 0.1
"""Steps of padding for each real step from which it always is, since it computes none; several calls of the
kernel are slower too."""

Connection = Literal["none", "residual", "highway"]
Implementation = Literal["fused", "driver", "loop", "packed loop"]

EMBEDDING_STD = 0.3
"""Of the embeddings of models that write, when they are drawn. With 1/sqrt(width), as in a Transformer, the
inputs of an LSTM are so small that it writes by the frequency of tokens alone for hundreds of steps, and the
cell states of streams grow until the start of a text is foreign to the model (docs/recurrent-lm.md)."""


@final
@dataclass(frozen=True)
class RecurrentStackConfig:
    """The layers of a `RecurrentStack`."""

    cell: str
    """A name of `CELLS`."""
    input_width: int
    width: int
    _: KW_ONLY
    layers: int = 1
    bidirectional: bool = False
    """Each layer in both directions; then layer k reads `[→h; ←h]` of layer k-1."""
    projection: int | None = None
    """The width of h where an LSTM projects it (Sak et al. 2014)."""
    normalisation: Normalisation = "none"
    """Of layers (Ba et al. 2016) or of batches (Cooijmans et al. 2017)."""
    connection: Connection = "none"
    """From the second layer on: `x + h`, or a highway `g ⊙ h + (1 - g) ⊙ x`."""
    dropout: float = 0.0
    """Share of the features between layers that is dropped."""
    variational: bool = False
    """Whether that drops the same features at all steps."""
    forget_bias: float = 1.0
    """What the bias of an LSTM's forget gate starts from."""
    chrono_steps: int = 0
    """The longest dependency that an LSTM's gates start from, in steps; 0: forget_bias."""
    forget_shift: float = 0.0
    """What is added to the bias of an LSTM's forget gate, as TensorFlow does: not stored with it."""
    cell_clip: float | None = None
    """The largest absolute value of an LSTM's c."""
    projection_clip: float | None = None
    """The largest absolute value of a projected h."""
    state_dropout: float = 0.0
    """Share of h that is dropped on its way into the next step, the same at all steps (Gal and Ghahramani
    2016)."""

    @classmethod
    def of(cls, config: object, input_width: int, width: int, **more: object) -> Self:
        """The layers of a model whose configuration has fields of the same names; `more` comes first."""
        names = {field.name for field in fields(cls)}
        shared = {name: value for name, value in vars(config).items() if name in names}
        return cls(**shared | {"input_width": input_width, "width": width} | more)

    @property
    def directions(self) -> int:
        return 2 if self.bidirectional else 1

    @property
    def output_width(self) -> int:
        """Of the outputs: both directions together."""
        return self.directions * (self.width if self.projection is None else self.projection)


@final
class RecurrentStack(nn.Module):
    """Layers of one cell, stacked, in one or both directions.

    Raises UsageError for an unknown cell, a projection of a cell other than the LSTM, or a carried state
    where the layers are bidirectional (the backward direction has no past to carry) or batch-normalised (each
    step has its own statistics).
    """

    def __init__(self, config: RecurrentStackConfig) -> None:
        super().__init__()
        self.config, self.output_width = config, config.output_width
        self.forward_layers = self._one_direction()
        self.stack = cast(list[RecurrentLayer], [*self.forward_layers])
        """The layers of the forward direction, lowest first."""
        self.backward_layers = self._one_direction() if config.bidirectional else nn.ModuleList()
        highways = config.layers - 1 if config.connection == "highway" else 0
        self.highways = nn.ModuleList(HighwayGate(self.output_width) for _ in range(highways))

    def _one_direction(self) -> nn.ModuleList:
        c = self.config
        cell = cell_named(c.cell).with_clips(c.cell_clip, c.projection_clip)
        input_widths = [c.input_width] + [c.output_width] * (c.layers - 1)
        return nn.ModuleList(
            RecurrentLayer(
                cell,
                width,
                c.width,
                projection=c.projection,
                normalisation=c.normalisation,
                forget_bias=c.forget_bias,
                forget_shift=c.forget_shift,
                chrono_steps=c.chrono_steps,
            )
            for width in input_widths
        )

    def all_layers(self) -> Iterator[RecurrentLayer]:
        """Of both directions, the forward one first."""
        yield from self.stack
        yield from cast(list[RecurrentLayer], self.backward_layers)

    def start(self, rows: int) -> CellState:
        """Zeros: h (and c), each `(rows, layers * directions, its width)`."""
        count = self.config.directions * len(self.stack)
        return tuple(part.unsqueeze(1).expand(-1, count, -1) for part in self.stack[0].start(rows))

    def forward(
        self, inputs: Tensor, mask: Tensor | None = None, state: CellState | None = None
    ) -> tuple[Tensor, CellState]:
        """inputs `(rows, steps, input_width)`, mask `(rows, steps)` true at real steps, state as from `start`
        -> outputs of the top layer `(rows, steps, output_width)` and the state after the last real step of
        each row, `(rows, layers * directions, its width)`: layer by layer, forward before backward (`→h_n`,
        `←h_1`)."""
        both, batch_norm = self.config.bidirectional, self.config.normalisation == "batch"
        if state is not None and both:
            raise UsageError(
                "a bidirectional layer must start without a carried state: its backward direction has no past"
            )
        if state is not None and batch_norm:
            raise UsageError(
                "a batch-normalised layer must start without a carried state: each step has statistics of"
                " its own"
            )
        if mask is not None and bool(mask.all()):
            mask = None
        if inputs.shape[1] == 1 and mask is None and not both and not batch_norm:
            before = self.start(len(inputs)) if state is None else state
            return self.one_step(inputs[:, 0], before)
        run = LayerRun(self, inputs, mask)
        after: list[CellState] = []
        outputs = inputs
        for k, layer in enumerate(self.stack):
            below = self.drop_features(outputs) if k else outputs
            before = layer.start(len(inputs)) if state is None else layer_state(state, k)
            above, last = run(layer, below, before, backward=False)
            after.append(last)
            if both:
                backward_layer = cast(RecurrentLayer, self.backward_layers[k])
                reverse, last = run(backward_layer, below, before, backward=True)
                above = torch.cat([above, reverse], dim=-1)
                after.append(last)
            outputs = self.connect(k, below, above)
        return outputs, stack_states(after)

    def one_step(self, x: Tensor, before: CellState) -> tuple[Tensor, CellState]:
        """`forward` for one step `(rows, input_width)` of one direction: all that a decoder needs at each
        token."""
        after: list[CellState] = []
        for k, layer in enumerate(self.stack):
            below = self.drop_features(x.unsqueeze(1))[:, 0] if k and self.training else x
            scale = self.state_scale(len(x)) if self.training else None
            new = layer.step_from_input(below, layer_state(before, k), scale)
            after.append(new)
            x = self.connect(k, below, new[0]) if k else new[0]
        return x.unsqueeze(1), stack_states(after)

    def drop_features(self, outputs: Tensor) -> Tensor:
        """Dropout between a layer's outputs `(rows, steps, output_width)` and the next layer."""
        c = self.config
        if not c.variational:
            return F.dropout(outputs, c.dropout, self.training)
        ones = outputs.new_ones(len(outputs), 1, outputs.shape[-1])
        return outputs * F.dropout(ones, c.dropout, self.training)

    def connect(self, k: int, below: Tensor, above: Tensor) -> Tensor:
        """The outputs of layer k, from its input and its states."""
        if k == 0 or self.config.connection == "none":
            return above
        return (
            below + above
            if self.config.connection == "residual"
            else self.highways[k - 1](below, above)
        )

    def state_scale(self, rows: int) -> Tensor | None:
        """What multiplies a layer's h on its way into the next step: `(rows, width of h)`."""
        if not (self.training and self.config.state_dropout):
            return None
        first = self.stack[0]
        return F.dropout(first.bias.new_ones(rows, first.output_width), self.config.state_dropout)


@final
class LayerRun:
    """How the layers of a stack are run over the same steps."""

    def __init__(self, layers: RecurrentStack, inputs: Tensor, mask: Tensor | None) -> None:
        self.layers, self.mask = layers, mask
        self.implementation = choose_implementation(layers, inputs, mask)
        self.orders: list[PackedOrder] = []
        self.plans: list[KernelPlan] = []
        for backward in (False, True)[: layers.config.directions]:
            if self.implementation in ("driver", "packed loop"):
                self.orders.append(_order(inputs, mask, backward))
            elif self.implementation == "fused" and mask is not None:
                self.plans.append(kernel_plan(mask, backward))

    def __call__(
        self, layer: RecurrentLayer, inputs: Tensor, state: CellState, *, backward: bool
    ) -> tuple[Tensor, CellState]:
        if self.implementation == "fused":
            return self._fused(layer, inputs, state, backward)
        scale = self.layers.state_scale(len(inputs))
        if self.implementation == "driver":
            return layer(inputs, self.orders[backward], state, scale)  # type: ignore[no-any-return]
        if self.implementation == "packed loop":
            return layer.packed_loop(inputs, self.orders[backward], state, scale)
        return layer.loop(inputs, self.mask, state, backward, scale)

    def _fused(
        self, layer: RecurrentLayer, inputs: Tensor, state: CellState, backward: bool
    ) -> tuple[Tensor, CellState]:
        if self.plans:
            return run_ragged(layer.cell, layer.weights, inputs, self.plans[backward], state)
        in_order = inputs.flip(1) if backward else inputs
        outputs, last = run_full(layer.cell, layer.weights, in_order, state)
        return outputs.flip(1) if backward else outputs, last


def _order(inputs: Tensor, mask: Tensor | None, backward: bool) -> PackedOrder:
    if mask is not None:
        return packed_order(mask, backward)
    return full_order(inputs.shape[0], inputs.shape[1], inputs.device, backward)


def choose_implementation(
    layers: RecurrentStack, inputs: Tensor, mask: Tensor | None = None
) -> Implementation:
    """The fastest implementation for these layers and inputs."""
    # batch normalisation needs the number of each step
    if layers.config.normalisation == "batch":
        return "packed loop"
    # who watches a layer needs each step in the autograd graph; autocast chooses a type for each operation
    watched = any(layer.watch is not None for layer in layers.all_layers())
    if watched or torch.is_autocast_enabled(inputs.device.type):
        return "loop"
    # a single step, or no row, has nothing to unroll
    if inputs.shape[1] <= 1 or not len(inputs):
        return "loop"
    # torch's kernels have neither dropout of the state nor every cell
    drops_state = layers.training and layers.config.state_dropout > 0
    cell, weights = layers.stack[0].cell, layers.stack[0].weights
    if drops_state or not has_kernel(cell, weights):
        return "driver"
    # where both can run, what was measured decides
    if beats_kernel(weights, inputs, mask) and has_compiled_loop(cell, weights, None):
        return "driver"
    return "fused"


def beats_kernel(weights: LayerWeights, inputs: Tensor, mask: Tensor | None) -> bool:
    """Whether our compiled loop is faster for these rows than torch's kernel, or as fast with less memory."""
    if 2 * len(inputs) * weights.w_h.numel() >= LARGE_STEP:
        return True
    if mask is None:
        return False
    calls, padding = kernel_cost(mask)
    return calls > 1 or padding > MOST_PADDING


def runs_compiled_loops(model: nn.Module) -> bool:
    """Whether it has recurrent layers on a CPU, where they run in compiled loops if there are any
    (`seqloom/native`)."""
    stacks = modules_of(model, RecurrentStack).values()
    return any(layers.stack[0].bias.device.type == "cpu" for layers in stacks)


@final
class Stepper:
    """A stack of one direction, one step at a time: for a decoder that does something between the steps."""

    def __init__(self, layers: RecurrentStack, rows: int) -> None:
        """Draws the dropout masks that are the same at all steps. Raises UsageError for batch-normalised
        layers: each of their steps has its own statistics."""
        c = layers.config
        if c.normalisation == "batch":
            raise UsageError(
                "a batch-normalised layer cannot run step by step: each step has statistics of its own"
            )
        self.layers = layers
        self.scales = [layers.state_scale(rows) for _ in layers.stack]
        self.masks: list[Tensor | None] = [None] * c.layers
        if c.variational:
            ones = layers.stack[0].bias.new_ones(rows, layers.output_width)
            self.masks = [F.dropout(ones, c.dropout, layers.training) for _ in layers.stack]

    def __call__(self, product: Tensor, states: list[CellState]) -> tuple[Tensor, list[CellState]]:
        """The input's product with the first layer (`RecurrentLayer.input_product`), and the layers' states
        -> the output of the top layer `(rows, output_width)`, and the new states."""
        after: list[CellState] = []  # an export to ONNX cannot trace list[CellState]()
        output = product
        for k, (layer, state) in enumerate(zip(self.layers.stack, states, strict=True)):
            below = output
            if k:
                below = self._drop(k, output)
                product = layer.input_product(below)
            new = layer.step(layer.input_gates(product), state, self.scales[k])
            output = self.layers.connect(k, below, new[0])
            after.append(new)
        return output, after

    def _drop(self, k: int, output: Tensor) -> Tensor:
        mask = self.masks[k]
        if mask is not None:
            return output * mask
        return F.dropout(output, self.layers.config.dropout, self.layers.training)


def layer_state(state: CellState, layer: int) -> CellState:
    """A stack's state, each `(rows, layers, width)` -> that of one layer, each `(rows, width)`."""
    return tuple(part[:, layer] for part in state)


def stack_states(states: list[CellState]) -> CellState:
    """The states of layers, each `(rows, width)` -> that of a stack, each `(rows, layers, width)`."""
    if len(states) == 1:
        return tuple(part.unsqueeze(1) for part in states[0])
    return tuple(torch.stack(parts, dim=1) for parts in zip(*states, strict=True))
