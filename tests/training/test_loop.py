"""The loop: what stops it, what it refuses to learn from, what it tells."""

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
from seqloom.training.distributed import Trained, World
from seqloom.training.loop import Job, gradient, run, stream_seed, train_step

Make = Callable[..., Any]  # see conftest.py


def start(bench: Any, steps: int) -> TrainerState:
    bench.state = TrainerState(total_steps=steps)
    return run(bench.job, bench.state)


def weights(job: Job) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in job.model.parameters()]


def same(one: list[Tensor], other: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


# One step


def test_the_step_is_that_of_the_mean_loss(bench: Make) -> None:
    """By plain autograd: the gradient of Σ loss / Σ tokens, clipped as one vector."""
    job = bench(clip_norm=0.01).job
    rows = np.arange(8)
    loss = job.objective(job.model, job.load(rows, rows))
    names, parameters = zip(*job.model.named_parameters(), strict=True)
    expected = torch.autograd.grad(loss.total / loss.count, parameters)
    norm = math.sqrt(sum(float(part.square().sum()) for part in expected))
    seen: dict[str, Tensor] = {}

    def look(*_: Any) -> None:
        seen.update({name: p.grad.clone() for name, p in job.model.named_parameters()})

    job.optimizer.register_step_pre_hook(look)
    result = train_step(job, Trained(job.model, job.objective), rows, 1, 10)
    assert result.total == pytest.approx(float(loss.total.detach()), rel=1e-6)
    assert result.count == int(loss.count)
    assert result.norm == pytest.approx(norm, rel=1e-5)
    assert norm > 0.01
    for name, part in zip(names, expected, strict=True):
        assert torch.allclose(seen[name], part * 0.01 / norm, rtol=1e-3, atol=1e-9), name
    assert all(parameter.grad is None for parameter in job.model.parameters())


def test_randomness_depends_on_the_step_and_not_on_what_was_drawn_before(bench: Make) -> None:
    def gradient_after(drawn: int, step: int) -> list[Tensor]:
        job = bench(dropout=0.5).job
        torch.manual_seed(drawn)
        gradient(job, Trained(job.model.train(), job.objective), np.arange(8), step)
        return [parameter.grad.clone() for parameter in job.model.parameters()]

    assert same(gradient_after(1, step=3), gradient_after(2, step=3))
    assert not same(gradient_after(1, step=3), gradient_after(1, step=4))


def test_every_micro_batch_and_worker_has_its_own_randomness() -> None:
    seeds = {stream_seed(seed, *place) for seed in (0, 1, 2**62) for place in np.ndindex(10, 4, 4)}
    assert len(seeds) == 3 * 160
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_a_batch_without_a_trained_token_is_an_error(bench: Make) -> None:
    job = bench().job
    load = job.load
    job = replace(
        job, load=lambda rows, whole: load(rows, whole)._replace(targets=torch.full((len(rows), 3), IGNORE))
    )
    before = weights(job)
    with pytest.raises(
        TrainingError,
        match=r"step 5: a batch must train at least one token, but none is trained in lines 1, 2$",
    ):
        train_step(job, Trained(job.model, Untrained()), np.arange(2), 5, 10)
    assert same(before, weights(job))


class Untrained:
    def __call__(self, model: nn.Module, batch: Any) -> Loss:
        return Loss(next(model.parameters()).sum() * 0, (batch.targets != IGNORE).sum())


# Numbers that are not finite


@pytest.mark.parametrize("value", [math.inf, math.nan])
def test_an_infinite_weight_is_found_and_named(bench: Make, value: float) -> None:
    told = bench(repeat(1.0), evaluate_every=2)
    told.job.model.bridge.maps[0].weight.data[0, 0] = (
        value  # stands after the encoder and before everything else
    )
    before = weights(told.job)
    with pytest.raises(TrainingError) as caught:
        start(told, 10)
    message = str(caught.value)
    assert re.match(
        r"step 1: the gradient must be finite, but is not \(loss \S+; first in bridge\.maps\.0; lines \d+(,"
        r" \d+){7}\); ",
        message,
    )
    assert "the last checkpoint is good: lower train.learning_rate or train.clip_norm" in message
    assert "\n" not in message
    assert not told.saved
    assert all(
        torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in zip(before, weights(told.job), strict=True)
    )


def test_a_gradient_alone_that_is_not_finite_is_found_and_named(bench: Make) -> None:
    told = bench(repeat(1.0), evaluate_every=2)

    def spoil(grad: Tensor) -> Tensor:
        return grad * (math.inf if told.state.step == 4 else 1.0)

    told.job.model.attention.query.weight.register_hook(spoil)
    with pytest.raises(
        TrainingError,
        match=r"step 5: .* \(loss \d\.\d+; first in the gradient of attention\.query\.weight; lines",
    ):
        start(told, 10)
    assert [state.step for state, *_ in told.saved] == [2, 4]
    assert all(bool(torch.isfinite(tensor).all()) for _, kept, _ in told.saved for tensor in kept.values())
    assert all(
        torch.equal(told.job.model.state_dict()[name], tensor) for name, tensor in told.saved[-1][1].items()
    )


def test_a_loss_alone_that_is_not_finite_stops_before_anything_is_saved(bench: Make) -> None:
    told = bench(repeat(1.0), evaluate_every=1)

    def infinite(model: nn.Module, batch: Any) -> Loss:
        return Loss(sum((p.sum() * 0 for p in model.parameters()), torch.tensor(math.inf)), torch.tensor(3))

    told.job = replace(told.job, objective=infinite)
    with pytest.raises(
        TrainingError, match="step 1: the loss must be finite, but is inf; the last checkpoint is good"
    ):
        start(told, 10)
    assert not told.saved


def test_a_validation_that_is_no_number_is_never_the_best(bench: Make) -> None:
    told = bench([math.nan, 3.0, math.nan, -math.inf, 2.0, math.nan], evaluate_every=1)
    state = start(told, 6)
    assert (state.best, state.best_step, state.without_better) == (2.0, 5, 1)
    assert [kept.best_step for kept, *_ in told.saved] == [None, 2, 2, 2, 5, 5]


# What stops it


def test_it_ends_after_all_steps_with_a_validation_and_a_save(bench: Make) -> None:
    told = bench([5.0, 4.0, 3.0], evaluate_every=3, log_every=4)
    state = start(told, 7)
    assert (state.stopped, state.step, state.epoch, state.batch) == ("max_steps", 7, 1, 2)
    assert [kept.step for kept, *_ in told.saved] == [3, 6, 7]
    assert [kept.stopped for kept, *_ in told.saved] == [None, None, "max_steps"]
    assert [record["step"] for record in told.logged if "loss" in record] == [4, 7]
    assert [record["validation_loss"] for record in told.logged if "validation_loss" in record] == [
        5.0,
        4.0,
        3.0,
    ]


def test_validation_is_in_eval_mode_and_training_in_train_mode(bench: Make) -> None:
    told = bench(evaluate_every=1)
    modes: list[tuple[str, bool]] = []
    objective = told.job.objective

    def train(model: nn.Module, batch: Any) -> Loss:
        modes.append(("train", model.training))
        return objective(model, batch)  # type: ignore[no-any-return]

    def validate() -> dict[str, float]:
        modes.append(("validate", told.job.model.training or torch.is_grad_enabled()))
        return {"loss": 1.0}

    told.job = replace(told.job, objective=train, validate=validate)
    start(told, 2)
    assert modes == [("train", True), ("validate", False)] * 2


@pytest.mark.parametrize(
    ("best", "validations", "stopped_at"),
    [("loss", [5, 4, 4, 3, 3, 3.5, 2], 6), ("loss", [1, math.nan, math.nan], 3)],
)
def test_patience_stops(bench: Make, best: str, validations: list[float], stopped_at: int) -> None:
    told = bench(validations, evaluate_every=1, patience=2, best=best)
    state = start(told, 100)
    assert (state.stopped, state.step) == ("patience", stopped_at)
    assert told.saved[-1][0].stopped == "patience"
    assert told.saved[-1][0].step == stopped_at


def test_a_score_is_better_where_it_is_larger(bench: Make) -> None:
    told = bench(evaluate_every=1, best="bleu")
    scores = iter([1.0, 3.0, 2.0])
    told.job = replace(told.job, validate=lambda: {"loss": 1.0, "bleu": next(scores)})
    state = start(told, 3)
    assert (state.best, state.best_step) == (-3.0, 2)


@pytest.mark.parametrize(("step", "saves"), [(2, [2]), (3, [3])])
def test_a_signal_saves_and_stops(bench: Make, step: int, saves: list[int]) -> None:
    """At a step without validation, and at one with."""
    told = bench(repeat(1.0), evaluate_every=3)
    told.signals = {step: signal.SIGTERM}
    state = start(told, 9)
    assert (state.stopped, state.step) == ("SIGTERM", step)
    assert [kept.step for kept, *_ in told.saved] == saves
    assert told.saved[-1][0].stopped is None


def test_a_signal_during_the_last_validation_does_not_undo_the_end(bench: Make) -> None:
    told = bench(repeat(1.0))
    told.signals = {4: signal.SIGINT}
    assert start(told, 4).stopped == "max_steps"


# What it reports


def test_the_reported_loss_is_that_of_all_tokens_since_the_last_line(bench: Make) -> None:
    told = bench([1.0], log_every=3, learning_rate=1e-30)
    batches = [rows for _, rows in zip(range(3), told.job.batches(0, 0), strict=False)]
    losses = [told.job.objective(told.job.model, told.job.load(rows, rows)) for rows in batches]
    start(told, 3)
    record = told.logged[0]
    tokens = sum(int(loss.count) for loss in losses)
    assert record["tokens"] == tokens
    assert record["loss"] == pytest.approx(
        sum(float(loss.total.detach()) for loss in losses) / tokens, rel=1e-6
    )


def test_from_any_saved_state_it_goes_on_to_the_same(bench: Make) -> None:
    """Twice in one epoch, at its end, and in the middle of what a line of metrics sums up."""
    settings: dict[str, Any] = {"evaluate_every": 1, "log_every": 4, "dropout": 0.3, "accumulate": 2}
    told = bench(repeat(1.0), **settings)
    end = start(told, 12)
    for state, kept, memory in told.saved[:-1]:
        again = bench(repeat(1.0), **settings)
        again.job.model.load_state_dict(kept)
        again.job.optimizer.load_state_dict(memory)
        again.state = deepcopy(state)
        assert run(again.job, again.state) == end
        assert same(weights(again.job), weights(told.job)), state.step
        rest = [record for record in told.logged if record["step"] > state.step]
        assert [without_time(record) for record in again.logged] == [without_time(record) for record in rest]


def without_time(record: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in record.items() if key != "tokens_per_second"}


def test_alone_a_world_agrees_with_itself() -> None:
    world = World()
    assert world.first
    assert world.largest(15) == 15
    assert world.sum(torch.tensor([1.5])).tolist() == [1.5]
    world.barrier()
