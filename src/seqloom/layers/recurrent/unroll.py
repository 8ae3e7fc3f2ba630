"""The one driver that runs any cell over time, forward and backward.

The input's product of all steps is one matrix product. The loop over time runs inside one autograd.Function,
over the packed order of the true steps (`packing.py`), compiled where that may be had (`native_cells.py`).
Its backward is backpropagation through time by hand: the gradients of all steps' sums first, then each
weight's gradient in one product. (Blocks of steps that fit into the cache were tried: they cost 1 to 10 %.)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

import torch
from torch import Tensor

from seqloom.layers.recurrent.cell_operations import InputProduct, LayerWeights, Recurrence
from seqloom.layers.recurrent.cells import Cell, CellState, Parts, StepBuffers
from seqloom.layers.recurrent.compiled_loops import NativeLoop, takes
from seqloom.layers.recurrent.compiled_products import beats_torch
from seqloom.layers.recurrent.large_pages import fresh
from seqloom.layers.recurrent.layer_inputs import Inputs
from seqloom.layers.recurrent.packing import (
    Order,
    before,
    last_of,
    lying,
    steps_in,
    steps_of,
    to_places,
    to_rows,
    unpack,
)

LEARNED = len(LayerWeights._fields)


@final
class Unroll(torch.autograd.Function):
    """A layer in one direction: inputs `(rows, steps, input)` -> outputs `(rows, steps, width of h)` and the
    final state.

    `keep`: whether there will be a backward pass. `scale` `(rows, width of h)` multiplies the state before
        each product
    with it (dropout of the state). The tensors are those of `LayerWeights`, then the initial state.
    """

    @staticmethod
    def forward(
        ctx: Any, cell: Cell, order: Order, keep: bool, scale: Tensor | None, inputs: Tensor, *tensors: Tensor
    ) -> tuple[Tensor, ...]:
        weights, initial = LayerWeights(*tensors[:LEARNED]), tensors[LEARNED:]
        ctx.cell, ctx.order = cell, order
        if not order.sizes:
            ctx.nothing = [
                None if tensor is None else torch.zeros_like(tensor) for tensor in (inputs, *weights)
            ]
            return inputs.new_zeros(*inputs.shape[:2], initial[0].shape[1]), *(
                state.clone() for state in initial
            )
        places, steps = order.sizes[0], sum(order.sizes)
        scale = None if scale is None else to_places(scale, order)[:places]
        recurrence = Recurrence(cell, weights, scale, order.sizes)
        states = [fresh(state, places + steps, state.shape[1]) for state in initial]
        for state, packed in zip(initial, states, strict=True):
            packed[:places] = to_places(state, order)[:places]
        ctx.compiled = takes(cell, weights, scale, [inputs], states)
        ctx.gemm = ctx.compiled and beats_torch()
        x = Inputs(inputs, order, compiled=ctx.gemm)
        parts, for_input = InputProduct(cell, weights)(x, normalise=not ctx.compiled)
        kept, raws = buffers(cell, parts, weights.width(cell)), recurrence.buffers(parts[0])
        if ctx.compiled:
            moments = recurrence.moments_of(steps)
            NativeLoop(
                cell, weights, order.sizes, parts, kept, states, normalised(for_input, raws, moments)
            ).ahead()
        else:
            forward_loop(cell, recurrence, order, parts, kept, raws, states)
            moments = recurrence.moments() if keep else []
        if keep:
            ctx.counts = len(states), len(for_input), len(kept), len(raws), len(moments)
            ctx.save_for_backward(inputs, scale, *weights, *states, *for_input, *kept, *raws, *moments)
        final = (last_of(state, packed, order) for state, packed in zip(initial, states, strict=True))
        return unpack(states[0][places:], order, inputs.shape), *final

    @staticmethod
    def backward(ctx: Any, d_outputs: Tensor, *d_final: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():  # create_graph=True
            raise RuntimeError(
                "a recurrent layer has no second derivative: its backward pass is written by hand"
            )
        cell, order = ctx.cell, ctx.order
        if not order.sizes:
            return None, None, None, None, *ctx.nothing, *d_final
        inputs, scale, *tensors = ctx.saved_tensors
        weights, tensors = LayerWeights(*tensors[:LEARNED]), iter(tensors[LEARNED:])
        states, for_input, kept, raws, moments = (
            [next(tensors) for _ in range(count)] for count in ctx.counts
        )
        recurrence, sizes, places = Recurrence(cell, weights, scale, order.sizes), order.sizes, order.sizes[0]
        old, new = tuple(before(packed, order) for packed in states), [packed[places:] for packed in states]
        over = kept[: len(cell.left)] if ctx.compiled and not graph_is_kept() else []
        d = (*over, *(fresh(d_outputs, len(new[0]), size) for size in recurrence.left[len(over) :]))
        operands = cell.operands(d, tuple(kept), old)
        last = tuple(to_places(part, order) for part in d_final)
        if ctx.compiled:
            d_state = tuple(part[:places].clone(memory_format=torch.contiguous_format) for part in last)
            loop = NativeLoop(
                cell,
                weights,
                sizes,
                kept[: len(cell.parts)],
                kept,
                states,
                normalised(for_input, raws, moments),
            )
            loop.back(lying(d_outputs, order), d_state, d, *recurrence.left_to_find(raws, over=bool(over)))
        else:
            recurrence.prepare(raws, moments, new[-1])
            d_state = backward_loop(cell, recurrence, order, (old, new, kept), d, d_outputs, last)
        recurrence.form_gradients(operands, compiled=ctx.gemm)
        entry, x = InputProduct(cell, weights), Inputs(inputs, order, compiled=ctx.gemm)
        d_inputs = entry.back(d, x, for_input, ctx.needs_input_grad[4], recurrence.found)
        d_initial = (
            to_rows(torch.cat([part, end[places:]]), order) for part, end in zip(d_state, last, strict=True)
        )
        return None, None, None, None, d_inputs, *recurrence.gradients(entry), *d_initial


def graph_is_kept() -> bool:
    """Whether somebody may go back once more through what is being gone back through (retain_graph), so that
    it must stay as it is."""
    ask = getattr(
        torch._C._autograd, "_get_current_graph_task_keep_graph", None
    )  # a private name: it may be gone one day
    return ask is None or bool(ask())


def forward_loop(
    cell: Cell,
    recurrence: Recurrence,
    order: Order,
    parts: Sequence[Tensor],
    kept: Sequence[Tensor],
    raws: Sequence[Tensor],
    states: Sequence[Tensor],
) -> None:
    """Fills `states` `(places + true steps, ...)`, of which the first are given, and what is kept."""
    old, *news = steps_of(states, [order.sizes[0], *order.sizes])
    parts_at, kept_at, raws_at = (steps_of(whole, order.sizes) for whole in (parts, kept, raws))
    for size, part, put, raw, new in zip(order.sizes, parts_at, kept_at, raws_at, news, strict=True):
        if old[0].shape[0] > size:
            old = tuple(part[:size] for part in old)
        recurrence.at(raw)
        cell.forward(part, old, recurrence.tools, StepBuffers(new, put))
        old = new


def backward_loop(
    cell: Cell,
    recurrence: Recurrence,
    order: Order,
    known: Sequence[Sequence[Tensor]],
    d: Parts,
    d_outputs: Tensor,
    last: Parts,
) -> CellState:
    """From the old and new states and what was kept, the gradients of the outputs and of the last states:
    fills `d`, those of the sums; the gradient of the first states."""
    sizes = order.sizes
    old_at, new_at, kept_at, d_at = (steps_of(parts, sizes) for parts in (*known, d))
    d_y, d_state = steps_in(d_outputs, order), tuple(part[:0] for part in last)
    for step in reversed(range(len(sizes))):
        if d_state[0].shape[0] < sizes[step]:  # rows that end here
            d_state = tuple(
                torch.cat([part, end[part.shape[0] : sizes[step]]])
                for part, end in zip(d_state, last, strict=True)
            )
        recurrence.back_at(step)
        d_new = (d_state[0] + d_y[step], *d_state[1:])
        d_state = cell.backward(
            d_new, kept_at[step], old_at[step], new_at[step], recurrence.tools, d_at[step]
        )
    return d_state


def normalised(
    for_input: Sequence[Tensor], raws: Sequence[Tensor], moments: Sequence[Tensor]
) -> list[Tensor]:
    """What the compiled loop needs of a normalised layer (`NativeLoop`)."""
    return [for_input[0], *raws, *for_input[1:], *moments] if raws else []


def buffers(cell: Cell, parts: Sequence[Tensor], width: int) -> list[Tensor]:
    """For what is kept of all steps: over the input's part of the same gates, where the widths agree."""
    found = []
    for number, times in enumerate(cell.kept):
        fits = number < len(parts) and parts[number].shape[1] == times * width
        found.append(parts[number] if fits else fresh(parts[0], len(parts[0]), times * width))
    return found
