"""The recurrent cells: each is its equations, forward and backward.

    elman      h_t = g(W_x x_t + W_h h_{t-1} + b),  g = tanh, ReLU or σ                  Elman 1990
    lstm       c_t = f ⊙ c_{t-1} + i ⊙ g,  h_t = o ⊙ tanh(c_t)                           Hochreiter and Schmidhuber 1997, Gers 2000
               with a projection h_t = W_p (o ⊙ tanh(c_t))                               Sak et al. 2014
    gru        h̃ = tanh(W_x x_t + W_h (r ⊙ h_{t-1}) + b),
               h_t = z ⊙ h_{t-1} + (1 - z) ⊙ h̃                                           Cho et al. 2014, as published
    gru-torch  as gru, but h̃ = tanh(W_x x_t + b + r ⊙ (W_h h_{t-1} + b_h))               as in torch.nn.GRU and cuDNN
    mut1       z = σ(W_x x_t + b),  h̃ = tanh(W_h (r ⊙ h_{t-1}) + tanh(x_t) + b)          Jozefowicz et al. 2015; in all three
    mut2       r = σ(x_t + W_h h_{t-1} + b)                                              h_t = z ⊙ h̃ + (1 - z) ⊙ h_{t-1}
    mut3       z = σ(W_x x_t + W_h tanh(h_{t-1}) + b)

A cell gets the input's part of each gate ready made, and products with its weights as functions `(u, plus) ->
plus + W u`, in which a normalisation or a dropout of the state may hide. `forward` is used twice: in the
plain loop, where autograd records it and `put` holds nothing, and in the driver (`unroll.py`), where it
writes into the buffers of `put`. `backward` is its derivative by hand, for the driver: `product.back(d,
plus)` is `plus + Wᵀ d`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol, final

import torch
from torch import Tensor

from seqloom.errors import UsageError

CellState = tuple[Tensor, ...]
"""(h,) or (h, c) of one layer, each `(rows, its width)`; of a stack, each `(rows, layers, its width)`."""

Parts = tuple[Tensor, ...]
"""Of one step or of many, for each group of gates `(rows, gates * width)`."""


class RecurrentProduct(Protocol):
    """A weight's product with (something made of) the state. `back` is for the driver; autograd does without."""

    def __call__(self, u: Tensor, plus: Tensor | None = None) -> Tensor: ...

    def back(self, d: Tensor, plus: Tensor | None = None) -> Tensor: ...


class CellNorm(Protocol):
    """A normalisation of the cell state c."""

    def __call__(self, c: Tensor) -> Tensor: ...

    def back(self, d: Tensor) -> Tensor: ...


class CellOps(NamedTuple):
    """What a layer lends its cell."""

    products: tuple[RecurrentProduct, ...]
    """One for each part that the state feeds."""
    b_h: Tensor | None = None
    """`(width,)`: the bias of the candidate's product, where a gate multiplies that."""
    project: RecurrentProduct | None = None
    norm_c: CellNorm | None = None


class StepBuffers(NamedTuple):
    """Where a step writes; None: new tensors, for autograd."""

    state: tuple[Tensor | None, ...]
    kept: tuple[Tensor | None, ...]


class Cell(Protocol):
    """What distinguishes one recurrent cell from another."""

    @property
    def parts(self) -> tuple[tuple[str, ...], ...]:
        """The gates in groups that are computed together; in this order are the blocks of W_x, W_h and b (the
        order of torch where torch has the cell)."""
        ...

    @property
    def fed(self) -> tuple[bool, ...]:
        """Which parts the state feeds: W_h has their blocks."""
        ...

    @property
    def bare(self) -> str | None:
        """The gate, a part of its own, that gets x itself (or P x where the widths differ)."""
        ...

    @property
    def squashed(self) -> bool:
        """Whether it gets tanh of that."""
        ...

    @property
    def states(self) -> int:
        """1: h; 2: h and c."""
        ...

    @property
    def kept(self) -> tuple[int, ...]:
        """What a step keeps for its backward step, in widths: the values of the gates in order, then others."""
        ...

    @property
    def left(self) -> tuple[int, ...]:
        """What a step back leaves, in widths: the gradients of the input's parts in order, then others. Each
        may lie over what is kept at the same place."""
        ...

    def forward(self, x: Parts, old: CellState, tools: CellOps, put: StepBuffers) -> tuple[CellState, Parts]:
        """The input's parts and the old state -> the new state, and what is kept."""
        ...

    def backward(
        self, d: CellState, kept: Parts, old: CellState, new: CellState, tools: CellOps, put: Parts
    ) -> CellState:
        """The gradient of the new state -> of the old state; what is `left` (and the gradient of the
        projected h) into `put`."""
        ...

    def operands(self, d: Parts, kept: Parts, old: CellState) -> tuple[tuple[Tensor, Tensor], ...]:
        """Of each product (the projection last), where the steps back leave the gradient of its result, and
        what it was taken with: W's gradient is `dᵀ u`. To be called before the steps back."""
        ...


