"""One layer in one direction: its parameters, its step in pieces, and what a watched layer tells."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from tests.layers.equations import (
    ANYWHERE,
    BARE,
    EQUATIONS,
    INPUT,
    PARTS,
    PROJECTION,
    ROWS,
    STEPS,
    UNFED,
    VARIANTS,
    WIDTH,
    Sums,
    close,
    drawn,
    gradients,
    layers_of,
)

from seqloom.errors import UsageError
from seqloom.layers.recurrent.cells import CELLS, gate_names
from seqloom.layers.recurrent.layer import RecurrentLayer
from seqloom.layers.recurrent.stack import RecurrentStack, RecurrentStackConfig

UNSCALED = [name for name, variant in VARIANTS.items() if not variant.scaled]


# Parameters


@pytest.mark.parametrize("normalisation", ["none", "layer", "batch"])
@pytest.mark.parametrize("input_width", [INPUT, WIDTH])
@pytest.mark.parametrize("cell", [*CELLS, "lstm projected"])
def test_a_layer_has_these_parameters(cell: str, input_width: int, normalisation: Any) -> None:
    kind, *projected = cell.split()
    gates = len("".join(PARTS[kind]))
    mapped, fed = gates - (kind in BARE), gates - (kind in UNFED)
    h = PROJECTION if projected else WIDTH
    expected: dict[str, tuple[int, ...]] = {
        "weight_x": ((mapped if input_width == WIDTH else gates) * WIDTH, input_width),
        "weight_h": (fed * WIDTH, h),
        "bias": (gates * WIDTH,),
    }
    if kind == "gru-torch":
        expected["bias_h"] = (gates * WIDTH,)
    if projected:
        expected["weight_p"] = (PROJECTION, WIDTH)
    if normalisation != "none":
        names = (
            ("gain_x", "gain_h", "gain_c")
            if normalisation == "layer"
            else ("norm_x.gain", "norm_h.gain", "norm_c.gain")
        )
        expected |= {names[0]: (mapped * WIDTH,), names[1]: (fed * WIDTH,)}
        if kind == "lstm":
            expected |= {names[2]: (WIDTH,), "bias_c": (WIDTH,)}
    layer = RecurrentLayer(
        CELLS[kind],
        input_width,
        WIDTH,
        projection=PROJECTION if projected else None,
        normalisation=normalisation,
    )
    assert {
        name: tuple(parameter.shape) for name, parameter in layer.named_parameters()
    } == expected
    assert layer.output_width == h
    assert [tuple(part.shape) for part in layer.start(3)] == [(3, h), (3, WIDTH)][
        : CELLS[kind].state_count
    ]
    assert not torch.cat(layer.start(3), dim=1).any()


def test_the_bias_of_a_forget_gate_starts_where_one_says() -> None:
    config = RecurrentStackConfig(
        "lstm", INPUT, WIDTH, layers=2, bidirectional=True, forget_bias=2.5
    )
    for layer in RecurrentStack(config).all_layers():
        biases = layer.bias.detach().view(-1, WIDTH).tolist()
        for gate, bias in zip(gate_names(layer.cell), biases, strict=True):
            assert bias == [2.5 if gate == "f" else 0.0] * WIDTH


def test_chrono_gates_start_with_memories_of_every_length() -> None:
    """b_f = log u, u uniform in 1..T-1; b_i = -b_f; the others are 0 (Tallec and Ollivier 2018)."""
    torch.manual_seed(0)
    config = RecurrentStackConfig("lstm", INPUT, 4000, chrono_steps=100)
    (layer,) = RecurrentStack(config).all_layers()
    biases = dict(zip(gate_names(layer.cell), layer.bias.detach().view(-1, 4000), strict=True))
    steps = biases["f"].exp().double()
    assert 1 <= float(steps.min()) < 1.2
    assert 98.8 < float(steps.max()) <= 99
    # the mean of a uniform draw, within four standard errors
    assert abs(float(steps.mean()) - 50) < 4 * 98 / 12**0.5 / 4000**0.5
    assert torch.equal(biases["i"], -biases["f"])
    assert not biases["g"].any()
    assert not biases["o"].any()


@pytest.mark.parametrize("cell", [*CELLS, "lstm projected"])
def test_a_new_layer_starts_as_published(cell: str) -> None:
    """Orthogonal W_h and W_p, W_x in its bounds, biases 0 but 1 for a forget gate, gains 1."""
    kind, *projected = cell.split()
    layer = RecurrentLayer(
        CELLS[kind],
        INPUT,
        WIDTH,
        projection=PROJECTION if projected else None,
        normalisation="layer",
    )
    for block in layer.weight_h.chunk(len(layer.weight_h) // WIDTH):
        small = block if block.shape[0] <= block.shape[1] else block.T
        torch.testing.assert_close(small @ small.T, torch.eye(len(small)), rtol=0, atol=1e-5)
    if layer.weight_p is not None:
        torch.testing.assert_close(
            layer.weight_p @ layer.weight_p.T, torch.eye(PROJECTION), rtol=0, atol=1e-5
        )
    for block in layer.weight_x.chunk(len(layer.weight_x) // WIDTH):
        assert 0 < float(block.detach().abs().max()) <= (6 / (INPUT + WIDTH)) ** 0.5
    gates = "".join(PARTS[kind])
    for gate, bias in zip(gates, layer.bias.chunk(len(gates)), strict=True):
        assert torch.equal(bias, torch.full((WIDTH,), float(gate == "f")))
    assert layer.bias_h is None or not layer.bias_h.any()
    for name, parameter in layer.named_parameters():
        assert not name.startswith("gain") or parameter.eq(1).all()
    assert layer.bias_c is None or not layer.bias_c.any()


@pytest.mark.parametrize("cell", [cell for cell in CELLS if cell != "lstm"])
def test_a_projection_of_another_cell_is_refused(cell: str) -> None:
    with pytest.raises(UsageError, match="projection needs the cell lstm"):
        RecurrentLayer(CELLS[cell], INPUT, WIDTH, projection=PROJECTION)


# The step


@pytest.mark.parametrize("name", UNSCALED)
def test_the_linear_part_may_be_had_in_pieces(name: str) -> None:
    """As where attention's context is added to what the other columns gave."""
    variant = VARIANTS[name]
    layer, x = variant.layer(), drawn(2, 5, variant.input_width)
    whole = layer.input_product(x)
    assert whole.shape == (2, 5, len(layer.bias))
    for cut in range(variant.input_width + 1):
        close(layer.input_product(x[..., :cut]) + layer.input_product(x[..., cut:], cut), whole)


