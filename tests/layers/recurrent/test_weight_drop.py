"""Dropout of recurrent weights and of whole words."""

from __future__ import annotations

import pytest
import torch
from tests.layers.equations import (
    ANYWHERE,
    INPUT,
    ROWS,
    STEPS,
    close,
    drawn,
    gradients,
    layers_of,
    states_of,
)
from torch import Tensor, nn

from seqloom.layers.recurrent import stack
from seqloom.layers.recurrent.cells import CELLS
from seqloom.layers.recurrent.stack import (
    RecurrentStack,
    RecurrentStackConfig,
    choose_implementation,
)
from seqloom.layers.recurrent.weight_drop import dropped_recurrent_weights, embed

SHARE = 0.25


def test_weights_are_dropped_or_scaled_and_their_mean_is_kept() -> None:
    torch.manual_seed(0)
    layers = RecurrentStack(RecurrentStackConfig("gru", 2, 100))
    (layer,) = layers.stack
    nn.init.ones_(layer.weight_h)
    with dropped_recurrent_weights(layers.stack, SHARE):
        used = layer.effective_weight_h
        assert sorted(set(used.flatten().tolist())) == pytest.approx([0.0, 1 / (1 - SHARE)])
        assert (used == 0).double().mean() == pytest.approx(
            SHARE, abs=4 * (SHARE * (1 - SHARE) / used.numel()) ** 0.5
        )
        assert layer.effective_weight_h is used
    with dropped_recurrent_weights(layers.stack, SHARE):
        assert not torch.equal(layer.effective_weight_h, used)


def test_each_layer_has_a_mask_of_its_own_and_the_others_weights_stay() -> None:
    layers = layers_of("lstm", layers=2, projection=2)
    first, second = layers.stack
    with dropped_recurrent_weights(layers.stack, 0.5):
        assert not torch.equal(first.effective_weight_h == 0, second.effective_weight_h == 0)
        for layer in layers.stack:
            assert layer.weights.w_x is layer.weight_x
            assert layer.weights.w_p is layer.weight_p


@pytest.mark.parametrize("way", ["driver", "plain loop", "one step at a time"])
@pytest.mark.parametrize("cell", CELLS)
def test_a_layer_is_that_of_the_masked_weight_at_all_steps(cell: str, way: str) -> None:
    """Outputs, states and gradients; the gradient of the weight is that of the masked one, masked."""
    layers = layers_of(cell, layers=2)
    plain = layers_of(cell, layers=2)
    inputs, state = drawn(ROWS, STEPS, INPUT), states_of(layers)
    with dropped_recurrent_weights(layers.stack, 0.5):
        masks = [(layer.effective_weight_h != 0) * 2.0 for layer in layers.stack]
        if way == "one step at a time":
            steps, after = [], state
            for step in torch.split(inputs, 1, dim=1):
                output, after = layers(step, None, after)
                steps.append(output)
            outputs = torch.cat(steps, dim=1)
        else:
            for layer in layers.stack if way == "plain loop" else []:
                layer.watch = []
            outputs, after = layers(inputs, ANYWHERE, state)
    with torch.no_grad():
        for layer, mask in zip(plain.stack, masks, strict=True):
            layer.weight_h.mul_(mask)
    real = torch.ones_like(ANYWHERE) if way == "one step at a time" else ANYWHERE
    expected, expected_after = plain(inputs, real, state)
    close(outputs * real[..., None], expected * real[..., None])
    close(after, expected_after)
    found = gradients((outputs, *after), [*layers.parameters()], real)
    wanted = gradients((expected, *expected_after), [*plain.parameters()], real)
    at = iter(masks)
    for (name, _), mine, its in zip(layers.named_parameters(), found, wanted, strict=True):
        close(mine, its * next(at) if name.endswith("weight_h") else its)


@pytest.mark.parametrize("mask", [None, ANYWHERE], ids=["full", "ragged"])
def test_torchs_kernel_takes_the_masked_weight_too(
    monkeypatch: pytest.MonkeyPatch, mask: Tensor | None
) -> None:
    """In float32, against the driver."""
    torch.manual_seed(0)
    layers = RecurrentStack(RecurrentStackConfig("lstm", 8, 16, layers=2))
    inputs, ways = torch.randn(4, 6, 8), list[str]()

    def run() -> tuple[Tensor, ...]:
        ways.append(choose_implementation(layers, inputs))
        torch.manual_seed(1)
        with dropped_recurrent_weights(layers.stack, 0.5):
            outputs, after = layers(inputs, mask)
        return (
            outputs,
            *after,
            *torch.autograd.grad(outputs.square().sum(), list(layers.parameters())),
        )

    fused = run()
    monkeypatch.setattr(stack, "has_kernel", lambda *_: False)
    close(fused, run(), rtol=1e-4, atol=1e-5)
    assert ways == ["fused", "driver"]


@pytest.mark.parametrize("share", [0.0, SHARE])
def test_afterwards_the_weight_is_itself_also_after_an_error(share: float) -> None:
    layers = layers_of("lstm")
    with dropped_recurrent_weights(layers.stack, share):
        assert (layers.stack[0].dropped_weight_h is None) == (share == 0)
    with pytest.raises(ZeroDivisionError), dropped_recurrent_weights(layers.stack, share):
        raise ZeroDivisionError
    assert layers.stack[0].effective_weight_h is layers.stack[0].weight_h
    assert "dropped_weight_h" not in layers.state_dict()


# Words


def test_a_dropped_word_is_gone_wherever_it_stands_and_the_others_are_scaled() -> None:
    torch.manual_seed(0)
    words = 4000
    embedding = nn.Embedding(words, 3)
    nn.init.ones_(embedding.weight)
    tokens = torch.randperm(words).repeat(2, 3).view(2, -1)
    found = embed(embedding, tokens, SHARE)
    by_word = torch.full((words,), -1.0)
    by_word[tokens[0]] = found[0, :, 0].detach()
    assert torch.equal(found, by_word[tokens][..., None].expand(-1, -1, 3))
    assert sorted(set(by_word.tolist())) == pytest.approx([0.0, 1 / (1 - SHARE)])
    assert (by_word == 0).double().mean() == pytest.approx(
        SHARE, abs=4 * (SHARE * (1 - SHARE) / words) ** 0.5
    )
    (gradient,) = torch.autograd.grad(found.sum(), embedding.weight)
    assert torch.equal(gradient, by_word[:, None].expand(-1, 3) * 6)


def test_nothing_dropped_is_the_embedding_itself() -> None:
    embedding = nn.Embedding(5, 3)
    tokens = torch.tensor([[1, 4, 4]])
    assert torch.equal(embed(embedding, tokens, 0.0), embedding.weight[tokens])
