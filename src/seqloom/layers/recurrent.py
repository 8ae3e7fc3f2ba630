"""Recurrent layers: any cell (`cells.py`), stacked, in one or both directions, under any padding.

A step of padding keeps the state. Layers run on the driver (`unroll.py`), which never computes padding; the plain loop
over steps is the reference, and what autocast runs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from seqloom.errors import UsageError
from seqloom.layers.cells import Cell, CellState, Weights, cell_named
from seqloom.layers.unroll import Order, Unroll, packed_order


class Seen(NamedTuple):
    """One step that a watched layer made, in the autograd graph."""

    product: Tensor
    """`(rows, gates * width)`: the input's part of each gate."""
    old: CellState
    new: CellState


@final
class RecurrentLayer(nn.Module):
    """One layer in one direction.

    While `watch` is a list, the layer runs as a plain loop and adds each step to it.
    """

    def __init__(self, cell: Cell, input_width: int, width: int) -> None:
        super().__init__()
        self.cell, self.width = cell, width
        self.watch: list[Seen] | None = None
        blocks = len(cell.gates)
        self.weight_x = nn.Parameter(torch.empty(blocks * width, input_width))
        self.weight_h = nn.Parameter(torch.empty(blocks * width, width))
        self.bias = nn.Parameter(torch.empty(blocks * width))
        self.bias_h = nn.Parameter(torch.empty(blocks * width)) if cell.hidden_bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """W_x Glorot-uniform and W_h orthogonal, block by block; biases 0, but 1 for a forget gate (Gers et al. 2000)."""
        blocks = len(self.cell.gates)
        for block in self.weight_x.chunk(blocks):
            nn.init.xavier_uniform_(block)
        for block in self.weight_h.chunk(blocks):
            nn.init.orthogonal_(block)
        nn.init.zeros_(self.bias)
        if self.bias_h is not None:
            nn.init.zeros_(self.bias_h)
        if "f" in self.cell.gates:
            forget = self.cell.gates.index("f")
            nn.init.ones_(self.bias[forget * self.width : (forget + 1) * self.width])

    def start(self, rows: int) -> CellState:
        """The state before the first step: zeros."""
        return (self.bias.new_zeros(rows, self.width),) * self.cell.states

    def step(self, product: Tensor, state: CellState) -> CellState:
        """One step, from the input's product with W_x (plus b) `(rows, gates * width)`."""
        new = self.cell.step(product, state, Weights(self.weight_h, self.bias_h))
        if self.watch is not None:
            self.watch.append(Seen(product, state, new))
        return new

    def gates(self, product: Tensor, state: CellState) -> dict[str, Tensor]:
        """The values of the gates in a step, by name: each `(rows, width)`."""
        return self.cell.gate_values(product, state, Weights(self.weight_h, self.bias_h))

    def forward(self, inputs: Tensor, order: Order, state: CellState) -> tuple[Tensor, CellState]:
        """inputs `(rows, steps, input_width)` -> outputs `(rows, steps, width)`, 0 at padding, and the state after the last
        true step in `order`."""
        parts = (self.weight_x, self.bias, self.weight_h, self.bias_h)
        outputs, *after = Unroll.apply(self.cell, order, inputs, *parts, *state)  # type: ignore[no-untyped-call]
        return outputs, tuple(after)

    def loop(self, inputs: Tensor, mask: Tensor | None, state: CellState, backward: bool = False) -> tuple[Tensor, CellState]:
        """The same as a plain loop over `step`; at padding the outputs repeat the state."""
        products = F.linear(inputs, self.weight_x, self.bias).unbind(dim=1)
        keep = StepMask(mask)
        outputs: list[Tensor] = [inputs] * len(products)
        for t in reversed(range(len(products))) if backward else range(len(products)):
            state = keep(t, self.step(products[t], state), state)
            outputs[t] = state[0]
        if not outputs:
            return inputs.new_zeros(*inputs.shape[:2], self.width), state
        return torch.stack(outputs, dim=1), state


