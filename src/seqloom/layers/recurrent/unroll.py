"""The one driver that runs any cell over time, forward and backward.

The input's product of all steps is one matrix product. The loop over time runs inside one autograd.Function,
over the packed order of the real steps (`packing.py`), compiled where possible (`compiled_loops.py`). Its
backward is backpropagation through time by hand: first the gradients of the gates' sums at all steps, then
each weight's gradient in one product. (Blocks of steps that fit into the cache were tried: they cost 1 to 10
%.)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any, final

import torch
from torch import Tensor

from seqloom.layers.recurrent.cell_operations import (
    InputProduct,
    LayerWeights,
    LoopBuffers,
    StateOperations,
)
from seqloom.layers.recurrent.cells import Cell, CellState, GateTensors, SavedStep, StepBuffers
from seqloom.layers.recurrent.compiled_loops import CompiledLoop, has_compiled_loop
from seqloom.layers.recurrent.compiled_products import beats_torch
from seqloom.layers.recurrent.large_pages import fresh
from seqloom.layers.recurrent.layer_inputs import LayerInputs
from seqloom.layers.recurrent.packing import (
    PackedOrder,
    final_states,
    packed_in_place,
    previous_states,
    sort_rows,
    split_packed,
    split_steps,
    unpack,
    unsort_rows,
)

WEIGHT_COUNT = len(LayerWeights._fields)


@final
class Unroll(torch.autograd.Function):
    """A layer in one direction: inputs `(rows, steps, input)` -> outputs `(rows, steps, width of h)` and the
    last state.

    `keep` says whether there will be a backward pass. `scale` `(rows, width of h)` multiplies the state
    before each product with it (dropout of the state). The tensors are those of `LayerWeights`, then the
    initial state.
    """

    @staticmethod
    def forward(
        ctx: Any,
        cell: Cell,
        order: PackedOrder,
        keep: bool,
        scale: Tensor | None,
        inputs: Tensor,
        *tensors: Tensor,
    ) -> tuple[Tensor, ...]:
        weights, initial = LayerWeights(*tensors[:WEIGHT_COUNT]), tensors[WEIGHT_COUNT:]
        ctx.cell, ctx.order = cell, order
        if not order.batch_sizes:
            ctx.zeros = [
                None if tensor is None else torch.zeros_like(tensor)
                for tensor in (inputs, *weights)
            ]
            outputs = inputs.new_zeros(*inputs.shape[:2], initial[0].shape[1])
            return outputs, *(state.clone() for state in initial)
        rows, steps = order.batch_sizes[0], sum(order.batch_sizes)

        # the initial states, longest row first; after them is room for the states of every step
        states = [fresh(state, rows + steps, state.shape[1]) for state in initial]
        for state, buffer in zip(initial, states, strict=True):
            buffer[:rows] = sort_rows(state, order)[:rows]
        if scale is not None:
            scale = sort_rows(scale, order)[:rows]

        # The input's part of the gates, for all steps at once. The compiled loop normalises it itself, while
        # the numbers are in the cache.
        ctx.compiled = has_compiled_loop(cell, weights, scale, [inputs], states)
        ctx.gemm = ctx.compiled and beats_torch()
        x = LayerInputs(inputs, order, compiled=ctx.gemm)
        gates, input_saved = InputProduct(cell, weights)(x, normalise=not ctx.compiled)

        # the loop over time fills the buffers
        operations = StateOperations(cell, weights, scale, order.batch_sizes)
        saved, raw_h = (
            saved_buffers(cell, gates, weights.width(cell)),
            operations.empty_raw(gates[0]),
        )
        moments = operations.empty_moments(steps) if ctx.compiled else []
        buffers = LoopBuffers(gates, saved, states, input_saved, raw_h, moments)
        if ctx.compiled:
            CompiledLoop(cell, weights, order.batch_sizes, buffers).forward()
        else:
            forward_loop(cell, operations, buffers)
            buffers.moments.extend(operations.moments() if keep else [])

        if keep:
            # the gates are left out: the backward pass needs what the cell saved of them, and only that
            kept = buffers._replace(gates=[])
            ctx.counts = [len(part) for part in kept]
            ctx.save_for_backward(
                inputs, scale, *weights, *(tensor for part in kept for tensor in part)
            )
        last = (
            final_states(state, buffer, order)
            for state, buffer in zip(initial, states, strict=True)
        )
        return unpack(states[0][rows:], order, inputs.shape), *last

    @staticmethod
    def backward(ctx: Any, d_outputs: Tensor, *d_final: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():  # create_graph=True
            raise RuntimeError(
                "a recurrent layer has no second derivative: its backward pass is written by hand"
            )
        cell, order = ctx.cell, ctx.order
        if not order.batch_sizes:
            return None, None, None, None, *ctx.zeros, *d_final
        inputs, scale, *tensors = ctx.saved_tensors
        weights, buffers = (
            LayerWeights(*tensors[:WEIGHT_COUNT]),
            _split(tensors[WEIGHT_COUNT:], ctx.counts),
        )
        rows = order.batch_sizes[0]
        operations = StateOperations(cell, weights, scale, order.batch_sizes)
        old = tuple(previous_states(states, order) for states in buffers.states)
        new = tuple(states[rows:] for states in buffers.states)

        # Where the backward steps write. The compiled loop may overwrite what was saved, number by number,
        # unless somebody will run this backward pass again.
        overwritten = buffers.saved[: len(cell.backward_widths)]
        if not ctx.compiled or graph_is_kept():
            overwritten = []
        remaining = operations.backward_widths[len(overwritten) :]
        d = (*overwritten, *(fresh(d_outputs, len(new[0]), width) for width in remaining))
        operands = cell.operands(d, tuple(buffers.saved), old)  # before anything is overwritten

        # back over the steps: the gradients of the gates' sums, and of the initial states
        d_last = tuple(sort_rows(part, order) for part in d_final)
        if ctx.compiled:
            d_state = tuple(
                part[:rows].clone(memory_format=torch.contiguous_format) for part in d_last
            )
            buffers = buffers._replace(gates=buffers.saved[: len(cell.gate_groups)])
            loop = CompiledLoop(cell, weights, order.batch_sizes, buffers)
            d_norms = operations.compiled_gradients(buffers.raw_h, overwrite=bool(overwritten))
            loop.backward(packed_in_place(d_outputs, order), d_state, d, *d_norms)
        else:
            operations.begin_backward(buffers, new[-1])
            steps = SavedStep(tuple(buffers.saved), old, new)
            d_state = backward_loop(
                cell, operations, steps, d, split_packed(d_outputs, order), d_last
            )

        # each weight's gradient in one product, and the gradient of the inputs
        operations.finish_backward(operands, compiled=ctx.gemm)
        entry, x = InputProduct(cell, weights), LayerInputs(inputs, order, compiled=ctx.gemm)
        terms = entry.backward(d, x, buffers.input_saved, operations.norm_gradients)
        d_inputs = x.gradient(terms) if ctx.needs_input_grad[4] else None
        # rows without a real step hand the gradient of their last state to the initial one
        d_initial = (
            unsort_rows(torch.cat([part, last[rows:]]), order)
            for part, last in zip(d_state, d_last, strict=True)
        )
        return None, None, None, None, d_inputs, *operations.gradients(entry), *d_initial


def _split(tensors: Iterable[Tensor], counts: list[int]) -> LoopBuffers:
    remaining = iter(tensors)
    return LoopBuffers(*(list(islice(remaining, count)) for count in counts))


def graph_is_kept() -> bool:
    """Whether the backward pass that is running was asked to keep the graph (retain_graph), so that it may
    run once more."""
    # a private name of torch, which may be gone one day
    ask = getattr(torch._C._autograd, "_get_current_graph_task_keep_graph", None)
    return ask is None or bool(ask())


def forward_loop(cell: Cell, operations: StateOperations, buffers: LoopBuffers) -> None:
    """Fills the states after each step, what the cell saves, and the raw products."""
    batch_sizes = operations.batch_sizes
    old, *states = split_steps(buffers.states, [batch_sizes[0], *batch_sizes])
    gates, saved = split_steps(buffers.gates, batch_sizes), split_steps(buffers.saved, batch_sizes)
    raw_h = split_steps(buffers.raw_h, batch_sizes)
    for step, size in enumerate(batch_sizes):
        if old[0].shape[0] > size:  # rows that have ended are the last ones
            old = tuple(part[:size] for part in old)
        operations.begin_forward_step(raw_h[step])
        cell.forward(gates[step], old, operations.ops, StepBuffers(states[step], saved[step]))
        old = states[step]


def backward_loop(
    cell: Cell,
    operations: StateOperations,
    steps: SavedStep,
    d: GateTensors,
    d_outputs: Sequence[Tensor],
    d_last: GateTensors,
) -> CellState:
    """From what all steps have saved and the gradients of the outputs (of each step) and of the last states:
    fills `d`, the gradients of the gates' sums; returns that of the initial states."""
    batch_sizes = operations.batch_sizes
    saved, old, new = (split_steps(tensors, batch_sizes) for tensors in steps)
    d_by_step = split_steps(d, batch_sizes)
    d_state = tuple(part[:0] for part in d_last)
    for step in reversed(range(len(batch_sizes))):
        size = batch_sizes[step]
        if d_state[0].shape[0] < size:  # rows whose last step this is
            ending = [
                last[part.shape[0] : size] for part, last in zip(d_state, d_last, strict=True)
            ]
            d_state = tuple(torch.cat(parts) for parts in zip(d_state, ending, strict=True))
        operations.begin_backward_step(step)
        d_new = (d_state[0] + d_outputs[step], *d_state[1:])
        here = SavedStep(saved[step], old[step], new[step])
        d_state = cell.backward(d_new, here, operations.ops, d_by_step[step])
    return d_state


def saved_buffers(cell: Cell, gates: Sequence[Tensor], width: int) -> list[Tensor]:
    """For what the cell saves at all steps: over the input's part of the same gates, where the widths
    agree."""
    buffers = []
    for number, times in enumerate(cell.saved_widths):
        fits = number < len(gates) and gates[number].shape[1] == times * width
        buffers.append(gates[number] if fits else fresh(gates[0], len(gates[0]), times * width))
    return buffers
