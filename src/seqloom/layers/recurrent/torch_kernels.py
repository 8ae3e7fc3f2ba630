"""Torch's own kernels for a whole layer: oneDNN's LSTM on a CPU; cuDNN's LSTM, GRU and Elman layers on a GPU.

They run every step of every row, and `pack_padded_sequence` costs them a factor of up to five. So ragged rows
are ordered by length and run in a few rectangles, each over some steps and the rows that still go on. Where a
row ends inside of one, an extra input closes the LSTM's input gate and opens its forget gate, so that c stays
as it is.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from seqloom.layers.recurrent.cell_operations import LayerWeights
from seqloom.layers.recurrent.cells import LSTM, Cell, CellState, Elman, GRUTorch, gates_of
from seqloom.layers.recurrent.onednn_products import onednn_takes
from seqloom.layers.recurrent.packing import true_steps

SHUT = 1e4
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
    return isinstance(cell, LSTM) and weights.w_p is None and onednn_takes(w)


def run_full(cell: Cell, weights: LayerWeights, inputs: Tensor, state: CellState) -> tuple[Tensor, CellState]:
    """inputs `(rows, steps, input)`, every step true -> outputs `(rows, steps, width of h)` and the last
    state."""
    return _call(cell, weights, inputs, state, batch_first=True)


class Rectangle(NamedTuple):
    """Steps and rows of one call."""

    first: int
    last: int
    """The step after."""
    rows: int


def rectangles(lengths: list[int]) -> list[Rectangle]:
    """Of rows of these lengths, longest first, none of them 0."""
    found: list[Rectangle] = []
    first, rows, live, waste = 0, len(lengths), len(lengths), 0
    for step in range(lengths[0] if lengths else 0):
        while lengths[live - 1] <= step:
            live -= 1
        waste += rows - live
        if waste > WASTE:
            found.append(Rectangle(first, step, rows))
            first, rows, waste = step, live, 0
    return [*found, Rectangle(first, lengths[0], rows)] if lengths else []


def effort(mask: Tensor) -> tuple[int, float]:
    """Of rows with this mask `(rows, steps)`: how many calls they take, and the steps of padding computed for
    each true step."""
    lengths = sorted((length for length in mask.sum(dim=1).tolist() if length), reverse=True)
    parts = rectangles(lengths)
    return len(parts), sum((part.last - part.first) * part.rows for part in parts) / max(sum(lengths), 1) - 1


class KernelPlan(NamedTuple):
    """How ragged rows are run: the same for all layers of a stack."""

    places: Tensor
    """`(rows,)`: the row at each place, longest first."""
    back: Tensor
    """The inverse."""
    parts: list[tuple[Rectangle, Tensor, Tensor, Tensor]]
    """Of each call its steps time first: where they are in rows × steps, 1 where a row has ended, and which
    are true."""
    targets: Tensor
    """`(true steps,)`: where the true steps of all calls are in rows × steps."""
    last: Tensor
    """`(rows,)`: by place, where the last true step is."""
    empty: Tensor
    """`(rows, 1)`: by place, whether there is none."""


def kernel_plan(mask: Tensor, backward: bool) -> KernelPlan:
    """For `mask` `(rows, steps)`, true at real steps, anywhere; from each row's last step to its first where
    `backward`."""
    places, lengths, index, live = true_steps(mask, backward)
    parts, targets = [], [places.new_zeros(0)]
    for part in rectangles([length for length in lengths.tolist() if length]):
        block = slice(part.rows), slice(part.first, part.last)
        here, true = index[block].T.flatten(), live[block].T.flatten()
        kept = true.nonzero()[:, 0]
        parts.append((part, here, (~true)[:, None], kept))
        targets.append(here[kept])
    last = index.gather(1, (lengths - 1).clamp(min=0)[:, None])[:, 0]
    return KernelPlan(places, places.argsort(), parts, torch.cat(targets), last, (lengths == 0)[:, None])


def run_ragged(
    cell: Cell, weights: LayerWeights, inputs: Tensor, plan: KernelPlan, state: CellState
) -> tuple[Tensor, CellState]:
    """The same for ragged rows: the outputs of padding are 0."""
    rows, steps, _ = inputs.shape
    if not plan.parts:
        return inputs.new_zeros(rows, steps, state[0].shape[1]), state
    learned = _with_a_shutter(cell, weights) if cell.states == 2 else weights
    flat, placed = inputs.flatten(0, 1), tuple(part.index_select(0, plan.places) for part in state)
    now, outputs, ends = placed, [], [placed[-1][plan.parts[0][0].rows :]]
    for number, ((first, last, high), here, ended, kept) in enumerate(plan.parts):
        now, x = tuple(part[:high] for part in now), flat.index_select(0, here)
        if cell.states == 2:
            x = torch.cat([x, ended.to(x.dtype)], dim=1)
        y, now = _call(cell, learned, x.view(last - first, high, -1), now, batch_first=False)
        outputs.append(y.flatten(0, 1).index_select(0, kept))
        ends.append(now[-1][plan.parts[number + 1][0].rows if number + 1 < len(plan.parts) else 0 :])
    all_outputs = inputs.new_zeros(rows * steps, state[0].shape[1]).index_copy(
        0, plan.targets, torch.cat(outputs)
    )
    h = torch.where(plan.empty, placed[0], all_outputs.index_select(0, plan.last))
    last_state = (h, torch.cat(ends[::-1])) if cell.states == 2 else (h,)
    return all_outputs.view(rows, steps, -1), tuple(part.index_select(0, plan.back) for part in last_state)


def has_step(cell: Cell) -> bool:
    """Whether torch has a single step of this cell, on any device."""
    return isinstance(cell, LSTM | GRUTorch) or (isinstance(cell, Elman) and cell.g != "sigmoid")


def one_step(cell: Cell, x: Tensor, state: CellState, w_x: Any, w_h: Any, b: Any, b_h: Any) -> CellState:
    """x `(rows, input)` -> the new state, by torch's own step."""
    if isinstance(cell, LSTM):
        return torch.lstm_cell(x, state, w_x, w_h, b, None)
    if isinstance(cell, GRUTorch):
        return (torch.gru_cell(x, state[0], w_x, w_h, b, b_h),)
    assert isinstance(cell, Elman)
    return (
        (torch.rnn_tanh_cell if cell.g == "tanh" else torch.rnn_relu_cell)(x, state[0], w_x, w_h, b, None),
    )


