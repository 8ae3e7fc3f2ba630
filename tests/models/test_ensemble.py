"""The mixture by its formula; weights tuned on text. The laws of every language model are in tests/laws."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from seqloom.errors import UsageError
from seqloom.models.ensemble import Ensemble, EnsembleConfig, mixture_weights
from seqloom.run_file import parse

GPT: dict[str, Any] = {
    "model_type": "gpt",
    "vocabulary_size": 20,
    "context": 8,
    "width": 8,
    "layers": 1,
    "heads": 2,
}
LSTM: dict[str, Any] = {
    "model_type": "recurrent_lm",
    "vocabulary_size": 20,
    "embedding_width": 4,
    "width": 6,
    "layers": 1,
    "tie_output": False,
}


def made() -> Ensemble:
    torch.manual_seed(0)
    return Ensemble(EnsembleConfig(vocabulary_size=20, members=(GPT, LSTM))).double().eval()


@torch.no_grad()
def test_probabilities_are_mixed_by_weight() -> None:
    model, tokens = made(), torch.tensor([[1, 17, 18, 16]])
    model.weights.copy_(torch.tensor([0.25, 0.75]))
    parts = [member(tokens, None)[0].softmax(-1) for member in model.members]
    logits, _ = model(tokens, None)
    torch.testing.assert_close(logits.exp(), 0.25 * parts[0] + 0.75 * parts[1])
    torch.testing.assert_close(logits.exp().sum(-1), torch.ones(1, 4, dtype=torch.float64))


@torch.no_grad()
def test_a_weight_of_one_is_the_member_alone() -> None:
    model, tokens = made(), torch.tensor([[1, 17, 18, 16]])
    model.weights.copy_(torch.tensor([0.0, 1.0]))
    torch.testing.assert_close(
        model(tokens, None)[0], model.members[1](tokens, None)[0].log_softmax(-1)
    )


def test_it_looks_back_as_far_as_all_of_its_members() -> None:
    assert made().context == 8
    assert Ensemble(EnsembleConfig(vocabulary_size=20, members=(LSTM, LSTM))).context is None


def test_weights_are_those_of_the_source_of_the_text() -> None:
    """Tokens drawn from a mixture of two dice: the weights are found again, and no others make the tokens
    likelier."""
    generator = torch.Generator().manual_seed(0)
    dice = torch.tensor(
        [[0.5, 0.3, 0.1, 0.1], [0.05, 0.05, 0.2, 0.7], [0.25, 0.25, 0.25, 0.25]],
        dtype=torch.float64,
    )
    truth = torch.tensor([0.6, 0.4, 0.0], dtype=torch.float64)
    tokens = (truth @ dice).multinomial(200_000, replacement=True, generator=generator)
    log_probs = dice.log()[:, tokens].T
    found = mixture_weights(log_probs, steps=2000)
    assert float(found.sum()) == pytest.approx(1)
    assert (
        found @ dice - truth @ dice
    ).abs().max() < 0.005  # the mixture is found; the third die is one of the others' mixtures

    def likelihood(weights: torch.Tensor) -> float:
        return float((log_probs + weights.log()).logsumexp(1).mean())

    for other in ([0.5, 0.5, 0.0], [0.7, 0.3, 0.0], [1 / 3] * 3):
        assert likelihood(found) > likelihood(torch.tensor(other, dtype=torch.float64)) - 1e-9


def test_members_that_do_not_fit_together_are_refused() -> None:
    for members, message in (
        (((GPT,)), "at least 2 members"),
        ((GPT, LSTM | {"vocabulary_size": 21}), "share one vocabulary"),
    ):
        with pytest.raises(UsageError, match=message):
            parse(EnsembleConfig, {"vocabulary_size": 20, "members": members})
