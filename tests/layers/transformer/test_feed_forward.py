"""The feed-forward layer written out, with and without a gate, and what is dropped in it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.models.equations import close, drawn, feed_forward

from seqloom.layers.transformer.block_config import BlockConfig
from seqloom.layers.transformer.feed_forward import ACTIVATIONS, FeedForward

FIXED = [name for name in ACTIVATIONS if name != "swish"]
"""Swish has a parameter; at β = 1 it is silu."""


def config(activation: str, **options: Any) -> BlockConfig:
    sizes = {"width": 6, "heads": 1, "feed_forward_width": 4}
    return BlockConfig(activation=activation, **sizes | options)


@torch.no_grad()
@pytest.mark.parametrize("biases", [True, False])
@pytest.mark.parametrize("gated", [True, False])
@pytest.mark.parametrize("activation", FIXED)
def test_it_is_the_equation(activation: str, gated: bool, biases: bool) -> None:
    layer: FeedForward = drawn(FeedForward(config(activation, gated=gated, biases=biases)))
    assert layer.hidden.weight.shape == (8 if gated else 4, 6)
    assert {name.rpartition(".")[2] for name, _ in layer.named_parameters()} == (
        {"weight", "bias"} if biases else {"weight"}
    )
    x = torch.randn(2, 3, 6, dtype=torch.float64)
    for row in range(2):
        close(layer(x)[row], feed_forward(layer, x[row], activation, gated=gated))


def test_the_gate_is_where_the_activation_is() -> None:
    """W_1 first: with a gate of 0 nothing comes through, with V of 0 neither; negated gates and negated
    values differ."""
    layer: FeedForward = drawn(FeedForward(config("relu", gated=True, biases=False)))
    x = torch.randn(5, 6, dtype=torch.float64)
    before = layer(x).detach()
    with torch.no_grad():
        layer.hidden.weight[4:].neg_()
        close(layer(x), -before)  # linear in V
        layer.hidden.weight[:4].neg_()
        assert not torch.allclose(layer(x), before)  # and not in W_1


@torch.no_grad()
def test_swish_begins_as_silu() -> None:
    swish, silu = FeedForward(config("swish")), FeedForward(config("silu"))
    silu.load_state_dict(
        {name: value for name, value in swish.state_dict().items() if "beta" not in name}
    )
    x = torch.randn(5, 6)
    torch.testing.assert_close(swish(x), silu(x))
    assert [name for name, _ in swish.named_parameters() if "beta" in name] == ["activation.beta"]


def test_hidden_features_are_dropped_and_scaled_in_training_alone() -> None:
    """With W_2 = 1 in one output, that is a sum of the hidden features, each 0 or twice itself."""
    torch.manual_seed(0)
    layer = FeedForward(
        config("relu", width=3, feed_forward_width=8, biases=False, hidden_dropout=0.5)
    ).double()
    with torch.no_grad():
        layer.output.weight.fill_(0.0)
        layer.output.weight[0] = 2.0 ** torch.arange(8)
        layer.hidden.weight.fill_(1.0)
        x = torch.ones(200, 3, dtype=torch.float64)
        sums = layer.train()(x)[:, 0] / 6  # hidden features are 3, kept ones 6
        bits = torch.stack([(sums.round().long() >> k) & 1 for k in range(8)])
        close(sums, sums.round())
        assert 0.4 < float(bits.double().mean()) < 0.6
        assert bool((bits.sum(1) < 200).all())
        close(layer.eval()(x)[:, 0], torch.full((200,), 3.0 * 255, dtype=torch.float64))
