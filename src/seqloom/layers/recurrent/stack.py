"""Recurrent layers: any cell (`cells.py`), stacked, in one or both directions, under any padding.

A step of padding keeps the state. Layers run on the driver (`unroll.py`), which never computes padding, or on
torch's own kernels where it has one that is faster (`fused.py`); the plain loop over steps is the reference,
and what autocast, batch normalisation and a watched layer take.
"""

from __future__ import annotations

from typing import Literal, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from seqloom.errors import UsageError
from seqloom.layers.recurrent.cell_operations import LayerWeights
from seqloom.layers.recurrent.cells import CellState, cell_named
from seqloom.layers.recurrent.compiled_loops import takes
from seqloom.layers.recurrent.highway import HighwayGate
from seqloom.layers.recurrent.layer import Normalisation, RecurrentLayer
from seqloom.layers.recurrent.packing import Order, full_order, packed_order
from seqloom.layers.recurrent.torch_kernels import (
    KernelPlan,
    effort,
    has_kernel,
    kernel_plan,
    run_full,
    run_ragged,
)

MUCH = 8_000_000
"""Operations of a step's product with the state from which our own compiled loop beats torch's kernel
(docs/benchmarks.md)."""

PADDING = 0.1
"""Steps of padding for each true step from which it does in any case, since it computes none; several calls
of the kernel are slower too."""

Connection = Literal["none", "residual", "highway"]
Way = Literal["fused", "driver", "loop", "packed loop"]


