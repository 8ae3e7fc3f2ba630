"""The recurrent cells: each is its equations, forward and backward.

    elman      h_t = g(W_x x_t + W_h h_{t-1} + b),  g = tanh, ReLU or σ            Elman 1990
    lstm       c_t = f ⊙ c_{t-1} + i ⊙ g,  h_t = o ⊙ tanh(c_t)                  Hochreiter, Schmidhuber 1997
                                                                                   Gers 2000
               with a projection h_t = W_p (o ⊙ tanh(c_t))                         Sak et al. 2014
               c_t and the projected h_t may be clipped to [-limit, limit]         Peters et al. 2018
    gru        h̃ = tanh(W_x x_t + W_h (r ⊙ h_{t-1}) + b),
               h_t = z ⊙ h_{t-1} + (1 - z) ⊙ h̃                                     Cho et al. 2014
    gru-torch  as gru, but h̃ = tanh(W_x x_t + b + r ⊙ (W_h h_{t-1} + b_h))         torch.nn.GRU, cuDNN
    mut1       z = σ(W_x x_t + b),  h̃ = tanh(W_h (r ⊙ h_{t-1}) + tanh(x_t) + b)    Jozefowicz et al. 2015
    mut2       r = σ(x_t + W_h h_{t-1} + b)                                        the same
    mut3       z = σ(W_x x_t + W_h tanh(h_{t-1}) + b)                              the same
               all three MUTs: h_t = z ⊙ h̃ + (1 - z) ⊙ h_{t-1}

A cell is given the input's part of each gate, and its products with weights as functions `(u, plus) -> plus +
W u`. A product may hide a normalisation, or dropout of the state. `forward` serves two callers: the plain
loop, where autograd records it and every output is a new tensor, and the driver (`unroll.py`), where it
writes into the buffers `out`. `backward` is its derivative by hand, for the driver: `product.backward(d,
plus)` is `plus + Wᵀ d`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, NamedTuple, Protocol, final

import torch
from torch import Tensor

from seqloom.errors import UsageError
from seqloom.plugins import is_known, register

CellState = tuple[Tensor, ...]
"""(h,) or (h, c) of one layer, each `(rows, its width)`; of a stack, each `(rows, layers, its width)`."""

GateTensors = tuple[Tensor, ...]
"""A tensor for each group of gates, of one step or of many: `(rows, gates * width)`."""


StepResult = tuple[CellState, GateTensors]
"""The new state, and what is saved."""


class StateProduct(Protocol):
    """A weight's product with the state, or with something made of it. Only the driver calls `backward`; the
    plain loop leaves that to autograd."""

    def __call__(self, u: Tensor, plus: Tensor | None = None) -> Tensor: ...

    def backward(self, d: Tensor, plus: Tensor | None = None) -> Tensor: ...


class CellNorm(Protocol):
    """A normalisation of the cell state c."""

    def __call__(self, c: Tensor, /) -> Tensor: ...

    def backward(self, d: Tensor, /) -> Tensor: ...


class CellOps(NamedTuple):
    """The operations with learned weights that a layer gives its cell."""

    products: tuple[StateProduct, ...]
    """One for each group of gates that reads the hidden state."""
    candidate_bias: Tensor | None = None
    """`(width,)`: the bias of the candidate's product, where a gate multiplies that product."""
    project: StateProduct | None = None
    norm_c: CellNorm | None = None


class StepBuffers(NamedTuple):
    """Where a step writes its results; None for new tensors, which autograd needs."""

    state: tuple[Tensor | None, ...]
    saved: tuple[Tensor | None, ...]


