"""The multilayer perceptron over zero-padded texts, and its equation in plain numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from seqloom.errors import UsageError
from seqloom.models.encoder_with_head import EncoderWithHead, EncoderWithHeadConfig
from seqloom.models.heads import HeadKind
from seqloom.models.mlp import MLP, MLPConfig

pytestmark = pytest.mark.usefixtures("one_thread")

CONTEXT = 6
ROWS = [[5, 3, 5, 5, 7, 4], [6], [3, 3, 8, 4], [0, 0]]


def drawn(layers: int) -> MLP:
    """With weights and biases drawn at random."""
    torch.manual_seed(0)
    model = MLP(
        MLPConfig(vocabulary_size=10, context=CONTEXT, embedding_width=3, width=5, layers=layers)
    )
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter)
    return model.double().eval()


def padded(rows: list[list[int]], steps: int, pad: int = 0) -> tuple[Tensor, Tensor]:
    tokens = torch.tensor([row + [pad] * (steps - len(row)) for row in rows])
    lengths = torch.tensor([len(row) for row in rows])
    return tokens, torch.arange(steps) < lengths[:, None]


def by_equation(model: MLP, row: list[int]) -> NDArray[np.float64]:
    """h_l = ReLU(W_l h_{l-1} + b_l) of one text, number by number."""
    weights = {name: value.detach().numpy() for name, value in model.named_parameters()}
    hidden = [float(number) for token in row for number in weights["embedding.weight"][token]]
    hidden += [0.0] * ((CONTEXT - len(row)) * model.config.embedding_width)
    for layer in range(model.config.layers):
        weight, bias = weights[f"blocks.{layer}.weight"], weights[f"blocks.{layer}.bias"]
        sums = [
            b + sum(w * h for w, h in zip(line, hidden, strict=True))
            for line, b in zip(weight, bias, strict=True)
        ]
        hidden = [max(0.0, float(one)) for one in sums]
    return np.array(hidden)


@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize("pad", [0, 7])
@pytest.mark.parametrize("steps", [CONTEXT, CONTEXT + 4])
def test_each_step_has_the_state_of_the_equation(layers: int, pad: int, steps: int) -> None:
    """However far the rows are padded, and whatever stands there."""
    model = drawn(layers)
    states = model(*padded(ROWS, steps, pad)).detach().numpy()
    assert states.shape == (len(ROWS), steps, model.config.traits.width)
    for row, tokens in enumerate(ROWS):
        expected = np.broadcast_to(by_equation(model, tokens), states[row].shape)
        np.testing.assert_allclose(states[row], expected, rtol=1e-12, atol=1e-12)


def test_a_batch_of_short_texts_is_padded_to_the_context() -> None:
    model = drawn(1)
    states = model(*padded([[6], [9, 8]], 2)).detach().numpy()
    np.testing.assert_allclose(states[0, 0], by_equation(model, [6]), rtol=1e-12)
    np.testing.assert_allclose(states[1, 1], by_equation(model, [9, 8]), rtol=1e-12)


def test_the_place_of_a_word_counts() -> None:
    first, second = drawn(1)(*padded([[3, 8], [8, 3]], 2))
    assert not torch.allclose(first, second)


def test_a_batch_without_tokens_has_no_states() -> None:
    nothing = torch.zeros(2, 0, dtype=torch.long)
    assert drawn(1)(nothing, nothing.bool()).shape == (2, 0, 5)


def test_a_text_beyond_the_context_is_refused() -> None:
    """Padding is not counted, as above; tokens are."""
    with pytest.raises(UsageError, match=r"at most 6 tokens here, but one has 7; cut it"):
        drawn(1)(*padded([[6], [1, 2, 3, 4, 5, 6, 7]], 9))


def test_features_of_hidden_layers_are_dropped_in_training() -> None:
    model = MLP(MLPConfig(vocabulary_size=10, width=400, dropout=0.5))
    inputs, mask = padded(ROWS, CONTEXT)
    torch.manual_seed(0)
    trained = model(inputs, mask)[0, 0]
    whole = model.eval()(inputs, mask)[0, 0]
    active = whole > 0
    kept = trained[active] > 0
    assert 0.3 < float(kept.float().mean()) < 0.7
    torch.testing.assert_close(trained[active][kept], 2 * whole[active][kept])


@pytest.mark.parametrize("kind", ["tagging", "span"])
def test_no_head_can_ask_a_single_word(kind: HeadKind) -> None:
    config = EncoderWithHeadConfig(
        kind=kind,
        encoder={"model_type": "mlp", "vocabulary_size": 10},
        labels=("a", "b"),
        vocabulary_size=10,
    )
    with pytest.raises(UsageError, match=f"^a head for {kind} must have a state of each word, but"):
        EncoderWithHead(config)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"context": 0}, "model.context must be at least 1"),
        ({"layers": 0}, "model.layers must be at least 1"),
        ({"width": 0}, "model.width must be at least 1"),
        ({"dropout": 1.0}, "model.dropout must be in"),
    ],
)
def test_settings_that_cannot_be(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        MLPConfig(**{"vocabulary_size": 10} | options)
