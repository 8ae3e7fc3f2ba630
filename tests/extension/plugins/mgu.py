"""A recurrent cell from outside: the minimal gated unit (Zhou et al. 2016, arXiv:1603.09420, equations 8 to
10).

f_t = σ(W_f x_t + U_f h_{t-1} + b_f)
h̃   = tanh(W_h x_t + U_h (f_t ⊙ h_{t-1}) + b_h)
h_t = (1 - f_t) ⊙ h_{t-1} + f_t ⊙ h̃
"""

from __future__ import annotations

from typing import final

import torch

import seqloom
from seqloom.layers.recurrent.cells import (
    Cell,
    CellOps,
    CellState,
    GateTensors,
    SavedStep,
    StepBuffers,
    StepResult,
    sigmoid_backward,
    tanh_backward,
)


@final
class MGU(Cell):
    gate_groups = (("f",), ("h",))
    reads_hidden = (True, True)
    saved_widths = (1, 1, 1)
    """f, the candidate, f ⊙ h."""
    backward_widths = (1, 1)
    product_inputs = (None, 2)

    def forward(
        self, x: GateTensors, state: CellState, ops: CellOps, out: StepBuffers
    ) -> StepResult:
        (h,), (by_h, by_gated) = state, ops.products
        f = torch.sigmoid(by_h(h, x[0]), out=out.saved[0])
        gated = torch.mul(f, h, out=out.saved[2])
        candidate = torch.tanh(by_gated(gated, x[1]), out=out.saved[1])
        return (torch.lerp(h, candidate, f, out=out.state[0]),), (f, candidate, gated)

    def backward(self, d: CellState, step: SavedStep, ops: CellOps, out: GateTensors) -> CellState:
        (d_h,), (f, candidate, _), (h,) = d, step.saved, step.old
        by_h, by_gated = ops.products
        d_f, to_candidate = d_h * (candidate - h), d_h * f
        d_gated = by_gated.backward(tanh_backward(to_candidate, candidate, out[1]))
        d_old = (d_h - to_candidate).addcmul_(d_gated, f)
        d_sum = sigmoid_backward(d_f.addcmul_(d_gated, h), f, out[0])  # last: it may overwrite f
        return (by_h.backward(d_sum, d_old),)


seqloom.register_cell("mgu", MGU)