def _with_a_shutter(cell: Cell, weights: LayerWeights) -> LayerWeights:
    """W_x with a column for an input that is 1 at padding."""
    sums = {"i": -SHUT, "f": SHUT}
    column = weights.b.new_tensor([sums.get(gate, 0.0) for gate in gates_of(cell)]).repeat_interleave(
        weights.width(cell)
    )
    return weights._replace(w_x=torch.cat([weights.w_x, column[:, None]], dim=1))


def _call(
    cell: Cell, weights: LayerWeights, inputs: Tensor, state: CellState, *, batch_first: bool
) -> tuple[Tensor, CellState]:
    b_h = torch.zeros_like(weights.b) if weights.b_h is None else weights.b_h
    learned = [weights.w_x, weights.w_h, weights.b, b_h, *([] if weights.w_p is None else [weights.w_p])]
    first = [part.unsqueeze(0).contiguous() for part in state]
    options = (
        True,
        1,
        0.0,
        torch.is_grad_enabled(),
        False,
        batch_first,
    )  # biases, one layer, no dropout, train, one direction
    if isinstance(cell, LSTM):
        outputs, *last = torch.lstm(inputs, first, learned, *options)
    elif isinstance(cell, GRUTorch):
        outputs, *last = torch.gru(inputs, first[0], learned, *options)
    else:
        assert isinstance(cell, Elman)
        outputs, *last = {"tanh": torch.rnn_tanh, "relu": torch.rnn_relu}[cell.g](
            inputs, first[0], learned, *options
        )
    return outputs, tuple(part.squeeze(0) for part in last)
