"""Scores as functions of sums over texts, held to sacreBLEU."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from sacrebleu.metrics.base import Metric
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.significance import PairedTest, Result

from seqloom.evaluation.corpus_scores import OF_SUMS
from seqloom.evaluation.intervals import bootstrap_intervals
from seqloom.evaluation.significance import permutation_p_value
from seqloom.evaluation.text_metrics import bleu, chrf

WORDS = ["the", "a", "red", "old", "dog", "cat", "sees", "likes", "park", "night", "!", "ü"]
METRICS = {"bleu": BLEU, "chrf": CHRF}
SCORES = {"bleu": bleu, "chrf": chrf}


def texts(seed: int, share: float, references: list[str]) -> list[str]:
    """References in which so many words are others."""
    random = Random(seed)
    return [
        " ".join(random.choice(WORDS) if random.random() < share else w for w in one.split())
        for one in references
    ]


@pytest.fixture(scope="module")
def references() -> list[str]:
    random = Random(0)
    return [" ".join(random.choices(WORDS, k=random.randint(1, 12))) for _ in range(80)]


@pytest.mark.parametrize("name", METRICS)
@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_sums_give_what_sacrebleu_gives(name: str, share: float, references: list[str]) -> None:
    metric: Metric = METRICS[name]()
    outputs = texts(1, share, references)
    counts = SCORES[name](outputs, references).statistics
    for some in (slice(None), slice(10), slice(5, 6), slice(40, 60)):
        mine = float(OF_SUMS[name](counts[some].sum(axis=0)))
        theirs = metric.corpus_score(outputs[some], [references[some]]).score
        assert mine == pytest.approx(theirs, abs=1e-9)


@pytest.mark.parametrize("name", METRICS)
def test_an_interval_is_as_wide_as_that_of_sacrebleu(name: str, references: list[str]) -> None:
    metric: Metric = METRICS[name]()
    outputs = texts(1, 0.3, references)
    counts = SCORES[name](outputs, references).statistics
    ((low, high),) = bootstrap_intervals(
        lambda weights: OF_SUMS[name](weights @ counts)[:, None], len(outputs)
    )
    score = metric.corpus_score(outputs, [references], n_bootstrap=1000)
    assert low < score.score < high
    assert (high - low) / 2 == pytest.approx(score._ci, rel=0.15)


@pytest.mark.parametrize("name", METRICS)
def test_the_paired_test_gives_the_p_of_sacrebleu(name: str, references: list[str]) -> None:
    first, second = texts(1, 0.30, references), texts(2, 0.36, references)
    theirs = PairedTest(
        [("a", first), ("b", second)],
        {name: METRICS[name](references=[references])},
        references=None,
        test_type="ar",
        n_samples=4000,
    )()[1]
    (_, other) = next(results for key, results in theirs.items() if key != "System")
    assert isinstance(other, Result)
    assert other.p_value is not None
    mine = SCORES[name](first, references).statistics
    others = SCORES[name](second, references).statistics
    p = permutation_p_value(mine, others, OF_SUMS[name], resamples=4000)
    error = 4 * np.sqrt(p * (1 - p) / 4000) + 0.002
    assert abs(p - other.p_value) < error
