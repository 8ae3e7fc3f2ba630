"""An embedding is a product with one-hot vectors."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from seqloom.errors import UsageError
from seqloom.layers.one_hot import OneHot
from seqloom.models.recurrent_lm import RecurrentLM, RecurrentLMConfig

VOCABULARY, WIDTH = 11, 5


def test_a_lookup_equals_a_product_with_one_hot_vectors() -> None:
    """Forward and backward; a token that occurs twice has the sum of both gradients."""
    tokens = torch.tensor([[3, 0, 3], [10, 7, 1]])
    embedding = nn.Embedding(VOCABULARY, WIDTH).double()
    weight = embedding.weight.detach().clone().requires_grad_()
    of_outputs = torch.randn(2, 3, WIDTH, dtype=torch.float64)
    looked_up = embedding(tokens)
    product = OneHot(VOCABULARY).double()(tokens) @ weight
    looked_up.backward(of_outputs)
    product.backward(of_outputs)
    assert torch.equal(looked_up, product)
    assert embedding.weight.grad is not None
    assert weight.grad is not None
    assert torch.allclose(embedding.weight.grad, weight.grad, rtol=0, atol=1e-15)


@pytest.mark.parametrize("cell", ["elman", "lstm", "gru"])
def test_a_model_that_reads_one_hot_vectors_is_one_with_the_identity_as_embedding(
    cell: str,
) -> None:
    def model(embedding: str) -> RecurrentLM:
        config = RecurrentLMConfig(
            vocabulary_size=VOCABULARY,
            cell=cell,
            embedding=embedding,  # type: ignore[arg-type]
            embedding_width=VOCABULARY,
            width=6,
            layers=1,
            tie_output=False,
        )
        torch.manual_seed(0)
        return RecurrentLM(config).double().eval()

    one_hot, identity = model("one-hot"), model("trained")
    weights = one_hot.state_dict()
    assert not any(name.startswith("embedding") for name in weights)
    identity.load_state_dict({**weights, "embedding.weight": torch.eye(VOCABULARY)})
    tokens = torch.tensor([[1, 4, 9, 4, 2], [1, 3, 2, 0, 0]])
    assert torch.allclose(one_hot(tokens)[0], identity(tokens)[0], rtol=0, atol=1e-12)


def test_an_output_has_no_weights_to_share_with_one_hot_vectors() -> None:
    with pytest.raises(UsageError, match="must be false with model"):
        RecurrentLMConfig(vocabulary_size=VOCABULARY, embedding="one-hot")
