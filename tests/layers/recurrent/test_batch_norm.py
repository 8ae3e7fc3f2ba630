"""Batch normalisation of recurrent layers: statistics of each step over its true rows, and those that are
kept."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.layers.equations import (
    ANYWHERE,
    BARE,
    EQUATIONS,
    INPUT,
    MASKS,
    PROJECTION,
    ROWS,
    STEPS,
    WIDTH,
    Sums,
    close,
    draw_parameters,
    drawn,
    gradients,
    layers_of,
    mask_named,
)
from torch import Tensor

from seqloom.errors import UsageError
from seqloom.layers.recurrent.batch_norm import STEPS as KEPT_STEPS
from seqloom.layers.recurrent.batch_norm import StepBatchNorm
from seqloom.layers.recurrent.cells import CELLS, CellState
from seqloom.layers.recurrent.layer import RecurrentLayer
from seqloom.layers.recurrent.stack import RecurrentStack, RecurrentStackConfig

KINDS: dict[str, dict[str, Any]] = {
    **{cell: {"cell": cell} for cell in CELLS},
    "lstm projected": {"cell": "lstm", "projection": PROJECTION},
    **{f"{cell} of its width": {"cell": cell, "input_width": WIDTH} for cell in BARE},
}

Moments = tuple[Tensor, Tensor]


class OfTrueRows:
    """Means and population variances over the rows that have a step, kept by (x, h or c, gates, step)."""

    def __init__(self) -> None:
        self.step, self.found = 0, dict[tuple[str, str, int], Moments]()

    def __call__(self, which: str, gates: str, values: Tensor) -> Moments:
        mean = values.mean(dim=0)
        found = mean, ((values - mean) ** 2).mean(dim=0)
        self.found[which, gates, self.step] = found
        return found


class Running(OfTrueRows):
    """Those that a layer has kept."""

    def __init__(self, cell: str, found: dict[tuple[str, str, int], Moments]) -> None:
        super().__init__()
        self.found = found

    def __call__(self, which: str, gates: str, values: Tensor) -> Moments:
        return self.found[which, gates, self.step]


def written_out(
    cell: str,
    layer: RecurrentLayer,
    inputs: Tensor,
    mask: Tensor,
    statistics: OfTrueRows,
    *,
    backward: bool = False,
) -> tuple[Tensor, CellState]:
    """The k-th true steps of all rows that have one, together: the outputs, 0 at padding, and the last
    states."""
    sums = Sums(cell, layer, statistics=statistics)
    positions = [[t for t, real in enumerate(row) if real] for row in mask.tolist()]
    positions = [places[::-1] for places in positions] if backward else positions
    states: list[list[Tensor]] = [
        [part[row] for row in range(len(mask))] for part in layer.start(len(mask))
    ]
    outputs = [
        [torch.zeros(layer.output_width, dtype=torch.double)] * mask.shape[1] for _ in positions
    ]
    for k in range(max(map(len, positions))):
        live = [row for row, places in enumerate(positions) if len(places) > k]
        statistics.step = k
        x = torch.stack([inputs[row, positions[row][k]] for row in live])
        h, c = (torch.stack([part[row] for row in live]) for part in (states[0], states[-1]))
        h, c, _ = EQUATIONS[cell](sums, x, h, c)
        for at, row in enumerate(live):
            for part, values in zip(states, (h, c), strict=False):
                part[row] = values[at]
            outputs[row][positions[row][k]] = h[at]
    return torch.stack([torch.stack(row) for row in outputs]), tuple(
        torch.stack(part) for part in states
    )


def batch_normalised(kind: str, **more: Any) -> RecurrentStack:
    layers = layers_of(**KINDS[kind], normalisation="batch", **more)
    draw_parameters(layers, std=1.0)
    return layers


@pytest.mark.parametrize("kind", KINDS)
def test_in_training_each_step_is_normalised_over_its_true_rows(kind: str) -> None:
    layers, cell = batch_normalised(kind, bidirectional=True), KINDS[kind]["cell"]
    inputs = drawn(ROWS, STEPS, layers.config.input_width).requires_grad_()
    mask = ANYWHERE.clone()
    mask[1] = torch.tensor([1, 1, 0, 1, 1, 1])  # no step is of one row alone
    mask[3, 5] = False
    expected, ends = [], []
    for backward, layer in enumerate((*layers.stack, *layers.backward_layers)):
        assert isinstance(layer, RecurrentLayer)
        outputs, end = written_out(cell, layer, inputs, mask, OfTrueRows(), backward=bool(backward))
        expected.append(outputs)
        ends.append(end)
    whole, last = (
        torch.cat(expected, dim=-1),
        tuple(torch.stack(parts, dim=1) for parts in zip(*ends, strict=True)),
    )
    outputs, after = layers(inputs, mask)
    close(outputs, whole)
    close(after, last)
    leaves = [inputs, *layers.parameters()]
    close(gradients((outputs, *after), leaves), gradients((whole, *last), leaves))


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_padding_left_right_and_inside_agree_and_may_hold_anything(
    kind: str, training: bool
) -> None:
    inputs, found = (
        drawn(ROWS, 4, INPUT if kind not in KINDS else KINDS[kind].get("input_width", INPUT)),
        [],
    )
    for seed, padding in enumerate([[0, 1, 2, 3], [4, 5, 6, 7], [0, 3, 4, 7]]):
        layers = batch_normalised(kind, bidirectional=True)
        layers(drawn(ROWS, 4, inputs.shape[-1], seed=4))  # something to have kept
        layers.train(training)
        mask = torch.zeros(ROWS, 8, dtype=torch.bool)
        mask[:, padding] = True
        mask[0, padding[-1]] = False
        wide = drawn(ROWS, 8, inputs.shape[-1], seed=seed) * 100
        wide[:, padding] = torch.where(mask[:, padding][..., None], inputs, wide[:, padding])
        outputs, after = layers(wide, mask)
        found.append((outputs[mask], after, dict(layers.named_buffers())))
        assert outputs[~mask].eq(0).all()
    for other in found[1:]:
        close(other, found[0])


@pytest.mark.parametrize("kind", KINDS)
def test_running_statistics_are_exact_and_serve_in_evaluation(kind: str) -> None:
    """New = old + 0.1 (batch - old), from mean 0 and variance 1."""
    layers, cell = batch_normalised(kind), KINDS[kind]["cell"]
    layer, running = layers.stack[0], dict[tuple[str, str, int], Moments]()
    for update in range(3):
        inputs = drawn(ROWS, STEPS, layers.config.input_width, seed=30 + update)
        batch = OfTrueRows()
        written_out(cell, layer, inputs, mask_named("full"), batch)
        layers(inputs)
        for key, (mean, variance) in batch.found.items():
            old = running.get(key, (torch.zeros_like(mean), torch.ones_like(mean)))
            running[key] = (
                0.9 * old[0] + 0.1 * mean.detach(),
                0.9 * old[1] + 0.1 * variance.detach(),
            )
    for which, norm in (("x", layer.norm_x), ("h", layer.norm_h), ("c", layer.norm_c)):
        if norm is None:
            assert (which, cell) != ("c", "lstm")
            continue
        for step in range(STEPS):
            parts = [
                moments for (of, _, at), moments in running.items() if (of, at) == (which, step)
            ]
            close(norm.running_mean[step], torch.cat([mean for mean, _ in parts]))
            close(norm.running_variance[step], torch.cat([variance for _, variance in parts]))
        assert norm.running_mean[STEPS:].eq(0).all()
        assert int(norm.seen) == STEPS

    layers.eval()
    inputs, kept = (
        drawn(ROWS, STEPS, layers.config.input_width, seed=2),
        {name: value.clone() for name, value in layers.named_buffers()},
    )
    expected, end = written_out(cell, layer, inputs, ANYWHERE, Running(cell, running))
    outputs, after = layers(inputs, ANYWHERE)
    close(outputs, expected)
    close(tuple(part[:, 0] for part in after), end)
    assert all(torch.equal(value, kept[name]) for name, value in layers.named_buffers())

    for step in range(STEPS):
        x, statistics = inputs[:, step], Running(cell, running)
        statistics.step = step
        state = tuple(drawn(*part.shape, seed=5 + i) for i, part in enumerate(layer.start(ROWS)))
        _, _, gates = EQUATIONS[cell](
            Sums(cell, layer, statistics=statistics), x, state[0], state[-1]
        )
        close(
            layer.gate_values(layer.input_gates(layer.input_product(x), step), state, step), gates
        )


@pytest.mark.parametrize("kind", KINDS)
def test_in_evaluation_a_row_in_a_batch_is_the_row_alone(kind: str) -> None:
    layers = batch_normalised(kind, layers=2, bidirectional=True)
    inputs = drawn(ROWS, STEPS, layers.config.input_width)
    layers(inputs)
    outputs, after = layers.eval()(inputs, ANYWHERE)
    for row in range(ROWS):
        alone, state = layers(inputs[row : row + 1, ANYWHERE[row]])
        close(outputs[row, ANYWHERE[row]], alone[0])
        close(tuple(part[row : row + 1] for part in after), state)


@pytest.mark.parametrize("padding", MASKS)
def test_rows_and_batches_without_steps_are_let_through(padding: str) -> None:
    layers, mask = batch_normalised("lstm", layers=2, bidirectional=True), mask_named(padding)
    outputs, after = layers(drawn(*mask.shape, INPUT), mask)
    assert outputs.shape == (*mask.shape, 2 * WIDTH)
    assert outputs[~mask].eq(0).all()
    for part in after:
        assert part.shape == (ROWS, 4, WIDTH)
        assert part[~mask.any(dim=1)].eq(0).all()


# The normalisation itself


def test_the_gain_starts_at_a_tenth() -> None:
    layer = RecurrentStack(RecurrentStackConfig("lstm", INPUT, WIDTH, normalisation="batch")).stack[
        0
    ]
    norms = [module for module in layer.modules() if isinstance(module, StepBatchNorm)]
    assert len(norms) == 3
    for norm in norms:
        assert torch.equal(norm.gain, torch.full_like(norm.gain, 0.1))
    assert layer.bias_c is not None
    assert not layer.bias_c.any()


def test_one_row_alone_has_no_statistics_so_the_running_ones_serve_and_stay() -> None:
    norm = StepBatchNorm(3).double()
    norm(drawn(5, 3), 0)
    mean, variance, seen = (
        norm.running_mean.clone(),
        norm.running_variance.clone(),
        norm.seen.clone(),
    )
    alone = drawn(1, 3, seed=2)
    close(norm(alone, 0), norm.gain * (alone - mean[0]) / torch.sqrt(variance[0] + 1e-5))
    assert torch.equal(norm.running_mean, mean)
    assert torch.equal(norm.running_variance, variance)
    assert torch.equal(norm.seen, seen)


def test_later_steps_than_were_seen_are_served_by_the_last_that_was() -> None:
    norm = StepBatchNorm(3).double()
    for step in range(4):
        norm(drawn(5, 3, seed=step) + step, step)
    norm.eval()
    values = drawn(5, 3, seed=9)
    assert not torch.equal(norm(values, 2), norm(values, 3))
    for step in (4, 50, 1000):
        assert torch.equal(norm(values, step), norm(values, 3))


def test_steps_beyond_those_with_statistics_of_their_own_share_the_last() -> None:
    norm, values = StepBatchNorm(3).double(), drawn(5, 3)
    norm(values, KEPT_STEPS + 50)
    close(norm.running_mean[KEPT_STEPS - 1], 0.1 * values.mean(dim=0))
    assert norm.running_mean[: KEPT_STEPS - 1].eq(0).all()
    norm.eval()
    assert torch.equal(norm(values, KEPT_STEPS - 1), norm(values, KEPT_STEPS + 900))


def test_a_layer_that_was_never_trained_normalises_with_mean_0_and_variance_1() -> None:
    norm, values = StepBatchNorm(3).double().eval(), drawn(5, 3)
    close(norm(values, 7), norm.gain * values / (1 + 1e-5) ** 0.5)


def test_the_statistics_are_saved_with_the_weights() -> None:
    layers, again = batch_normalised("gru"), batch_normalised("gru")
    inputs = drawn(ROWS, STEPS, INPUT)
    layers(inputs)
    again.load_state_dict(layers.state_dict())
    assert torch.equal(again.eval()(inputs)[0], layers.eval()(inputs)[0])


def test_a_carried_state_is_refused() -> None:
    layers = batch_normalised("gru")
    with pytest.raises(
        UsageError, match="a batch-normalised layer must start without a carried state"
    ):
        layers(drawn(ROWS, STEPS, INPUT), None, layers.start(ROWS))
    with pytest.raises(
        UsageError, match="a batch-normalised layer must start without a carried state"
    ):
        layers(drawn(ROWS, 1, INPUT), None, layers.start(ROWS))
