"""The laws of every recurrent cell: its backward step is the derivative of its forward step, and padding is a
step that does not happen."""

from __future__ import annotations

from itertools import product

import torch
from torch import Tensor

from seqloom.layers.recurrent.cells import Cell, CellState
from seqloom.layers.recurrent.layer import Normalisation, RecurrentLayer
from seqloom.layers.recurrent.packing import packed_order
from seqloom.testing.tensors import assert_close, draw, draw_parameters, gradients, run_laws

WIDTH = 4
ANYWHERE = torch.tensor(
    [[0, 0, 1, 1, 0], [1, 0, 1, 0, 1], [0, 0, 0, 0, 0], [1, 1, 1, 1, 1]], dtype=torch.bool
)
"""Steps that are no padding."""


def random_state(layer: RecurrentLayer, rows: int) -> CellState:
    return tuple(
        draw(*part.shape, seed=5 + index).requires_grad_()
        for index, part in enumerate(layer.start(rows))
    )


def the_driver_equals_the_plain_loop(
    layer: RecurrentLayer,
    input_width: int,
    mask: Tensor,
    backward: bool,
    scale: Tensor | None = None,
) -> None:
    """Outputs, final states and all gradients: the hand-written backward step against autograd."""
    inputs, state = draw(*mask.shape, input_width).requires_grad_(), random_state(layer, len(mask))
    leaves = [inputs, *state, *layer.parameters()]
    expected, expected_after = layer.loop(inputs, mask, state, backward, scale)
    outputs, after = layer(inputs, packed_order(mask, backward), state, scale)
    assert_close(outputs, expected * mask[..., None], 1e-9, 1e-11)
    assert_close(after, expected_after, 1e-9, 1e-11)
    found = gradients((outputs, *after), leaves, mask)
    assert_close(found, gradients((expected, *expected_after), leaves, mask), 1e-9, 1e-11)


def gradients_are_finite_differences(
    layer: RecurrentLayer,
    input_width: int,
    backward: bool,
    scale: Tensor | None = None,
    whole: bool = True,
) -> None:
    """`whole`: along every direction, and not only along a random one, which costs less."""
    mask = torch.tensor([[True, True], [False, True]])
    order, names = packed_order(mask, backward), [name for name, _ in layer.named_parameters()]
    states = layer.cell.state_count

    def run(inputs: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
        state, weights = rest[:states], dict(zip(names, rest[states:], strict=True))
        outputs, after = torch.func.functional_call(layer, weights, (inputs, order, state, scale))
        return outputs, *after

    given = [draw(2, 2, input_width), *random_state(layer, 2), *layer.parameters()]
    assert torch.autograd.gradcheck(
        run, [part.detach().requires_grad_() for part in given], fast_mode=not whole
    )


def check_cell(cell: type[Cell]) -> None:
    """Checks a recurrent cell: forward and backward against autograd and finite differences in float64, with
    and without layer normalisation, in both directions, under padding. Raises AssertionError with the law
    that is broken."""
    variants: tuple[tuple[Normalisation, int], ...] = (("none", 3), ("none", WIDTH), ("layer", 3))
    for (normalisation, input_width), backward in product(variants, (False, True)):
        layer = RecurrentLayer(cell(), input_width, WIDTH, normalisation=normalisation).double()
        draw_parameters(layer, std=0.6)
        laws = (_the_derivative_is_that_of_autograd, gradients_are_finite_differences)
        run_laws(cell.__name__, laws, layer, input_width, backward)


def _the_derivative_is_that_of_autograd(
    layer: RecurrentLayer, input_width: int, backward: bool
) -> None:
    for mask in (ANYWHERE, torch.ones(2, 3, dtype=torch.bool)):
        the_driver_equals_the_plain_loop(layer, input_width, mask, backward)