@dataclass(frozen=True)
class Cell(ABC):
    """What distinguishes one recurrent cell from another. Two of a class with the same fields are equal."""

    gate_groups: ClassVar[tuple[tuple[str, ...], ...]]
    """The gates in groups that are computed together. W_x, W_h and b have their blocks in this order, which
    is that of torch where torch has the cell."""
    reads_hidden: ClassVar[tuple[bool, ...]]
    """Which groups read the hidden state: W_h has their blocks."""
    raw_input_gate: ClassVar[str | None] = None
    """The gate, a group of its own, that gets x itself (or P x where the widths differ)."""
    tanh_on_input: ClassVar[bool] = False
    """Whether that gate gets tanh(x)."""
    has_hidden_bias: ClassVar[bool] = False
    """Whether the products with the state have a bias of their own."""
    state_count: ClassVar[int] = 1
    """1: h; 2: h and c."""
    saved_widths: ClassVar[tuple[int, ...]] = ()
    """What a step saves for its backward step, in multiples of the width: the values of the gates in order,
    then others."""
    backward_widths: ClassVar[tuple[int, ...]]
    """What a backward step writes, in multiples of the width: the gradients of the input's parts in order,
    then others. Each may overwrite the saved tensor with the same number."""
    product_inputs: ClassVar[tuple[int | None, ...]]
    """The input of each product with the state: the number of a saved tensor, None for h itself."""
    product_gradients: ClassVar[tuple[int, ...]] = ()
    """Which of `backward_widths` is the gradient of each product's result, where that is not its own
    number."""

    def with_clips(self, cell_clip: float | None, projection_clip: float | None) -> Cell:
        """The cell with the largest absolute values of c and of a projected h, where it has these."""
        return self

    @abstractmethod
    def forward(
        self, x: GateTensors, state: CellState, ops: CellOps, out: StepBuffers
    ) -> StepResult:
        """The input's parts and the old state -> the new state, and what is saved."""

    @abstractmethod
    def backward(self, d: CellState, step: SavedStep, ops: CellOps, out: GateTensors) -> CellState:
        """The gradient of the new state -> that of the old state. Writes `backward_widths` (and the gradient
        of the projected h) into `out`."""

    def operands(
        self, d: GateTensors, saved: GateTensors, old: CellState
    ) -> tuple[tuple[Tensor, Tensor], ...]:
        """For each product (the projection last): where the backward steps will write the gradient d of its
        result, and its input u. The gradient of W is `dᵀ u`. To be called before the backward steps, which
        may overwrite what is saved."""
        numbers = self.product_gradients or range(len(self.product_inputs))
        inputs = [old[0] if number is None else saved[number] for number in self.product_inputs]
        of_products = tuple((d[number], u) for number, u in zip(numbers, inputs, strict=True))
        if len(d) == len(self.backward_widths):
            return of_products
        o, tanh_c = saved[0].chunk(4, dim=1)[3], saved[1]  # only the LSTM has a projection
        return *of_products, (d[-1], o * tanh_c)


class SavedStep(NamedTuple):
    """A step of the forward pass, as the backward pass sees it."""

    saved: GateTensors
    old: CellState
    new: CellState


def gate_names(cell: Cell) -> tuple[str, ...]:
    return tuple(gate for group in cell.gate_groups for gate in group)


def hidden_gate_names(cell: Cell) -> tuple[str, ...]:
    """The gates that have a block of W_h, in its order."""
    groups = zip(cell.gate_groups, cell.reads_hidden, strict=True)
    return tuple(gate for group, reads in groups if reads for gate in group)


