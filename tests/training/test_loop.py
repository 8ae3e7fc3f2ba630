"""The loop: what stops it, what it refuses to learn from, what it logs."""

from __future__ import annotations

import math
import re
import signal
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from itertools import repeat
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from seqloom.errors import TrainingError
from seqloom.protocols import Loss
from seqloom.shapes import IGNORE
from seqloom.training.checkpoints import TrainerState
from seqloom.training.distributed import ModelWithLoss, World
from seqloom.training.loop import Trainer, step_seed

Make = Callable[..., Any]  # see conftest.py


def start(bench: Any, steps: int) -> TrainerState:
    bench.state = TrainerState(total_steps=steps)
    state: TrainerState = bench.trainer.run(bench.state)
    return state


def weights(trainer: Trainer) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in trainer.model.parameters()]


def same(one: list[Tensor], other: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


# One step


def test_the_step_is_that_of_the_mean_loss(bench: Make) -> None:
    """By plain autograd: the gradient of Σ loss / Σ tokens, clipped as one vector."""
    trainer = bench(clip_norm=0.01).trainer
    rows = np.arange(8)
    loss = trainer.objective(trainer.model, trainer.load(rows, rows))
    names, parameters = zip(*trainer.model.named_parameters(), strict=True)
    expected = torch.autograd.grad(loss.total / loss.count, parameters)
    norm = math.sqrt(sum(float(part.square().sum()) for part in expected))
    seen: dict[str, Tensor] = {}

    def look(*_: Any) -> None:
        seen.update({name: p.grad.clone() for name, p in trainer.model.named_parameters()})

    trainer.optimizer.register_step_pre_hook(look)
    result = trainer.train_step(ModelWithLoss(trainer.model, trainer.objective), rows, 1, 10)
    assert result.total == pytest.approx(float(loss.total.detach()), rel=1e-6)
    assert result.count == int(loss.count)
    assert result.gradient_norm == pytest.approx(norm, rel=1e-5)
    assert norm > 0.01
    for name, part in zip(names, expected, strict=True):
        assert torch.allclose(seen[name], part * 0.01 / norm, rtol=1e-3, atol=1e-9), name
    assert all(parameter.grad is None for parameter in trainer.model.parameters())


def test_randomness_depends_on_the_step_and_not_on_what_was_drawn_before(bench: Make) -> None:
    def gradient_after(drawn: int, step: int) -> list[Tensor]:
        trainer = bench(dropout=0.5).trainer
        torch.manual_seed(drawn)
        trainer.accumulate_gradient(
            ModelWithLoss(trainer.model.train(), trainer.objective), np.arange(8), step
        )
        return [parameter.grad.clone() for parameter in trainer.model.parameters()]

    assert same(gradient_after(1, step=3), gradient_after(2, step=3))
    assert not same(gradient_after(1, step=3), gradient_after(1, step=4))


def test_every_micro_batch_and_worker_has_its_own_randomness() -> None:
    seeds = {step_seed(seed, *place) for seed in (0, 1, 2**62) for place in np.ndindex(10, 4, 4)}
    assert len(seeds) == 3 * 160
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_a_batch_without_a_trained_token_is_an_error(bench: Make) -> None:
    trainer = bench().trainer
    load = trainer.load
    trainer = replace(
        trainer,
        load=lambda rows, whole: load(rows, whole)._replace(
            targets=torch.full((len(rows), 3), IGNORE)
        ),
    )
    before = weights(trainer)
    with pytest.raises(
        TrainingError,
        match=r"step 5: a batch must train at least one token, but none is trained in lines 1, 2$",
    ):
        trainer.train_step(ModelWithLoss(trainer.model, Untrained()), np.arange(2), 5, 10)
    assert same(before, weights(trainer))


class Untrained:
    def __call__(self, model: nn.Module, batch: Any) -> Loss:
        return Loss(next(model.parameters()).sum() * 0, (batch.targets != IGNORE).sum())


# Numbers that are not finite


@pytest.mark.parametrize("value", [math.inf, math.nan])
def test_an_infinite_weight_is_found_and_named(bench: Make, value: float) -> None:
    recorded = bench(repeat(1.0), evaluate_every=2)
    recorded.trainer.model.bridge.maps[0].weight.data[0, 0] = (
        value  # stands after the encoder and before everything else
    )
    before = weights(recorded.trainer)
    with pytest.raises(TrainingError) as caught:
        start(recorded, 10)
    message = str(caught.value)
    assert re.match(
        r"step 1: the gradient must be finite, but is not \(loss \S+; first in bridge\.maps\.0; lines \d+(,"
        r" \d+){7}\); ",
        message,
    )
    assert "the last checkpoint is good: lower train.learning_rate or train.clip_norm" in message
    assert "\n" not in message
    assert not recorded.saved
    assert all(
        torch.equal(a.nan_to_num(), b.nan_to_num())
        for a, b in zip(before, weights(recorded.trainer), strict=True)
    )


def test_a_gradient_alone_that_is_not_finite_is_found_and_named(bench: Make) -> None:
    recorded = bench(repeat(1.0), evaluate_every=2)

    def spoil(grad: Tensor) -> Tensor:
        return grad * (math.inf if recorded.state.step == 4 else 1.0)

    recorded.trainer.model.attention.query.weight.register_hook(spoil)
    with pytest.raises(
        TrainingError,
        match=r"step 5: .* \(loss \d\.\d+; first in the gradient of attention\.query\.weight; lines",
    ):
        start(recorded, 10)
    assert [state.step for state, *_ in recorded.saved] == [2, 4]
    assert all(
        bool(torch.isfinite(tensor).all())
        for _, kept, _ in recorded.saved
        for tensor in kept.values()
    )
    assert all(
        torch.equal(recorded.trainer.model.state_dict()[name], tensor)
        for name, tensor in recorded.saved[-1][1].items()
    )


def test_a_loss_alone_that_is_not_finite_stops_before_anything_is_saved(bench: Make) -> None:
    recorded = bench(repeat(1.0), evaluate_every=1)

    def infinite(model: nn.Module, batch: Any) -> Loss:
        return Loss(
            sum((p.sum() * 0 for p in model.parameters()), torch.tensor(math.inf)), torch.tensor(3)
        )

    recorded.trainer = replace(recorded.trainer, objective=infinite)
    with pytest.raises(
        TrainingError,
        match="step 1: the loss must be finite, but is inf; the last checkpoint is good",
    ):
        start(recorded, 10)
    assert not recorded.saved


def test_a_validation_that_is_no_number_is_never_the_best(bench: Make) -> None:
    recorded = bench([math.nan, 3.0, math.nan, -math.inf, 2.0, math.nan], evaluate_every=1)
    state = start(recorded, 6)
    assert (state.best, state.best_step, state.without_better) == (2.0, 5, 1)
    assert [kept.best_step for kept, *_ in recorded.saved] == [None, 2, 2, 2, 5, 5]


# What stops it


def test_it_ends_after_all_steps_with_a_validation_and_a_save(bench: Make) -> None:
    recorded = bench([5.0, 4.0, 3.0], evaluate_every=3, log_every=4)
    state = start(recorded, 7)
    assert (state.stopped, state.step, state.epoch, state.batch) == ("max_steps", 7, 1, 2)
    assert [kept.step for kept, *_ in recorded.saved] == [3, 6, 7]
    assert [kept.stopped for kept, *_ in recorded.saved] == [None, None, "max_steps"]
    assert [record["step"] for record in recorded.logged if "loss" in record] == [4, 7]
    assert [
        record["validation_loss"] for record in recorded.logged if "validation_loss" in record
    ] == [
        5.0,
        4.0,
        3.0,
    ]


def test_validation_is_in_eval_mode_and_training_in_train_mode(bench: Make) -> None:
    recorded = bench(evaluate_every=1)
    modes: list[tuple[str, bool]] = []
    objective = recorded.trainer.objective

    def train(model: nn.Module, batch: Any) -> Loss:
        modes.append(("train", model.training))
        return objective(model, batch)  # type: ignore[no-any-return]

    def validate() -> dict[str, float]:
        modes.append(("validate", recorded.trainer.model.training or torch.is_grad_enabled()))
        return {"loss": 1.0}

    recorded.trainer = replace(recorded.trainer, objective=train, validate=validate)
    start(recorded, 2)
    assert modes == [("train", True), ("validate", False)] * 2


@pytest.mark.parametrize(
    ("best", "validations", "stopped_at"),
    [("loss", [5, 4, 4, 3, 3, 3.5, 2], 6), ("loss", [1, math.nan, math.nan], 3)],
)
def test_patience_stops(bench: Make, best: str, validations: list[float], stopped_at: int) -> None:
    recorded = bench(validations, evaluate_every=1, patience=2, best=best)
    state = start(recorded, 100)
    assert (state.stopped, state.step) == ("patience", stopped_at)
    assert recorded.saved[-1][0].stopped == "patience"
    assert recorded.saved[-1][0].step == stopped_at


def test_a_score_is_better_where_it_is_larger(bench: Make) -> None:
    recorded = bench(evaluate_every=1, best="bleu")
    scores = iter([1.0, 3.0, 2.0])
    recorded.trainer = replace(
        recorded.trainer, validate=lambda: {"loss": 1.0, "bleu": next(scores)}
    )
    state = start(recorded, 3)
    assert (state.best, state.best_step) == (-3.0, 2)


def test_the_target_stops(bench: Make) -> None:
    recorded = bench([3.0, 2.0, math.nan, 1.0], evaluate_every=1)
    recorded.trainer = replace(recorded.trainer, target=1.5)
    state = start(recorded, 9)
    assert (state.stopped, state.step) == ("target", 4)
    assert [kept.step for kept, *_ in recorded.saved] == [1, 2, 3, 4]


@pytest.mark.parametrize(("step", "saves"), [(2, [2]), (3, [3])])
def test_a_signal_saves_and_stops(bench: Make, step: int, saves: list[int]) -> None:
    """At a step without validation, and at one with."""
    recorded = bench(repeat(1.0), evaluate_every=3)
    recorded.signals = {step: signal.SIGTERM}
    state = start(recorded, 9)
    assert (state.stopped, state.step) == ("SIGTERM", step)
    assert [kept.step for kept, *_ in recorded.saved] == saves
    assert recorded.saved[-1][0].stopped is None


def test_a_signal_during_the_last_validation_does_not_undo_the_end(bench: Make) -> None:
    recorded = bench(repeat(1.0))
    recorded.signals = {4: signal.SIGINT}
    assert start(recorded, 4).stopped == "max_steps"


# What it reports


def test_the_reported_loss_is_that_of_all_tokens_since_the_last_line(bench: Make) -> None:
    recorded = bench([1.0], log_every=3, learning_rate=1e-30)
    batches = [rows for _, rows in zip(range(3), recorded.trainer.batches(0, 0), strict=False)]
    losses = [
        recorded.trainer.objective(recorded.trainer.model, recorded.trainer.load(rows, rows))
        for rows in batches
    ]
    start(recorded, 3)
    record = recorded.logged[0]
    tokens = sum(int(loss.count) for loss in losses)
    assert record["tokens"] == tokens
    assert record["loss"] == pytest.approx(
        sum(float(loss.total.detach()) for loss in losses) / tokens, rel=1e-6
    )


def test_from_any_saved_state_it_goes_on_to_the_same(bench: Make) -> None:
    """Twice in one epoch, at its end, and in the middle of what a line of metrics sums up."""
    settings: dict[str, Any] = {
        "evaluate_every": 1,
        "log_every": 4,
        "dropout": 0.3,
        "accumulate": 2,
    }
    recorded = bench(repeat(1.0), **settings)
    end = start(recorded, 12)
    for state, kept, memory in recorded.saved[:-1]:
        again = bench(repeat(1.0), **settings)
        again.trainer.model.load_state_dict(kept)
        again.trainer.optimizer.load_state_dict(memory)
        again.state = deepcopy(state)
        assert again.trainer.run(again.state) == end
        assert same(weights(again.trainer), weights(recorded.trainer)), state.step
        rest = [record for record in recorded.logged if record["step"] > state.step]
        assert [without_time(record) for record in again.logged] == [
            without_time(record) for record in rest
        ]


def without_time(record: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in record.items() if key != "tokens_per_second"}


def test_alone_a_world_agrees_with_itself() -> None:
    world = World()
    assert world.first
    assert world.largest(15) == 15
    assert world.sum(torch.tensor([1.5])).tolist() == [1.5]
    world.barrier()
