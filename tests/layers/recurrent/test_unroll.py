"""The driver against the plain loop: outputs, final states and every gradient, for every cell, option, order
and padding."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.layers.equations import (
    MASKS,
    ROWS,
    VARIANTS,
    Variant,
    close,
    draw_parameters,
    drawn,
    gradients,
    mask_named,
)
from torch import Tensor

from seqloom.layers.recurrent import onednn_products, unroll
from seqloom.layers.recurrent.cells import CELLS
from seqloom.layers.recurrent.layer import RecurrentLayer
from seqloom.layers.recurrent.packing import packed_order
from seqloom.layers.recurrent.stack import RecurrentStack, RecurrentStackConfig
from seqloom.testing.cells import the_driver_equals_the_plain_loop


def agree(variant: Variant, mask: Tensor, backward: bool) -> None:
    layer = variant.layer()
    scale = variant.scale(layer, len(mask))
    the_driver_equals_the_plain_loop(layer, variant.input_width, mask, backward, scale)


@pytest.fixture(params=["compiled where that may be had", "its own loop"])
def loop(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """How the driver goes over time."""
    if request.param == "its own loop":
        monkeypatch.setattr(unroll, "has_compiled_loop", lambda *_: False)


@pytest.mark.usefixtures("loop")
@pytest.mark.parametrize("backward", [False, True], ids=["ahead", "back"])
@pytest.mark.parametrize("padding", MASKS)
@pytest.mark.parametrize("name", VARIANTS)
def test_the_driver_equals_the_plain_loop(name: str, padding: str, backward: bool) -> None:
    agree(VARIANTS[name], mask_named(padding), backward)


@settings(deadline=None, max_examples=60, derandomize=True)
@given(
    name=st.sampled_from([*VARIANTS]),
    rows=st.integers(0, 5).flatmap(
        lambda steps: st.lists(
            st.lists(st.booleans(), min_size=steps, max_size=steps), min_size=1, max_size=4
        )
    ),
    backward=st.booleans(),
)
def test_the_driver_equals_the_plain_loop_under_any_padding(
    name: str, rows: list[list[bool]], backward: bool
) -> None:
    agree(VARIANTS[name], torch.tensor(rows, dtype=torch.bool), backward)


@pytest.mark.parametrize("name", VARIANTS)
def test_the_packed_loop_equals_the_plain_loop(name: str) -> None:
    """It is what batch normalisation takes; without that nothing is different."""
    variant, mask = VARIANTS[name], mask_named("anywhere, one row empty")
    layer, inputs = variant.layer(), drawn(*mask.shape, variant.input_width)
    state = tuple(drawn(*part.shape, seed=5 + i) for i, part in enumerate(layer.start(ROWS)))
    scale = variant.scale(layer)
    for backward in (False, True):
        expected, expected_after = layer.loop(inputs, mask, state, backward, scale)
        outputs, after = layer.packed_loop(inputs, packed_order(mask, backward), state, scale)
        close(outputs, expected * mask[..., None])
        close(after, expected_after)


@pytest.mark.parametrize("name", [name for name, variant in VARIANTS.items() if not variant.scaled])
def test_a_second_derivative_is_refused_with_a_reason(name: str) -> None:
    variant = VARIANTS[name]
    layer = variant.layer()
    inputs, mask = (
        drawn(2, 3, variant.input_width).requires_grad_(),
        torch.ones(2, 3, dtype=torch.bool),
    )
    outputs, _ = layer(inputs, packed_order(mask, False), layer.start(2))
    with pytest.raises(RuntimeError, match="a recurrent layer has no second derivative"):
        torch.autograd.grad(outputs.sum(), inputs, create_graph=True)


@pytest.mark.parametrize("learned", ["inputs", "state", "weight_x", "weight_h", "bias"])
@pytest.mark.parametrize("cell", CELLS)
def test_a_gradient_is_the_same_where_it_is_the_only_one_wanted(cell: str, learned: str) -> None:
    layer, mask = VARIANTS[cell].layer(), mask_named("right")
    tensors = {"inputs": drawn(*mask.shape, 3), "state": drawn(*layer.start(ROWS)[0].shape, seed=5)}

    def gradient(only: bool) -> Tensor:
        for parameter in layer.parameters():
            parameter.requires_grad_(not only)
        leaves = {
            name: tensor.detach().clone().requires_grad_(not only)
            for name, tensor in tensors.items()
        }
        leaf = (leaves | dict(layer.named_parameters()))[learned].requires_grad_()
        state = (leaves["state"], *layer.start(ROWS)[1:])
        outputs, after = layer(leaves["inputs"], packed_order(mask, False), state)
        return gradients((outputs, *after), [leaf])[0]

    close(gradient(only=True), gradient(only=False))


def test_no_gradient_is_kept_for_what_will_not_go_back() -> None:
    layer, mask = VARIANTS["lstm"].layer(), mask_named("right")
    with torch.no_grad():
        outputs, _ = layer(drawn(*mask.shape, 3), packed_order(mask, False), layer.start(ROWS))
    assert not outputs.requires_grad
    outputs, _ = layer(drawn(*mask.shape, 3), packed_order(mask, False), layer.start(ROWS))
    assert outputs.requires_grad


# In single precision, at widths where weights take oneDNN's layout

WIDE: dict[str, dict[str, Any]] = {
    **{cell: {"cell": CELLS[cell]} for cell in CELLS},
    "lstm projected": {"cell": CELLS["lstm"], "projection": 512},
    "lstm normalised": {"cell": CELLS["lstm"], "normalisation": "layer"},
    "mut1 normalised": {"cell": CELLS["mut1"], "normalisation": "layer"},
}


@pytest.mark.usefixtures("loop")
@pytest.mark.parametrize(
    ("name", "rows"),
    [*((name, 8) for name in WIDE), *((name, 32) for name in ("lstm", "gru", "lstm normalised"))],
)
def test_single_precision_is_close_to_double(name: str, rows: int) -> None:
    width, steps = 512, 9
    layer = RecurrentLayer(input_width=32, width=width, **WIDE[name])
    for parameter in layer.parameters():
        torch.nn.init.normal_(
            parameter, std=parameter.shape[-1] ** -0.5, generator=torch.Generator().manual_seed(0)
        )
    double = RecurrentLayer(input_width=32, width=width, **WIDE[name]).double()
    double.load_state_dict(layer.state_dict())
    mask = torch.ones(rows, steps, dtype=torch.bool)
    mask[0, 6:] = False  # the last steps have a number of rows that oneDNN does not get
    found: list[list[Tensor]] = []
    for each in (layer, double):
        inputs = drawn(rows, steps, 32).to(each.bias.dtype).requires_grad_()
        run: Callable[..., tuple[Tensor, tuple[Tensor, ...]]] = (
            each.loop if each is double else each
        )
        outputs, after = run(
            inputs, mask if each is double else packed_order(mask, False), each.start(rows)
        )
        found.append(
            [
                outputs * mask[..., None],
                *after,
                *gradients((outputs, *after), [inputs, *each.parameters()], mask),
            ]
        )
    for single, exact in zip(*found, strict=True):
        assert single.dtype == torch.float32
        assert (single - exact).abs().max() < 1e-4 * max(1, exact.abs().max())


def test_without_onednn_the_layers_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """The names that the products need are private ones of torch."""
    monkeypatch.setattr(unroll, "has_compiled_loop", lambda *_: False)
    layer = RecurrentLayer(CELLS["lstm"], 32, 512)
    draw_parameters(layer, std=0.05)
    inputs, order = (
        drawn(8, 9, 32).float().requires_grad_(),
        packed_order(torch.ones(8, 9, dtype=torch.bool), False),
    )
    leaves = [inputs, *layer.parameters()]
    outputs, after = layer(inputs, order, layer.start(8))
    found = [outputs, *after, *gradients((outputs, *after), leaves)]
    monkeypatch.setattr(onednn_products, "has_onednn", lambda weight: False)
    outputs, after = layer(inputs, order, layer.start(8))
    for one, other in zip(
        found, [outputs, *after, *gradients((outputs, *after), leaves)], strict=True
    ):
        assert (one - other).abs().max() < 1e-4 * max(1, other.abs().max())


# Autocast


@pytest.mark.parametrize("name", [name for name, variant in VARIANTS.items() if not variant.scaled])
def test_autocast_takes_the_plain_loop_and_is_close(name: str) -> None:
    variant, mask = VARIANTS[name], mask_named("right")
    torch.manual_seed(0)
    options: dict[str, Any] = {
        "projection": variant.projection,
        "normalisation": variant.normalisation,
    }
    layers = RecurrentStack(
        RecurrentStackConfig(variant.cell, variant.input_width, 5, bidirectional=True, **options)
    )
    inputs = drawn(*mask.shape, variant.input_width).float()
    expected, _ = layers(inputs, mask)
    with torch.autocast("cpu", torch.bfloat16):
        outputs, _ = layers(inputs, mask)
    torch.testing.assert_close(outputs.float() * mask[..., None], expected, rtol=0.05, atol=0.05)
