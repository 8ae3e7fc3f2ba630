"""The driver against the plain loop: outputs, final states and every gradient, for every cell, order and padding."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from seqloom.layers.cells import CELLS
from seqloom.layers.packing import pack, packed_order, unpack
from seqloom.layers.recurrent import Recurrent
from seqloom.layers.recurrent_layer import RecurrentLayer

ROWS, STEPS, INPUT, WIDTH = 4, 6, 3, 5

MASKS = {
    "full": [[1] * 6] * 4,
    "right": [[1, 1, 1, 1, 1, 1], [1, 1, 0, 0, 0, 0], [1, 1, 1, 1, 1, 0], [1, 0, 0, 0, 0, 0]],
    "left": [[0, 0, 0, 1, 1, 1], [1, 1, 1, 1, 1, 1], [0, 1, 1, 1, 1, 1], [0, 0, 0, 0, 0, 1]],
    "anywhere, one row empty": [[0, 0, 1, 1, 0, 1], [1, 0, 1, 0, 0, 1], [0, 0, 0, 0, 0, 0], [1, 1, 1, 1, 1, 1]],
    "nothing": [[0] * 6] * 4,
}


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("padding", MASKS)
@pytest.mark.parametrize("name", CELLS)
def test_the_driver_equals_the_plain_loop(name: str, padding: str, backward: bool) -> None:
    torch.manual_seed(0)
    layer = RecurrentLayer(CELLS[name], INPUT, WIDTH).double()
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    mask = torch.tensor(MASKS[padding], dtype=torch.bool)
    inputs = torch.randn(ROWS, STEPS, INPUT, dtype=torch.double, requires_grad=True)
    state = tuple(torch.randn(ROWS, WIDTH, dtype=torch.double, requires_grad=True) for _ in range(CELLS[name].states))
    leaves = [inputs, *state, *layer.parameters()]
    weights = [torch.randn(ROWS, STEPS, WIDTH, dtype=torch.double) * mask[..., None]]
    weights += [torch.randn(ROWS, WIDTH, dtype=torch.double) for _ in state]

    def gradients(outputs: Tensor, after: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        loss = torch.stack([(value * weight).sum() for value, weight in zip((outputs, *after), weights, strict=True)]).sum()
        return torch.autograd.grad(loss, leaves)

    expected, expected_after = layer.loop(inputs, mask, state, backward)
    outputs, after = layer(inputs, packed_order(mask, backward), state)
    torch.testing.assert_close(outputs, expected * mask[..., None], rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(after, expected_after, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(gradients(outputs, after), gradients(expected, expected_after), rtol=1e-9, atol=1e-11)


@settings(deadline=None, max_examples=60)
@given(rows=st.lists(st.lists(st.booleans(), min_size=5, max_size=5), min_size=1, max_size=6), backward=st.booleans())
def test_the_packed_order_holds_each_true_step_once(rows: list[list[bool]], backward: bool) -> None:
    mask = torch.tensor(rows)
    order = packed_order(mask, backward)
    values = torch.arange(1.0, 1 + mask.numel()).view(*mask.shape, 1)
    packed = pack(values, order)
    assert sorted(packed.flatten().tolist()) == sorted(values[mask].flatten().tolist())
    assert torch.equal(unpack(packed, order, values.shape), values * mask[..., None])
    assert order.sizes == sorted(order.sizes, reverse=True)
    assert sum(order.sizes) == int(mask.sum())
    first = [row[mask[i]].flatten().tolist()[-1 if backward else 0] for i, row in enumerate(values) if mask[i].any()]
    assert sorted(packed[: order.sizes[0]].flatten().tolist() if order.sizes else []) == sorted(first)


def test_a_second_derivative_is_refused_with_a_reason() -> None:
    inputs = torch.randn(2, 3, INPUT, requires_grad=True)
    outputs, _ = Recurrent("gru", INPUT, WIDTH)(inputs)
    with pytest.raises(RuntimeError, match="a recurrent layer has no second derivative"):
        torch.autograd.grad(outputs.sum(), inputs, create_graph=True)


@pytest.mark.parametrize("name", CELLS)
def test_autocast_takes_the_plain_loop_and_is_close(name: str) -> None:
    torch.manual_seed(0)
    layers = Recurrent(name, INPUT, WIDTH, bidirectional=True)
    inputs, mask = torch.randn(ROWS, STEPS, INPUT), torch.tensor(MASKS["right"], dtype=torch.bool)
    expected, _ = layers(inputs, mask)
    with torch.autocast("cpu", torch.bfloat16):
        outputs, _ = layers(inputs, mask)
    torch.testing.assert_close(outputs.float() * mask[..., None], expected, rtol=0.05, atol=0.05)