@final
class StepMask:
    """Keeps the old state at a step of padding; costs nothing at steps where no row is padded."""

    def __init__(self, mask: Tensor | None) -> None:
        self._columns = [] if mask is None else mask.unsqueeze(-1).unbind(dim=1)
        self._full = [] if mask is None else mask.all(dim=0).tolist()

    def __call__(self, step: int, new: CellState, old: CellState) -> CellState:
        if not self._columns or self._full[step]:
            return new
        return tuple(torch.where(self._columns[step], n, o) for n, o in zip(new, old, strict=True))


Run = Callable[[RecurrentLayer, Tensor, CellState, bool], tuple[Tensor, CellState]]
"""(layer, inputs, state, backward) -> outputs, state."""


@final
class Recurrent(nn.Module):
    """Layers of one cell, stacked; each in both directions where `bidirectional` (then layer k reads `[→h; ←h]` of layer k-1).

    Raises UsageError for an unknown cell, or a carried state where the layers are bidirectional: the backward
    direction has no past to carry.
    """

    def __init__(
        self, cell: str, input_width: int, width: int, *, layers: int = 1, bidirectional: bool = False, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.cell_name, self.input_width, self.width, self.bidirectional = cell, input_width, width, bidirectional
        self.directions = 2 if bidirectional else 1
        self.dropout = nn.Dropout(dropout)
        widths = [input_width] + [width * self.directions] * (layers - 1)
        kind = cell_named(cell)
        self.forward_layers = nn.ModuleList(RecurrentLayer(kind, w, width) for w in widths)
        self.backward_layers = nn.ModuleList(RecurrentLayer(kind, w, width) for w in widths if bidirectional)

    @property
    def stack(self) -> list[RecurrentLayer]:
        """The layers of the forward direction, lowest first."""
        return [*self.forward_layers]

    def start(self, rows: int) -> CellState:
        """Zeros: h (and c), each `(rows, layers * directions, width)`."""
        return tuple(part.unsqueeze(1).expand(-1, self.directions * len(self.stack), -1) for part in self.stack[0].start(rows))

    def forward(self, inputs: Tensor, mask: Tensor | None = None, state: CellState | None = None) -> tuple[Tensor, CellState]:
        """inputs `(rows, steps, input_width)`, mask `(rows, steps)` true at real steps, state as from `start`
        -> outputs of the top layer `(rows, steps, width * directions)` and the state after the last true step of each
        row, `(rows, layers * directions, width)`: layer by layer, forward before backward (`→h_n`, `←h_1`)."""
        if state is not None and self.bidirectional:
            raise UsageError("a bidirectional layer must start without a carried state: its backward direction has no past")
        before = self.start(inputs.shape[0]) if state is None else state
        run = self._plain(mask) if self._needs_autograd(inputs) else self._driven(mask, inputs)
        after: list[CellState] = []
        outputs = inputs
        for k, layer in enumerate(self.stack):
            inputs = self.dropout(outputs) if k else outputs
            outputs, end = run(layer, inputs, layer_state(before, len(after)), False)
            after.append(end)
            if self.bidirectional:
                reverse, end = run(self.backward_layers[k], inputs, layer_state(before, len(after)), True)  # type: ignore[arg-type]
                outputs = torch.cat([outputs, reverse], dim=-1)
                after.append(end)
        return outputs, stack_states(after)

    def _needs_autograd(self, inputs: Tensor) -> bool:
        """Autocast chooses a type for each operation, so it needs the plain ones; a single step has nothing to unroll; who watches wants the steps."""
        watched = any(layer.watch is not None for layer in [*self.stack, *self.backward_layers])
        return watched or torch.is_autocast_enabled(inputs.device.type) or inputs.shape[1] <= 1

    def _plain(self, mask: Tensor | None) -> Run:
        return lambda layer, inputs, state, backward: layer.loop(inputs, mask, state, backward)

    def _driven(self, mask: Tensor | None, inputs: Tensor) -> Run:
        real = torch.ones(inputs.shape[:2], dtype=torch.bool, device=inputs.device) if mask is None else mask
        orders = [packed_order(real, backward) for backward in (False, True)[: self.directions]]
        return lambda layer, inputs, state, backward: layer(inputs, orders[backward], state)


def layer_state(state: CellState, layer: int) -> CellState:
    """Of a stack's state, each `(rows, layers, width)`, that of one layer, each `(rows, width)`."""
    return tuple(part[:, layer] for part in state)


def stack_states(states: list[CellState]) -> CellState:
    """The states of layers, each `(rows, width)`, as that of a stack, each `(rows, layers, width)`."""
    return tuple(torch.stack(parts, dim=1) for parts in zip(*states, strict=True))


TORCH_MODULES: dict[str, tuple[Callable[..., nn.RNNBase], dict[str, str]]] = {
    "elman": (nn.RNN, {"nonlinearity": "tanh"}),
    "elman-relu": (nn.RNN, {"nonlinearity": "relu"}),
    "lstm": (nn.LSTM, {}),
    "gru-torch": (nn.GRU, {}),
}
"""Our cells that torch has too, under torch's names."""


def to_torch(layers: Recurrent) -> nn.RNNBase:
    """The same weights as a `torch.nn` module (batch first). Raises UsageError for a cell that torch does not have."""
    if layers.cell_name not in TORCH_MODULES:
        raise UsageError(f"torch.nn has no cell {layers.cell_name!r} (torch.nn.GRU is 'gru-torch'); it has {', '.join(TORCH_MODULES)}")
    kind, options = TORCH_MODULES[layers.cell_name]
    module = kind(
        layers.input_width,
        layers.width,
        num_layers=len(layers.stack),
        bidirectional=layers.bidirectional,
        batch_first=True,
        dropout=layers.dropout.p,
        **options,
    ).to(layers.stack[0].bias)
    module.train(layers.training)
    with torch.no_grad():
        for suffix, layer in _torch_suffixes(layers):
            getattr(module, f"weight_ih{suffix}").copy_(layer.weight_x)
            getattr(module, f"weight_hh{suffix}").copy_(layer.weight_h)
            getattr(module, f"bias_ih{suffix}").copy_(layer.bias)
            getattr(module, f"bias_hh{suffix}").copy_(torch.zeros_like(layer.bias) if layer.bias_h is None else layer.bias_h)
    return module


def from_torch(module: nn.RNNBase) -> Recurrent:
    """A `torch.nn` RNN, LSTM or GRU as our layers. Where its two biases do the same work, they are summed.

    Raises UsageError for a module with an output projection or without biases.
    """
    if getattr(module, "proj_size", 0) or not module.bias:
        raise UsageError("a torch.nn module must have biases and no proj_size to be imported")
    kind = {nn.RNN: "elman", nn.LSTM: "lstm", nn.GRU: "gru-torch"}[type(module)]
    if getattr(module, "nonlinearity", None) == "relu":
        kind = "elman-relu"
    layers = Recurrent(
        kind, module.input_size, module.hidden_size, layers=module.num_layers, bidirectional=module.bidirectional, dropout=module.dropout
    ).to(module.weight_ih_l0)  # type: ignore[arg-type]
    layers.train(module.training)
    with torch.no_grad():
        for suffix, layer in _torch_suffixes(layers):
            layer.weight_x.copy_(getattr(module, f"weight_ih{suffix}"))
            layer.weight_h.copy_(getattr(module, f"weight_hh{suffix}"))
            layer.bias.copy_(getattr(module, f"bias_ih{suffix}"))
            (layer.bias if layer.bias_h is None else layer.bias_h).add_(getattr(module, f"bias_hh{suffix}"))
    return layers


def _torch_suffixes(layers: Recurrent) -> list[tuple[str, RecurrentLayer]]:
    named = [(f"_l{k}", layer) for k, layer in enumerate(layers.forward_layers)]
    named += [(f"_l{k}_reverse", layer) for k, layer in enumerate(layers.backward_layers)]
    return named  # type: ignore[return-value]
