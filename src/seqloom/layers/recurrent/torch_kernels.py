"""Torch's own kernels for a whole layer: oneDNN's LSTM on a CPU; cuDNN's LSTM, GRU and Elman layers on a GPU.

They run every step of every row, and `pack_padded_sequence` costs them a factor of up to five. So ragged rows
are sorted by length and run in a few rectangles, each over some steps and the rows that still have them.
Where a row ends inside a rectangle, an extra input closes the LSTM's input gate and opens its forget gate, so
that c stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from seqloom.layers.recurrent.cell_operations import LayerWeights
from seqloom.layers.recurrent.cells import LSTM, Cell, CellState, Elman, GRUTorch, gate_names
from seqloom.layers.recurrent.onednn_products import onednn_supports
from seqloom.layers.recurrent.packing import real_steps


class Kernel(NamedTuple):
    """Torch's functions for a cell."""

    sequence: Callable[..., tuple[Tensor, ...]]
    step: Callable[..., Tensor] | None
    """From h to h; the LSTM's step has another form."""


_KERNELS: dict[Cell, Kernel] = {
    Elman(): Kernel(torch.rnn_tanh, torch.rnn_tanh_cell),
    Elman("relu"): Kernel(torch.rnn_relu, torch.rnn_relu_cell),
    LSTM(): Kernel(torch.lstm, None),
    GRUTorch(): Kernel(torch.gru, torch.gru_cell),
}

SATURATED = 1e4
"""A sum at which σ is 1, and at whose negative it is 0, exactly."""

WASTE = 96
"""Steps of padding that are cheaper than one more call of a kernel, measured (docs/benchmarks.md)."""


def has_kernel(cell: Cell, weights: LayerWeights) -> bool:
    """Whether torch has one for this cell with these weights, on their device."""
    if weights.gain_x is not None or weights.gain_c is not None:
        return False
    w = weights.w_h
    if w.device.type == "cuda":
        return has_step(cell) and bool(torch.backends.cudnn.is_acceptable(w))  # type: ignore[no-untyped-call]
    return cell == LSTM() and weights.w_p is None and onednn_supports(w)


def run_full(
    cell: Cell, weights: LayerWeights, inputs: Tensor, state: CellState
) -> tuple[Tensor, CellState]:
    """inputs `(rows, steps, input)`, every step real -> outputs `(rows, steps, width of h)` and the last
    state."""
    return _call(cell, weights, inputs, state, batch_first=True)


class Rectangle(NamedTuple):
    """Steps and rows of one call."""

    start: int
    stop: int
    rows: int


def rectangles(lengths: list[int]) -> list[Rectangle]:
    """The calls for rows of these lengths, longest first, none of them 0. A new one begins where the rows
    that have ended would waste more than a call costs."""
    calls: list[Rectangle] = []
    start, rows, alive, waste = 0, len(lengths), len(lengths), 0
    for step in range(lengths[0] if lengths else 0):
        while lengths[alive - 1] <= step:
            alive -= 1
        waste += rows - alive
        if waste > WASTE:
            calls.append(Rectangle(start, step, rows))
            start, rows, waste = step, alive, 0
    return [*calls, Rectangle(start, lengths[0], rows)] if lengths else []


def kernel_cost(mask: Tensor) -> tuple[int, float]:
    """For rows with this mask `(rows, steps)`: how many calls they take, and the steps of padding that are
    computed for each real step."""
    lengths = sorted((length for length in mask.sum(dim=1).tolist() if length), reverse=True)
    calls = rectangles(lengths)
    computed = sum((call.stop - call.start) * call.rows for call in calls)
    return len(calls), computed / max(sum(lengths), 1) - 1


class KernelCall(NamedTuple):
    """One call over a rectangle. Its steps are flattened time first, `(steps * rows,)`."""

    steps: int
    rows: int
    flat_index: Tensor
    """Where each step is in rows × steps of all."""
    is_padding: Tensor
    """`(steps * rows, 1)`: whether the row has ended."""
    real: Tensor
    """`(real steps,)`: which of them are real."""


class KernelPlan(NamedTuple):
    """How ragged rows are run: the same for all layers of a stack."""

    sorted_indices: Tensor
    """`(rows,)`: the row at each place, longest first."""
    unsorted_indices: Tensor
    """The inverse."""
    calls: list[KernelCall]
    flat_index: Tensor
    """`(real steps,)`: where the real steps of all calls are in rows × steps."""
    last: Tensor
    """`(rows,)`, sorted: where each row's last real step is in rows × steps."""
    is_empty: Tensor
    """`(rows, 1)`, sorted: whether it has none."""


