"""Outputs are compared with references in the form in which the model writes, or it is said that they
differ."""

from __future__ import annotations

import logging
import unicodedata
from collections.abc import Sequence
from typing import Any, get_args

import pytest
from torch import nn

from seqloom.config import DecodeConfig, EvaluateConfig
from seqloom.protocols import Evaluation
from seqloom.tasks.translation import evaluate_pairs as module
from seqloom.tasks.translation.evaluate_pairs import evaluate_pairs, prepare_references
from seqloom.tasks.translation.measures import References
from seqloom.tasks.translation.translate import DecodedText
from seqloom.text.tokenizer_kinds import KINDS, Normalisation
from seqloom.text.tokenizers import TextTokenizer, train_tokenizer

PLAIN = ["the dog sees a cat", "a cat sees the dog", "the king is old"]
TARGETS = {
    "plain": PLAIN,
    "decomposed": [
        unicodedata.normalize("NFD", text) for text in ("un café à Zürich", "le garçon né ici")
    ],
    "capitals": ["The Dog sees Ann", "ANN sees the dog"],
    "signs": ["it's the dog's, isn't it?", 'he said: "well-known" (3.14 %).'],
    "spaces": ["two  spaces", "a\ttab and a line", " at the ends "],
    "chinese": ["我今天没有时间。", "他在学校。"],
}


def by_heart(
    monkeypatch: pytest.MonkeyPatch, tokenizer: TextTokenizer, targets: Sequence[str]
) -> Evaluation:
    """The evaluation of a model that writes exactly the ids of each target."""
    outputs = [DecodedText(tokenizer.decode(ids), 0.0, True) for ids in tokenizer.encode(targets)]
    taught = type("Taught", (), {"loss": 0.0, "perplexity": 1.0, "token_accuracy": 100, "count": 9})
    monkeypatch.setattr(module, "decode_texts", lambda *_, **__: [[output] for output in outputs])
    monkeypatch.setattr(module, "teacher_forcing_score", lambda *_: taught)
    monkeypatch.setattr(module, "batches_of_pairs", lambda *_: [])
    pairs = [("", target) for target in targets]
    return evaluate_pairs(nn.Linear(1, 1), tokenizer, pairs, DecodeConfig())


@pytest.mark.parametrize("text", TARGETS)
@pytest.mark.parametrize("normalisation", get_args(Normalisation))
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "unigram"])
def test_a_model_that_knows_everything_by_heart_is_perfect_or_it_is_said_why_not(
    kind: str,
    normalisation: Any,
    text: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    targets = TARGETS[text]
    tokenizer = train_tokenizer(targets, kind, 300, normalisation)
    with caplog.at_level(logging.INFO, "seqloom"):
        result = by_heart(monkeypatch, tokenizer, targets)
    if result.metrics["exact_match"] < 100:
        assert "the tokenizer cannot write" in caplog.text
    else:
        assert "cannot write" not in caplog.text
        assert result.metrics["bleu"] == pytest.approx(100) or text == "spaces"
    normalised = any(tokenizer.normalise(target) != target for target in targets)
    assert ("data.normalisation" in caplog.text) == normalised
    assert ("normalised_references" in result.details) == normalised
    if kind in ("bytes", "bpe", "characters"):
        assert result.metrics["exact_match"] == 100


def test_plain_words_are_written_by_every_tokenizer_without_a_notice(
    caplog: pytest.LogCaptureFixture,
) -> None:
    for kind in ("words", "whitespace", "wordpiece", "bpe"):
        with caplog.at_level(logging.INFO, "seqloom"):
            references = prepare_references(
                train_tokenizer(PLAIN, kind, 300), PLAIN, EvaluateConfig()
            )
        assert references == References(PLAIN, "13a")
    assert caplog.text == ""


def test_the_notice_names_the_first_reference_and_what_becomes_of_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    tokenizer = train_tokenizer(PLAIN, "words", 300)
    with caplog.at_level(logging.INFO, "seqloom"):
        prepare_references(tokenizer, [*PLAIN, "the wolf"], EvaluateConfig())
    assert "cannot write 1 of 4 references as they are: 'the wolf' becomes 'the'" in caplog.text


def test_it_is_said_where_bleu_has_no_n_grams(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "seqloom"):
        tokenizer = train_tokenizer(["one two", "three"], "bytes", 300)
        prepare_references(tokenizer, ["one two", "three"], EvaluateConfig())
    assert "no reference has four words" in caplog.text


@pytest.mark.parametrize("name", ["auto", "13a", "char"])
def test_the_tokenizer_of_bleu_can_be_named(name: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = train_tokenizer(TARGETS["chinese"], "characters", 300)
    references = prepare_references(
        tokenizer, TARGETS["chinese"], EvaluateConfig(bleu_tokenizer=name)
    )
    assert references.bleu_tokenizer == ("zh" if name == "auto" else name)