def gates_of(cell: Cell) -> tuple[str, ...]:
    return tuple(gate for part in cell.parts for gate in part)


def fed_gates(cell: Cell) -> tuple[str, ...]:
    """The gates that have a block of W_h, in its order."""
    return tuple(gate for part, fed in zip(cell.parts, cell.fed, strict=True) if fed for gate in part)


def has_hidden_bias(cell: Cell) -> bool:
    return isinstance(cell, GRUTorch)


def gate_values(cell: Cell, kept: Parts, new: CellState) -> dict[str, Tensor]:
    """The values of the gates in a step, each `(rows, width)`."""
    width = new[-1].shape[-1]
    values = torch.cat(kept, dim=-1) if kept else new[0]
    return dict(zip(gates_of(cell), values.chunk(values.shape[-1] // width, dim=-1), strict=False))


_TANH, _TANH_INTO = torch.ops.aten.tanh_backward.default, torch.ops.aten.tanh_backward.grad_input
_SIGMOID, _SIGMOID_INTO = torch.ops.aten.sigmoid_backward.default, torch.ops.aten.sigmoid_backward.grad_input
_RELU_INTO = torch.ops.aten.threshold_backward.grad_input


def tanh_slope(d: Tensor, y: Tensor, out: Tensor | None = None) -> Tensor:
    """d ⊙ (1 - y²), where y = tanh."""
    result: Tensor = _TANH(d, y) if out is None else _TANH_INTO(d, y, grad_input=out)
    return result


def sigmoid_slope(d: Tensor, y: Tensor, out: Tensor | None = None) -> Tensor:
    """d ⊙ y ⊙ (1 - y), where y = σ."""
    result: Tensor = _SIGMOID(d, y) if out is None else _SIGMOID_INTO(d, y, grad_input=out)
    return result


def relu_slope(d: Tensor, y: Tensor, out: Tensor) -> Tensor:
    """d where y > 0."""
    result: Tensor = _RELU_INTO(d, y, 0, grad_input=out)
    return result


def _put(value: Tensor, out: Tensor | None) -> Tensor:
    return value if out is None else out.copy_(value)


def _relu(total: Tensor, out: Tensor | None) -> Tensor:
    result: Tensor = torch.threshold(total, 0, 0, out=out)
    return result


NONLINEARITIES: dict[str, Any] = {"tanh": torch.tanh, "relu": _relu, "sigmoid": torch.sigmoid}
SLOPES: dict[str, Any] = {"tanh": tanh_slope, "relu": relu_slope, "sigmoid": sigmoid_slope}


@final
@dataclass(frozen=True)
class Elman:
    g: Literal["tanh", "relu", "sigmoid"] = "tanh"
    parts = (("h",),)
    fed = (True,)
    bare = None
    squashed = False
    states = 1
    kept = ()
    left = (1,)

    def forward(self, x: Parts, old: CellState, tools: CellOps, put: StepBuffers) -> tuple[CellState, Parts]:
        return (NONLINEARITIES[self.g](tools.products[0](old[0], x[0]), out=put.state[0]),), ()

    def backward(
        self, d: CellState, kept: Parts, old: CellState, new: CellState, tools: CellOps, put: Parts
    ) -> CellState:
        return (tools.products[0].back(SLOPES[self.g](d[0], new[0], put[0])),)

    def operands(self, d: Parts, kept: Parts, old: CellState) -> tuple[tuple[Tensor, Tensor], ...]:
        return ((d[0], old[0]),)


@final
@dataclass(frozen=True)
class LSTM:
    parts = (("i", "f", "g", "o"),)
    fed = (True,)
    bare = None
    squashed = False
    states = 2
    kept = (4, 1)
    """i, f, g and o, tanh(c)."""
    left = (4,)

    def forward(self, x: Parts, old: CellState, tools: CellOps, put: StepBuffers) -> tuple[CellState, Parts]:
        h, c = old
        sizes = [2 * c.shape[1], c.shape[1], c.shape[1]]
        i_f, g, o = tools.products[0](h, x[0]).split_with_sizes(sizes, dim=1)
        places = (None, None, None) if put.kept[0] is None else put.kept[0].split_with_sizes(sizes, dim=1)
        i_f, g, o = (
            torch.sigmoid(i_f, out=places[0]),
            torch.tanh(g, out=places[1]),
            torch.sigmoid(o, out=places[2]),
        )
        i, f = i_f.chunk(2, dim=1)
        c = torch.addcmul(f * c, i, g, out=put.state[1])
        tanh_c = torch.tanh(c if tools.norm_c is None else tools.norm_c(c), out=put.kept[1])
        if tools.project is None:
            h = torch.mul(o, tanh_c, out=put.state[0])
        else:
            h = _put(tools.project(o * tanh_c), put.state[0])
        return (h, c), (i_f, g, o, tanh_c)

    def backward(
        self, d: CellState, kept: Parts, old: CellState, new: CellState, tools: CellOps, put: Parts
    ) -> CellState:
        (d_h, d_c), (gates, tanh_c) = d, kept
        i, f, g, o = gates.chunk(4, dim=1)
        d_i, d_f, d_g, d_o = put[0].chunk(4, dim=1)
        if tools.project is not None:
            d_h = tools.project.back(put[1].copy_(d_h))
        sigmoid_slope(d_h * tanh_c, o, d_o)
        through_h = tanh_slope(d_h * o, tanh_c)
        d_c = d_c + (through_h if tools.norm_c is None else tools.norm_c.back(through_h))
        sigmoid_slope(d_c * g, i, d_i)
        sigmoid_slope(d_c * old[1], f, d_f)
        tanh_slope(d_c * i, g, d_g)
        return tools.products[0].back(put[0]), d_c * f

    def operands(self, d: Parts, kept: Parts, old: CellState) -> tuple[tuple[Tensor, Tensor], ...]:
        of_projection = ((d[1], kept[0].chunk(4, dim=1)[3] * kept[1]),) if len(d) > 1 else ()
        return (d[0], old[0]), *of_projection


def _mixed(d_h: Tensor, h: Tensor, kept: Parts, put: Parts) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """What the backward steps of the two GRUs share: r, the gradients of the sums of z and of the candidate,
    and of h_{t-1} but for what comes through the gates and the candidate."""
    (r, z), candidate = kept[0].chunk(2, dim=-1), kept[1]
    d_z = sigmoid_slope(d_h * (h - candidate), z)
    d_old = d_h * z
    return r, d_z, tanh_slope(d_h - d_old, candidate, put[1]), d_old


@final
@dataclass(frozen=True)
class GRU:
    parts = (("r", "z"), ("h",))
    fed = (True, True)
    bare = None
    squashed = False
    states = 1
    kept = (2, 1, 1)
    """r and z, the candidate, r ⊙ h."""
    left = (2, 1)

    def forward(self, x: Parts, old: CellState, tools: CellOps, put: StepBuffers) -> tuple[CellState, Parts]:
        (h,), (by_h, by_reset) = old, tools.products
        r_z = torch.sigmoid(by_h(h, x[0]), out=put.kept[0])
        r, z = r_z.chunk(2, dim=-1)
        reset = torch.mul(r, h, out=put.kept[2])
        candidate = torch.tanh(by_reset(reset, x[1]), out=put.kept[1])
        return (torch.lerp(candidate, h, z, out=put.state[0]),), (r_z, candidate, reset)

    def backward(
        self, d: CellState, kept: Parts, old: CellState, new: CellState, tools: CellOps, put: Parts
    ) -> CellState:
        (h,), (by_h, by_reset) = old, tools.products
        r, d_z, d_candidate, d_old = _mixed(d[0], h, kept, put)
        d_reset = by_reset.back(d_candidate)
        d_r_z = torch.cat([sigmoid_slope(d_reset * h, r), d_z], dim=1, out=put[0])
        return (by_h.back(d_r_z, d_old.addcmul_(d_reset, r)),)

    def operands(self, d: Parts, kept: Parts, old: CellState) -> tuple[tuple[Tensor, Tensor], ...]:
        return (d[0], old[0]), (d[1], kept[2])


@final
@dataclass(frozen=True)
class GRUTorch:
    parts = (("r", "z"), ("h",))
    fed = (True, True)
    bare = None
    squashed = False
    states = 1
    kept = (2, 1, 1)
    """r and z, the candidate, its W_h h + b_h."""
    left = (2, 1, 1)

    def forward(self, x: Parts, old: CellState, tools: CellOps, put: StepBuffers) -> tuple[CellState, Parts]:
        (h,), (by_h, to_candidate) = old, tools.products
        assert tools.b_h is not None
        r_z = torch.sigmoid(by_h(h, x[0]), out=put.kept[0])
        r, z = r_z.chunk(2, dim=-1)
        of_h = _put(to_candidate(h, tools.b_h), put.kept[2])
        candidate = torch.tanh(torch.addcmul(x[1], r, of_h), out=put.kept[1])
        return (torch.lerp(candidate, h, z, out=put.state[0]),), (r_z, candidate, of_h)

    def backward(
        self, d: CellState, kept: Parts, old: CellState, new: CellState, tools: CellOps, put: Parts
    ) -> CellState:
        by_h, to_candidate = tools.products
        r, d_z, d_candidate, d_old = _mixed(d[0], old[0], kept, put)
        d_r_z = torch.cat([sigmoid_slope(d_candidate * kept[2], r), d_z], dim=1, out=put[0])
        return (by_h.back(d_r_z, to_candidate.back(torch.mul(d_candidate, r, out=put[2]), d_old)),)

    def operands(self, d: Parts, kept: Parts, old: CellState) -> tuple[tuple[Tensor, Tensor], ...]:
        return (d[0], old[0]), (d[2], old[0])


def _mutated(
    d_h: Tensor, h: Tensor, z: Tensor, r: Tensor, candidate: Tensor, by_reset: RecurrentProduct, put: Parts
) -> tuple[Tensor, Tensor, Tensor]:
    """What the backward steps of the three MUTs share: the gradients of the sums of z and r, and of h_{t-1}
    but for what comes through these two."""
    d_z = sigmoid_slope(d_h * (candidate - h), z, put[0])
    to_candidate = d_h * z
    d_reset = by_reset.back(tanh_slope(to_candidate, candidate, put[2]))
    d_r = sigmoid_slope(d_reset * h, r, put[1])
    return d_z, d_r, torch.sub(d_h, to_candidate).addcmul_(d_reset, r)


@final
@dataclass(frozen=True)
class MUT1:
    parts = (("z",), ("r",), ("h",))
    fed = (False, True, True)
    bare = "h"
    squashed = True
    states = 1
    kept = (1, 1, 1, 1)
    """z, r, the candidate, r ⊙ h."""
    left = (1, 1, 1)

    def forward(self, x: Parts, old: CellState, tools: CellOps, put: StepBuffers) -> tuple[CellState, Parts]:
        (h,), (by_h, by_reset) = old, tools.products
        z = torch.sigmoid(x[0], out=put.kept[0])
        r = torch.sigmoid(by_h(h, x[1]), out=put.kept[1])
        reset = torch.mul(r, h, out=put.kept[3])
        candidate = torch.tanh(by_reset(reset, x[2]), out=put.kept[2])
        return (torch.lerp(h, candidate, z, out=put.state[0]),), (z, r, candidate, reset)

    def backward(
        self, d: CellState, kept: Parts, old: CellState, new: CellState, tools: CellOps, put: Parts
    ) -> CellState:
        (z, r, candidate, _), (by_h, by_reset) = kept, tools.products
        _, d_r, d_old = _mutated(d[0], old[0], z, r, candidate, by_reset, put)
        return (by_h.back(d_r, d_old),)

    def operands(self, d: Parts, kept: Parts, old: CellState) -> tuple[tuple[Tensor, Tensor], ...]:
        return (d[1], old[0]), (d[2], kept[3])


@final
@dataclass(frozen=True)
class MUT2:
    parts = (("z",), ("r",), ("h",))
    fed = (True, True, True)
    bare = "r"
    squashed = False
    states = 1
    kept = (1, 1, 1, 1)
    """z, r, the candidate, r ⊙ h."""
    left = (1, 1, 1)

    def forward(self, x: Parts, old: CellState, tools: CellOps, put: StepBuffers) -> tuple[CellState, Parts]:
        (h,), (to_z, to_r, by_reset) = old, tools.products
        z, r = torch.sigmoid(to_z(h, x[0]), out=put.kept[0]), torch.sigmoid(to_r(h, x[1]), out=put.kept[1])
        reset = torch.mul(r, h, out=put.kept[3])
        candidate = torch.tanh(by_reset(reset, x[2]), out=put.kept[2])
        return (torch.lerp(h, candidate, z, out=put.state[0]),), (z, r, candidate, reset)

    def backward(
        self, d: CellState, kept: Parts, old: CellState, new: CellState, tools: CellOps, put: Parts
    ) -> CellState:
        (z, r, candidate, _), (to_z, to_r, by_reset) = kept, tools.products
        d_z, d_r, d_old = _mutated(d[0], old[0], z, r, candidate, by_reset, put)
        return (to_r.back(d_r, to_z.back(d_z, d_old)),)

    def operands(self, d: Parts, kept: Parts, old: CellState) -> tuple[tuple[Tensor, Tensor], ...]:
        return (d[0], old[0]), (d[1], old[0]), (d[2], kept[3])


@final
@dataclass(frozen=True)
class MUT3:
    parts = (("z",), ("r",), ("h",))
    fed = (True, True, True)
    bare = None
    squashed = False
    states = 1
    kept = (1, 1, 1, 1, 1)
    """z, r, the candidate, r ⊙ h, tanh(h)."""
    left = (1, 1, 1)

    def forward(self, x: Parts, old: CellState, tools: CellOps, put: StepBuffers) -> tuple[CellState, Parts]:
        (h,), (by_tanh, by_h, by_reset) = old, tools.products
        tanh_h = torch.tanh(h, out=put.kept[4])
        z, r = (
            torch.sigmoid(by_tanh(tanh_h, x[0]), out=put.kept[0]),
            torch.sigmoid(by_h(h, x[1]), out=put.kept[1]),
        )
        reset = torch.mul(r, h, out=put.kept[3])
        candidate = torch.tanh(by_reset(reset, x[2]), out=put.kept[2])
        return (torch.lerp(h, candidate, z, out=put.state[0]),), (z, r, candidate, reset, tanh_h)

    def backward(
        self, d: CellState, kept: Parts, old: CellState, new: CellState, tools: CellOps, put: Parts
    ) -> CellState:
        (z, r, candidate, _, tanh_h), (by_tanh, by_h, by_reset) = kept, tools.products
        d_z, d_r, d_old = _mutated(d[0], old[0], z, r, candidate, by_reset, put)
        d_old += tanh_slope(by_tanh.back(d_z), tanh_h)
        return (by_h.back(d_r, d_old),)

    def operands(self, d: Parts, kept: Parts, old: CellState) -> tuple[tuple[Tensor, Tensor], ...]:
        return (d[0], kept[4]), (d[1], old[0]), (d[2], kept[3])


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


def cell_named(name: str) -> Cell:
    """Raises UsageError for an unknown name."""
    if name not in CELLS:
        raise UsageError(f"cell must be one of {', '.join(CELLS)}, but is {name!r}")
    return CELLS[name]