def gate_values(cell: Cell, saved: GateTensors, new: CellState) -> dict[str, Tensor]:
    """The values of the gates in a step, each `(rows, width)`."""
    width = new[-1].shape[-1]
    values = torch.cat(saved, dim=-1) if saved else new[0]
    return dict(
        zip(gate_names(cell), values.chunk(values.shape[-1] // width, dim=-1), strict=False)
    )


_TANH, _TANH_INTO = torch.ops.aten.tanh_backward.default, torch.ops.aten.tanh_backward.grad_input
_SIGMOID, _SIGMOID_INTO = (
    torch.ops.aten.sigmoid_backward.default,
    torch.ops.aten.sigmoid_backward.grad_input,
)
_RELU_INTO = torch.ops.aten.threshold_backward.grad_input


def tanh_backward(d: Tensor, y: Tensor, out: Tensor | None = None) -> Tensor:
    """d ⊙ (1 - y²), where y = tanh."""
    result: Tensor = _TANH(d, y) if out is None else _TANH_INTO(d, y, grad_input=out)
    return result


def sigmoid_backward(d: Tensor, y: Tensor, out: Tensor | None = None) -> Tensor:
    """d ⊙ y ⊙ (1 - y), where y = σ."""
    result: Tensor = _SIGMOID(d, y) if out is None else _SIGMOID_INTO(d, y, grad_input=out)
    return result


def relu_backward(d: Tensor, y: Tensor, out: Tensor) -> Tensor:
    """d where y > 0."""
    result: Tensor = _RELU_INTO(d, y, 0, grad_input=out)
    return result


def clipped(value: Tensor, limit: float | None, out: Tensor | None) -> Tensor:
    """The value within [-limit, limit]."""
    return value if limit is None else torch.clamp(value, -limit, limit, out=out)


def clipped_backward(d: Tensor, value: Tensor, limit: float | None) -> Tensor:
    """d where the clipped value is not at its limit."""
    return d if limit is None else d * (value.abs() < limit)


def _write(value: Tensor, out: Tensor | None) -> Tensor:
    return value if out is None else out.copy_(value)


def _relu(total: Tensor, out: Tensor | None) -> Tensor:
    result: Tensor = torch.threshold(total, 0, 0, out=out)
    return result


NONLINEARITIES: dict[str, Callable[..., Tensor]] = {
    "tanh": torch.tanh,
    "relu": _relu,
    "sigmoid": torch.sigmoid,
}
NONLINEARITIES_BACKWARD = {
    "tanh": tanh_backward,
    "relu": relu_backward,
    "sigmoid": sigmoid_backward,
}


@final
@dataclass(frozen=True)
class Elman(Cell):
    g: Literal["tanh", "relu", "sigmoid"] = "tanh"
    gate_groups = (("h",),)
    reads_hidden = (True,)
    backward_widths = (1,)
    product_inputs = (None,)

    def forward(
        self, x: GateTensors, state: CellState, ops: CellOps, out: StepBuffers
    ) -> StepResult:
        return (NONLINEARITIES[self.g](ops.products[0](state[0], x[0]), out=out.state[0]),), ()

    def backward(self, d: CellState, step: SavedStep, ops: CellOps, out: GateTensors) -> CellState:
        return (
            ops.products[0].backward(NONLINEARITIES_BACKWARD[self.g](d[0], step.new[0], out[0])),
        )


@final
@dataclass(frozen=True)
class LSTM(Cell):
    cell_clip: float | None = None
    """The largest absolute value of c."""
    projection_clip: float | None = None
    """The largest absolute value of a projected h."""
    gate_groups = (("i", "f", "g", "o"),)
    reads_hidden = (True,)
    state_count = 2
    saved_widths = (4, 1)
    """i, f, g and o, tanh(c)."""
    backward_widths = (4,)
    product_inputs = (None,)

    def with_clips(self, cell_clip: float | None, projection_clip: float | None) -> LSTM:
        return replace(self, cell_clip=cell_clip, projection_clip=projection_clip)

    def forward(
        self, x: GateTensors, state: CellState, ops: CellOps, out: StepBuffers
    ) -> StepResult:
        h, c = state
        # i and f lie side by side: one sigmoid for both
        sizes = [2 * c.shape[1], c.shape[1], c.shape[1]]
        i_f, g, o = ops.products[0](h, x[0]).split_with_sizes(sizes, dim=1)
        gates = out.saved[0]
        out_i_f, out_g, out_o = (
            (None, None, None) if gates is None else gates.split_with_sizes(sizes, dim=1)
        )
        i_f = torch.sigmoid(i_f, out=out_i_f)
        g = torch.tanh(g, out=out_g)
        o = torch.sigmoid(o, out=out_o)
        i, f = i_f.chunk(2, dim=1)
        c = clipped(torch.addcmul(f * c, i, g, out=out.state[1]), self.cell_clip, out.state[1])
        tanh_c = torch.tanh(c if ops.norm_c is None else ops.norm_c(c), out=out.saved[1])
        if ops.project is None:
            h = torch.mul(o, tanh_c, out=out.state[0])
        else:
            h = clipped(
                _write(ops.project(o * tanh_c), out.state[0]), self.projection_clip, out.state[0]
            )
        return (h, c), (i_f, g, o, tanh_c)

    def backward(self, d: CellState, step: SavedStep, ops: CellOps, out: GateTensors) -> CellState:
        (d_h, d_c), (gates, tanh_c) = d, step.saved
        h, c = step.new
        i, f, g, o = gates.chunk(4, dim=1)
        d_i, d_f, d_g, d_o = out[0].chunk(4, dim=1)
        if ops.project is not None:
            d_h = clipped_backward(d_h, h, self.projection_clip)
            d_h = ops.project.backward(out[1].copy_(d_h))
        sigmoid_backward(d_h * tanh_c, o, d_o)
        # the loss reaches c through h, and directly through the next step
        through_h = tanh_backward(d_h * o, tanh_c)
        d_c = d_c + (through_h if ops.norm_c is None else ops.norm_c.backward(through_h))
        d_c = clipped_backward(d_c, c, self.cell_clip)
        sigmoid_backward(d_c * g, i, d_i)
        sigmoid_backward(d_c * step.old[1], f, d_f)
        tanh_backward(d_c * i, g, d_g)
        return ops.products[0].backward(out[0]), d_c * f


def _interpolation_backward(
    d_h: Tensor, h: Tensor, saved: GateTensors, out: GateTensors
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The first half of the two GRUs' backward step: r, the gradients of the sums of z and of the candidate,
    and that part of the gradient of h_{t-1} that comes neither through the gates nor through the
    candidate."""
    (r, z), candidate = saved[0].chunk(2, dim=-1), saved[1]
    d_z = sigmoid_backward(d_h * (h - candidate), z)
    d_old = d_h * z
    return r, d_z, tanh_backward(d_h - d_old, candidate, out[1]), d_old


@final
class GRU(Cell):
    gate_groups = (("r", "z"), ("h",))
    reads_hidden = (True, True)
    saved_widths = (2, 1, 1)
    """r and z, the candidate, r ⊙ h."""
    backward_widths = (2, 1)
    product_inputs = (None, 2)

    def forward(
        self, x: GateTensors, state: CellState, ops: CellOps, out: StepBuffers
    ) -> StepResult:
        (h,), (by_h, by_reset) = state, ops.products
        r_z = torch.sigmoid(by_h(h, x[0]), out=out.saved[0])
        r, z = r_z.chunk(2, dim=-1)
        reset = torch.mul(r, h, out=out.saved[2])
        candidate = torch.tanh(by_reset(reset, x[1]), out=out.saved[1])
        return (torch.lerp(candidate, h, z, out=out.state[0]),), (r_z, candidate, reset)

    def backward(self, d: CellState, step: SavedStep, ops: CellOps, out: GateTensors) -> CellState:
        (h,), (by_h, by_reset) = step.old, ops.products
        r, d_z, d_candidate, d_old = _interpolation_backward(d[0], h, step.saved, out)
        d_reset = by_reset.backward(d_candidate)
        d_r_z = torch.cat([sigmoid_backward(d_reset * h, r), d_z], dim=1, out=out[0])
        return (by_h.backward(d_r_z, d_old.addcmul_(d_reset, r)),)


@final
class GRUTorch(Cell):
    gate_groups = (("r", "z"), ("h",))
    reads_hidden = (True, True)
    has_hidden_bias = True
    saved_widths = (2, 1, 1)
    """r and z, the candidate, its W_h h + b_h."""
    backward_widths = (2, 1, 1)
    product_inputs = (None, None)
    product_gradients = (0, 2)

    def forward(
        self, x: GateTensors, state: CellState, ops: CellOps, out: StepBuffers
    ) -> StepResult:
        (h,), (by_h, to_candidate) = state, ops.products
        r_z = torch.sigmoid(by_h(h, x[0]), out=out.saved[0])
        r, z = r_z.chunk(2, dim=-1)
        of_h = _write(to_candidate(h, ops.candidate_bias), out.saved[2])
        candidate = torch.tanh(torch.addcmul(x[1], r, of_h), out=out.saved[1])
        return (torch.lerp(candidate, h, z, out=out.state[0]),), (r_z, candidate, of_h)

    def backward(self, d: CellState, step: SavedStep, ops: CellOps, out: GateTensors) -> CellState:
        by_h, to_candidate = ops.products
        r, d_z, d_candidate, d_old = _interpolation_backward(d[0], step.old[0], step.saved, out)
        d_r_z = torch.cat(
            [sigmoid_backward(d_candidate * step.saved[2], r), d_z], dim=1, out=out[0]
        )
        d_old = to_candidate.backward(torch.mul(d_candidate, r, out=out[2]), d_old)
        return (by_h.backward(d_r_z, d_old),)


def _mut_forward(
    z: Tensor, r: Tensor, x_h: Tensor, h: Tensor, by_reset: StateProduct, out: StepBuffers
) -> tuple[CellState, GateTensors]:
    """A MUT's step from the sums of z and r, and the input's part of the candidate."""
    z = torch.sigmoid(z, out=out.saved[0])
    r = torch.sigmoid(r, out=out.saved[1])
    reset = torch.mul(r, h, out=out.saved[3])
    candidate = torch.tanh(by_reset(reset, x_h), out=out.saved[2])
    return (torch.lerp(h, candidate, z, out=out.state[0]),), (z, r, candidate, reset)


def _mut_backward(
    d_h: Tensor, step: SavedStep, by_reset: StateProduct, out: GateTensors
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of the sums of z and r, and that part of the gradient of h_{t-1} that does not come
    through these two."""
    (z, r, candidate, *_), h = step.saved, step.old[0]
    d_z = sigmoid_backward(d_h * (candidate - h), z, out[0])
    to_candidate = d_h * z
    d_reset = by_reset.backward(tanh_backward(to_candidate, candidate, out[2]))
    d_r = sigmoid_backward(d_reset * h, r, out[1])
    return d_z, d_r, torch.sub(d_h, to_candidate).addcmul_(d_reset, r)


@final
class MUT1(Cell):
    gate_groups = (("z",), ("r",), ("h",))
    reads_hidden = (False, True, True)
    raw_input_gate = "h"
    tanh_on_input = True
    saved_widths = (1, 1, 1, 1)
    """z, r, the candidate, r ⊙ h."""
    backward_widths = (1, 1, 1)
    product_inputs = (None, 3)
    product_gradients = (1, 2)

    def forward(
        self, x: GateTensors, state: CellState, ops: CellOps, out: StepBuffers
    ) -> StepResult:
        (h,), (by_h, by_reset) = state, ops.products
        return _mut_forward(x[0], by_h(h, x[1]), x[2], h, by_reset, out)

    def backward(self, d: CellState, step: SavedStep, ops: CellOps, out: GateTensors) -> CellState:
        by_h, by_reset = ops.products
        _, d_r, d_old = _mut_backward(d[0], step, by_reset, out)
        return (by_h.backward(d_r, d_old),)


@final
class MUT2(Cell):
    gate_groups = (("z",), ("r",), ("h",))
    reads_hidden = (True, True, True)
    raw_input_gate = "r"
    saved_widths = (1, 1, 1, 1)
    """z, r, the candidate, r ⊙ h."""
    backward_widths = (1, 1, 1)
    product_inputs = (None, None, 3)

    def forward(
        self, x: GateTensors, state: CellState, ops: CellOps, out: StepBuffers
    ) -> StepResult:
        (h,), (to_z, to_r, by_reset) = state, ops.products
        return _mut_forward(to_z(h, x[0]), to_r(h, x[1]), x[2], h, by_reset, out)

    def backward(self, d: CellState, step: SavedStep, ops: CellOps, out: GateTensors) -> CellState:
        to_z, to_r, by_reset = ops.products
        d_z, d_r, d_old = _mut_backward(d[0], step, by_reset, out)
        return (to_r.backward(d_r, to_z.backward(d_z, d_old)),)


@final
class MUT3(Cell):
    gate_groups = (("z",), ("r",), ("h",))
    reads_hidden = (True, True, True)
    saved_widths = (1, 1, 1, 1, 1)
    """z, r, the candidate, r ⊙ h, tanh(h)."""
    backward_widths = (1, 1, 1)
    product_inputs = (4, None, 3)

    def forward(
        self, x: GateTensors, state: CellState, ops: CellOps, out: StepBuffers
    ) -> StepResult:
        (h,), (by_tanh, by_h, by_reset) = state, ops.products
        tanh_h = torch.tanh(h, out=out.saved[4])
        new, saved = _mut_forward(by_tanh(tanh_h, x[0]), by_h(h, x[1]), x[2], h, by_reset, out)
        return new, (*saved, tanh_h)

    def backward(self, d: CellState, step: SavedStep, ops: CellOps, out: GateTensors) -> CellState:
        by_tanh, by_h, by_reset = ops.products
        d_z, d_r, d_old = _mut_backward(d[0], step, by_reset, out)
        d_old += tanh_backward(by_tanh.backward(d_z), step.saved[4])
        return (by_h.backward(d_r, d_old),)


CELLS: dict[str, Cell] = {
    "elman": Elman(),
    "elman-relu": Elman("relu"),
    "elman-sigmoid": Elman("sigmoid"),
    "lstm": LSTM(),
    "gru": GRU(),
    "gru-torch": GRUTorch(),
    "mut1": MUT1(),
    "mut2": MUT2(),
    "mut3": MUT3(),
}
BUILT_IN = tuple(CELLS.values())
"""Those that have a compiled loop, in the order of `Cell` in `recurrent.cpp`."""


def register_cell(name: str, cell: type[Cell]) -> None:
    """Makes a cell of one's own known to every recurrent layer. Raises UsageError if the name is taken."""
    register("cell", name, cell(), CELLS)


def cell_named(name: str) -> Cell:
    """Raises UsageError for an unknown name."""
    if not is_known(name, CELLS):
        raise UsageError(f"cell must be one of {', '.join(CELLS)}, but is {name!r}")
    return CELLS[name]
