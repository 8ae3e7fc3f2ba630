"""Metrics of classification, with one label for each example or any number of them.

    accuracy      Σ hits / Σ examples
    precision     hits / predicted            of a label; nan where it was never predicted
    recall        hits / true                 of a label; nan where no example has it
    F1            2 hits / (predicted + true) of a label; nan where it is neither predicted nor true
    macro F1      the mean of the labels' F1, without those that are nan
    micro F1      2 Σ hits / Σ (predicted + true) over all labels; with one label for each example that is the
    accuracy Matthews      (c s - Σ p_k t_k) / √((s² - Σ p_k²)(s² - Σ t_k²)): c hits of s examples, p_k
    predicted and
                  t_k true of label k (Gorodkin 2004; of two labels Matthews 1975); 0 where all true or all
                  predicted labels are the same

All are functions of counts, for all resamples of a bootstrap at once: a library call for each resample would
take minutes. The tests compare them with scikit-learn. Intervals are of a bootstrap over examples; where
every answer is right, or every one wrong, resamples do not differ and that of the accuracy is Wilson's.

A true label that the model does not know is UNSEEN: a wrong answer, a false positive of the predicted label,
without a loss. It does not count in the macro F1.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, final

import numpy as np

from seqloom.arrays import Bools, Floats, Ints, Numbers
from seqloom.evaluation.calibration import gaps
from seqloom.evaluation.intervals import wilson_interval, with_intervals

UNSEEN = -1
"""Number of a true label that the model does not know."""
RESAMPLES = 1000


@final
class LabelPredictions(NamedTuple):
    """The predictions for examples that have one label each."""

    true: Ints
    """`(examples,)`: UNSEEN or from 0."""
    predicted: Ints
    confidence: Floats
    """Probability of the predicted label."""
    losses: Floats
    """-log p of the true label in nats, nan where it is UNSEEN."""

    @classmethod
    def from_probabilities(cls, true: Ints, probabilities: Numbers) -> LabelPredictions:
        """true `(examples,)`, probabilities `(examples, labels)`. A probability of 0 counts as the smallest
        positive number of its type."""
        predicted = probabilities.argmax(axis=1)
        rows = np.arange(len(true))
        losses = _negative_logs(probabilities[rows, true])
        confidence = probabilities[rows, predicted].astype(np.float64)
        return cls(true.astype(np.int64), predicted, confidence, np.where(true < 0, np.nan, losses))

    @classmethod
    def concatenate(cls, parts: Iterable[LabelPredictions]) -> LabelPredictions:
        empty = [np.zeros(0, dtype) for dtype in (np.int64, np.int64, np.float64, np.float64)]
        return cls(*(np.concatenate(column) for column in zip(empty, *parts, strict=True)))

    def select(self, index: Ints) -> LabelPredictions:
        return LabelPredictions._make(column[index] for column in self)

    @property
    def hits(self) -> Bools:
        return np.asarray(self.true == self.predicted)


class LabelScore(NamedTuple):
    """Of one label."""

    precision: float
    recall: float
    f1: float
    support: int
    """Examples that have it."""


def label_metrics(
    answers: LabelPredictions, labels: int, what: str = "examples", resamples: int = RESAMPLES
) -> dict[str, float]:
    """loss, accuracy, macro_f1, matthews and ece, each with `_low` and `_high`; how many of `what`, and how
    many are unseen, if any.

    There must be an example. With no `resamples` there are no intervals.
    """
    # sorted by (true, predicted), so that each cell of the confusion table is a run of examples
    answers = answers.select(np.lexsort((answers.predicted, answers.true)))
    true, predicted, count = answers.true, answers.predicted, len(answers.true)
    starts = np.flatnonzero(
        (np.diff(true, prepend=-2) != 0) | (np.diff(predicted, prepend=-2) != 0)
    )
    known = true >= 0
    losses = np.where(known, answers.losses, 0)
    columns = np.column_stack([losses, known, gaps(answers.confidence, answers.hits)])

    def statistics(weights: Floats) -> Floats:
        """weights `(resamples, examples)` -> `(resamples, 5)`"""
        cells = np.add.reduceat(weights, starts, axis=1)
        loss, seen, *bins = (weights @ columns).T
        with np.errstate(invalid="ignore"):  # all may be unseen
            mean_loss = loss / seen
        calibration_error = np.abs(bins).sum(axis=0) / count
        of_cells = _cell_metrics(cells, true[starts], predicted[starts], labels)
        return np.column_stack([mean_loss, *of_cells, calibration_error])

    names = ("loss", "accuracy", "macro_f1", "matthews", "ece")
    metrics = with_intervals(names, statistics, count, resamples)
    _use_wilson_at_the_ends(metrics, "accuracy", count)
    metrics[what] = count
    if not known.all():
        metrics["unseen"] = int((~known).sum())
    return metrics


def _cell_metrics(
    cells: Floats, true: Ints, predicted: Ints, labels: int
) -> tuple[Floats, Floats, Floats]:
    """cells `(resamples, cells)`: how many examples have each (true, predicted) -> accuracy, macro F1,
    Matthews `(resamples,)` each."""
    of_true, of_predicted = (_sums_by_label(cells, group, labels) for group in (true, predicted))
    right = true == predicted
    hits = _sums_by_label(cells[:, right], true[right], labels)
    count, all_hits = cells.sum(axis=1), hits.sum(axis=1)
    f1 = _f1(hits[:, :labels], of_predicted[:, :labels] + of_true[:, :labels])
    variances = (count**2 - (of_true**2).sum(axis=1)) * (count**2 - (of_predicted**2).sum(axis=1))
    covariance = all_hits * count - (of_true * of_predicted).sum(axis=1)
    matthews = np.where(variances > 0, covariance / np.sqrt(np.maximum(variances, 1)), 0.0)
    return all_hits / count, _mean_of_finite(f1), matthews


def confusion(true: Ints, predicted: Ints, labels: int) -> Ints:
    """`(labels + 1, labels)`: the number of examples by true label (rows, the last is UNSEEN) and predicted
    label (columns)."""
    counts = np.zeros((labels + 1, labels), np.int64)
    np.add.at(counts, (true, predicted), 1)
    return counts


def per_label(counts: Ints, names: Sequence[str]) -> dict[str, LabelScore]:
    """The scores of each label from a confusion table, in order."""
    hits, predicted, true = np.diag(counts), counts.sum(axis=0), counts[: len(names)].sum(axis=1)
    return _scores(hits, predicted, true, names)


def multi_label_metrics(
    true: Bools,
    probabilities: Numbers,
    *,
    unseen: Ints | None = None,
    resamples: int = RESAMPLES,
) -> dict[str, float]:
    """true and probabilities `(examples, labels)`: loss (sigmoid cross-entropy of an example, summed over
    labels), micro_f1, macro_f1 and exact_match, each with `_low` and `_high`; examples, unseen.

    Labels of more than probability 1/2 are predicted. `unseen` `(examples,)`: how many labels of each example
    the model does not know; they count as missed.
    """
    true, predicted = true.astype(bool), probabilities > 0.5
    missed = np.zeros(len(true)) if unseen is None else unseen.astype(np.float64)
    losses = _negative_logs(np.where(true, probabilities, 1 - probabilities)).sum(axis=1)
    exact = (true == predicted).all(axis=1) & (missed == 0)
    labels = true.shape[1]
    columns = np.column_stack(
        [losses, exact, missed, true & predicted, true.astype(np.int64) + predicted]
    )

    def statistics(weights: Floats) -> Floats:
        """weights `(resamples, examples)` -> `(resamples, 4)`"""
        sums, count = weights @ columns, weights.sum(axis=1)
        hits, either = sums[:, 3 : 3 + labels], sums[:, 3 + labels :]
        micro_f1 = _f1(hits.sum(axis=1), either.sum(axis=1) + sums[:, 2])
        macro_f1 = _mean_of_finite(_f1(hits, either))
        return np.column_stack([sums[:, 0] / count, micro_f1, macro_f1, sums[:, 1] / count])

    names = ("loss", "micro_f1", "macro_f1", "exact_match")
    metrics = with_intervals(names, statistics, len(true), resamples)
    _use_wilson_at_the_ends(metrics, "exact_match", len(true))
    metrics["examples"] = len(true)
    if missed.any():
        metrics["unseen"] = int(missed.sum())
    return metrics


def per_label_multi(true: Bools, predicted: Bools, names: Sequence[str]) -> dict[str, LabelScore]:
    """The scores of each label from true and predicted `(examples, labels)`, in order."""
    return _scores((true & predicted).sum(axis=0), predicted.sum(axis=0), true.sum(axis=0), names)


def f1_of_counts(sums: Floats) -> Floats:
    """Sums of (hits, predicted, true) `(..., 3)` -> F1 `(...)`: a score function for `significance.py`."""
    return _f1(sums[..., 0], sums[..., 1] + sums[..., 2])


def _scores(hits: Ints, predicted: Ints, true: Ints, names: Sequence[str]) -> dict[str, LabelScore]:
    with np.errstate(invalid="ignore"):
        columns = zip(hits / predicted, hits / true, _f1(hits, predicted + true), true, strict=True)
    return {
        name: LabelScore(float(precision), float(recall), float(f1), int(support))
        for name, (precision, recall, f1, support) in zip(names, columns, strict=True)
    }


def _f1(hits: Floats | Ints, either: Floats | Ints) -> Floats:
    """nan where a label is neither predicted nor true."""
    with np.errstate(invalid="ignore"):
        return np.asarray(2 * hits / either, np.float64)


def _mean_of_finite(values: Floats) -> Floats:
    """values `(resamples, labels)` -> `(resamples,)`; nan if there is none."""
    usable = np.isfinite(values)
    with np.errstate(invalid="ignore"):
        return np.asarray(np.where(usable, values, 0).sum(axis=1) / usable.sum(axis=1))


def _negative_logs(probabilities: Numbers) -> Floats:
    least = np.finfo(probabilities.dtype).tiny
    return np.asarray(-np.log(np.maximum(probabilities, least).astype(np.float64)))


def _sums_by_label(cells: Floats, labels_of_cells: Ints, labels: int) -> Floats:
    """cells `(resamples, cells)`, labels_of_cells `(cells,)` -> `(resamples, labels + 1)`: the sums of each
    label, the last of UNSEEN."""
    sums = np.zeros((len(cells), labels + 1))
    order = np.argsort(labels_of_cells, kind="stable")
    starts = np.flatnonzero(np.diff(labels_of_cells[order], prepend=-2))
    if len(starts):
        sums[:, labels_of_cells[order][starts]] = np.add.reduceat(cells[:, order], starts, axis=1)
    return sums


def _use_wilson_at_the_ends(metrics: dict[str, float], name: str, examples: int) -> None:
    """Where a share is 0 or 1 and has an interval, replaces it by Wilson's, as no resample differs."""
    if metrics[name] in (0.0, 1.0) and f"{name}_low" in metrics:
        low, high = wilson_interval(metrics[name] * examples, examples)
        metrics |= {f"{name}_low": low, f"{name}_high": high}
