"""ROUGE beside the package called as its users call it; words of other scripts; the baselines."""

from __future__ import annotations

import numpy as np
import pytest
from rouge_score import rouge_scorer

from seqloom.evaluation.rouge import NAMES, lead, rouge
from seqloom.tasks.translation.measures import SUMMARIZATION, References

OUTPUTS = [
    "The dogs are running in the parks.",
    "a completely different sentence",
    "",
    "We present a model; it is fast.",
]
REFERENCES = [
    "A dog ran through the park and the dogs run.",
    "nothing of it is the same",
    "something",
    "We present a model that is fast and small.",
]


def test_english_is_scored_as_by_the_package() -> None:
    theirs = rouge_scorer.RougeScorer(["rouge1", "rouge2", "rougeL"], use_stemmer=True)
    found = rouge(OUTPUTS, REFERENCES)
    for row, (output, reference) in enumerate(zip(OUTPUTS, REFERENCES, strict=True)):
        wanted = theirs.score(reference, output)
        for column, name in enumerate(NAMES):
            assert found.values[row, column] == pytest.approx(100 * wanted[name].fmeasure)
    assert "words:a-z0-9|stem:porter" in found.signature


@pytest.mark.parametrize(
    ("reference", "near", "far"),
    [
        ("这是一个很好的模型", "这是一个好的模型", "天气"),
        ("Über große Straßen fahren", "Über große Straßen gehen", "heute"),
        ("ภาษาไทยสวยมาก", "ภาษาไทยสวย", "กก"),
        ("мы строим модели", "мы строим дома", "день"),
    ],
)
def test_words_of_other_scripts_count(reference: str, near: str, far: str) -> None:
    """The package itself knows a to z only: all of these would be 0, or too high."""
    values = rouge([reference, near, far], [reference] * 3).values[:, 0]
    assert values[0] == 100
    assert 30 < values[1] < 100
    assert values[2] < values[1]
    assert "unicode" in rouge([near], [reference]).signature


def test_the_first_sentences() -> None:
    text = "It costs 3.5 euros. Is that much? No! It is little. The end."
    assert lead(text) == "It costs 3.5 euros. Is that much? No!"
    assert lead("第一句。第二句。第三句。第四句。") == "第一句。 第二句。 第三句。"
    assert lead("one line\nanother line\na third\na fourth") == "one line another line a third"
    assert lead("") == ""


def test_a_summary_has_intervals_and_stands_beside_what_costs_nothing() -> None:
    sources = [f"{reference.rstrip('.')}. Second. Third. Fourth." for reference in REFERENCES]
    scores = SUMMARIZATION.scores(OUTPUTS, References(REFERENCES, "none"), sources).metrics
    values = rouge(OUTPUTS, REFERENCES).values.mean(axis=0)
    for column, name in enumerate(NAMES):
        assert scores[name] == pytest.approx(values[column])
        assert scores[f"{name}_low"] <= scores[name] <= scores[f"{name}_high"]
    leads = [f"{reference.rstrip('.')}. Second. Third." for reference in REFERENCES]
    assert scores["lead3_rouge1"] == pytest.approx(np.mean(rouge(leads, REFERENCES).values[:, 0]))
    assert scores["copy_rouge1"] == pytest.approx(np.mean(rouge(sources, REFERENCES).values[:, 0]))
    assert scores["copy_rouge1"] < scores["lead3_rouge1"]
