"""The packed order of padded rows: one time step after the other, longest rows first.

All rows at their first real step come first, then all rows at their second, and so on. The rows that have a
step are then always the first ones of the step before, as in `torch.nn.utils.rnn.PackedSequence`. Padding is
left out, wherever it lies. The backward direction is the same in another order.

A real step is one where the mask is true. Sorted rows are rows by their number of real steps, longest first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from seqloom.layers.recurrent.large_pages import contiguous


class PackedOrder(NamedTuple):
    """Where the real steps of `(rows, steps)` lie in the packed order."""

    flat_index: Tensor
    """`(real steps,)`: into rows × steps."""
    is_time_major: bool
    """Whether `flat_index` is every step of every row, time first, from the first step on."""
    batch_sizes: list[int]
    """How many rows have each step; never rising."""
    sorted_indices: Tensor | None
    """`(rows,)`: the row at each place of the first step; None if rows are not sorted."""
    unsorted_indices: Tensor | None
    """The inverse of `sorted_indices`."""
    last: Tensor | None
    """`(rows,)`, sorted: the packed position of each row's last real step; None if that is the last step
    for all."""
    previous: Tensor | None
    """`(real steps,)`: the position of the state before each step, in a tensor of the initial states followed
    by those after each step; None if that is a constant distance."""


class RealSteps(NamedTuple):
    """The real steps of `(rows, steps)`, row by row, longest row first."""

    sorted_indices: Tensor
    """`(rows,)`: which row each one is."""
    lengths: Tensor
    """`(rows,)`: its number of real steps."""
    flat_index: Tensor
    """`(rows, steps)`: its real steps in order, as positions in rows × steps; then its padding."""
    is_real: Tensor
    """`(rows, steps)`: which entries of `flat_index` are real steps."""


def real_steps(mask: Tensor, backward: bool) -> RealSteps:
    """Of `mask` `(rows, steps)`, true at real steps, anywhere; from the last step to the first where
    `backward`."""
    steps = mask.shape[1]
    lengths = mask.sum(dim=1)
    rows = lengths.argsort(descending=True, stable=True)
    lengths, padding = lengths[rows], (~mask[rows]).to(torch.int8)
    # a stable sort by "is padding" moves real steps to the front and keeps their order
    if backward:
        step = steps - 1 - padding.flip(1).argsort(dim=1, stable=True)
    else:
        step = padding.argsort(dim=1, stable=True)
    is_real = torch.arange(steps, device=mask.device) < lengths[:, None]
    return RealSteps(rows, lengths, rows[:, None] * steps + step, is_real)


def full_order(rows: int, steps: int, device: torch.device, backward: bool) -> PackedOrder:
    """`packed_order` where every step is real."""
    index = torch.arange(rows * steps, device=device).view(rows, steps)
    index = (index.flip(1) if backward else index).T.flatten()
    return PackedOrder(index, not backward, [rows] * steps, None, None, None, None)


def packed_order(mask: Tensor, backward: bool) -> PackedOrder:
    """The order of the real steps of `mask` `(rows, steps)`; from the last one to the first where
    `backward`."""
    rows, steps = mask.shape
    if bool(mask.all()):
        return full_order(rows, steps, mask.device, backward)
    sorted_indices, lengths, index, is_real = real_steps(mask, backward)
    index, is_real = index.T, is_real.T  # time first
    packed = index[is_real]
    # of each real step in the packed order, (steps, sorted rows)
    position = torch.zeros_like(index)
    position[is_real] = torch.arange(len(packed), device=mask.device)
    last = position.gather(0, (lengths - 1).clamp(min=0)[None])[0]
    batch_sizes = [size for size in is_real.sum(dim=1).tolist() if size]
    # Before a first step is the initial state of its row; before a later one, the state after the step
    # before, which lies behind the initial states.
    first = batch_sizes[0] if batch_sizes else 0
    initial = torch.arange(first, device=mask.device)
    previous = torch.cat([initial, first + position[:-1][is_real[1:]]])
    return PackedOrder(
        packed, False, batch_sizes, sorted_indices, sorted_indices.argsort(), last, previous
    )


def pack(sequences: Tensor, order: PackedOrder) -> Tensor:
    """The real steps of `(rows, steps, width)` in their order: `(real steps, width)`."""
    if order.is_time_major:
        return contiguous(sequences.transpose(0, 1)).flatten(0, 1)
    return sequences.flatten(0, 1).index_select(0, order.flat_index)


def unpack(packed: Tensor, order: PackedOrder, shape: torch.Size) -> Tensor:
    """The inverse: all real steps in their order -> `(rows, steps, width)`, 0 at padding."""
    rows, steps, width = shape[0], shape[1], packed.shape[1]
    if order.is_time_major:
        return packed.view(steps, rows, width).transpose(0, 1)
    flat = packed.new_zeros(rows * steps, width).index_copy_(0, order.flat_index, packed)
    return flat.view(rows, steps, width)


class IndexedRows(NamedTuple):
    """Some rows of a matrix, in the order of an index."""

    matrix: Tensor
    """`(.., width)`, each row contiguous."""
    row_index: Tensor | None
    """Which rows; None for all, as they are."""


def is_time_first(sequences: Tensor) -> bool:
    """Whether `(rows, steps, width)` lies in memory step by step, not row by row."""
    return sequences.transpose(0, 1).is_contiguous()


def packed_in_place(sequences: Tensor, order: PackedOrder) -> IndexedRows:
    """`pack` without a copy, where `(rows, steps, width)` lies batch first or time first."""
    rows, steps, _ = sequences.shape
    if not is_time_first(sequences):
        return IndexedRows(sequences.contiguous().flatten(0, 1), order.flat_index)
    matrix = sequences.transpose(0, 1).flatten(0, 1)
    if order.is_time_major:
        return IndexedRows(matrix, None)
    return IndexedRows(matrix, order.flat_index % steps * rows + order.flat_index // steps)


def sorted_with_positions(index: Tensor, count: int) -> tuple[Tensor | None, Tensor]:
    """Different integers below `count` -> the same in ascending order (None if they are all there are),
    and the position of each one in `index`."""
    positions = torch.arange(len(index), device=index.device)
    position_of = index.new_full((count,), -1).index_copy_(0, index, positions)
    if len(index) == count:
        return None, position_of
    ascending = (position_of >= 0).nonzero()[:, 0]
    return ascending, position_of[ascending]


def split_packed(sequences: Tensor, order: PackedOrder) -> Sequence[Tensor]:
    """`pack`, one tensor a step: a copy only where there is padding."""
    if order.is_time_major:
        return sequences.unbind(dim=1)
    return pack(sequences, order).split_with_sizes(order.batch_sizes)


def split_steps(packed: Sequence[Tensor], batch_sizes: list[int]) -> list[tuple[Tensor, ...]]:
    """Tensors `(real steps, ...)` -> for each step its rows of all of them."""
    if not packed:
        return [()] * len(batch_sizes)
    return list(zip(*(tensor.split_with_sizes(batch_sizes) for tensor in packed), strict=True))


def sort_rows(state: Tensor, order: PackedOrder) -> Tensor:
    """`(rows, width)` -> the same with the longest row first."""
    return state if order.sorted_indices is None else state.index_select(0, order.sorted_indices)


def unsort_rows(state: Tensor, order: PackedOrder) -> Tensor:
    """The inverse of `sort_rows`."""
    return (
        state if order.unsorted_indices is None else state.index_select(0, order.unsorted_indices)
    )


def final_states(initial: Tensor, states: Tensor, order: PackedOrder) -> Tensor:
    """Each row's state after its last real step; `initial` where it has none. `states` holds the initial
    states, sorted, then those after each step."""
    rows = order.batch_sizes[0]
    if order.last is None:
        return states[len(states) - rows :].clone()
    initial = sort_rows(initial, order)
    return unsort_rows(torch.cat([states[rows + order.last[:rows]], initial[rows:]]), order)


def previous_states(states: Tensor, order: PackedOrder) -> Tensor:
    """The state before each real step, from the same `states`."""
    if order.previous is None:
        return states[: len(states) - order.batch_sizes[-1]]
    return states.index_select(0, order.previous)
