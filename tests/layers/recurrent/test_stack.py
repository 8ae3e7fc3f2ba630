"""Stacks of recurrent layers: connections, carried states, and every padding."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from tests.layers.equations import (
    ANYWHERE,
    INPUT,
    PROJECTION,
    ROWS,
    STEPS,
    WIDTH,
    close,
    drawn,
    gradients,
    layers_of,
    mask_named,
    stack_written_out,
    states_of,
)
from torch import Tensor

from seqloom.errors import UsageError
from seqloom.layers.recurrent.cells import CELLS, CellState
from seqloom.layers.recurrent.stack import (
    RecurrentStack,
    RecurrentStackConfig,
    Stepper,
    layer_state,
    stack_states,
)
from seqloom.protocols import detach

STACKS: dict[str, dict[str, Any]] = {
    **{cell: {"cell": cell} for cell in CELLS},
    "lstm projected": {"cell": "lstm", "projection": PROJECTION},
    "lstm projected, normalised": {
        "cell": "lstm",
        "projection": PROJECTION,
        "normalisation": "layer",
    },
    **{
        f"{cell}, normalised": {"cell": cell, "normalisation": "layer"}
        for cell in ("lstm", "gru-torch", "mut1")
    },
    "lstm, residual": {"cell": "lstm", "connection": "residual"},
    "gru, highway": {"cell": "gru", "connection": "highway"},
    "mut2, normalised, highway": {
        "cell": "mut2",
        "normalisation": "layer",
        "connection": "highway",
    },
}
"""Options of a stack."""


# Connections


@pytest.mark.parametrize("bidirectional", [False, True], ids=["one direction", "both"])
@pytest.mark.parametrize("connection", ["residual", "highway"])
@pytest.mark.parametrize("cell", ["lstm", "mut1"])
def test_connections_between_layers_are_their_equations(
    cell: str, connection: str, bidirectional: bool
) -> None:
    """From the second layer on: x + h, or g ⊙ h + (1 - g) ⊙ x with g = σ(W_T x + b_T)."""
    layers = layers_of(cell, layers=3, connection=connection, bidirectional=bidirectional)
    inputs = drawn(ROWS, STEPS, INPUT).requires_grad_()
    leaves = [inputs, *layers.parameters()]
    state = None if bidirectional else states_of(layers)
    outputs, after = layers(inputs, ANYWHERE, state)
    expected, expected_after = stack_written_out(layers, inputs, ANYWHERE, state)
    close(outputs * ANYWHERE[..., None], expected)
    close(after, expected_after)
    close(
        gradients((outputs, *after), leaves, ANYWHERE),
        gradients((expected, *expected_after), leaves),
    )


def test_a_highway_gate_starts_at_minus_1_and_none_stands_below_the_first_layer() -> None:
    layers = RecurrentStack(
        RecurrentStackConfig(
            "gru", INPUT, WIDTH, layers=3, bidirectional=True, connection="highway"
        )
    )
    gates = [
        parameter
        for name, parameter in layers.named_parameters()
        if name.startswith("highways") and name.endswith("bias")
    ]
    assert len(gates) == 2
    for bias in gates:
        assert torch.equal(bias, torch.full((2 * WIDTH,), -1.0))
    assert not [
        *RecurrentStack(
            RecurrentStackConfig("gru", INPUT, WIDTH, layers=3, connection="residual")
        ).highways
    ]


# Padding


@pytest.mark.parametrize("bidirectional", [False, True], ids=["one direction", "both"])
@pytest.mark.parametrize("name", STACKS)
def test_padding_left_right_and_inside_agree(name: str, bidirectional: bool) -> None:
    layers = layers_of(**STACKS[name], layers=2, bidirectional=bidirectional)
    inputs = drawn(1, 3, INPUT)
    expected, state = layers(inputs)
    for places in ([0, 1, 2], [3, 4, 5], [0, 2, 5], [1, 2, 4]):
        mask = torch.zeros(1, 6, dtype=torch.bool)
        mask[0, places] = True
        wide = drawn(1, 6, INPUT, seed=9) * 100  # padding may hold anything
        wide[0, places] = inputs[0]
        outputs, after = layers(wide, mask)
        close(outputs[mask], expected[0])
        close(after, state)


@pytest.mark.parametrize("name", STACKS)
def test_a_row_in_a_batch_is_the_row_alone(name: str) -> None:
    layers, inputs = (
        layers_of(**STACKS[name], layers=2, bidirectional=True),
        drawn(ROWS, STEPS, INPUT),
    )
    outputs, after = layers(inputs, ANYWHERE)
    for row in range(ROWS):
        alone, state = layers(inputs[row : row + 1, ANYWHERE[row]])
        close(outputs[row, ANYWHERE[row]], alone[0])
        close(tuple(part[row : row + 1] for part in after), state)


@pytest.mark.parametrize("cell", CELLS)
def test_the_summary_of_a_padded_row_is_its_last_state_ahead_and_its_first_state_back(
    cell: str,
) -> None:
    layers, mask = layers_of(cell, layers=2, bidirectional=True), mask_named("right")
    outputs, after = layers(drawn(ROWS, STEPS, INPUT), mask)
    for row, length in enumerate(mask.sum(dim=1).tolist()):
        close(after[0][row, -2], outputs[row, length - 1, :WIDTH])
        close(after[0][row, -1], outputs[row, 0, WIDTH:])


@pytest.mark.parametrize("name", STACKS)
def test_no_rows_no_steps_and_no_true_steps_change_nothing(name: str) -> None:
    layers = layers_of(**STACKS[name], layers=2)
    state = states_of(layers)
    for mask in (None, torch.ones(ROWS, 0, dtype=torch.bool)):
        outputs, after = layers(drawn(ROWS, 0, INPUT), mask, state)
        assert outputs.shape == (ROWS, 0, layers.output_width)
        assert torch.equal(torch.cat(after, dim=-1), torch.cat(state, dim=-1))
    _, after = layers(drawn(ROWS, STEPS, INPUT), mask_named("nothing"), state)
    assert torch.equal(torch.cat(after, dim=-1), torch.cat(state, dim=-1))


# The state


@pytest.mark.parametrize("name", STACKS)
def test_one_step_at_a_time_is_the_whole(name: str) -> None:
    layers = layers_of(**STACKS[name], layers=3)
    inputs, start = (
        drawn(ROWS, STEPS, INPUT).requires_grad_(),
        tuple(part.requires_grad_() for part in states_of(layers)),
    )
    leaves = [inputs, *start, *layers.parameters()]
    expected, end = layers(inputs, None, start)
    expected_gradients = gradients((expected, *end), leaves)
    for mask in (None, torch.ones(ROWS, 1, dtype=torch.bool)):
        outputs, state = [], start
        for t in range(STEPS):
            output, state = layers(inputs[:, t : t + 1], mask, state)
            outputs.append(output)
        whole = torch.cat(outputs, dim=1)
        close(whole, expected)
        close(state, end)
        close(gradients((whole, *state), leaves), expected_gradients)


@pytest.mark.parametrize("name", STACKS)
def test_a_stepper_is_the_stack_one_step_at_a_time(name: str) -> None:
    layers, inputs = layers_of(**STACKS[name], layers=3).eval(), drawn(ROWS, STEPS, INPUT)
    start = states_of(layers)
    expected, end = layers(inputs, None, start)
    step, states = Stepper(layers, ROWS), [layer_state(start, k) for k in range(3)]
    for t in range(STEPS):
        output, states = step(layers.stack[0].input_product(inputs[:, t]), states)
        close(output, expected[:, t])
    close(stack_states(states), end)


@pytest.mark.parametrize("name", STACKS)
def test_a_carried_state_goes_on(name: str) -> None:
    layers, inputs = layers_of(**STACKS[name], layers=2), drawn(ROWS, STEPS, INPUT)
    whole, end = layers(inputs, ANYWHERE)
    first, state = layers(inputs[:, :2], ANYWHERE[:, :2])
    second, after = layers(inputs[:, 2:], ANYWHERE[:, 2:], state)
    close(torch.cat([first, second], dim=1)[ANYWHERE], whole[ANYWHERE])
    close(after, end)


SEGMENTS = ((0, 4), (4, 5), (5, 10), (10, 12))


def stream(name: str) -> tuple[RecurrentStack, Tensor, Tensor]:
    """Layers, inputs of 12 steps and their mask."""
    layers = layers_of(**STACKS[name], layers=2)
    mask = torch.cat([ANYWHERE, ANYWHERE.flip(0)], dim=1)
    return layers, drawn(ROWS, 12, INPUT).requires_grad_(), mask


def in_segments(
    layers: RecurrentStack, inputs: Tensor, mask: Tensor, cut: bool = True
) -> Iterator[tuple[Tensor, CellState]]:
    state = layers.start(ROWS)
    for start, stop in SEGMENTS:
        outputs, state = layers(inputs[:, start:stop], mask[:, start:stop], state)
        yield outputs, state
        state = detach(state) if cut else state


@pytest.mark.parametrize("name", STACKS)
def test_truncated_backpropagation_is_a_loop_cut_at_the_same_steps(name: str) -> None:
    layers, inputs, mask = stream(name)
    leaves = [inputs, *layers.parameters()]
    found = [*in_segments(layers, inputs, mask)]
    outputs, end = torch.cat([segment for segment, _ in found], dim=1), found[-1][1]

    state, expected = layers.start(ROWS), []
    for start, stop in SEGMENTS:
        segment, state = stack_written_out(
            layers, inputs[:, start:stop], mask[:, start:stop], detach(state)
        )
        expected.append(segment)
    whole = torch.cat(expected, dim=1)
    close(outputs * mask[..., None], whole)
    close(end, state)
    close(gradients((outputs, *end), leaves, mask), gradients((whole, *state), leaves))

    in_one_piece, last = layers(inputs, mask)
    close(outputs * mask[..., None], in_one_piece * mask[..., None])
    close(end, last)


def nodes(result: Tensor) -> int:
    """Of the graph that leads to it."""
    seen, open_nodes = set(), [result.grad_fn]
    while open_nodes:
        node = open_nodes.pop()
        if node is not None and node not in seen:
            seen.add(node)
            open_nodes += [before for before, _ in node.next_functions]
    return len(seen)


@pytest.mark.parametrize("name", STACKS)
def test_a_detached_state_leads_to_no_earlier_segment(name: str) -> None:
    layers, inputs, mask = stream(name)
    pieces = inputs.detach().requires_grad_()
    sizes = []
    for (start, stop), (outputs, _) in zip(
        SEGMENTS, in_segments(layers, pieces, mask), strict=True
    ):
        (gradient,) = torch.autograd.grad(outputs.sum(), pieces, retain_graph=True)
        assert gradient[:, :start].eq(0).all()
        assert gradient[:, start:stop].ne(0).any()
        sizes.append(nodes(outputs) if stop - start > 1 else 0)
    assert sizes[0] == sizes[2] == sizes[3]
    grown = [nodes(outputs) for outputs, _ in in_segments(layers, pieces, mask, cut=False)]
    assert grown == sorted({*grown})


# Other ways to run


@pytest.mark.parametrize("name", STACKS)
@pytest.mark.parametrize("steps", [1, STEPS])
def test_autocast_keeps_the_type_of_states_and_is_close(name: str, steps: int) -> None:
    layers = layers_of(**STACKS[name], layers=2).float()
    inputs, state = (
        drawn(ROWS, steps, INPUT).float(),
        tuple(part.float() for part in states_of(layers)),
    )
    expected, end = layers(inputs, None, state)
    with torch.autocast("cpu", torch.bfloat16):
        outputs, after = layers(inputs, None, state)
    for one, other in zip((outputs, *after), (expected, *end), strict=True):
        assert one.dtype == other.dtype == torch.float32
        torch.testing.assert_close(one, other, rtol=0.1, atol=0.1)


@pytest.mark.parametrize("name", STACKS)
def test_a_watched_stack_gives_the_same(name: str) -> None:
    layers, inputs = (
        layers_of(**STACKS[name], layers=2, bidirectional=True),
        drawn(ROWS, STEPS, INPUT).requires_grad_(),
    )
    leaves = [inputs, *layers.parameters()]
    for padding in ("full", "anywhere, one row empty", "nothing"):
        mask = mask_named(padding)
        expected, end = layers(inputs, mask)
        layers.stack[0].watch = []
        outputs, after = layers(inputs, mask)
        layers.stack[0].watch = None
        close(outputs * mask[..., None], expected * mask[..., None])
        close(after, end)
        close(gradients((outputs, *after), leaves, mask), gradients((expected, *end), leaves, mask))


# What is refused


def test_what_is_wrong_is_refused() -> None:
    with pytest.raises(UsageError, match="bidirectional layer must start without a carried state"):
        layers_of("gru", bidirectional=True)(
            drawn(ROWS, STEPS, INPUT), None, (drawn(ROWS, 2, WIDTH),)
        )
    with pytest.raises(UsageError, match="projection needs the cell lstm"):
        RecurrentStack(RecurrentStackConfig("gru", INPUT, WIDTH, projection=PROJECTION))
