"""Highway layers: y = g ⊙ H(x) + (1 - g) ⊙ x."""

from __future__ import annotations

import pytest
import torch
from tests.layers.equations import close, draw_parameters, drawn, sigma

from seqloom.layers.recurrent.highway import HighwayGate, HighwayLayer

WIDTH = 5


def test_a_layer_is_its_equation() -> None:
    layer, x = HighwayLayer(WIDTH).double(), drawn(3, 4, WIDTH)
    draw_parameters(layer)
    for row in range(3):
        for step in range(4):
            each = x[row, step]
            transformed = (layer.linear.weight @ each + layer.linear.bias).clamp(min=0)
            gate = sigma(layer.gate.linear.weight @ each + layer.gate.linear.bias)
            close(layer(x)[row, step], gate * transformed + (1 - gate) * each)


def test_gradients_are_finite_differences() -> None:
    layer = HighwayLayer(WIDTH).double()
    draw_parameters(layer)
    assert torch.autograd.gradcheck(layer, drawn(2, WIDTH).requires_grad_())


@pytest.mark.parametrize(("bias", "taken"), [(1e6, "transformed"), (-1e6, "x")])
def test_an_open_gate_takes_what_was_transformed_and_a_closed_one_x(
    bias: float, taken: str
) -> None:
    gate, values = (
        HighwayGate(WIDTH).double(),
        {"x": drawn(3, WIDTH), "transformed": drawn(3, WIDTH, seed=2)},
    )
    torch.nn.init.constant_(gate.linear.bias, bias)
    close(gate(values["x"], values["transformed"]), values[taken])


def test_it_starts_mostly_closed() -> None:
    for gate in (HighwayGate(WIDTH), HighwayLayer(WIDTH).gate):
        assert torch.equal(gate.linear.bias, torch.full((WIDTH,), -1.0))


def test_autocast_keeps_the_type() -> None:
    layer, x = HighwayLayer(WIDTH), drawn(3, WIDTH).float()
    with torch.autocast("cpu", torch.bfloat16):
        found = layer(x)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, layer(x), rtol=0.05, atol=0.05)
