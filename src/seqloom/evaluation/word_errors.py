"""Errors of a corpus as sums over its texts: word and character error rate, exact match, BLEU; and how sure a
difference is.

Each metric is statistics of a text and a function of their sums, so that a text can be exchanged without
counting all again.

    word error rate         100 × Σ edits / Σ words of the references      edits: substitutions + deletions + insertions (Levenshtein)
    character error rate    the same over characters, blanks counted
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from seqloom.evaluation.significance import paired_bootstrap

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def edit_distances(reference: Sequence[str], hypotheses: Sequence[Sequence[str]]) -> Ints:
    """`(hypotheses,)`: the fewest substitutions, deletions and insertions that turn each into the reference
    (Levenshtein 1966).

    Word by word of the reference, for all hypotheses at once; an insertion is a running minimum along the
    row.
    """
    ids: dict[str, int] = {}
    words = [[ids.setdefault(word, len(ids)) for word in one] for one in hypotheses]
    lengths = np.array([len(one) for one in words], np.int64)
    table = np.full((len(words), lengths.max(initial=0)), -1, np.int64)
    for row, one in zip(table, words, strict=True):
        row[: len(one)] = one
    steps = np.arange(table.shape[1] + 1)
    costs = np.tile(steps, (len(words), 1))
    for word in reference:
        moved = costs[:, :-1] + (table != ids.get(word, -2))
        costs += 1
        np.minimum(costs[:, 1:], moved, out=costs[:, 1:])
        costs = np.minimum.accumulate(costs - steps, axis=1) + steps
    return costs[np.arange(len(words)), lengths]


class Metric(NamedTuple):
    """A number for a corpus that is a function of sums over its texts."""

    title: str
    statistics: Callable[[str, Sequence[str]], Ints]
    """(reference, hypotheses) -> `(hypotheses, k)`"""
    value: Callable[[Ints], Floats]
    """Sums `(..., k)` -> percent `(...)`"""
    higher_is_better: bool = False

    def cost(self, sums: Ints) -> Floats:
        """What is to be small."""
        return -self.value(sums) if self.higher_is_better else self.value(sums)


def _word_edits(reference: str, hypotheses: Sequence[str]) -> Ints:
    return _edits(reference.split(), [one.split() for one in hypotheses])


def _character_edits(reference: str, hypotheses: Sequence[str]) -> Ints:
    return _edits(list(reference), [list(one) for one in hypotheses])


def _edits(reference: Sequence[str], hypotheses: Sequence[Sequence[str]]) -> Ints:
    return np.stack(
        [edit_distances(reference, hypotheses), np.full(len(hypotheses), len(reference), np.int64)], axis=1
    )


def _matches(reference: str, hypotheses: Sequence[str]) -> Ints:
    return np.array([[one == reference, 1] for one in hypotheses], np.int64)


def _share(sums: Ints) -> Floats:
    with np.errstate(divide="ignore", invalid="ignore"):  # a corpus of empty references has no rate
        return np.asarray(100 * sums[..., 0] / sums[..., 1], np.float64)


ORDER = 4
"""The longest n-grams of BLEU."""


def _bleu_counts(reference: str, hypotheses: Sequence[str]) -> Ints:
    from sacrebleu.metrics.bleu import BLEU

    metric = BLEU(
        effective_order=True
    )  # only to have counts of a sentence without a warning: the counts are those of a corpus
    scores = [metric.sentence_score(one, [reference]) for one in hypotheses]
    return np.array([[one.sys_len, one.ref_len, *one.counts, *one.totals] for one in scores], np.int64)


def _bleu(sums: Ints) -> Floats:
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


METRICS = {
    "wer": Metric("word error rate", _word_edits, _share),
    "cer": Metric("character error rate", _character_edits, _share),
    "bleu": Metric("BLEU", _bleu_counts, _bleu, higher_is_better=True),
    "exact_match": Metric("exact match", _matches, _share, higher_is_better=True),
}

RESAMPLES = 2000


def difference_interval(metric: Metric, before: Ints, after: Ints, seed: int = 0) -> tuple[float, float]:
    """The 95 % interval of value(after) - value(before) for the statistics `(texts, k)` of two systems on the
    same texts.

    Paired bootstrap over texts (Koehn 2004; Bisani and Ney 2004): texts are drawn with replacement, the same
    for both. Resamples whose references are all empty have no rate and do not count; where there are no
    others, both ends are nan.
    """
    found = paired_bootstrap(after, before, metric.value, resamples=RESAMPLES, seed=seed)
    return found.low, found.high
