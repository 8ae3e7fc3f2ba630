"""Schedules at their ends, parameter groups, clipping."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from seqloom.config import RunConfig, TrainConfig
from seqloom.errors import UsageError
from seqloom.models.seq2seq import Seq2Seq, Seq2SeqConfig
from seqloom.run_file import apply_settings, parse, read_yaml, run_file_text
from seqloom.training.optimisation import (
    SCHEDULES,
    clip_by_norm,
    learning_rate,
    make_optimizer,
    parameter_groups,
    rate_scales,
    set_rates,
)


def rate(step: int, total: int = 1000, **fields: Any) -> float:
    return learning_rate(TrainConfig(learning_rate=2.0, **fields), step, total)


@pytest.mark.parametrize(
    ("schedule", "middle", "end"),
    [
        ("constant", 2.0, 2.0),
        ("linear", 2 * 451 / 901, 2 / 901),
        ("cosine", 2 * (0.01 + 0.99 / 2), 0.02),
        ("inverse_sqrt", 2 * math.sqrt(100 / 550), 2 / math.sqrt(10)),
    ],
)
def test_schedules_climb_reach_the_top_and_end(schedule: Any, middle: float, end: float) -> None:
    fields = {"schedule": schedule, "warmup_steps": 100}
    assert rate(1, **fields) == pytest.approx(0.02)
    assert rate(50, **fields) == pytest.approx(1.0)
    assert rate(100, **fields) == 2.0
    assert rate(550, **fields) == pytest.approx(middle)
    assert rate(1000, **fields) == pytest.approx(end)


@given(st.sampled_from(sorted(SCHEDULES)), st.integers(1, 400), st.integers(0, 500) | st.none())
def test_rates_stay_between_nothing_and_the_highest(
    schedule: Any, total: int, warmup: int | None
) -> None:
    rates = [
        rate(step, total, schedule=schedule, warmup_steps=warmup) for step in range(1, total + 1)
    ]
    climb = min(total // 10, 200) if warmup is None else warmup
    assert all(0 < value <= 2.0 for value in rates)
    assert all(a <= b for a, b in pairwise(rates[:climb]))
    assert all(a >= b for a, b in pairwise(rates[max(climb - 1, 0) :]))


def test_without_warm_up_the_first_step_is_the_highest() -> None:
    assert rate(1, schedule="constant", warmup_steps=0) == 2.0
    assert rate(1, schedule="inverse_sqrt", warmup_steps=0) == 2.0
    assert rate(4, schedule="inverse_sqrt", warmup_steps=0) == 1.0
    assert rate(1, total=1, schedule="cosine") == pytest.approx(0.02)


def test_by_default_a_tenth_is_warm_up_and_at_most_200_steps() -> None:
    assert rate(99) < rate(100) == 2.0 > rate(101)
    assert rate(199, total=10**6) < rate(200, total=10**6) == 2.0 > rate(10**4, total=10**6)


@pytest.mark.parametrize(
    "fields",
    [{}, {"share_embeddings": False, "cell": "lstm"}, {"tie_output": True, "readout_width": 8}],
)
def test_every_parameter_is_in_one_group(fields: dict[str, Any]) -> None:
    widths = {
        "embedding_width": 8,
        "encoder_width": 5,
        "width": 7,
        "attention_width": 4,
        "readout_width": 6,
    }
    model = Seq2Seq(Seq2SeqConfig(vocabulary_size=20, **(widths | fields)))
    decayed, kept = parameter_groups(model)
    assert sorted(map(id, decayed + kept)) == sorted(map(id, model.parameters()))
    assert all(p.dim() == 2 for p in decayed)
    embeddings = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)}
    assert embeddings <= {id(p) for p in kept}
    assert {id(p) for p in kept} - embeddings == {id(p) for p in model.parameters() if p.dim() < 2}
    groups = make_optimizer(model, TrainConfig(weight_decay=0.3)).param_groups
    assert [(group["weight_decay"], len(group["params"])) for group in groups] == [
        (0.3, len(decayed)),
        (0.0, len(kept)),
    ]


@given(st.lists(st.floats(-100, 100), min_size=1, max_size=6), st.floats(1e-3, 1e3))
def test_clipping_scales_by_the_smaller_of_one_and_the_ratio(
    values: list[float], longest: float
) -> None:
    parameters = [nn.Parameter(torch.zeros(1, dtype=torch.float64)) for _ in values]
    for parameter, value in zip(parameters, values, strict=True):
        parameter.grad = torch.tensor([value], dtype=torch.float64)
    norm = math.hypot(*values)
    assert float(clip_by_norm(parameters, longest)) == pytest.approx(norm, rel=1e-12)
    factor = min(1.0, longest / norm) if norm else 1.0
    for parameter, value in zip(parameters, values, strict=True):
        assert parameter.grad is not None
        assert float(parameter.grad) == pytest.approx(
            value * factor, rel=1e-3 if norm < 1e-2 else 1e-4, abs=1e-300
        )


def test_short_gradients_are_left_to_the_bit() -> None:
    parameter = nn.Parameter(torch.zeros(3))
    parameter.grad = torch.tensor([0.1, 0.2, 0.3])
    clip_by_norm([parameter], 1.0)
    assert parameter.grad.tolist() == torch.tensor([0.1, 0.2, 0.3]).tolist()


def test_without_a_largest_norm_nothing_is_clipped() -> None:
    run = apply_settings({}, ["train.clip_norm=inf"])
    train = parse(TrainConfig, run["train"])
    parameter = nn.Parameter(torch.zeros(2))
    parameter.grad = torch.tensor([3e10, 4e10])
    assert clip_by_norm([parameter], train.clip_norm) == 5e10
    assert parameter.grad.tolist() == torch.tensor([3e10, 4e10]).tolist()
    again = read_yaml(run_file_text(RunConfig(task="x", output_dir="y", train=train)), "run.yaml")
    assert parse(TrainConfig, again["train"]) == train


@pytest.mark.parametrize("value", [math.inf, math.nan])
def test_a_norm_that_is_not_finite_is_reported(value: float) -> None:
    parameter = nn.Parameter(torch.zeros(3))
    parameter.grad = torch.tensor([0.1, value, 0.3])
    assert not math.isfinite(float(clip_by_norm([parameter], 1.0)))


# --- fine-tuning
# -----------------------------------------------------------------------------------------------------


class Stacked(nn.Module):
    """The names of a reader: an embedding, two blocks, a final norm, a head."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.ModuleDict(
            {
                "embedding": nn.Embedding(3, 2),
                "stack": nn.ModuleDict(
                    {
                        "blocks": nn.ModuleList(nn.Linear(2, 2) for _ in range(2)),
                        "norm": nn.LayerNorm(2),
                    }
                ),
            }
        )
        self.head = nn.Linear(2, 2)


