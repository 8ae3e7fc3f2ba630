"""How the outputs of a task of text pairs are compared with references: one function for each task."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, final

from seqloom.arrays import Floats
from seqloom.evaluation.corpus_scores import OF_SUMS
from seqloom.evaluation.intervals import RESAMPLES, bootstrap_intervals, with_intervals
from seqloom.evaluation.rouge import LEAD, NAMES, lead, rouge
from seqloom.evaluation.text_metrics import bleu, chrf, exact_match


@final
@dataclass(frozen=True)
class References:
    """What outputs are compared with."""

    texts: list[str]
    """Normalised, as outputs are."""
    bleu_tokenizer: str
    """That of sacreBLEU."""
    changed: int = 0
    """How many the normalisation changed."""


class Scores(NamedTuple):
    """Metrics by name, and how they were computed."""

    metrics: dict[str, float]
    signatures: dict[str, str]
    statistics: Mapping[str, Floats] = {}
    """As in `Evaluation`."""


@final
class Measure(NamedTuple):
    """How a task compares outputs with references."""

    scores: Callable[[Sequence[str], References, Sequence[str]], Scores]
    """(outputs, references, sources or none) -> scores."""
    names: tuple[str, ...]
    """Of its metrics, those that may choose a checkpoint."""
    has_bleu: bool = False
    """Whether it cuts words as `evaluate.bleu_tokenizer` says."""


def _translation_scores(
    outputs: Sequence[str], references: References, sources: Sequence[str]
) -> Scores:
    """BLEU and chrF with their intervals, and exact match; where there are sources, also what they would
    score if they were the outputs."""
    known = {
        "bleu": bleu(outputs, references.texts, references.bleu_tokenizer),
        "chrf": chrf(outputs, references.texts),
    }
    metrics: dict[str, float] = {}
    for name, score in known.items():
        of_resample = partial(_of_resamples, score.statistics, OF_SUMS[name])
        ((low, high),) = bootstrap_intervals(of_resample, len(outputs))
        metrics |= {name: score.value, f"{name}_low": low, f"{name}_high": high}
    metrics["exact_match"] = exact_match(outputs, references.texts)
    if sources:
        copied = bleu(sources, references.texts, references.bleu_tokenizer)
        metrics["copy_bleu"] = copied.value
        metrics["copy_chrf"] = chrf(sources, references.texts).value
    return Scores(
        metrics,
        {name: score.signature for name, score in known.items()},
        {name: score.statistics for name, score in known.items()},
    )


def _of_resamples(statistics: Floats, score: Callable[[Floats], Floats], weights: Floats) -> Floats:
    """weights `(resamples, texts)` -> `(resamples, 1)`."""
    return score(weights @ statistics)[:, None]


def _summary_scores(
    outputs: Sequence[str], references: References, sources: Sequence[str]
) -> Scores:
    """ROUGE with the intervals of its means; where there are sources, also that of two baselines: their first
    sentences, and all of them."""
    own = rouge(outputs, references.texts)
    metrics = with_intervals(NAMES, partial(_means, own.values), len(outputs), RESAMPLES)
    if not sources:
        return Scores(metrics, {"rouge": own.signature})
    baselines = {f"lead{LEAD}": [lead(source) for source in sources], "copy": list(sources)}
    for baseline, texts in baselines.items():
        means = rouge(texts, references.texts).values.mean(axis=0)
        metrics |= {
            f"{baseline}_{name}": float(mean) for name, mean in zip(NAMES, means, strict=True)
        }
    return Scores(metrics, {"rouge": own.signature})


def _means(values: Floats, weights: Floats) -> Floats:
    """weights `(resamples, texts)`: how often each text was drawn -> `(resamples, scores)`."""
    means: Floats = weights @ values / weights.sum(axis=1, keepdims=True)
    return means


TRANSLATION = Measure(_translation_scores, ("bleu", "chrf", "exact_match"), has_bleu=True)
SUMMARIZATION = Measure(_summary_scores, NAMES)
