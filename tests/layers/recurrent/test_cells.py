"""Every cell with every option against its equations: outputs, states and all gradients."""

from __future__ import annotations

import pytest
import torch
from tests.layers.equations import (
    ANYWHERE,
    EQUATIONS,
    INPUT,
    PARTS,
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
    sigma,
    stack_written_out,
    states_of,
    written_out,
)

from seqloom.errors import UsageError
from seqloom.layers.recurrent.cells import CELLS, cell_named, gate_names, hidden_gate_names
from seqloom.layers.recurrent.packing import packed_order
from seqloom.layers.recurrent.stack import RecurrentStack, RecurrentStackConfig
from seqloom.testing import check_cell
from seqloom.testing.cells import gradients_are_finite_differences


def test_every_cell_has_its_equations_here() -> None:
    assert EQUATIONS.keys() == CELLS.keys()
    assert PARTS.keys() == CELLS.keys()
    for name, cell in CELLS.items():
        assert "".join(gate_names(cell)) == "".join(PARTS[name])
        assert "".join(hidden_gate_names(cell)) == "".join(PARTS[name]).replace(
            UNFED.get(name, " "), ""
        )


@pytest.mark.parametrize("backward", [False, True], ids=["ahead", "back"])
@pytest.mark.parametrize("name", VARIANTS)
def test_a_layer_and_its_gradients_are_those_of_its_equations(name: str, backward: bool) -> None:
    variant = VARIANTS[name]
    layer = variant.layer()
    inputs = drawn(ROWS, STEPS, variant.input_width).requires_grad_()
    state = tuple(
        drawn(*part.shape, seed=5 + i).requires_grad_() for i, part in enumerate(layer.start(ROWS))
    )
    scale, leaves = variant.scale(layer), [inputs, *state, *layer.parameters()]

    expected, expected_after = written_out(
        variant.cell, layer, inputs, ANYWHERE, state, scale=scale, backward=backward
    )
    outputs, after = layer(inputs, packed_order(ANYWHERE, backward), state, scale)
    close(outputs, expected)
    close(after, expected_after)
    close(gradients((outputs, *after), leaves), gradients((expected, *expected_after), leaves))


@pytest.mark.parametrize("backward", [False, True], ids=["ahead", "back"])
@pytest.mark.parametrize("name", VARIANTS)
def test_gradients_are_finite_differences(name: str, backward: bool) -> None:
    variant = VARIANTS[name]
    layer = variant.layer()
    whole = name in CELLS and not backward  # the others along a random direction, which costs less
    gradients_are_finite_differences(
        layer, variant.input_width, backward, variant.scale(layer, 2), whole
    )


@pytest.mark.parametrize("name", CELLS)
def test_every_cell_passes_the_check_for_cells_from_outside(name: str) -> None:
    check_cell(type(CELLS[name]))


@pytest.mark.parametrize("normalisation", ["none", "layer"])
@pytest.mark.parametrize("cell", [*CELLS, "lstm projected"])
def test_stacked_bidirectional_layers_are_their_equations(cell: str, normalisation: str) -> None:
    """Layer 2 reads [→h; ←h] of layer 1; the final states are →h_n and ←h_1, layer by layer."""
    kind, *projected = cell.split()
    layers = layers_of(
        kind,
        layers=2,
        bidirectional=True,
        normalisation=normalisation,
        projection=3 if projected else None,
    )
    inputs = drawn(ROWS, STEPS, INPUT).requires_grad_()
    leaves = [inputs, *layers.parameters()]
    outputs, after = layers(inputs, ANYWHERE)
    expected, expected_after = stack_written_out(layers, inputs, ANYWHERE)
    close(outputs, expected)
    close(after, expected_after)
    close(gradients((outputs, *after), leaves), gradients((expected, *expected_after), leaves))


@pytest.mark.parametrize("name", [name for name, variant in VARIANTS.items() if not variant.scaled])
def test_the_gates_by_name_are_those_of_the_equations(name: str) -> None:
    variant = VARIANTS[name]
    layer, x = variant.layer(), drawn(2, variant.input_width)
    state = tuple(drawn(*part.shape, seed=5 + i) for i, part in enumerate(layer.start(2)))
    gates = layer.gate_values(layer.input_gates(layer.input_product(x)), state)
    assert [*gates] == [*"".join(PARTS[variant.cell])]
    _, _, expected = EQUATIONS[variant.cell](Sums(variant.cell, layer), x, state[0], state[-1])
    close(gates, expected)


# What is particular to a cell


def test_an_lstm_with_an_open_forget_gate_and_a_closed_input_gate_keeps_c() -> None:
    layers = layers_of("lstm")
    state = states_of(layers)
    with torch.no_grad():
        for gate, value in (("f", 1e6), ("i", -1e6)):
            at = "ifgo".index(gate) * WIDTH
            layers.stack[0].bias[at : at + WIDTH] = value
    _, (_, c) = layers(drawn(ROWS, STEPS, INPUT), None, state)
    assert torch.equal(c, state[1])


def test_the_direct_path_through_c_is_the_forget_gate() -> None:
    """∂c_t/∂c_{t-1} = diag(f), where h_{t-1} is held."""
    layer, product, h = layers_of("lstm").stack[0], drawn(1, 4 * WIDTH), drawn(1, WIDTH, seed=2)
    before = drawn(1, WIDTH, seed=3).requires_grad_()
    _, after = layer.step(product, (h, before))
    jacobian = torch.cat(
        [torch.autograd.grad(after[0, k], before, retain_graph=True)[0] for k in range(WIDTH)]
    )
    forget = sigma(product + h @ layer.weight_h.T)[0, WIDTH : 2 * WIDTH]
    close(jacobian, forget.diag())


@pytest.mark.parametrize(
    ("cell", "kept"),
    [("gru", 1e6), ("gru-torch", 1e6), ("mut1", -1e6), ("mut2", -1e6), ("mut3", -1e6)],
)
def test_the_update_gate_keeps_h_at_1_in_a_gru_and_at_0_in_a_mut(cell: str, kept: float) -> None:
    layers = layers_of(cell)
    (state,) = states_of(layers)
    with torch.no_grad():
        at = "".join(PARTS[cell]).index("z") * WIDTH
        layers.stack[0].bias[at : at + WIDTH] = kept
    _, (h,) = layers(drawn(ROWS, STEPS, INPUT), None, (state,))
    close(h, state)


def test_an_unknown_cell_is_refused() -> None:
    with pytest.raises(UsageError, match=r"cell must be one of elman, .*, but is 'gur'"):
        cell_named("gur")
    with pytest.raises(UsageError, match="but is 'GRU'"):
        RecurrentStack(RecurrentStackConfig("GRU", INPUT, WIDTH))