def scale_of(model: nn.Module, config: TrainConfig) -> dict[str, float]:
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return {
        names[id(p)]: group["scale"]
        for group in make_optimizer(model, config).param_groups
        for p in group["params"]
    }


def test_each_layer_learns_at_a_share_of_the_rate_above_it() -> None:
    scales = scale_of(Stacked(), TrainConfig(layer_decay=0.5))
    assert scales["head.weight"] == 1
    assert scales["encoder.stack.norm.weight"] == 0.5
    assert scales["encoder.stack.blocks.1.weight"] == 0.5
    assert scales["encoder.stack.blocks.0.bias"] == 0.25
    assert scales["encoder.embedding.weight"] == 0.125


def test_the_head_has_a_rate_of_its_own() -> None:
    scales = scale_of(Stacked(), TrainConfig(learning_rate=1e-4, head_learning_rate=1e-3))
    assert scales["head.bias"] == pytest.approx(10)
    assert scales["encoder.embedding.weight"] == 1


def test_what_is_frozen_is_not_trained() -> None:
    model = Stacked()
    scales = scale_of(model, TrainConfig(freeze=("encoder.embedding", "encoder.stack.blocks.0")))
    assert set(scales) == {name for name, _ in model.named_parameters()} - {
        "encoder.embedding.weight",
        "encoder.stack.blocks.0.weight",
        "encoder.stack.blocks.0.bias",
    }
    with pytest.raises(
        UsageError,
        match=r"none begins with 'encoder\.stack\.blocks\.9'; known are encoder\.embedding, ",
    ):
        make_optimizer(model, TrainConfig(freeze=("encoder.stack.blocks.9",)))
    with pytest.raises(UsageError, match="must leave something to train"):
        make_optimizer(model, TrainConfig(freeze=("encoder", "head")))


def test_a_step_moves_each_layer_by_its_share() -> None:
    """AdamW's first step is the learning rate in every place: the loop multiplies it by the group's scale."""
    model, config = Stacked(), TrainConfig(layer_decay=0.5, weight_decay=0.0)
    optimizer = make_optimizer(model, config)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    set_rates(optimizer, 0.1, relative=False)
    optimizer.step()
    scales = rate_scales(model, config)
    for name, p in model.named_parameters():
        assert torch.allclose(
            before[name] - p, torch.full_like(p, 0.1 * scales.get(id(p), 1.0)), atol=1e-6
        ), name


@pytest.mark.parametrize("layer_decay", [0.5, 1.0])
def test_relative_rates_follow_the_size_of_a_parameter(layer_decay: float) -> None:
    """AdamW's first step is the learning rate in every place: here that times the root mean square of the
    weights, and of a parameter that is all zeros a thousandth (Shazeer and Stern 2018, section 8)."""
    model = Stacked()
    config = TrainConfig(relative_rate=True, layer_decay=layer_decay, weight_decay=0.0)
    with torch.no_grad():
        for number, parameter in enumerate(model.parameters()):
            parameter.fill_(0.0 if number == 1 else 0.3 * (number + 1))
    optimizer = make_optimizer(model, config)
    scales = rate_scales(model, config)
    sizes = [float(p.detach().square().mean().sqrt()) for p in model.parameters()]
    before = [p.detach().clone() for p in model.parameters()]
    for p in model.parameters():
        p.grad = torch.full_like(p, -2.0)
    set_rates(optimizer, 0.1, relative=True)
    optimizer.step()
    assert sizes[1] == 0.0
    for p, old, size in zip(model.parameters(), before, sizes, strict=True):
        step = 0.1 * scales.get(id(p), 1.0) * max(size, 1e-3)
        assert torch.allclose(p - old, torch.full_like(p, step), atol=1e-6)
