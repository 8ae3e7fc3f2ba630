"""Where the true steps of padded rows lie when they are run one step after the other, longest rows first.

All rows at their first true step come first, then all rows at their second, and so on, so that the rows of a
step are the first of those of the step before. Padding is left out, wherever it lies; backward in time is
another such order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from seqloom.layers.recurrent.large_pages import contiguous


class Order(NamedTuple):
    """Where the true steps of `(rows, steps)` lie in the packed order."""

    flat: Tensor
    """`(true steps,)`: index into rows × steps."""
    in_turn: bool
    """Whether that is every step of every row, time first."""
    sizes: list[int]
    """Rows of each step, falling."""
    rows: Tensor | None
    """`(rows,)`: the row at each place of the first step; None: as they are."""
    back: Tensor | None
    """The inverse of `rows`."""
    last: Tensor | None
    """`(places,)`: packed position of each place's last true step; None: the last step's."""
    before: Tensor | None
    """`(true steps,)`: where the state before each one stands, the first states being followed by the packed
    ones; None: so many places before."""


class TrueSteps(NamedTuple):
    """The true steps of `(rows, steps)`, row by row."""

    places: Tensor
    """`(rows,)`: the row at each place, longest first."""
    lengths: Tensor
    """`(rows,)`: by place, how many."""
    where: Tensor
    """`(rows, steps)`: by place, where they are in rows × steps; padding comes after them."""
    live: Tensor
    """`(rows, steps)`: which of those are true."""


def true_steps(mask: Tensor, backward: bool) -> TrueSteps:
    """Of `mask` `(rows, steps)`, true at real steps, anywhere; from the last step to the first where
    `backward`."""
    steps = mask.shape[1]
    lengths = mask.sum(dim=1)
    places = lengths.argsort(descending=True, stable=True)
    lengths, padding = lengths[places], (~mask[places]).to(torch.int8)
    index = (
        steps - 1 - padding.flip(1).argsort(dim=1, stable=True)
        if backward
        else padding.argsort(dim=1, stable=True)
    )
    return TrueSteps(
        places,
        lengths,
        places[:, None] * steps + index,
        torch.arange(steps, device=mask.device) < lengths[:, None],
    )


def full_order(rows: int, steps: int, device: torch.device, backward: bool) -> Order:
    """`packed_order` where every step is true."""
    places = torch.arange(rows * steps, device=device).view(rows, steps)
    return Order(
        (places.flip(1) if backward else places).T.flatten(),
        not backward,
        [rows] * steps,
        None,
        None,
        None,
        None,
    )


def packed_order(mask: Tensor, backward: bool) -> Order:
    """The order of the true steps of `mask` `(rows, steps)`, from the first on or from the last back."""
    rows, steps = mask.shape
    if bool(mask.all()):
        return full_order(rows, steps, mask.device, backward)
    places, lengths, index, live = true_steps(mask, backward)
    index, live = index.T, live.T  # time first
    flat = index[live]
    position = torch.zeros_like(index)
    position[live] = torch.arange(len(flat), device=mask.device)
    last = position.gather(0, (lengths - 1).clamp(min=0)[None])[0]
    sizes = [size for size in live.sum(dim=1).tolist() if size]
    first = sizes[0] if sizes else 0
    before = torch.cat([torch.arange(first, device=mask.device), first + position[:-1][live[1:]]])
    return Order(flat, False, sizes, places, places.argsort(), last, before)


def pack(sequences: Tensor, order: Order) -> Tensor:
    """Of `(rows, steps, width)`, the true steps in their order: `(true steps, width)`."""
    if order.in_turn:
        return contiguous(sequences.transpose(0, 1)).flatten(0, 1)
    return sequences.flatten(0, 1).index_select(0, order.flat)


class Rows(NamedTuple):
    """Some rows of a matrix, in an order of their own."""

    numbers: Tensor
    """`(.., width)`, row by row."""
    order: Tensor | None
    """Which of them; None: all, as they are."""


def time_first(sequences: Tensor) -> bool:
    """Whether `(rows, steps, width)` lies step by step, not row by row."""
    return sequences.transpose(0, 1).is_contiguous()


def lying(sequences: Tensor, order: Order) -> Rows:
    """`pack`, without a copy where `(rows, steps, width)` lies batch first or time first."""
    rows, steps, _ = sequences.shape
    if time_first(sequences):
        return Rows(
            sequences.transpose(0, 1).flatten(0, 1),
            None if order.in_turn else order.flat % steps * rows + order.flat // steps,
        )
    return Rows(sequences.contiguous().flatten(0, 1), order.flat)


def in_rising_order(index: Tensor, count: int) -> tuple[Tensor | None, Tensor]:
    """Of different integers below `count`: the same, rising (None: all there are), and at which place of
    `index` each one is."""
    place = index.new_full((count,), -1).index_copy_(0, index, torch.arange(len(index), device=index.device))
    if len(index) == count:
        return None, place
    rising = (place >= 0).nonzero()[:, 0]
    return rising, place[rising]


def steps_in(sequences: Tensor, order: Order) -> Sequence[Tensor]:
    """`pack`, step by step: a copy only where there is padding."""
    if order.in_turn:
        return sequences.unbind(dim=1)
    return pack(sequences, order).split_with_sizes(order.sizes)


def steps_of(parts: Sequence[Tensor], sizes: list[int]) -> list[tuple[Tensor, ...]]:
    """Of tensors `(true steps, ...)`, the rows of each step, of all together."""
    if not parts:
        return [()] * len(sizes)
    return list(zip(*(part.split_with_sizes(sizes) for part in parts), strict=True))


def unpack(packed: Tensor, order: Order, shape: torch.Size) -> Tensor:
    """All true steps in their order -> `(rows, steps, width)`; padding is 0."""
    width = packed.shape[1]
    if order.in_turn:
        return packed.view(shape[1], shape[0], width).transpose(0, 1)
    return (
        packed.new_zeros(shape[0] * shape[1], width)
        .index_copy_(0, order.flat, packed)
        .view(shape[0], shape[1], width)
    )


def to_places(state: Tensor, order: Order) -> Tensor:
    """`(rows, width)` -> the same by place, longest row first."""
    return state if order.rows is None else state.index_select(0, order.rows)


def to_rows(state: Tensor, order: Order) -> Tensor:
    """The inverse."""
    return state if order.back is None else state.index_select(0, order.back)


def last_of(initial: Tensor, packed: Tensor, order: Order) -> Tensor:
    """Each row's state after its last true step; `initial` where it has none."""
    places = order.sizes[0]
    if order.last is None:
        return packed[len(packed) - places :].clone()
    last = to_places(initial, order)
    last = torch.cat([packed[places + order.last[:places]], last[places:]])
    return to_rows(last, order)


def before(packed: Tensor, order: Order) -> Tensor:
    """The state before each true step. `packed` holds the first states, then those after each step."""
    return (
        packed[: len(packed) - order.sizes[-1]]
        if order.before is None
        else packed.index_select(0, order.before)
    )
