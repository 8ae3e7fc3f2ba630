"""The packed order: each true step once, longest rows first, and the way back."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from seqloom.layers.recurrent.packing import (
    final_states,
    pack,
    packed_order,
    previous_states,
    sort_rows,
    split_packed,
    unpack,
    unsort_rows,
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
    assert order.batch_sizes == sorted(order.batch_sizes, reverse=True)
    assert sum(order.batch_sizes) == int(mask.sum())
    each = [row[mask[i]].flatten().tolist() for i, row in enumerate(values)]
    each = [row[::-1] if backward else row for row in each]
    at = 0
    for step, size in enumerate(order.batch_sizes):
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
    assert torch.equal(unsort_rows(sort_rows(first, order), order), first)
    if not order.batch_sizes:
        return
    values = torch.arange(1.0, 1 + mask.numel()).view(*mask.shape, 1)
    packed = torch.cat([sort_rows(first, order)[: order.batch_sizes[0]], pack(values, order)])
    assert torch.equal(torch.cat([*split_packed(values, order)]), pack(values, order))
    expected, last = {}, first.flatten().tolist()
    for row, real in enumerate(rows):
        steps = [t for t in range(4) if real[t]]
        for t in reversed(steps) if backward else steps:
            expected[float(values[row, t])] = last[row]
            last[row] = float(values[row, t])
    assert (
        dict(
            zip(
                pack(values, order).flatten().tolist(),
                previous_states(packed, order).flatten().tolist(),
                strict=True,
            )
        )
        == expected
    )
    assert final_states(first, packed, order).flatten().tolist() == last
