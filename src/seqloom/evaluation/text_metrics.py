"""Scores of texts against references."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from seqloom.arrays import Floats
from seqloom.config import BEST
from seqloom.plugins import register

if TYPE_CHECKING:
    from sacrebleu.metrics.base import Metric


TextMetric = Callable[[Sequence[str], Sequence[str]], float]
"""(a model's answers, the references) -> a score; larger is better."""
METRICS: dict[str, TextMetric] = {}
"""Metrics from plugins."""


def register_metric(name: str, metric: TextMetric) -> None:
    """Makes a metric of one's own known: `evaluate` reports it, and train.best may name it. Raises UsageError
    if the name is taken."""
    register("metric", name, metric, METRICS, taken=BEST)


def registered_metrics(answers: Sequence[str], references: Sequence[str]) -> dict[str, float]:
    """The scores of all metrics from plugins."""
    return {name: float(metric(answers, references)) for name, metric in METRICS.items()}


class CorpusScore(NamedTuple):
    """A score of a whole corpus and how exactly it was computed."""

    value: float
    signature: str
    statistics: Floats
    """`(texts, k)`: what sacreBLEU counts in each text, whose sum gives the score of the corpus."""


def bleu(
    hypotheses: Sequence[str], references: Sequence[str], tokenizer: str = "13a"
) -> CorpusScore:
    """BLEU of detokenised text, 0 to 100 (Papineni et al. 2002; sacreBLEU, Post 2018), with sacreBLEU's
    signature. `tokenizer` is that of sacreBLEU (`writing_systems.bleu_tokenizer_of`)."""
    from sacrebleu.metrics.bleu import BLEU

    return _corpus_score(BLEU(tokenize=tokenizer), hypotheses, references)


def chrf(hypotheses: Sequence[str], references: Sequence[str]) -> CorpusScore:
    """chrF2, 0 to 100 (Popović 2015), with sacreBLEU's signature."""
    from sacrebleu.metrics.chrf import CHRF

    return _corpus_score(CHRF(), hypotheses, references)


def _corpus_score(
    metric: Metric, hypotheses: Sequence[str], references: Sequence[str]
) -> CorpusScore:
    counts = metric._extract_corpus_statistics(list(hypotheses), [list(references)])
    value = metric._aggregate_and_compute(counts).score
    return CorpusScore(value, str(metric.get_signature()), np.asarray(counts, np.float64))


def exact_match(hypotheses: Sequence[str], references: Sequence[str]) -> float:
    """Share of texts that equal their reference, 0 to 100. Raises ValueError if there is none."""
    return 100 * sum(h == r for h, r in zip(hypotheses, references, strict=True)) / len(references)
