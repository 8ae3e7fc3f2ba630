"""The one driver that runs any cell over time, forward and backward.

The true steps of all rows lie in one packed order: all rows at their first true step, all rows at their second, and so
on, longer rows first, so that the rows of a step are the first of those of the step before. Padding is never
computed, wherever it lies; the backward direction is the same driver over another order of the same steps. The input
product of all steps is one matrix product; the loop runs inside one autograd.Function, whose backward is
backpropagation through time by hand and forms each weight's gradient in one product after the loop.
"""

from __future__ import annotations

from typing import Any, NamedTuple, final

import torch
from torch import Tensor

from seqloom.layers.cells import Cell, Weights


class Order(NamedTuple):
    """Where the true steps of `(rows, steps)` lie in the packed order."""

    flat: Tensor | None
    """`(true steps,)`: index into rows × steps; None: every step of every row, time first."""
    sizes: list[int]
    """Rows of each step, falling."""
    rows: Tensor | None
    """`(rows,)`: the row at each place of the first step; None: as they are."""
    back: Tensor | None
    """The inverse of `rows`."""
    last: Tensor | None
    """`(places,)`: packed position of each place's last true step; None: the last step's."""
    before: Tensor | None
    """`(true steps - places,)`: packed position of the step before each one after the first."""


def packed_order(mask: Tensor, backward: bool) -> Order:
    """The order of the true steps of `mask` `(rows, steps)`, from the first on or from the last back."""
    rows, steps = mask.shape
    if bool(mask.all()):
        flat = torch.arange(rows * steps, device=mask.device).view(rows, steps).flip(1).T.flatten() if backward else None
        return Order(flat, [rows] * steps, None, None, None, None)
    lengths = mask.sum(dim=1)
    places = lengths.argsort(descending=True, stable=True)
    lengths = lengths[places]
    padding = (~mask[places]).to(torch.int8)
    if backward:
        index = steps - 1 - padding.flip(1).argsort(dim=1, stable=True)
    else:
        index = padding.argsort(dim=1, stable=True)
    index = (places[:, None] * steps + index).T  # (steps, places): a place's true steps first
    live = torch.arange(steps, device=mask.device)[:, None] < lengths
    flat = index[live]
    position = torch.zeros_like(index)
    position[live] = torch.arange(len(flat), device=mask.device)
    last = position.gather(0, (lengths - 1).clamp(min=0)[None])[0]
    sizes = [size for size in live.sum(dim=1).tolist() if size]
    return Order(flat, sizes, places, places.argsort(), last, position[:-1][live[1:]])


@final
class Unroll(torch.autograd.Function):
    """A layer in one direction: inputs `(rows, steps, input)` -> outputs `(rows, steps, width)` and the final state."""

    @staticmethod
    def forward(
        ctx: Any, cell: Cell, order: Order, inputs: Tensor, w_x: Tensor, b: Tensor, w_h: Tensor, b_h: Tensor | None, *initial: Tensor
    ) -> tuple[Tensor, ...]:
        weights = Weights(w_h, b_h)
        x = pack(inputs, order)
        a = torch.addmm(b, x, w_x.T)
        width = w_h.shape[1]
        first = tuple(_place(state, order) for state in initial)
        new = tuple(a.new_empty(len(a), width) for _ in initial)
        extra = a.new_empty(len(a), width * cell.extra)
        start = before = 0
        for size in order.sizes:
            now = slice(start, start + size)
            old = tuple((state if start == 0 else packed[before:])[:size] for state, packed in zip(first, new, strict=True))
            cell.forward(a[now], old, tuple(packed[now] for packed in new), extra[now], weights)
            before, start = start, start + size
        ctx.cell, ctx.order, ctx.shape, ctx.states = cell, order, inputs.shape, len(initial)
        ctx.save_for_backward(x, w_x, w_h, b_h, a, extra, *first, *new)
        final = tuple(_final(state, packed, order) for state, packed in zip(initial, new, strict=True))
        return unpack(new[0], order, inputs.shape), *final

    @staticmethod
    def backward(ctx: Any, d_outputs: Tensor, *d_final: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():  # create_graph=True
            raise RuntimeError("a recurrent layer has no second derivative: its backward pass is written by hand")
        cell, order = ctx.cell, ctx.order
        x, w_x, w_h, b_h, a, extra, *states = ctx.saved_tensors
        first, new = states[: ctx.states], states[ctx.states :]
        old = tuple(_before(state, packed, order) for state, packed in zip(first, new, strict=True))
        slopes = cell.slopes(a, old, new, extra)
        d_y = pack(d_outputs, order)
        d, weights = torch.empty_like(a), Weights(w_h, b_h)
        carry = tuple(_place(part, order, copy=True) for part in d_final)
        end = len(a)
        for size in reversed(order.sizes):
            now = slice(end - size, end)
            d_state = tuple(part[:size] for part in carry)
            d_state[0].add_(d_y[now])
            cell.backward(d[now], d_state, tuple(slope[now] for slope in slopes), a[now], weights)
            end -= size
        d_w_h, d_b_h = cell.weight_gradients(d, a, old, extra)
        d_x = unpack(d @ w_x, order, ctx.shape) if ctx.needs_input_grad[2] else None
        d_initial = (part if order.back is None else part[order.back] for part in carry)
        return None, None, d_x, d.T @ x, d.sum(dim=0), d_w_h, d_b_h, *d_initial


def pack(sequences: Tensor, order: Order) -> Tensor:
    """`(rows, steps, width)` -> the true steps `(true steps, width)`."""
    if order.flat is None:
        return sequences.transpose(0, 1).reshape(-1, sequences.shape[-1])
    return sequences.flatten(0, 1).index_select(0, order.flat)


def unpack(packed: Tensor, order: Order, shape: torch.Size) -> Tensor:
    """The inverse; padding is 0."""
    if order.flat is None:
        return packed.view(shape[1], shape[0], -1).transpose(0, 1)
    return packed.new_zeros(shape[0] * shape[1], packed.shape[1]).index_copy_(0, order.flat, packed).view(shape[0], shape[1], -1)


def _place(state: Tensor, order: Order, copy: bool = False) -> Tensor:
    if order.rows is None:
        return state.clone() if copy else state
    return state.index_select(0, order.rows)


def _final(initial: Tensor, packed: Tensor, order: Order) -> Tensor:
    if order.rows is None:
        return packed[len(packed) - order.sizes[-1] :].clone() if order.sizes else initial.clone()
    assert order.last is not None
    assert order.back is not None
    final = initial.index_select(0, order.rows)
    live = order.sizes[0] if order.sizes else 0
    final[:live] = packed[order.last[:live]]
    return final[order.back]


def _before(first: Tensor, packed: Tensor, order: Order) -> Tensor:
    """The state before each packed step."""
    size = order.sizes[0] if order.sizes else 0
    later = packed[: len(packed) - order.sizes[-1]] if order.before is None else packed.index_select(0, order.before)
    return torch.cat([first[:size], later])
