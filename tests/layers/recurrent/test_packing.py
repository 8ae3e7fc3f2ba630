"""The packed order: each true step once, longest rows first, and the way back."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from seqloom.layers.recurrent.packing import (
    before,
    last_of,
    pack,
    packed_order,
    steps_in,
    to_places,
    to_rows,
    unpack,
)


@settings(deadline=None, max_examples=60)
@given(
    rows=st.lists(st.lists(st.booleans(), min_size=5, max_size=5), min_size=1, max_size=6),
    backward=st.booleans(),
)
def test_the_packed_order_holds_each_true_step_once(rows: list[list[bool]], backward: bool) -> None:
    mask = torch.tensor(rows)
    order = packed_order(mask, backward)
    values = torch.arange(1.0, 1 + mask.numel()).view(*mask.shape, 1)
    packed = pack(values, order)
    assert sorted(packed.flatten().tolist()) == sorted(values[mask].flatten().tolist())
    assert torch.equal(unpack(packed, order, values.shape), values * mask[..., None])
    assert order.sizes == sorted(order.sizes, reverse=True)
    assert sum(order.sizes) == int(mask.sum())
    each = [row[mask[i]].flatten().tolist() for i, row in enumerate(values)]
    each = [row[::-1] if backward else row for row in each]
    at = 0
    for step, size in enumerate(order.sizes):
        assert sorted(packed[at : at + size, 0].tolist()) == sorted(
            row[step] for row in each if len(row) > step
        )
        at += size


@settings(deadline=None, max_examples=60)
@given(
    rows=st.lists(st.lists(st.booleans(), min_size=4, max_size=4), min_size=1, max_size=5),
    backward=st.booleans(),
)
def test_a_state_goes_to_its_place_and_back_and_before_each_step_is_the_one_before(
    rows: list[list[bool]], backward: bool
) -> None:
    mask = torch.tensor(rows)
    order = packed_order(mask, backward)
    first = -torch.arange(1.0, 1 + len(mask))[:, None]
    assert torch.equal(to_rows(to_places(first, order), order), first)
    if not order.sizes:
        return
    values = torch.arange(1.0, 1 + mask.numel()).view(*mask.shape, 1)
    packed = torch.cat([to_places(first, order)[: order.sizes[0]], pack(values, order)])
    assert torch.equal(torch.cat([*steps_in(values, order)]), pack(values, order))
    expected, last = {}, first.flatten().tolist()
    for row, real in enumerate(rows):
        steps = [t for t in range(4) if real[t]]
        for t in reversed(steps) if backward else steps:
            expected[float(values[row, t])] = last[row]
            last[row] = float(values[row, t])
    assert (
        dict(
            zip(pack(values, order).flatten().tolist(), before(packed, order).flatten().tolist(), strict=True)
        )
        == expected
    )
    assert last_of(first, packed, order).flatten().tolist() == last
