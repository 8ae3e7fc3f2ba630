"""Scores of texts, against sacreBLEU itself and by hand."""

from __future__ import annotations

import pytest
import sacrebleu

from seqloom.evaluation.text_metrics import bleu, chrf, exact_match

HYPOTHESES = ["the cat sat on the mat .", "a dog runs", "ein Hund läuft am Strand"]
REFERENCES = ["the cat sat on a mat .", "a dog is running", "ein Hund läuft am Strand"]


def test_bleu_and_chrf_are_those_of_sacrebleu() -> None:
    assert (
        bleu(HYPOTHESES, REFERENCES).value == sacrebleu.corpus_bleu(HYPOTHESES, [REFERENCES]).score
    )
    assert (
        chrf(HYPOTHESES, REFERENCES).value == sacrebleu.corpus_chrf(HYPOTHESES, [REFERENCES]).score
    )


def test_signatures_say_how_it_was_computed() -> None:
    assert "tok:13a" in bleu(HYPOTHESES, REFERENCES).signature
    assert f"version:{sacrebleu.__version__}" in bleu(HYPOTHESES, REFERENCES).signature
    assert "nc:6" in chrf(HYPOTHESES, REFERENCES).signature


def test_exact_match_counts_whole_texts() -> None:
    assert exact_match(HYPOTHESES, REFERENCES) == pytest.approx(100 / 3)
    with pytest.raises(ValueError, match=r"shorter|longer"):
        exact_match(HYPOTHESES, REFERENCES[:2])


def test_a_perfect_corpus_is_perfect() -> None:
    texts = [*REFERENCES, "one two three four five six"]
    assert bleu(texts, texts).value == pytest.approx(100)
    assert chrf(texts, texts).value == pytest.approx(100)
    assert exact_match(texts, texts) == 100
