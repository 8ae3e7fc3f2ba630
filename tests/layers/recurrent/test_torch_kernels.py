"""Torch's own kernels against the driver: the same outputs, states and gradients, under any padding."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from seqloom.layers.recurrent.layer import RecurrentLayer
from seqloom.layers.recurrent.packing import packed_order
from seqloom.layers.recurrent.stack import (
    RecurrentStack,
    RecurrentStackConfig,
    choose_implementation,
)
from seqloom.layers.recurrent.torch_kernels import (
    has_kernel,
    kernel_plan,
    rectangles,
    run_full,
    run_ragged,
)
from seqloom.native.library import library

ROWS, STEPS, INPUT, WIDTH = 5, 40, 6, 8


def lstm() -> RecurrentLayer:
    torch.manual_seed(0)
    return RecurrentStack(RecurrentStackConfig("lstm", INPUT, WIDTH)).stack[0]


MASKS = {
    "right": [40, 3, 21, 1, 38],
    "a row without a step": [40, 0, 40, 12, 2],
    "only short ones": [3, 1, 2, 3, 1],
}


def mask_of(padding: str, where: str) -> Tensor:
    mask = torch.arange(STEPS) < torch.tensor(MASKS[padding])[:, None]
    if where == "left":
        return mask.flip(1)
    if where == "anywhere":
        generator = torch.Generator().manual_seed(1)
        return torch.stack([row[torch.randperm(STEPS, generator=generator)] for row in mask])
    return mask


@pytest.mark.parametrize("waste", [0, 10, 10_000])
@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("where", ["right", "left", "anywhere"])
@pytest.mark.parametrize("padding", MASKS)
def test_ragged_rows_equal_the_driver(
    padding: str, where: str, backward: bool, waste: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Outputs, both final states and every gradient; in one rectangle, several, or one for each length."""
    monkeypatch.setattr("seqloom.layers.recurrent.torch_kernels.WASTE", waste)
    layer, mask = lstm(), mask_of(padding, where)
    inputs = torch.randn(ROWS, STEPS, INPUT, requires_grad=True)
    state = tuple(torch.randn(ROWS, WIDTH, requires_grad=True) for _ in range(2))
    weights = [torch.randn(ROWS, STEPS, WIDTH), *(torch.randn(ROWS, WIDTH) for _ in range(2))]

    def gradients(outputs: Tensor, after: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        loss = torch.stack(
            [
                (value * weight).sum()
                for value, weight in zip((outputs, *after), weights, strict=True)
            ]
        ).sum()
        return torch.autograd.grad(loss, [inputs, *state, *layer.parameters()])

    found, after = run_ragged(layer.cell, layer.weights, inputs, kernel_plan(mask, backward), state)
    expected, expected_after = layer(inputs, packed_order(mask, backward), state)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert found[~mask].eq(0).all()
    torch.testing.assert_close(after, expected_after, rtol=1e-4, atol=1e-5)
    for mine, its in zip(gradients(found, after), gradients(expected, expected_after), strict=True):
        torch.testing.assert_close(mine, its, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("ragged", [False, True])
def test_a_stack_on_kernels_is_close_to_float64(bidirectional: bool, ragged: bool) -> None:
    torch.manual_seed(0)
    layers = RecurrentStack(
        RecurrentStackConfig(
            "lstm", INPUT, WIDTH, layers=3, bidirectional=bidirectional, connection="residual"
        )
    )
    inputs, mask = torch.randn(ROWS, STEPS, INPUT), mask_of("right", "right") if ragged else None
    assert choose_implementation(layers, inputs) == "fused"
    outputs, state = layers(inputs, mask)
    exact = RecurrentStack(
        RecurrentStackConfig(
            "lstm", INPUT, WIDTH, layers=3, bidirectional=bidirectional, connection="residual"
        )
    )
    exact.double()
    exact.load_state_dict({name: weight.double() for name, weight in layers.state_dict().items()})
    assert choose_implementation(exact, inputs.double()) == "driver"
    expected, expected_state = exact(inputs.double(), mask)
    torch.testing.assert_close(
        outputs.double() * (1 if mask is None else mask[..., None]), expected, rtol=1e-4, atol=1e-5
    )
    for mine, its in zip(state, expected_state, strict=True):
        torch.testing.assert_close(mine.double(), its, rtol=1e-4, atol=1e-5)


def test_the_kernel_is_that_of_torch() -> None:
    """The same bits as `torch.nn.LSTM` where nothing is padded."""
    layer, inputs = lstm(), torch.randn(ROWS, STEPS, INPUT)
    module = nn.LSTM(INPUT, WIDTH, batch_first=True)
    with torch.no_grad():
        for name, weight in (
            ("weight_ih_l0", layer.weight_x),
            ("weight_hh_l0", layer.weight_h),
            ("bias_ih_l0", layer.bias),
        ):
            getattr(module, name).copy_(weight)
        module.get_parameter("bias_hh_l0").zero_()
    outputs, _ = run_full(layer.cell, layer.weights, inputs, layer.start(ROWS))
    expected, _ = module(inputs)
    assert torch.equal(outputs, expected)


@settings(deadline=None, max_examples=100)
@given(lengths=st.lists(st.integers(1, 60), min_size=1, max_size=12), waste=st.integers(0, 200))
def test_rectangles_hold_every_true_step_once(lengths: list[int], waste: int) -> None:
    lengths.sort(reverse=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("seqloom.layers.recurrent.torch_kernels.WASTE", waste)
        found = rectangles(lengths)
    assert [part.start for part in found] == [0, *(part.stop for part in found[:-1])]
    assert found[-1].stop == lengths[0]
    for first, last, rows in found:
        assert rows == sum(length > first for length in lengths)
        assert sum(max(last - max(length, first), 0) for length in lengths[:rows]) <= waste


def test_where_there_is_a_kernel() -> None:
    def fits(cell: str, **options: object) -> bool:
        layer = RecurrentStack(RecurrentStackConfig(cell, INPUT, WIDTH, **options)).stack[0]  # type: ignore[arg-type]
        return has_kernel(layer.cell, layer.weights)

    assert fits("lstm")
    assert not fits("lstm", projection=3)
    assert not fits("lstm", normalisation="layer")
    assert not fits("gru-torch")
    assert not has_kernel(lstm().double().cell, lstm().double().weights)


def test_what_the_kernel_cannot_do_takes_another_way() -> None:
    inputs = torch.randn(ROWS, STEPS, INPUT)
    layers = RecurrentStack(RecurrentStackConfig("lstm", INPUT, WIDTH, state_dropout=0.5))
    assert choose_implementation(layers, inputs) == "driver"
    assert choose_implementation(layers.eval(), inputs) == "fused"
    large = RecurrentStack(RecurrentStackConfig("lstm", 4, 256))
    assert choose_implementation(large, torch.zeros(8, STEPS, 4)) == "fused"
    assert choose_implementation(large, torch.zeros(32, STEPS, 4)) == (
        "fused" if library() is None else "driver"
    )
    assert choose_implementation(layers, inputs[:, :1]) == "loop"
    layers.stack[0].watch = []
    assert choose_implementation(layers, inputs) == "loop"
    with torch.autocast("cpu", torch.bfloat16):
        assert (
            choose_implementation(
                RecurrentStack(RecurrentStackConfig("lstm", INPUT, WIDTH)), inputs
            )
            == "loop"
        )
    assert (
        choose_implementation(
            RecurrentStack(RecurrentStackConfig("lstm", INPUT, WIDTH, normalisation="batch")),
            inputs,
        )
        == "packed loop"
    )


def test_the_kernel_has_a_second_derivative() -> None:
    def second(layers: RecurrentStack, inputs: Tensor) -> Tensor:
        (first,) = torch.autograd.grad(layers(inputs)[0].square().sum(), inputs, create_graph=True)
        return torch.autograd.grad(first.square().sum(), inputs)[0]

    torch.manual_seed(0)
    layers, inputs = (
        RecurrentStack(RecurrentStackConfig("lstm", INPUT, WIDTH)),
        torch.randn(2, 3, INPUT),
    )
    found = second(layers, inputs.requires_grad_())
    layers.double().stack[0].watch = []  # the plain loop, by autograd
    torch.testing.assert_close(
        found.double(),
        second(layers, inputs.detach().double().requires_grad_()),
        rtol=1e-4,
        atol=1e-6,
    )
