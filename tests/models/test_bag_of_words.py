"""The bag of words: scikit-learn's vectors, and that neither order nor padding matters."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.feature_extraction.text import CountVectorizer, TfidfVectorizer
from torch import Tensor

from seqloom.errors import UsageError
from seqloom.models.bag_of_words import BagOfWords, BagOfWordsConfig

pytestmark = pytest.mark.usefixtures("one_thread")

MARKS = 3
"""Ids below are none of the words `w3`, `w4` ..."""
ROWS = [[5, 3, 5, 5, 7, 4], [6], [3, 3, 8, 4, 6, 9, 3, 4], [9, 8, 7]]
LINEAR = ("counts", "binary", "tf-idf")
KINDS: dict[str, dict[str, Any]] = {
    "embeddings": {},
    "embeddings of n-grams": {"ngrams": 3},
    "highways": {"highways": 2, "ngrams": 2},
    "counts": {"features": "counts"},
    "binary": {"features": "binary", "ngrams": 2},
    "tf-idf": {"features": "tf-idf"},
    "tf-idf of n-grams": {"features": "tf-idf", "ngrams": 3},
}


def drawn(**options: Any) -> BagOfWords:
    """With all weights drawn at random, and idf of ROWS."""
    torch.manual_seed(0)
    sizes: dict[str, Any] = {
        "vocabulary_size": 10,
        "width": 4,
        "buckets": 10_007,
        "first_word": MARKS,
    }
    model = BagOfWords(BagOfWordsConfig(**sizes | options)).double().eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter)
    model.initialise(model.occurring(*padded(ROWS)), len(ROWS))
    return model


@pytest.fixture(params=KINDS)
def model(request: pytest.FixtureRequest) -> BagOfWords:
    return drawn(**KINDS[request.param])


def padded(rows: list[list[int]], pad: int = 0) -> tuple[Tensor, Tensor]:
    steps = max(map(len, rows)) + 2
    tokens = [row + [pad] * (steps - len(row)) for row in rows]
    return torch.tensor(tokens), torch.arange(steps) < torch.tensor([len(row) for row in rows])[
        :, None
    ]


def alone(model: BagOfWords, row: list[int]) -> Tensor:
    states: Tensor = model(torch.tensor([row]), torch.ones(1, len(row), dtype=torch.bool))
    return states[0]


def close(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("pad", [0, 7])
def test_batched_and_padded_is_alone(model: BagOfWords, pad: int) -> None:
    inputs, mask = padded(ROWS, pad)
    states = model(inputs, mask)
    for row, tokens in enumerate(ROWS):
        close(states[row][mask[row]], alone(model, tokens))
    assert not states[~mask].any()


@pytest.mark.parametrize("features", ["embeddings", *LINEAR])
def test_order_changes_nothing(features: str) -> None:
    model = drawn(features=features)
    for row in ROWS:
        shuffled = [row[place] for place in torch.randperm(len(row)).tolist()]
        close(alone(model, row).sum(dim=0), alone(model, shuffled).sum(dim=0))


def test_rows_without_tokens_say_nothing(model: BagOfWords) -> None:
    assert not model(torch.full((2, 3), 4), torch.zeros(2, 3, dtype=torch.bool)).any()
    assert model(
        torch.zeros(2, 0, dtype=torch.long), torch.zeros(2, 0, dtype=torch.bool)
    ).shape == (2, 0, 4)


def test_order_matters_to_ngrams() -> None:
    model = drawn(ngrams=2)
    assert not torch.allclose(
        alone(model, [3, 4, 5]).sum(dim=0), alone(model, [5, 4, 3]).sum(dim=0)
    )


def test_highway_layers_are_those_of_their_equation() -> None:
    """y = g ⊙ ReLU(W_H x + b_H) + (1 - g) ⊙ x, with g = σ(W_T x + b_T), layer by layer; new gates are nearly
    closed."""
    tokens, mask = padded(ROWS)
    model: Any = drawn(highways=2)
    plain = drawn()
    plain.load_state_dict(
        {name: one for name, one in model.state_dict().items() if "highways" not in name}
    )
    x = plain(tokens, mask)
    for layer in model.highways:
        gate = (x @ layer.gate.linear.weight.T + layer.gate.linear.bias).sigmoid()
        transformed = (x @ layer.linear.weight.T + layer.linear.bias).relu()
        x = gate * transformed + (1 - gate) * x
    expected = x.masked_fill(~mask[..., None], 0)
    torch.testing.assert_close(model(tokens, mask), expected)
    new: Any = BagOfWords(BagOfWordsConfig(vocabulary_size=10, highways=1))
    assert new.highways[0].gate.linear.bias.lt(0).all()


def test_averaged_embeddings() -> None:
    model = drawn()
    close(
        alone(model, ROWS[2]).mean(dim=0), model.embedding.weight[torch.tensor(ROWS[2])].mean(dim=0)
    )


# The linear forms: the sum over steps is a product of scikit-learn's vectors and the weights of their
# features


def weights_of(model: BagOfWords, features: list[str]) -> Tensor:
    """`(features, width)`: of `w3`, `w3 w4`, ..."""
    rows = []
    for feature in features:
        tokens = [int(word[1:]) for word in feature.split(" ")]
        ids, _ = model.features(
            torch.tensor([tokens]), torch.ones(1, len(tokens), dtype=torch.bool)
        )
        place = int(ids[0, -1, len(tokens) - 1])
        table = model.embedding if len(tokens) == 1 else model.ngram_embedding
        assert table is not None
        rows.append(table.weight[place if len(tokens) == 1 else place - 10])
    return torch.stack(rows)


@pytest.mark.parametrize("longest", [1, 2, 3])
@pytest.mark.parametrize("features", LINEAR)
def test_sums_are_those_of_scikit_learns_vectors(features: str, longest: int) -> None:
    model = drawn(features=features, ngrams=longest)
    texts = [" ".join(f"w{token}" for token in row) for row in ROWS]
    options: dict[str, Any] = {"ngram_range": (1, longest), "token_pattern": r"\S+"}
    vectorizer = (
        TfidfVectorizer(**options)
        if features == "tf-idf"
        else CountVectorizer(binary=features == "binary", **options)
    )
    vectorizer.fit(texts)
    weights = weights_of(model, list(vectorizer.get_feature_names_out()))
    # n-grams that no text of ROWS has are left out below
    unseen = [
        *ROWS,
        [3, 9, 9, 3, 3],
        [5, 3, 4, 4],
    ]
    for row in unseen:
        pairs = {pair for known in ROWS for pair in pairwise(known)}
        if longest > 1 and not set(pairwise(row)) <= pairs:
            continue
        vector = vectorizer.transform([" ".join(f"w{token}" for token in row)]).toarray()[0]
        close(alone(model, row).sum(dim=0), torch.from_numpy(vector.astype(np.float64)) @ weights)


@pytest.mark.parametrize("features", LINEAR)
def test_marks_are_not_counted(features: str) -> None:
    """Neither at the ends nor within an n-gram: `</s>` after each text would be a word of its own, and of all
    texts."""
    model = drawn(features=features, ngrams=2)
    states = alone(model, [1, 5, 3, 2])
    assert not states[[0, 3]].any()
    close(states[1:3], alone(model, [5, 3]))


@pytest.mark.parametrize("features", LINEAR)
def test_the_linear_forms_begin_at_nothing_and_drop_nothing(features: str) -> None:
    model = BagOfWords(
        BagOfWordsConfig(
            vocabulary_size=10,
            width=4,
            features=features,  # type: ignore[arg-type]
            ngrams=2,
            buckets=5,
            first_word=0,
            dropout=0.5,
        )
    )
    tokens, mask = torch.tensor([[3, 4, 5]]), torch.ones(1, 3, dtype=torch.bool)
    assert not model(tokens, mask).any()
    model.train().embedding.weight.data.fill_(1.0)
    assert len(model(tokens, mask).unique()) == 1
    model(tokens, mask).sum().backward()
    grad = model.embedding.weight.grad
    assert grad is not None
    assert grad.abs().sum(dim=1).nonzero()[:, 0].tolist() == [3, 4, 5]


def test_idf_is_counted_in_parts_and_kept_with_the_weights() -> None:
    model, other = drawn(features="tf-idf", ngrams=2), drawn(features="tf-idf", ngrams=2)
    parts = [model.occurring(*padded([row])) for row in ROWS]
    assert torch.equal(sum(parts, torch.zeros_like(parts[0])), model.occurring(*padded(ROWS)))
    assert model.occurring(*padded(ROWS))[:10].tolist() == [0, 0, 0, 2, 2, 1, 2, 2, 2, 2]
    other.initialise(torch.zeros_like(parts[0]), 5)
    assert not torch.equal(other.idf, model.idf)  # type: ignore[arg-type]
    other.load_state_dict(model.state_dict())
    assert torch.equal(other.idf, model.idf)  # type: ignore[arg-type]


def test_ngrams_of_few_buckets_share_them() -> None:
    model = drawn(ngrams=3, buckets=2)
    ids, counted = model.features(torch.tensor([ROWS[2]]), torch.ones(1, 8, dtype=torch.bool))
    assert set(ids[..., 1:][counted[..., 1:]].tolist()) == {10, 11}
    assert counted[0].sum(dim=0).tolist() == [8, 7, 6]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"width": 0}, "model.width must be at least 1"),
        ({"ngrams": 0}, "model.ngrams must be at least 1"),
        ({"buckets": 2**31}, "model.buckets must be less than"),
        ({"dropout": 1.0}, "model.dropout must be in"),
        ({"first_word": -1}, "model.first_word must be at least 0"),
    ],
)
def test_settings_that_cannot_be(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        BagOfWordsConfig(**{"vocabulary_size": 10} | options)