def kernel_plan(mask: Tensor, backward: bool) -> KernelPlan:
    """For `mask` `(rows, steps)`, true at real steps, anywhere; from each row's last step to its first where
    `backward`."""
    rows, lengths, index, is_real = real_steps(mask, backward)
    calls, real_index = list[KernelCall](), [rows.new_zeros(0)]
    for start, stop, alive in rectangles([length for length in lengths.tolist() if length]):
        block = slice(alive), slice(start, stop)
        here, real_here = index[block].T.flatten(), is_real[block].T.flatten()
        real = real_here.nonzero()[:, 0]
        calls.append(KernelCall(stop - start, alive, here, (~real_here)[:, None], real))
        real_index.append(here[real])
    last = index.gather(1, (lengths - 1).clamp(min=0)[:, None])[:, 0]
    return KernelPlan(
        rows, rows.argsort(), calls, torch.cat(real_index), last, (lengths == 0)[:, None]
    )


def run_ragged(
    cell: Cell, weights: LayerWeights, inputs: Tensor, plan: KernelPlan, state: CellState
) -> tuple[Tensor, CellState]:
    """`run_full` for ragged rows: the outputs of padding are 0."""
    rows, steps, _ = inputs.shape
    if not plan.calls:
        return inputs.new_zeros(rows, steps, state[0].shape[1]), state
    has_c = cell.state_count == 2
    learned = _with_padding_input(cell, weights) if has_c else weights
    flat, initial = (
        inputs.flatten(0, 1),
        tuple(part.index_select(0, plan.sorted_indices) for part in state),
    )
    now, outputs = initial, list[Tensor]()
    ended = [initial[-1][plan.calls[0].rows :]]  # c of the rows that have ended, the shortest first
    remaining = [*(call.rows for call in plan.calls[1:]), 0]
    for call, rows_after in zip(plan.calls, remaining, strict=True):
        now, x = tuple(part[: call.rows] for part in now), flat.index_select(0, call.flat_index)
        if has_c:
            x = torch.cat([x, call.is_padding.to(x.dtype)], dim=1)
        y, now = _call(cell, learned, x.view(call.steps, call.rows, -1), now, batch_first=False)
        outputs.append(y.flatten(0, 1).index_select(0, call.real))
        ended.append(now[-1][rows_after:])
    all_outputs = inputs.new_zeros(rows * steps, state[0].shape[1])
    all_outputs = all_outputs.index_copy(0, plan.flat_index, torch.cat(outputs))
    # the output gate changes h at padding even so: h is that of the last real step
    last: CellState = (
        torch.where(plan.is_empty, initial[0], all_outputs.index_select(0, plan.last)),
    )
    if has_c:
        last = *last, torch.cat(ended[::-1])
    after = tuple(part.index_select(0, plan.unsorted_indices) for part in last)
    return all_outputs.view(rows, steps, -1), after


def has_step(cell: Cell) -> bool:
    """Whether torch has a single step of this cell, on any device."""
    return cell in _KERNELS


def one_step(
    cell: Cell, x: Tensor, state: CellState, w_x: Tensor, w_h: Tensor, b: Tensor, b_h: Tensor | None
) -> CellState:
    """x `(rows, input)` -> the new state, by torch's own step."""
    if len(state) == 2:
        # without a look-up: it is what decoders use
        return torch.lstm_cell(x, state, w_x, w_h, b, None)
    step = _KERNELS[cell].step
    assert step is not None
    return (step(x, state[0], w_x, w_h, b, b_h),)


def _with_padding_input(cell: Cell, weights: LayerWeights) -> LayerWeights:
    """W_x with a column for an input that is 1 at padding."""
    sums = {"i": -SATURATED, "f": SATURATED}
    column = weights.b.new_tensor([sums.get(gate, 0.0) for gate in gate_names(cell)])
    column = column.repeat_interleave(weights.width(cell))
    return weights._replace(w_x=torch.cat([weights.w_x, column[:, None]], dim=1))


def _call(
    cell: Cell, weights: LayerWeights, inputs: Tensor, state: CellState, *, batch_first: bool
) -> tuple[Tensor, CellState]:
    b_h = torch.zeros_like(weights.b) if weights.b_h is None else weights.b_h
    learned = [weights.w_x, weights.w_h, weights.b, b_h]
    if weights.w_p is not None:
        learned.append(weights.w_p)
    initial = [part.unsqueeze(0).contiguous() for part in state]
    hidden = initial if len(initial) == 2 else initial[0]
    has_biases, layers, dropout, train, bidirectional = True, 1, 0.0, torch.is_grad_enabled(), False
    outputs, *last = _KERNELS[cell].sequence(
        inputs,
        hidden,
        learned,
        has_biases,
        layers,
        dropout,
        train,
        bidirectional,
        batch_first,
    )
    return outputs, tuple(part.squeeze(0) for part in last)
