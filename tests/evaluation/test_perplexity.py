"""Perplexity and its kin by hand; windows over long texts. That every model's scores are its own is a law
(tests/laws)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from seqloom.errors import UsageError
from seqloom.evaluation import perplexity
from seqloom.evaluation.perplexity import (
    CorpusLikelihood,
    ScoredWindow,
    TextScore,
    score_texts,
    scored_windows,
)
from seqloom.models.gpt import GPT, GPTConfig
from seqloom.text.special_tokens import BOS, EOS, UNK

VOCABULARY = 20


@given(st.integers(1, 60), st.integers(1, 12), st.integers(1, 12))
def test_windows_score_each_token_once_with_the_context_that_was_promised(
    length: int, context: int, stride: int
) -> None:
    stride = min(stride, context)
    found = list(scored_windows(7, length, context, stride))
    assert [position for span in found for position in range(span.scored, span.end)] == list(
        range(length)
    )
    for span in found:
        assert span.text == 7
        assert span.end - span.start <= context
        assert span.scored - span.start >= min(context - stride, span.scored)


def test_a_text_that_fits_is_one_window_and_without_a_limit_every_text_fits() -> None:
    assert list(scored_windows(0, 8, 8, 2)) == [ScoredWindow(0, 0, 0, 8)]
    assert list(scored_windows(0, 1000, None, None)) == [ScoredWindow(0, 0, 0, 1000)]
    assert [tuple(span) for span in scored_windows(0, 9, 4, None)] == [
        (0, 0, 0, 4),
        (0, 4, 4, 8),
        (0, 5, 8, 9),
    ]


@pytest.mark.parametrize("stride", [0, -1, 9])
def test_a_stride_that_leaves_gaps_is_refused(stride: int) -> None:
    with pytest.raises(
        UsageError, match=f"stride must be from 1 to the model's context 8, but is {stride}"
    ):
        list(scored_windows(0, 20, 8, stride))


def gpt(context: int) -> GPT:
    torch.manual_seed(0)
    model = (
        GPT(GPTConfig(vocabulary_size=VOCABULARY, context=context, width=8, layers=2, heads=2))
        .double()
        .eval()
    )
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.5)
    return model


@pytest.mark.parametrize("stride", [1, 3, 6])
@pytest.mark.parametrize("budget", [1, 20, 8192])
def test_long_texts_are_scored_window_by_window(stride: int, budget: int) -> None:
    """Each token by hand: the window that scores it is read alone, in one piece."""
    model = gpt(6)
    texts = [
        [3 + (at * at + row) % 17 for at in range(length)]
        for row, length in enumerate((4, 25, 0, 13))
    ]
    for text, score in zip(
        texts, score_texts(model, texts, stride=stride, budget=budget), strict=True
    ):
        inputs, targets = [BOS, *text], [*text, EOS]
        expected = []
        for span in scored_windows(0, len(targets), 6, stride):
            with torch.no_grad():
                logits, _ = model(torch.tensor([inputs[span.start : span.end]]), None)
            log_probs = logits[0].log_softmax(-1)
            expected += [
                float(log_probs[at - span.start, targets[at]])
                for at in range(span.scored, span.end)
            ]
        assert score.log_probs == pytest.approx(expected, abs=1e-9)


@final
class Table(nn.Module):
    """A bigram table: what comes next depends on the last token only."""

    context = None

    @dataclass(frozen=True)
    class Config:
        vocabulary_size: int = VOCABULARY

    config = Config()

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(
            torch.randn(
                VOCABULARY,
                VOCABULARY,
                dtype=torch.float64,
                generator=torch.Generator().manual_seed(0),
            )
        )

    def forward(self, tokens: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
        return self.table[tokens], tokens[:, -1]


def test_long_texts_of_a_model_without_a_limit_are_read_in_segments(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = Table()
    texts = [
        [3 + (at * at + row) % 17 for at in range(length)]
        for row, length in enumerate((40, 3, 0, 17, 40))
    ]
    whole = score_texts(model, texts, ranks=True)
    monkeypatch.setattr(perplexity, "SEGMENT", 7)
    monkeypatch.setattr(perplexity, "MOST_LOGITS", 100)
    for text, score, expected in zip(
        texts, score_texts(model, texts, ranks=True, budget=15), whole, strict=True
    ):
        by_hand = model.table.log_softmax(-1)[[BOS, *text], [*text, EOS]].detach().numpy()
        assert score.log_probs == pytest.approx(by_hand, abs=1e-12)
        assert expected.log_probs == pytest.approx(by_hand, abs=1e-12)
        assert score.ranks is not None
        assert expected.ranks is not None
        assert score.ranks.tolist() == expected.ranks.tolist()


def test_complete_and_prefix() -> None:
    score = TextScore(np.array([-1.0, -2.0, -0.5]), None)
    assert (score.complete, score.prefix) == (-3.5, -3.0)
    assert TextScore(np.array([-0.5]), None).prefix == 0


def test_perplexities_by_hand() -> None:
    corpus = CorpusLikelihood.empty()
    corpus.add(TextScore(np.array([-1.0, -2.0, -0.5]), None), [5, UNK], words=2, size=9)
    corpus.add(TextScore(np.array([-4.5]), None), [], words=0, size=0)
    metrics = corpus.metrics()
    assert metrics["loss"] == pytest.approx(8 / 4)  # of all tokens; a mean of means would be 2.83
    assert metrics["perplexity"] == pytest.approx(math.exp(2))
    assert metrics["word_perplexity"] == pytest.approx(math.exp(8 / (2 + 2)))
    assert metrics["bits_per_byte"] == pytest.approx(8 / math.log(2) / (9 + 2))
    assert {name: metrics[name] for name in ("documents", "tokens", "words", "bytes")} == {
        "documents": 2,
        "tokens": 4,
        "words": 2,
        "bytes": 9,
    }
    assert metrics["unknown_percent"] == 50
    for name in ("loss", "perplexity", "word_perplexity", "bits_per_byte"):
        assert metrics[f"{name}_low"] < metrics[name] < metrics[f"{name}_high"]


def test_an_interval_is_over_documents_or_over_blocks_of_the_few() -> None:
    chance = np.random.default_rng(0)
    many, one = CorpusLikelihood.empty(), CorpusLikelihood.empty()
    for _ in range(200):
        many.add(TextScore(-chance.gamma(2.0, size=50), None), [5] * 49, words=49, size=98)
    one.add(TextScore(-chance.gamma(2.0, size=10_000), None), [5] * 9_999, words=9_999, size=20_000)
    for corpus in (many, one):  # 10,000 independent tokens of variance 2 either way
        metrics = corpus.metrics()
        assert metrics["loss_high"] - metrics["loss"] == pytest.approx(
            1.96 * math.sqrt(2 / 10_000), rel=0.25
        )
    assert len(many.blocks) <= 30


@pytest.mark.parametrize("texts", [1, 5, 40])
def test_a_comparison_has_items_also_where_there_are_few_texts(texts: int) -> None:
    """One novel is one text: a test over texts would call any two models alike."""
    chance = np.random.default_rng(0)
    corpus = CorpusLikelihood.empty()
    for size in chance.integers(600, 900, size=texts).tolist():
        score = TextScore(-chance.gamma(2.0, size=size), None)
        corpus.add(score, [5] * size, words=size, size=3 * size)
    items = corpus.bits_and_bytes()
    assert len(items) >= (40 if texts >= 30 else 3 * texts)
    bits, sizes = items.sum(axis=0)
    assert sizes == pytest.approx(corpus.bytes + texts)
    assert bits / sizes == pytest.approx(corpus.metrics()["bits_per_byte"])
    assert (items > 0).all()