@pytest.mark.parametrize("name", VARIANTS)
def test_a_step_is_its_equations(name: str) -> None:
    variant = VARIANTS[name]
    layer, x = variant.layer(), drawn(2, variant.input_width)
    state = tuple(drawn(*part.shape, seed=5 + i) for i, part in enumerate(layer.start(2)))
    scale = variant.scale(layer, 2)
    after, advanced = (
        layer.step(layer.input_gates(layer.input_product(x)), state, scale),
        layer.step_from_input(x, state, scale),
    )
    for row in range(2):
        sums = Sums(variant.cell, layer, None if scale is None else scale[row])
        h, c, _ = EQUATIONS[variant.cell](sums, x[row], state[0][row], state[-1][row])
        for found in (after, advanced):
            close(tuple(part[row] for part in found), (h, c)[: len(state)])


# Watching


@pytest.mark.parametrize("normalisation", ["none", "layer", "batch"])
@pytest.mark.parametrize("cell", CELLS)
def test_a_watched_layer_tells_each_step_in_order(cell: str, normalisation: str) -> None:
    layers = layers_of(cell, layers=2, bidirectional=True, normalisation=normalisation)
    inputs = drawn(ROWS, STEPS, INPUT)
    for layer, forward in ((layers.stack[0], True), (layers.backward_layers[0], False)):
        assert isinstance(layer, RecurrentLayer)
        layer.watch = []
        layers(inputs)
        seen, layer.watch = layer.watch, None
        assert len(seen) == STEPS
        assert not torch.cat(seen[0].old, dim=1).any()
        for earlier, later in pairwise(seen):
            close(later.old, earlier.new)
        if normalisation == "batch":
            continue
        for t, step in zip(range(STEPS) if forward else reversed(range(STEPS)), seen, strict=True):
            close(step.gates, layer.input_gates(layer.input_product(inputs[:, t])))
            close(layer.step(step.gates, step.old), step.new)


@pytest.mark.parametrize("name", UNSCALED)
def test_the_gradient_of_each_state_comes_from_its_own_loss_and_later_steps(name: str) -> None:
    """dL/dh_t where h_t is an input of the equations: of the loss at t and of all that follows."""
    variant = VARIANTS[name]
    layers = layers_of(
        variant.cell,
        variant.input_width,
        projection=variant.projection,
        normalisation=variant.normalisation,
    )
    layer, inputs, upstream = (
        layers.stack[0],
        drawn(1, STEPS, variant.input_width),
        drawn(STEPS, layers.output_width, seed=3),
    )
    layer.watch = []
    outputs, _ = layers(inputs)
    seen, layer.watch = layer.watch, None
    found = torch.autograd.grad((outputs[0] * upstream).sum(), [step.new[0] for step in seen])
    sums = Sums(variant.cell, layer)
    for t in range(STEPS):
        h, c = seen[t].new[0][0].detach().requires_grad_(), seen[t].new[-1][0].detach()
        loss, state = (h * upstream[t]).sum(), (h, c)
        for later in range(t + 1, STEPS):
            state = EQUATIONS[variant.cell](sums, inputs[0, later], *state)[:2]
            loss = loss + (state[0] * upstream[later]).sum()
        close(found[t][0], torch.autograd.grad(loss, h)[0])


def test_a_layer_is_watched_only_while_watch_is_a_list() -> None:
    layers, inputs = layers_of("gru"), drawn(ROWS, STEPS, INPUT).requires_grad_()
    outputs, _ = layers(inputs, ANYWHERE)
    assert layers.stack[0].watch is None
    layers.stack[0].watch = []
    watched, _ = layers(inputs, ANYWHERE)
    close(watched * ANYWHERE[..., None], outputs)
    close(gradients([watched], [inputs], ANYWHERE), gradients([outputs], [inputs], ANYWHERE))