@final
class Recurrent(nn.Module):
    """Layers of one cell, stacked; each in both directions where `bidirectional` (then layer k reads `[→h;
    ←h]` of layer k-1).

    `projection`     the width of h where an LSTM projects it (Sak et al. 2014)
    `normalisation`  of layers (Ba et al. 2016) or of batches (Cooijmans et al. 2017)
    `connection`     what a layer above the first adds to its input: `x + h`, or a highway `g ⊙ h + (1 - g) ⊙ x`
    `dropout`        share of the features between layers that is dropped; the same ones at all steps where `variational`
    `state_dropout`  share of h that is dropped on its way into the next step, the same at all steps (Gal and Ghahramani 2016)

    Raises UsageError for an unknown cell, a projection of another cell than the LSTM, or a carried state
    where the layers are bidirectional (the backward direction has no past to carry) or batch-normalised (each
    step has its statistics).
    """

    def __init__(
        self,
        cell: str,
        input_width: int,
        width: int,
        *,
        layers: int = 1,
        bidirectional: bool = False,
        projection: int | None = None,
        normalisation: Normalisation = "none",
        connection: Connection = "none",
        dropout: float = 0.0,
        variational: bool = False,
        state_dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.cell_name, self.input_width, self.width, self.bidirectional = (
            cell,
            input_width,
            width,
            bidirectional,
        )
        self.projection, self.normalisation, self.connection = projection, normalisation, connection
        self.dropout, self.variational, self.state_dropout = dropout, variational, state_dropout
        self.directions = 2 if bidirectional else 1
        kind = cell_named(cell)
        self.output_width = self.directions * (width if projection is None else projection)
        """Of the outputs: both directions together."""

        def direction() -> nn.ModuleList:
            widths = [input_width] + [self.output_width] * (layers - 1)
            return nn.ModuleList(
                RecurrentLayer(kind, w, width, projection=projection, normalisation=normalisation)
                for w in widths
            )

        self.forward_layers = direction()
        self.stack: list[RecurrentLayer] = [*self.forward_layers]
        """The layers of the forward direction, lowest first."""
        self.backward_layers = direction() if bidirectional else nn.ModuleList()
        self.highways = nn.ModuleList(
            HighwayGate(self.output_width) for _ in range(layers - 1 if connection == "highway" else 0)
        )

    def start(self, rows: int) -> CellState:
        """Zeros: h (and c), each `(rows, layers * directions, its width)`."""
        return tuple(
            part.unsqueeze(1).expand(-1, self.directions * len(self.stack), -1)
            for part in self.stack[0].start(rows)
        )

    def forward(
        self, inputs: Tensor, mask: Tensor | None = None, state: CellState | None = None
    ) -> tuple[Tensor, CellState]:
        """inputs `(rows, steps, input_width)`, mask `(rows, steps)` true at real steps, state as from `start`
        -> outputs of the top layer `(rows, steps, output_width)` and the state after the last true step of
        each row, `(rows, layers * directions, its width)`: layer by layer, forward before backward (`→h_n`,
        `←h_1`)."""
        if state is not None and self.bidirectional:
            raise UsageError(
                "a bidirectional layer must start without a carried state: its backward direction has no past"
            )
        if state is not None and self.normalisation == "batch":
            raise UsageError(
                "a batch-normalised layer must start without a carried state: each step has statistics of"
                " its own"
            )
        if mask is not None and bool(mask.all()):
            mask = None
        if inputs.shape[1] == 1 and mask is None and not self.bidirectional and self.normalisation != "batch":
            return self.one_step(inputs[:, 0], self.start(len(inputs)) if state is None else state)
        run = LayerRun(self, inputs, mask)
        after: list[CellState] = []
        outputs = inputs
        for k, layer in enumerate(self.stack):
            below = self.between(outputs) if k else outputs
            before = layer.start(len(inputs)) if state is None else layer_state(state, k)
            above, end = run(layer, below, before, backward=False)
            after.append(end)
            if self.bidirectional:
                reverse, end = run(self.backward_layers[k], below, before, backward=True)  # type: ignore[arg-type]
                above = torch.cat([above, reverse], dim=-1)
                after.append(end)
            outputs = self.connected(k, below, above)
        return outputs, stack_states(after)

    def one_step(self, x: Tensor, before: CellState) -> tuple[Tensor, CellState]:
        """`forward` for one step `(rows, input_width)` of one direction: all that a decoder needs at each
        token."""
        after: list[CellState] = []
        for k, layer in enumerate(self.stack):
            below = self.between(x.unsqueeze(1))[:, 0] if k and self.training else x
            after.append(
                layer.advance(
                    below, layer_state(before, k), self.state_scale(len(x)) if self.training else None
                )
            )
            x = self.connected(k, below, after[-1][0]) if k else after[-1][0]
        return x.unsqueeze(1), stack_states(after)

    def between(self, outputs: Tensor) -> Tensor:
        """What of a layer's outputs `(rows, steps, output_width)` reaches the next one."""
        if not self.variational:
            return F.dropout(outputs, self.dropout, self.training)
        return outputs * F.dropout(
            outputs.new_ones(len(outputs), 1, outputs.shape[-1]), self.dropout, self.training
        )

    def connected(self, k: int, below: Tensor, above: Tensor) -> Tensor:
        """The outputs of layer k, from its input and its states."""
        if k == 0 or self.connection == "none":
            return above
        return below + above if self.connection == "residual" else self.highways[k - 1](below, above)

    def state_scale(self, rows: int) -> Tensor | None:
        """What multiplies a layer's h on its way into the next step: `(rows, width of h)`."""
        if not (self.training and self.state_dropout):
            return None
        return F.dropout(self.stack[0].bias.new_ones(rows, self.stack[0].output_width), self.state_dropout)


@final
class LayerRun:
    """How the layers of a stack are run over the same steps."""

    def __init__(self, layers: Recurrent, inputs: Tensor, mask: Tensor | None) -> None:
        self.layers, self.mask = layers, mask
        self.how: Way = way_to_run(layers, inputs, mask)
        self.orders: list[Order] = []
        self.plans: list[KernelPlan] = []
        if self.how in ("driver", "packed loop"):
            rows, steps, _ = inputs.shape
            self.orders = [
                (
                    full_order(rows, steps, inputs.device, backward)
                    if mask is None
                    else packed_order(mask, backward)
                )
                for backward in (False, True)[: layers.directions]
            ]
        elif self.how == "fused" and mask is not None:
            self.plans = [kernel_plan(mask, backward) for backward in (False, True)[: layers.directions]]

    def __call__(
        self, layer: RecurrentLayer, inputs: Tensor, state: CellState, *, backward: bool
    ) -> tuple[Tensor, CellState]:
        if self.how == "fused":
            return self.fused(layer, inputs, state, backward)
        scale = self.layers.state_scale(len(inputs))
        if self.how == "driver":
            return layer(inputs, self.orders[backward], state, scale)  # type: ignore[no-any-return]
        if self.how == "packed loop":
            return layer.packed_loop(inputs, self.orders[backward], state, scale)
        return layer.loop(inputs, self.mask, state, backward, scale)

    def fused(
        self, layer: RecurrentLayer, inputs: Tensor, state: CellState, backward: bool
    ) -> tuple[Tensor, CellState]:
        if self.plans:
            return run_ragged(layer.cell, layer.weights, inputs, self.plans[backward], state)
        outputs, end = run_full(layer.cell, layer.weights, inputs.flip(1) if backward else inputs, state)
        return outputs.flip(1) if backward else outputs, end


def way_to_run(layers: Recurrent, inputs: Tensor, mask: Tensor | None = None) -> Way:
    """Torch's kernel where it has one, unless our compiled loop is faster; the driver; or a plain loop where
    autograd needs each step."""
    if layers.normalisation == "batch":
        return "packed loop"  # its steps are numbered
    watched = any(layer.watch is not None for layer in [*layers.stack, *layers.backward_layers])
    # autocast chooses a type for each operation, so it needs the plain ones; a single step has nothing to
    # unroll
    if watched or torch.is_autocast_enabled(inputs.device.type) or inputs.shape[1] <= 1 or not len(inputs):
        return "loop"
    drops_state = layers.training and layers.state_dropout > 0
    cell, weights = layers.stack[0].cell, layers.stack[0].weights
    if drops_state or not has_kernel(cell, weights):
        return "driver"
    return "driver" if beats_kernel(weights, inputs, mask) and takes(cell, weights, None) else "fused"


def beats_kernel(weights: LayerWeights, inputs: Tensor, mask: Tensor | None) -> bool:
    """Whether our compiled loop is faster for these rows than torch's kernel, or as fast with less memory."""
    if 2 * len(inputs) * weights.w_h.numel() >= MUCH:
        return True
    if mask is None:
        return False
    calls, padding = effort(mask)
    return calls > 1 or padding > PADDING


def runs_loops(model: nn.Module) -> bool:
    """Whether it has recurrent layers on a CPU, where they run in compiled loops if there are any
    (`seqloom/native`)."""
    recurrent = (module for module in model.modules() if isinstance(module, Recurrent))
    return any(layers.stack[0].bias.device.type == "cpu" for layers in recurrent)


@final
class Stepper:
    """A stack of one direction, one step at a time: for a decoder that looks at something in between."""

    def __init__(self, layers: Recurrent, rows: int) -> None:
        """What dropout keeps is drawn here, once for all steps, where it is the same at all steps. Raises
        UsageError for batch-normalised layers: each of their steps has statistics of its own."""
        if layers.normalisation == "batch":
            raise UsageError(
                "a batch-normalised layer cannot run step by step: each step has statistics of its own"
            )
        self.layers = layers
        self.scales = [layers.state_scale(rows) for _ in layers.stack]
        ones = layers.stack[0].bias.new_ones(rows, layers.output_width)
        self.between = [
            F.dropout(ones, layers.dropout, layers.training) if layers.variational else None
            for _ in layers.stack
        ]

    def __call__(self, linear: Tensor, states: list[CellState]) -> tuple[Tensor, list[CellState]]:
        """The linear part of the input's product with the first layer (`RecurrentLayer.linear`), and the
        layers' states -> the output of the top layer `(rows, output_width)`, and the new states."""
        output, after = linear, []
        for k, (layer, state) in enumerate(zip(self.layers.stack, states, strict=True)):
            below = self._dropped(k, output) if k else output
            new = layer.step(layer.product(layer.linear(below) if k else linear), state, self.scales[k])
            output = self.layers.connected(k, below, new[0])
            after.append(new)
        return output, after

    def _dropped(self, k: int, output: Tensor) -> Tensor:
        kept = self.between[k]
        return F.dropout(output, self.layers.dropout, self.layers.training) if kept is None else output * kept


def layer_state(state: CellState, layer: int) -> CellState:
    """Of a stack's state, each `(rows, layers, width)`, that of one layer, each `(rows, width)`."""
    return tuple(part[:, layer] for part in state)


def stack_states(states: list[CellState]) -> CellState:
    """The states of layers, each `(rows, width)`, as that of a stack, each `(rows, layers, width)`."""
    if len(states) == 1:
        return tuple(part.unsqueeze(1) for part in states[0])
    return tuple(torch.stack(parts, dim=1) for parts in zip(*states, strict=True))
