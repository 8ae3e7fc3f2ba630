"""The recurrent cells: each is its equations, its forward step and its backward step.

    elman, elman-relu   h_t = g(W_x x_t + W_h h_{t-1} + b)                              Elman 1990
    lstm                c_t = f ⊙ c_{t-1} + i ⊙ g,  h_t = o ⊙ tanh(c_t)                 Hochreiter and Schmidhuber 1997, Gers 2000
    gru                 h̃ = tanh(W_x x_t + W_h (r ⊙ h_{t-1}) + b),
                        h_t = z ⊙ h_{t-1} + (1 - z) ⊙ h̃                                 Cho et al. 2014, as published
    gru-torch           as gru, but h̃ = tanh(W_x x_t + b + r ⊙ (W_h h_{t-1} + b_h))     as in torch.nn.GRU and cuDNN

`step` is the plain form, for autograd: a decoder that looks at something between its steps uses it, and it is the
reference of the tests. The other methods serve the driver (`unroll.py`), which runs a cell over time and backpropagates
by hand. There `a` `(rows, gates * width)` arrives as the input's product with all gates and leaves as the gates' values;
before the loop back, `slopes` forms for all steps at once what does not depend on the loop; a backward step turns the
gradient of the new state into that of `a` before its nonlinearities (in `d`) and that of the old state (in place).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol, final

import torch
from torch import Tensor
from torch.nn import functional as F

from seqloom.errors import UsageError

CellState = tuple[Tensor, ...]
"""(h,) or (h, c) of one layer, each `(rows, width)`; of a stack, each `(rows, layers, width)`."""


class Weights(NamedTuple):
    """What multiplies the state."""

    w_h: Tensor
    """`(gates * width, width)`"""
    b_h: Tensor | None
    """`(gates * width,)`, where a gate multiplies the product with the state, so that its bias is one of its own."""


class Cell(Protocol):
    """What distinguishes one recurrent cell from another."""

    @property
    def gates(self) -> tuple[str, ...]:
        """The blocks of W_x, W_h and b, in order (torch's order, so weights convert by name)."""
        ...

    @property
    def states(self) -> int:
        """1: h; 2: h and c."""
        ...

    @property
    def hidden_bias(self) -> bool:
        """Whether there is a b_h."""
        ...

    @property
    def extra(self) -> int:
        """Values a unit, besides gates and states, that a forward step keeps for the backward step."""
        ...

    def step(self, product: Tensor, state: CellState, weights: Weights) -> CellState:
        """The input's product with W_x (plus b) `(rows, gates * width)` and the old state -> the new state."""
        ...

    def gate_values(self, product: Tensor, state: CellState, weights: Weights) -> dict[str, Tensor]:
        """What `step` computes on its way, by the names of `gates`."""
        ...

    def forward(self, a: Tensor, old: CellState, new: CellState, extra: Tensor, weights: Weights) -> None:
        """The same, written into `a`, `new` and `extra`."""
        ...

    def slopes(self, a: Tensor, old: CellState, new: CellState, extra: Tensor) -> tuple[Tensor, ...]:
        """Local derivatives of all steps."""
        ...

    def backward(self, d: Tensor, d_state: CellState, slopes: tuple[Tensor, ...], a: Tensor, weights: Weights) -> None:
        """Gradient of the new state (in `d_state`) -> of the sums behind `a` (in `d`) and of the old state (in `d_state`)."""
        ...

    def weight_gradients(self, d: Tensor, a: Tensor, old: CellState, extra: Tensor) -> tuple[Tensor, Tensor | None]:
        """Of W_h and b_h, over all steps at once."""
        ...


@final
@dataclass(frozen=True)
class Elman:
    """`h' = g(W_x x + W_h h + b)`, g = tanh or ReLU."""

    relu: bool = False
    gates = ("h",)
    states = 1
    hidden_bias = False
    extra = 0

    def step(self, product: Tensor, state: CellState, weights: Weights) -> CellState:
        total = product + F.linear(state[0], weights.w_h)
        return (torch.relu(total) if self.relu else torch.tanh(total),)

    def gate_values(self, product: Tensor, state: CellState, weights: Weights) -> dict[str, Tensor]:
        return {"h": self.step(product, state, weights)[0]}

    def forward(self, a: Tensor, old: CellState, new: CellState, extra: Tensor, weights: Weights) -> None:
        torch.addmm(a, old[0], weights.w_h.T, out=new[0])
        new[0].relu_() if self.relu else new[0].tanh_()

    def slopes(self, a: Tensor, old: CellState, new: CellState, extra: Tensor) -> tuple[Tensor, ...]:
        h = new[0]
        return ((h > 0).to(h.dtype) if self.relu else 1 - h * h,)

    def backward(self, d: Tensor, d_state: CellState, slopes: tuple[Tensor, ...], a: Tensor, weights: Weights) -> None:
        torch.mul(d_state[0], slopes[0], out=d)
        torch.mm(d, weights.w_h, out=d_state[0])

    def weight_gradients(self, d: Tensor, a: Tensor, old: CellState, extra: Tensor) -> tuple[Tensor, Tensor | None]:
        return d.T @ old[0], None


@final
@dataclass(frozen=True)
class LSTM:
    """`extra` is tanh(c')."""

    gates = ("i", "f", "g", "o")
    states = 2
    hidden_bias = False
    extra = 1

    def step(self, product: Tensor, state: CellState, weights: Weights) -> CellState:
        h, c = state
        i, f, g, o = (product + F.linear(h, weights.w_h)).chunk(4, dim=-1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        return torch.sigmoid(o) * torch.tanh(c), c

    def gate_values(self, product: Tensor, state: CellState, weights: Weights) -> dict[str, Tensor]:
        i, f, g, o = (product + F.linear(state[0], weights.w_h)).chunk(4, dim=-1)
        return {"i": torch.sigmoid(i), "f": torch.sigmoid(f), "g": torch.tanh(g), "o": torch.sigmoid(o)}

    def forward(self, a: Tensor, old: CellState, new: CellState, extra: Tensor, weights: Weights) -> None:
        width = old[0].shape[1]
        a.addmm_(old[0], weights.w_h.T)
        i_f, g, o = a[:, : 2 * width].sigmoid_(), a[:, 2 * width : 3 * width].tanh_(), a[:, 3 * width :].sigmoid_()
        torch.mul(i_f[:, width:], old[1], out=new[1]).addcmul_(i_f[:, :width], g)
        torch.tanh(new[1], out=extra)
        torch.mul(o, extra, out=new[0])

    def slopes(self, a: Tensor, old: CellState, new: CellState, extra: Tensor) -> tuple[Tensor, ...]:
        i, f, g, o = a.chunk(4, dim=1)
        by_c = torch.empty_like(a)  # of i, f, g with respect to c; of o with respect to h
        torch.mul(g, i * (1 - i), out=by_c[:, : i.shape[1]])
        torch.mul(old[1], f * (1 - f), out=by_c[:, i.shape[1] : 2 * i.shape[1]])
        torch.mul(i, 1 - g * g, out=by_c[:, 2 * i.shape[1] : 3 * i.shape[1]])
        torch.mul(extra, o * (1 - o), out=by_c[:, 3 * i.shape[1] :])
        return by_c, o * (1 - extra * extra)

    def backward(self, d: Tensor, d_state: CellState, slopes: tuple[Tensor, ...], a: Tensor, weights: Weights) -> None:
        d_h, d_c = d_state
        width = d_h.shape[1]
        d_c.addcmul_(d_h, slopes[1])
        torch.mul(slopes[0].view(-1, 4, width)[:, :3], d_c.unsqueeze(1), out=d.view(-1, 4, width)[:, :3])
        torch.mul(slopes[0][:, 3 * width :], d_h, out=d[:, 3 * width :])
        d_c.mul_(a[:, width : 2 * width])
        torch.mm(d, weights.w_h, out=d_h)

    def weight_gradients(self, d: Tensor, a: Tensor, old: CellState, extra: Tensor) -> tuple[Tensor, Tensor | None]:
        return d.T @ old[0], None


@final
@dataclass(frozen=True)
class GRU:
    """As published: `extra` is r ⊙ h."""

    gates = ("r", "z", "h")
    states = 1
    hidden_bias = False
    extra = 1

    def step(self, product: Tensor, state: CellState, weights: Weights) -> CellState:
        (h,) = state
        width = h.shape[-1]
        gates = torch.sigmoid(product[:, : 2 * width] + F.linear(h, weights.w_h[: 2 * width]))
        r, z = gates.chunk(2, dim=-1)
        candidate = torch.tanh(product[:, 2 * width :] + F.linear(r * h, weights.w_h[2 * width :]))
        return (candidate + z * (h - candidate),)  # z ⊙ h + (1 - z) ⊙ candidate

    def gate_values(self, product: Tensor, state: CellState, weights: Weights) -> dict[str, Tensor]:
        (h,) = state
        width = h.shape[-1]
        r, z = torch.sigmoid(product[:, : 2 * width] + F.linear(h, weights.w_h[: 2 * width])).chunk(2, dim=-1)
        return {"r": r, "z": z, "h": torch.tanh(product[:, 2 * width :] + F.linear(r * h, weights.w_h[2 * width :]))}

    def forward(self, a: Tensor, old: CellState, new: CellState, extra: Tensor, weights: Weights) -> None:
        h, width = old[0], old[0].shape[1]
        r_z, candidate = a[:, : 2 * width], a[:, 2 * width :]
        r_z.addmm_(h, weights.w_h[: 2 * width].T).sigmoid_()
        torch.mul(r_z[:, :width], h, out=extra)
        candidate.addmm_(extra, weights.w_h[2 * width :].T).tanh_()
        torch.sub(h, candidate, out=new[0]).mul_(r_z[:, width:]).add_(candidate)

    def slopes(self, a: Tensor, old: CellState, new: CellState, extra: Tensor) -> tuple[Tensor, ...]:
        r, z, candidate = a.chunk(3, dim=1)
        h = old[0]
        by_h = torch.empty_like(a)
        width = h.shape[1]
        torch.mul(extra, 1 - r, out=by_h[:, :width])  # h r (1 - r)
        torch.mul((h - candidate).mul_(z), 1 - z, out=by_h[:, width : 2 * width])
        torch.mul(1 - z, 1 - candidate * candidate, out=by_h[:, 2 * width :])
        return (by_h,)

    def backward(self, d: Tensor, d_state: CellState, slopes: tuple[Tensor, ...], a: Tensor, weights: Weights) -> None:
        (d_h,) = d_state
        width = d_h.shape[1]
        torch.mul(slopes[0].view(-1, 3, width)[:, 1:], d_h.unsqueeze(1), out=d.view(-1, 3, width)[:, 1:])
        d_reset = d[:, 2 * width :] @ weights.w_h[2 * width :]
        torch.mul(slopes[0][:, :width], d_reset, out=d[:, :width])
        d_h.mul_(a[:, width : 2 * width]).addcmul_(d_reset, a[:, :width])
        d_h.addmm_(d[:, : 2 * width], weights.w_h[: 2 * width])

    def weight_gradients(self, d: Tensor, a: Tensor, old: CellState, extra: Tensor) -> tuple[Tensor, Tensor | None]:
        width = old[0].shape[1]
        return torch.cat([d[:, : 2 * width].T @ old[0], d[:, 2 * width :].T @ extra]), None


@final
@dataclass(frozen=True)
class GRUTorch:
    """As in torch.nn.GRU: `extra` is W_h h + b_h of the candidate."""

    gates = ("r", "z", "h")
    states = 1
    hidden_bias = True
    extra = 1

    def step(self, product: Tensor, state: CellState, weights: Weights) -> CellState:
        (h,) = state
        width = h.shape[-1]
        of_h = F.linear(h, weights.w_h, weights.b_h)
        r, z = torch.sigmoid(product[:, : 2 * width] + of_h[:, : 2 * width]).chunk(2, dim=-1)
        candidate = torch.tanh(product[:, 2 * width :] + r * of_h[:, 2 * width :])
        return (candidate + z * (h - candidate),)

    def gate_values(self, product: Tensor, state: CellState, weights: Weights) -> dict[str, Tensor]:
        (h,) = state
        width = h.shape[-1]
        of_h = F.linear(h, weights.w_h, weights.b_h)
        r, z = torch.sigmoid(product[:, : 2 * width] + of_h[:, : 2 * width]).chunk(2, dim=-1)
        return {"r": r, "z": z, "h": torch.tanh(product[:, 2 * width :] + r * of_h[:, 2 * width :])}

    def forward(self, a: Tensor, old: CellState, new: CellState, extra: Tensor, weights: Weights) -> None:
        h, width = old[0], old[0].shape[1]
        r_z, candidate = a[:, : 2 * width], a[:, 2 * width :]
        assert weights.b_h is not None
        torch.addmm(weights.b_h[2 * width :], h, weights.w_h[2 * width :].T, out=extra)
        r_z.addmm_(h, weights.w_h[: 2 * width].T).add_(weights.b_h[: 2 * width]).sigmoid_()
        candidate.addcmul_(r_z[:, :width], extra).tanh_()
        torch.sub(h, candidate, out=new[0]).mul_(r_z[:, width:]).add_(candidate)

    def slopes(self, a: Tensor, old: CellState, new: CellState, extra: Tensor) -> tuple[Tensor, ...]:
        r, z, candidate = a.chunk(3, dim=1)
        h, width = old[0], old[0].shape[1]
        by_h = torch.empty_like(a)  # of r with respect to the candidate's sum; of z and the candidate with respect to h
        torch.mul(extra, r * (1 - r), out=by_h[:, :width])
        torch.mul((h - candidate).mul_(z), 1 - z, out=by_h[:, width : 2 * width])
        torch.mul(1 - z, 1 - candidate * candidate, out=by_h[:, 2 * width :])
        return (by_h,)

    def backward(self, d: Tensor, d_state: CellState, slopes: tuple[Tensor, ...], a: Tensor, weights: Weights) -> None:
        (d_h,) = d_state
        width = d_h.shape[1]
        torch.mul(slopes[0].view(-1, 3, width)[:, 1:], d_h.unsqueeze(1), out=d.view(-1, 3, width)[:, 1:])
        d_candidate = d[:, 2 * width :]
        torch.mul(slopes[0][:, :width], d_candidate, out=d[:, :width])
        d_h.mul_(a[:, width : 2 * width])
        d_h.addmm_(d[:, : 2 * width], weights.w_h[: 2 * width]).addmm_(d_candidate * a[:, :width], weights.w_h[2 * width :])

    def weight_gradients(self, d: Tensor, a: Tensor, old: CellState, extra: Tensor) -> tuple[Tensor, Tensor | None]:
        width = old[0].shape[1]
        d_product = torch.cat([d[:, : 2 * width], d[:, 2 * width :] * a[:, :width]], dim=1)
        return d_product.T @ old[0], d_product.sum(dim=0)


CELLS: dict[str, Cell] = {
    "elman": Elman(),
    "elman-relu": Elman(relu=True),
    "lstm": LSTM(),
    "gru": GRU(),
    "gru-torch": GRUTorch(),
}


def cell_named(name: str) -> Cell:
    """Raises UsageError for an unknown name."""
    if name not in CELLS:
        raise UsageError(f"cell must be one of {', '.join(CELLS)}, but is {name!r}")
    return CELLS[name]
