"""Error rates of a corpus as functions of sums over its texts: word and character error rate, exact match,
BLEU; and the confidence interval of a difference.

Each metric has statistics of a text and a function of their sums, so that a text can be exchanged without
counting all others again.

    word error rate         100 × Σ edits / Σ words of the references
                            edits: substitutions + deletions + insertions (Levenshtein)
    character error rate    the same over characters, spaces included
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from seqloom.arrays import Floats, Ints, Numbers
from seqloom.evaluation.significance import paired_bootstrap


def edit_distances(reference: Sequence[str], hypotheses: Sequence[Sequence[str]]) -> Ints:
    """`(hypotheses,)`: the fewest substitutions, deletions and insertions that turn each into the reference
    (Levenshtein 1966)."""
    ids: dict[str, int] = {}
    encoded = []
    for hypothesis in hypotheses:
        encoded.append([ids.setdefault(word, len(ids)) for word in hypothesis])
    lengths = np.array(list(map(len, encoded)), np.int64)
    words = np.full((len(encoded), lengths.max(initial=0)), -1, np.int64)
    for row, encoded_words in zip(words, encoded, strict=True):
        row[: len(encoded_words)] = encoded_words
    # costs[h, j]: the edits between the reference so far and the first j words of hypothesis h
    steps = np.arange(words.shape[1] + 1)
    costs = np.tile(steps, (len(encoded), 1))
    for word in reference:
        substituted = costs[:, :-1] + (words != ids.get(word, -2))
        costs += 1  # deleted
        np.minimum(costs[:, 1:], substituted, out=costs[:, 1:])
        # inserted: min over i <= j of costs[i] + (j - i) is a running minimum of costs - steps
        costs = np.minimum.accumulate(costs - steps, axis=1) + steps
    return costs[np.arange(len(encoded)), lengths]


class CorpusMetric(NamedTuple):
    """A number for a corpus that is a function of sums over its texts."""

    title: str
    statistics: Callable[[str, Sequence[str]], Ints]
    """(reference, hypotheses) -> `(hypotheses, k)`"""
    value: Callable[[Ints], Floats]
    """Sums `(..., k)` -> percent `(...)`"""
    higher_is_better: bool = False

    def cost(self, sums: Ints) -> Floats:
        """The value with the sign for which smaller is better."""
        return -self.value(sums) if self.higher_is_better else self.value(sums)


def _word_edits(reference: str, hypotheses: Sequence[str]) -> Ints:
    return _edits(reference.split(), [hypothesis.split() for hypothesis in hypotheses])


def _edits(reference: Sequence[str], hypotheses: Sequence[Sequence[str]]) -> Ints:
    lengths = np.full(len(hypotheses), len(reference), np.int64)
    return np.stack([edit_distances(reference, hypotheses), lengths], axis=1)


def _matches(reference: str, hypotheses: Sequence[str]) -> Ints:
    return np.array([[hypothesis == reference, 1] for hypothesis in hypotheses], np.int64)


def _share(sums: Ints) -> Floats:
    with np.errstate(divide="ignore", invalid="ignore"):  # a corpus of empty references has no rate
        return np.asarray(100 * sums[..., 0] / sums[..., 1], np.float64)


ORDER = 4
"""The longest n-grams of BLEU."""


def _bleu_counts(reference: str, hypotheses: Sequence[str], tokenizer: str) -> Ints:
    from sacrebleu.metrics.bleu import BLEU

    # effective_order only avoids a warning about single sentences: the counts are those of a corpus
    metric = BLEU(effective_order=True, tokenize=tokenizer)
    scores = [metric.sentence_score(hypothesis, [reference]) for hypothesis in hypotheses]
    return np.array(
        [[score.sys_len, score.ref_len, *score.counts, *score.totals] for score in scores], np.int64
    )


def bleu_of_sums(sums: Numbers) -> Floats:
    """BLEU with sacreBLEU's default smoothing: the k-th order without a match counts 1 / 2^k (Chen and Cherry
    2014, method 3)."""
    length, reference = sums[..., 0], sums[..., 1]
    correct, total = sums[..., 2 : 2 + ORDER], sums[..., 2 + ORDER :]
    empty = correct == 0
    matches = np.where(empty, 0.5 ** np.cumsum(empty, axis=-1), correct)
    usable = (total > 0).all(axis=-1) & ~empty.all(axis=-1)
    logs = np.log(matches / np.maximum(total, 1)).mean(axis=-1)
    brevity = np.minimum(1 - reference / np.maximum(length, 1), 0)
    return np.asarray(np.where(usable, 100 * np.exp(logs + brevity), 0.0))


def bleu_metric(tokenizer: str) -> CorpusMetric:
    """BLEU with this tokenizer of sacreBLEU (`writing_systems.bleu_tokenizer_of`)."""
    counts = partial(_bleu_counts, tokenizer=tokenizer)
    return CorpusMetric("BLEU", counts, bleu_of_sums, higher_is_better=True)


METRICS = {
    "wer": CorpusMetric("word error rate", _word_edits, _share),
    "cer": CorpusMetric("character error rate", _edits, _share),
    "bleu": bleu_metric("13a"),
    "exact_match": CorpusMetric("exact match", _matches, _share, higher_is_better=True),
}

RESAMPLES = 2000


def difference_interval(
    metric: CorpusMetric, before: Ints, after: Ints, seed: int = 0
) -> tuple[float, float]:
    """The 95 % interval of value(after) - value(before) for the statistics `(texts, k)` of two systems on the
    same texts.

    Paired bootstrap over texts (Koehn 2004; Bisani and Ney 2004). Resamples whose references are all empty
    have no rate and do not count; where there are no others, both ends are nan.
    """
    difference = paired_bootstrap(after, before, metric.value, resamples=RESAMPLES, seed=seed)
    return difference.low, difference.high
