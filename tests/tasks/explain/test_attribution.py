"""What each word adds to an answer: laws of leave-one-out and integrated gradients, for every family."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from tests.tasks.explain.subjects import INPUTS, SENTENCE, opened
from torch import Tensor, nn

from seqloom.errors import UsageError
from seqloom.explaining.studies import attribution
from seqloom.protocols import NO_REQUEST, EncodedBatch
from seqloom.tasks.explain.look import Look
from seqloom.tasks.explain.model_input import ModelInput

SHOWN = Look(show="attribution")
ANSWERING = [name for name in INPUTS if name != "vectors-bert"]
OTHER_THAN_EMBEDDINGS = {
    "text-ngram": "has not got",
    "text-mixture": "weights of words",
    "labels-bag": "weights of words",
    "labels-bag-several": "weights of words",
    "text-recurrent-lm": "weights of words",
    "tags-recurrent": "weights of words",
}
"""Models that read tokens in another way, and what is said of it."""
SMOOTH = [name for name in ANSWERING if name not in OTHER_THAN_EMBEDDINGS]


def given(name: str, **options: Any) -> ModelInput:
    return opened(name).model_input(INPUTS[name], Look(show="attribution", **options), NO_REQUEST)


def shares(name: str, texts: tuple[str, ...] = (), **options: Any) -> dict[str, Any]:
    found = opened(name).explain(texts or INPUTS[name], show="attribution", **options)
    return dict(found.numbers)


@pytest.mark.parametrize("name", SMOOTH)
def test_integrated_gradients_are_complete(name: str) -> None:
    found = shares(name, method="integrated-gradients")
    difference = found["score"] - found["baseline_score"]
    scale = max(abs(difference), sum(map(abs, found["shares"])))
    assert sum(found["shares"]) == pytest.approx(difference, abs=1e-3 * scale)
    assert found["completeness_error"] <= 1e-3
    assert len(found["shares"]) == len(found["words"]) > 1
    assert any(abs(share) > 1e-9 for share in found["shares"])


@pytest.mark.parametrize("name", OTHER_THAN_EMBEDDINGS)
def test_a_model_that_reads_more_than_embeddings_says_so(name: str) -> None:
    with pytest.raises(UsageError, match=OTHER_THAN_EMBEDDINGS[name]):
        shares(name, method="integrated-gradients")


@contextmanager
def moved(table: nn.Embedding, tokens: Tensor, vectors: Tensor) -> Iterator[None]:
    """Inside, these vectors `(1, steps, width)` are read in the place of the tokens."""
    forward = table.forward

    def read(ids: Tensor) -> Tensor:
        output, steps = forward(ids), tokens.shape[1]
        if ids.dim() == 2 and torch.equal(ids[:, :steps].clamp(min=0), tokens.clamp(min=0)):
            output = torch.cat([vectors, output[:, steps:]], dim=1)
        return output

    table.forward = read  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        table.forward = forward  # type: ignore[method-assign]


def written_out(
    table: nn.Embedding, batch: EncodedBatch, places: list[int], score: Callable[..., Tensor]
) -> list[float]:
    """Integrated gradients of places by differences: no autograd, no hooks, a point at a time."""
    x = table(batch.tokens.clamp(min=0)).detach()
    base = x.clone()
    base[0, places] = 0
    nodes, weights = attribution.nodes_and_weights(32, 1)
    found = np.zeros(len(places))
    step = 1e-6
    for node, weight in zip(nodes.tolist(), weights.tolist(), strict=True):
        at = base + node * (x - base)
        for number, place in enumerate(places):
            ends = []
            for sign in (1, -1):
                vectors = at.clone()
                vectors[0, place] += sign * step * (x - base)[0, place]
                with torch.no_grad(), moved(table, batch.tokens, vectors):
                    ends.append(float(score(batch)))
            found[number] += weight * (ends[0] - ends[1]) / (2 * step)
    return found.tolist()


@pytest.mark.parametrize(
    ("name", "table"),
    [
        ("labels-convolution", "encoder.embedding"),
        ("text-gpt", "embedding"),
        ("text-recurrent-lm-adaptive", "embedding"),
        ("translation-seq2seq", "source_embedding"),
        ("translation-t5", "embedding"),
    ],
)
def test_they_are_those_of_the_equation(
    name: str, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = given(name)
    assert one.score is not None
    words, score = list(one.words())[:3], one.score()
    places = [step for word in words for _, step in word.places]
    module: Any = one.model.get_submodule(table)
    expected = written_out(module, one.batch, places, score.of)
    monkeypatch.setattr(attribution, "SUMS", ((32, 1),))
    monkeypatch.setattr(attribution, "MOST_ERROR", 1.0)
    found = attribution.integrated_gradients(
        one.model, one.batch, [[(0, place)] for place in places], score.of, [None]
    )
    np.testing.assert_allclose(found.shares.numpy(), expected, atol=1e-6)


@pytest.mark.parametrize("name", ["labels-bag", "labels-convolution", "labels-recurrent"])
def test_leaving_a_word_out_is_the_text_without_it(name: str) -> None:
    """Exact, whatever the model: what `predict` says of the shorter text."""
    model: Any = opened(name)
    words = INPUTS[name][0].split()
    found = shares(name, (" ".join(words),))
    target, foil = found["asked"].removeprefix("logit of ").split(" - logit of ")

    def score(some: list[str]) -> float:
        (answer,) = model.predict([" ".join(some)])
        return math.log(answer["probabilities"][target] / answer["probabilities"][foil])

    read = [word.strip(",.") for word in words]
    kept = [at for at, word in enumerate(read) if word]
    for at, share in zip(range(len(found["words"])), found["shares"], strict=True):
        word = found["words"][at]
        if found["words"].count(word) > 1 or word not in read:
            continue
        place = read.index(word)
        without = words[:place] + ([","] if words[place] != word else []) + words[place + 1 :]
        assert share == pytest.approx(score(words) - score(without), abs=1e-5)
    assert kept


@pytest.mark.parametrize("name", ANSWERING)
def test_a_word_has_the_same_share_alone_and_in_a_batch(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    together = shares(name)["shares"]
    monkeypatch.setattr(attribution, "BATCH_STEPS", 1)
    np.testing.assert_allclose(shares(name)["shares"], together, atol=1e-8)


def test_what_a_model_cannot_see_has_no_share() -> None:
    """A trigram sees two words; a linear bag of words no unknown one."""
    assert [share != 0 for share in shares("text-ngram")["shares"]] == [False] * 5 + [True] * 2
    found = shares("labels-bag", ("a good zzyzx film",))
    assert found["shares"][found["words"].index("zzyzx")] == pytest.approx(0, abs=1e-12)


def test_a_contrast_turned_around_changes_its_sign() -> None:
    for name, target, foil in (
        ("text-gpt", "dog", "cat"),
        ("translation-transformer", "der hund", "die katze"),
        ("labels-bert", "good", "bad"),
    ):
        if name == "labels-bert":
            asked = shares(name)["asked"].removeprefix("logit of ").split(" - logit of ")
            target, foil = asked
        for method in ("leave-one-out", "integrated-gradients"):
            one = shares(name, target=target, foil=foil, method=method)["shares"]
            other = shares(name, target=foil, foil=target, method=method)["shares"]
            np.testing.assert_allclose(one, [-share for share in other], atol=1e-9)


def test_what_may_be_asked_is_named() -> None:
    for name, options, message in (
        ("labels-bert", {"target": "purple"}, "the answer must be one of"),
        ("labels-bert", {"word": 2}, "--word is for tags"),
        ("tags-recurrent", {"word": 99}, "--word must be 1 to 7"),
        ("similar-recurrent", {"target": "3"}, "has none to name"),
        ("vectors-bert", {}, "answers nothing"),
        ("labels-bert", {"method": "lime"}, "leave-one-out"),
    ):
        with pytest.raises(UsageError, match=message):
            shares(name, **options)
    with pytest.raises(UsageError, match="the text has none"):
        shares("masks-bert", (SENTENCE,))
    assert shares("tags-recurrent", word=3)["asked"].endswith("at word 3 (dog)")


def test_a_randomised_body_loses_the_ranking() -> None:
    """Adebayo et al. 2018: a method that keeps it would show the text, not the model."""
    name = "labels-convolution"
    model = opened(name)
    words = [
        "the",
        "a",
        "good",
        "bad",
        "red",
        "old",
        "film",
        ",",
        "and",
        "warm",
        "dull",
        "bright",
        "cat",
        "dog",
        "park",
    ]
    draw = np.random.default_rng(3)
    texts = [" ".join(draw.permutation(words)[:9]) for _ in range(8)]

    def ranked(text: str) -> Any:
        return np.argsort(np.argsort(shares(name, (text,))["shares"]))

    before = [ranked(text) for text in texts]
    weights = {key: value.clone() for key, value in model.model.state_dict().items()}
    correlations = []
    try:
        for seed in range(8):
            torch.manual_seed(seed)
            for parameter in model.model.parameters():
                nn.init.normal_(parameter, std=0.3)
            for text, ranks in zip(texts, before, strict=True):
                correlations.append(np.corrcoef(ranked(text), ranks)[0, 1])
    finally:
        model.model.load_state_dict(weights)
    assert abs(float(np.mean(correlations))) < 0.3
    assert (ranked(texts[0]) == before[0]).all()
