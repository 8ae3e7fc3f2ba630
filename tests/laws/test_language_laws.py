"""The laws of models of text alone: probabilities of sentences, documents in a row, numbers whatever the
batch.

`conftest.py` lists the models.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import pytest
import torch

from seqloom.decoding.generate import GenerationOptions, generate
from seqloom.decoding.hypotheses import Hypothesis
from seqloom.decoding.logits_processors import forbid
from seqloom.decoding.strategies import Sampling
from seqloom.evaluation.perplexity import score_texts
from seqloom.protocols import NeuralDecodable
from seqloom.text.special_tokens import BOS, EOS, PAD

if TYPE_CHECKING:
    from tests.laws.conftest import Subject

WORDS = (3, 4, 5, 6)
TEXTS: Sequence[Sequence[int]] = [
    [3, 5, 4, 4],
    [],
    [6],
    [4, 6, 6, 3, 5, 4, 3, 3, 6],
    [5, 3],
    [4, 6, 6, 3],
]


@pytest.fixture(autouse=True)
def no_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


def predicted(lm: Subject) -> list[int]:
    """All that may come next."""
    logits, _ = lm.model(torch.tensor([[BOS]]), None)
    return [int(token) for token in (logits[0, 0] > -math.inf).nonzero()[:, 0]]


# The probability of a sentence (systems.md C1)


def test_a_prefix_is_as_likely_as_all_that_begins_with_it(lm: Subject) -> None:
    words = [token for token in predicted(lm) if token != EOS]
    for text in TEXTS:
        here, *longer = score_texts(lm.model, [text, *([*text, word] for word in words)])
        total = math.exp(here.complete) + sum(math.exp(one.prefix) for one in longer)
        assert total == pytest.approx(math.exp(here.prefix), rel=lm.tolerance)


def test_all_sentences_up_to_a_length_and_what_still_runs_are_one(lm: Subject) -> None:
    """No share is left for what no text holds, <s> and <pad>."""
    most = 3
    texts = [text for length in range(most + 1) for text in itertools.product(WORDS, repeat=length)]
    scores = score_texts(lm.model, texts)
    ended = sum(
        math.exp(score.complete)
        for text, score in zip(texts, scores, strict=True)
        if len(text) < most
    )
    running = sum(
        math.exp(score.prefix)
        for text, score in zip(texts, scores, strict=True)
        if len(text) == most
    )
    assert ended + running == pytest.approx(1, abs=lm.tolerance)


# Numbers whatever the batch


def test_a_text_has_one_score_whatever_the_batch(lm: Subject) -> None:
    alone = [score_texts(lm.model, [text])[0] for text in TEXTS]
    for budget, ranks in itertools.product((1, 7, 30, 8192), (False, True)):
        for score, expected in zip(
            score_texts(lm.model, TEXTS, ranks=ranks, budget=budget), alone, strict=True
        ):
            assert score.log_probs == pytest.approx(expected.log_probs, abs=lm.tolerance)


def test_a_score_is_the_sum_of_what_the_call_says(lm: Subject) -> None:
    for text, score in zip(TEXTS, score_texts(lm.model, TEXTS, ranks=True), strict=True):
        log_probs = lm.model(torch.tensor([[BOS, *text]]), None)[0][0].log_softmax(-1)
        targets = torch.tensor([*text, EOS])
        chosen = log_probs.gather(1, targets[:, None])
        assert score.log_probs == pytest.approx(chosen[:, 0].numpy(), abs=lm.tolerance)
        assert score.ranks is not None
        assert score.ranks.tolist() == ((log_probs > chosen).sum(1) + 1).tolist()


# Documents in a row: <s> begins a document


def test_packed_documents_are_separate_documents(lm: Subject) -> None:
    if not lm.separate_documents:
        pytest.skip("joined documents see each other")
    lm.packed_documents_are_separate_documents()


def test_a_document_begins_in_a_carried_state(lm: Subject) -> None:
    if not lm.separate_documents:
        pytest.skip("joined documents see each other")
    lm.a_document_begins_in_a_carried_state()


def test_joined_documents_see_each_other(lm: Subject) -> None:
    if lm.separate_documents:
        pytest.skip("separate documents do not")
    one, _ = lm.model(torch.tensor([[BOS, 3, EOS, BOS, 5]]), None)
    other, _ = lm.model(torch.tensor([[BOS, 6, EOS, BOS, 5]]), None)
    assert not torch.allclose(one[0, 3:], other[0, 3:], rtol=1e-3)


def test_gradients_of_packed_documents_are_the_sum_over_documents(lm: Subject) -> None:
    if not lm.separate_documents or not isinstance(lm.model, NeuralDecodable):
        pytest.skip("joined, or without gradients")
    lm.gradients_of_packed_documents_are_the_sum_over_documents()


# Sampling


def drawn(
    lm: Subject, prompts: Sequence[Sequence[int]], strategy: Sampling, limit: int
) -> list[list[Hypothesis]]:
    limits = [limit] * len(prompts)
    return generate(
        lm.model,
        None,
        prompts,
        limits,
        GenerationOptions(strategy=strategy, eos=EOS, pad=PAD, processors=[forbid([PAD, BOS])]),
    )


def test_a_sample_is_the_same_in_any_batch(lm: Subject) -> None:
    prompts, strategy = [[BOS, *text] for text in TEXTS], Sampling(seed=3, samples=2)
    together = drawn(lm, prompts, strategy, 6)
    for prompt, expected in zip(prompts, together, strict=True):
        (alone,) = drawn(lm, [prompt], strategy, 6)
        assert [(one.tokens, one.finished) for one in alone] == [
            (one.tokens, one.finished) for one in expected
        ]


def test_samples_are_as_frequent_as_the_model_says(lm: Subject) -> None:
    """Pearson's chi-square over what follows a prompt; beyond 24.3 by chance once in 5,000 times with 5
    degrees of freedom."""
    count, prompt = 3000, [BOS, 4]
    (samples,) = drawn(lm, [prompt], Sampling(seed=1, samples=count), 1)
    found = torch.bincount(
        torch.tensor([one.tokens[0] if one.tokens else EOS for one in samples]), minlength=7
    ).double()
    allowed = lm.model(torch.tensor([prompt]), None)[0][0, -1].double().log_softmax(-1)
    allowed[[PAD, BOS]] = -math.inf
    expected = count * allowed.softmax(-1)
    seen = expected > 0
    assert found[~seen].sum() == 0
    assert float(((found - expected)[seen] ** 2 / expected[seen].clamp(min=1e-9)).sum()) < 24.3
