"""Dropout in recurrent layers: between them, and of the state on its way into the next step.

An Elman layer with ReLU, W_h = 1 and W_x = 0 shows what its state is multiplied with: from h = 1, h_t is its
t-th power.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.layers.equations import ANYWHERE, INPUT, ROWS, STEPS, close, drawn, layers_of
from torch import Tensor

from seqloom.layers.recurrent.cells import CellState
from seqloom.layers.recurrent.layer import RecurrentLayer
from seqloom.layers.recurrent.packing import PackedOrder
from seqloom.layers.recurrent.stack import (
    RecurrentStack,
    RecurrentStackConfig,
    Stepper,
    layer_state,
)

WIDTH, SHARE = 40, 0.5


def powers(**options: Any) -> RecurrentStack:
    """Two layers that show what multiplies their state."""
    layers = RecurrentStack(
        RecurrentStackConfig("elman-relu", INPUT, WIDTH, layers=2, state_dropout=SHARE, **options)
    ).double()
    with torch.no_grad():
        for layer in layers.stack:
            layer.weight_x.zero_()
            layer.weight_h.copy_(torch.eye(WIDTH))
    return layers


def states_along(layers: RecurrentStack, way: str) -> list[Tensor]:
    """h of each layer, `(rows, steps, width)`, from h = 1 and input 0."""
    state: CellState = (torch.ones(ROWS, 2, WIDTH, dtype=torch.double),)
    seen: list[list[Tensor]] = [[], []]
    if way == "step by step":
        step, states = Stepper(layers, ROWS), [layer_state(state, k) for k in range(2)]
        for _ in range(STEPS):
            _, states = step(
                layers.stack[0].input_product(torch.zeros(ROWS, INPUT, dtype=torch.double)), states
            )
            for k in range(2):
                seen[k].append(states[k][0])
        return [torch.stack(steps, dim=1) for steps in seen]
    found: list[Tensor] = []
    hooks = [
        layer.register_forward_hook(lambda _, __, result: found.append(result[0]))
        for layer in layers.stack
    ]
    if way == "plain loop":
        for layer in layers.stack:
            layer.watch = []
    layers(torch.zeros(ROWS, STEPS, INPUT, dtype=torch.double), None, state)
    for hook in hooks:
        hook.remove()
    return found or [
        torch.stack([step.new[0] for step in layer.watch or []], dim=1) for layer in layers.stack
    ]


@pytest.mark.parametrize("way", ["driver", "plain loop", "step by step"])
def test_one_mask_multiplies_the_state_at_all_steps_of_a_sequence(way: str) -> None:
    torch.manual_seed(0)
    layers = powers()
    seen = states_along(layers, way)
    assert len(seen) == 2
    for h in seen:
        scale = h[:, 0]
        # inverted: no scale in evaluation
        assert set(scale.flatten().tolist()) == {
            0.0,
            1 / (1 - SHARE),
        }
        for t in range(STEPS):
            close(h[:, t], scale ** (t + 1))
    masks = [seen[k][row, 0] for k in range(2) for row in range(ROWS)]
    assert len({tuple(mask.tolist()) for mask in masks}) == 2 * ROWS  # rows and layers differ
    assert not torch.equal(states_along(layers, way)[0], seen[0])  # and so do sequences
    for h in states_along(layers.eval(), way):
        assert h.eq(1).all()


def test_both_directions_draw_masks_of_their_own() -> None:
    torch.manual_seed(0)
    layers, scales = (
        RecurrentStack(
            RecurrentStackConfig("gru", INPUT, WIDTH, bidirectional=True, state_dropout=SHARE)
        ),
        list[Tensor](),
    )
    for layer in (*layers.stack, *layers.backward_layers):
        layer.register_forward_pre_hook(lambda _, given: scales.append(given[3]))
    layers(drawn(ROWS, STEPS, INPUT).float())
    assert len(scales) == 2
    assert not torch.equal(*scales)


def test_a_batch_normalised_state_is_dropped_too() -> None:
    torch.manual_seed(0)
    dropped, kept = (
        layers_of("lstm", normalisation="batch", state_dropout=share) for share in (0.9, 0.0)
    )
    inputs = drawn(ROWS, STEPS, INPUT)
    close(dropped(inputs)[0][:, 0], kept(inputs)[0][:, 0])  # the first state is 0
    assert not torch.allclose(dropped(inputs)[0][:, 1], kept(inputs)[0][:, 1])
    kept.load_state_dict(dropped.state_dict())  # the statistics of what was dropped
    close(dropped.eval()(inputs)[0], kept.eval()(inputs)[0])


@pytest.mark.parametrize("share", [0.1, 0.5, 0.8])
def test_the_expectation_is_kept(share: float) -> None:
    torch.manual_seed(0)
    layers = RecurrentStack(
        RecurrentStackConfig(
            "gru", INPUT, WIDTH, layers=2, dropout=share, state_dropout=share, variational=True
        )
    )
    scale = layers.state_scale(1000)
    assert scale is not None
    between = layers.drop_features(torch.ones(1000, 1, WIDTH))
    deviation = (share / (1 - share) / scale.numel()) ** 0.5  # of the mean
    for drawn_values in (scale, between):
        assert abs(float(drawn_values.mean()) - 1) < 5 * deviation
        assert abs(float(drawn_values.eq(0).float().mean()) - share) < 0.02


# Between layers


def input_of(layer: RecurrentLayer) -> list[Tensor]:
    """Filled with what it reads, once it has read."""
    found: list[Tensor] = []

    def note(
        _: RecurrentLayer, given: tuple[Tensor, PackedOrder, CellState, Tensor | None]
    ) -> None:
        found.append(given[0])

    layer.register_forward_pre_hook(note)
    return found


@pytest.mark.parametrize("variational", [False, True])
def test_between_layers_features_are_dropped_at_one_step_or_at_all(variational: bool) -> None:
    torch.manual_seed(0)
    layers = RecurrentStack(
        RecurrentStackConfig(
            "gru",
            INPUT,
            WIDTH,
            layers=3,
            bidirectional=True,
            dropout=SHARE,
            variational=variational,
        )
    ).double()
    read = [
        input_of(layer)  # type: ignore[arg-type]
        for layer in (layers.stack[1], layers.backward_layers[1], layers.stack[2])
    ]
    outputs = layers(drawn(ROWS, STEPS, INPUT))[0]
    assert outputs.ne(0).all()
    (second,), (reverse,), (third,) = read
    assert torch.equal(second, reverse)
    for dropped in (second.eq(0), third.eq(0)):
        assert 0.4 < float(dropped.float().mean()) < 0.6
        assert bool((dropped == dropped[:, :1]).all()) == variational
        assert not torch.equal(dropped[0], dropped[1])
    assert not torch.equal(second.eq(0), third.eq(0))

    below = RecurrentStack(RecurrentStackConfig("gru", INPUT, WIDTH, bidirectional=True)).double()
    below.load_state_dict(
        {name: weight for name, weight in layers.state_dict().items() if "layers.0." in name}
    )
    expected = below(drawn(ROWS, STEPS, INPUT))[0]
    close(second[second.ne(0)], expected[second.ne(0)] / (1 - SHARE))


@pytest.mark.parametrize("variational", [False, True])
def test_dropout_is_between_layers_only_and_in_training_only(variational: bool) -> None:
    options: dict[str, Any] = {"dropout": 0.9, "variational": variational}
    inputs = drawn(ROWS, STEPS, INPUT)
    one, two = layers_of("gru", **options), layers_of("gru", layers=2, **options)
    close(one(inputs, ANYWHERE)[0], one.eval()(inputs, ANYWHERE)[0])
    dropped, (state,) = two(inputs, ANYWHERE)
    kept, (full,) = two.eval()(inputs, ANYWHERE)
    close(state[:, 0], full[:, 0])
    assert not torch.allclose(dropped, kept)
    close(kept, layers_of("gru", layers=2)(inputs, ANYWHERE)[0])


@pytest.mark.parametrize("steps", [1, STEPS])
def test_a_connection_goes_round_the_layer_and_not_round_its_dropout(steps: int) -> None:
    torch.manual_seed(0)
    layers = RecurrentStack(
        RecurrentStackConfig("elman", WIDTH, WIDTH, layers=2, connection="residual", dropout=SHARE)
    ).double()
    with torch.no_grad():
        for parameter in layers.stack[1].parameters():
            parameter.zero_()
    inputs = drawn(ROWS, steps, WIDTH)
    below, h = layers.stack[0].loop(inputs, None, layers.stack[0].start(ROWS))[0], layers(inputs)[0]
    assert 0.4 < float(h.eq(0).double().mean()) < 0.6
    close(h[h.ne(0)], below[h.ne(0)] / (1 - SHARE))


@pytest.mark.parametrize("variational", [False, True])
def test_a_stepper_draws_the_features_between_layers_once_or_at_each_step(
    variational: bool,
) -> None:
    torch.manual_seed(0)
    layers = RecurrentStack(
        RecurrentStackConfig(
            "elman",
            INPUT,
            WIDTH,
            layers=2,
            dropout=SHARE,
            variational=variational,
            connection="residual",
        )
    ).double()
    with torch.no_grad():
        for parameter in layers.stack[1].parameters():
            parameter.zero_()  # so that what comes out is what was let through
    step, states = Stepper(layers, ROWS), [layer.start(ROWS) for layer in layers.stack]
    zeros = []
    for _ in range(STEPS):
        output, states = step(layers.stack[0].input_product(drawn(ROWS, INPUT)), states)
        zeros.append(output.eq(0))
        close(output[output.ne(0)], states[0][0][output.ne(0)] / (1 - SHARE))
    dropped = torch.stack(zeros, dim=1)
    assert 0.4 < float(dropped.double().mean()) < 0.6
    assert bool((dropped == dropped[:, :1]).all()) == variational
    assert not torch.equal(dropped[0], dropped[1])
    assert (
        not Stepper(layers.eval(), ROWS)(layers.stack[0].input_product(drawn(ROWS, INPUT)), states)[
            0
        ]
        .eq(0)
        .any()
    )
