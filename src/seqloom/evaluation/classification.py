"""How good labels are: one for each example, or any number of them.

    accuracy      Σ hits / Σ examples
    precision     hits / predicted            of a label; nan where it was never predicted
    recall        hits / true                 of a label; nan where no example has it
    F1            2 hits / (predicted + true) of a label; nan where it is neither predicted nor true
    macro F1      the mean of the labels' F1, without those that are nan
    micro F1      2 Σ hits / Σ (predicted + true) over all labels; with one label for each example that is the accuracy
    Matthews      (c s - Σ p_k t_k) / √((s² - Σ p_k²)(s² - Σ t_k²)): c hits of s examples, p_k predicted and t_k true of label k
                  (Gorodkin 2004; of two labels Matthews 1975); 0 where all examples have one label or got one

All are functions of counts, for all resamples of a bootstrap at once: a library call for each resample would
take minutes. The tests hold them to scikit-learn. Intervals are of a bootstrap over examples; where every
answer is right, or every one wrong, resamples do not differ and that of the accuracy is Wilson's.

A true label that the model has not got is UNSEEN: a wrong answer, a false alarm for the label that was
predicted, without a loss. It is no label of the macro F1.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from seqloom.evaluation.calibration import gaps
from seqloom.evaluation.intervals import share_interval, with_intervals

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

UNSEEN = -1
"""Number of a true label that the model has not got."""
RESAMPLES = 1000


@final
class Predictions(NamedTuple):
    """What a model said of each example, where each has one label."""

    true: Ints
    """`(examples,)`: UNSEEN or from 0."""
    predicted: Ints
    confidence: Floats
    """Probability of the predicted label."""
    losses: Floats
    """-log p of the true label in nats, nan where it is UNSEEN."""

    @classmethod
    def of(cls, true: NDArray[Any], probabilities: NDArray[Any]) -> Predictions:
        """true `(examples,)`, probabilities `(examples, labels)`. A probability of 0 counts as the least
        number above it of its kind."""
        predicted = probabilities.argmax(axis=1)
        rows, least = np.arange(len(true)), np.finfo(probabilities.dtype).tiny
        losses = -np.log(np.maximum(probabilities[rows, true], least).astype(np.float64))
        return cls(
            true.astype(np.int64),
            predicted,
            probabilities[rows, predicted].astype(np.float64),
            np.where(true < 0, np.nan, losses),
        )

    @classmethod
    def joined(cls, parts: Iterable[Predictions]) -> Predictions:
        """One after the other."""
        nothing = [np.zeros(0, kind) for kind in (np.int64, np.int64, np.float64, np.float64)]
        return cls(*(np.concatenate(column) for column in zip(nothing, *parts, strict=True)))

    def at(self, places: Ints) -> Predictions:
        return Predictions(
            self.true[places], self.predicted[places], self.confidence[places], self.losses[places]
        )

    @property
    def hits(self) -> NDArray[np.bool_]:
        return np.asarray(self.true == self.predicted)


class LabelScore(NamedTuple):
    """Of one label."""

    precision: float
    recall: float
    f1: float
    support: int
    """Examples that have it."""


def label_metrics(
    answers: Predictions, labels: int, what: str = "examples", resamples: int = RESAMPLES
) -> dict[str, float]:
    """loss, accuracy, macro_f1, matthews and ece, each with `_low` and `_high`; how many of `what`, and how
    many are unseen, if any.

    There must be an example. With no `resamples` there are no intervals.
    """
    answers = answers.at(np.lexsort((answers.predicted, answers.true)))
    first = _first_of_each(answers.true, answers.predicted)
    true, predicted = answers.true[first], answers.predicted[first]
    known = answers.true >= 0
    sums = np.column_stack(
        [np.where(known, answers.losses, 0), known, gaps(answers.confidence, answers.hits)]
    )

    def statistics(weights: Floats) -> Floats:
        """weights `(resamples, examples)` -> `(resamples, 5)`"""
        cells = np.add.reduceat(
            weights, first, axis=1
        )  # examples with one true and one predicted label stand together
        losses, seen, *bins = (weights @ sums).T
        with np.errstate(invalid="ignore"):  # all may be unseen
            loss = losses / seen
        error = np.abs(bins).sum(axis=0) / len(answers.true)
        return np.column_stack([loss, *_of_cells(cells, true, predicted, labels), error])

    found = with_intervals(
        ("loss", "accuracy", "macro_f1", "matthews", "ece"), statistics, len(answers.true), resamples
    )
    unseen = int((~known).sum())
    return (
        _wilson_at_the_ends(found, "accuracy", len(answers.true))
        | {what: len(answers.true)}
        | ({"unseen": unseen} if unseen else {})
    )


def _of_cells(cells: Floats, true: Ints, predicted: Ints, labels: int) -> tuple[Floats, Floats, Floats]:
    """cells `(resamples, cells)`: how many examples have each (true, predicted) -> accuracy, macro F1,
    Matthews `(resamples,)` each."""
    of_true, of_predicted = (_grouped(cells, group, labels) for group in (true, predicted))
    hit = true == predicted
    hits = _grouped(cells[:, hit], true[hit], labels)
    count = cells.sum(axis=1)
    f1 = _f1(hits[:, :labels], of_predicted[:, :labels] + of_true[:, :labels])
    right = hits.sum(axis=1)
    spread = (count**2 - (of_true**2).sum(axis=1)) * (count**2 - (of_predicted**2).sum(axis=1))
    joint = right * count - (of_true * of_predicted).sum(axis=1)
    matthews = np.where(spread > 0, joint / np.sqrt(np.maximum(spread, 1)), 0.0)
    return right / count, _mean_of_finite(f1), matthews


def confusion(true: NDArray[Any], predicted: NDArray[Any], labels: int) -> Ints:
    """`(labels + 1, labels)`: how many of each true label (rows, the last is UNSEEN) got each label
    (columns)."""
    counts = np.zeros((labels + 1, labels), np.int64)
    np.add.at(counts, (true, predicted), 1)
    return counts


def per_label(counts: Ints, names: Sequence[str]) -> dict[str, LabelScore]:
    """Of a confusion table: each label's scores, in order."""
    hits, predicted, true = np.diag(counts), counts.sum(axis=0), counts[: len(names)].sum(axis=1)
    return _scores(hits, predicted, true, names)


def multi_label_metrics(
    true: NDArray[Any],
    probabilities: NDArray[Any],
    *,
    unseen: NDArray[Any] | None = None,
    resamples: int = RESAMPLES,
) -> dict[str, float]:
    """true and probabilities `(examples, labels)`: loss (sigmoid cross-entropy of an example, summed over
    labels), micro_f1, macro_f1 and exact_match, each with `_low` and `_high`; examples, unseen.

    Predicted is what is more probable than not. `unseen` `(examples,)`: how many labels of each the model has
    not got; they are missed.
    """
    true, predicted = true.astype(bool), probabilities > 0.5
    missed = np.zeros(len(true)) if unseen is None else unseen.astype(np.float64)
    least = np.finfo(probabilities.dtype).tiny
    losses = -np.log(
        np.maximum(np.where(true, probabilities, 1 - probabilities), least).astype(np.float64)
    ).sum(axis=1)
    exact = (true == predicted).all(axis=1) & (missed == 0)
    labels = true.shape[1]
    sums = np.column_stack([losses, exact, missed, true & predicted, true.astype(np.int64) + predicted])

    def statistics(weights: Floats) -> Floats:
        """weights `(resamples, examples)` -> `(resamples, 4)`"""
        of, count = weights @ sums, weights.sum(axis=1)
        hits, either = of[:, 3 : 3 + labels], of[:, 3 + labels :]
        micro = _f1(hits.sum(axis=1), either.sum(axis=1) + of[:, 2])
        return np.column_stack(
            [of[:, 0] / count, micro, _mean_of_finite(_f1(hits, either)), of[:, 1] / count]
        )

    found = with_intervals(("loss", "micro_f1", "macro_f1", "exact_match"), statistics, len(true), resamples)
    found = _wilson_at_the_ends(found, "exact_match", len(true))
    return found | {"examples": len(true)} | ({"unseen": int(missed.sum())} if missed.any() else {})


def per_label_of_many(
    true: NDArray[Any], predicted: NDArray[Any], names: Sequence[str]
) -> dict[str, LabelScore]:
    """true and predicted `(examples, labels)`: each label's scores, in order."""
    return _scores((true & predicted).sum(axis=0), predicted.sum(axis=0), true.sum(axis=0), names)


def f1_of_counts(sums: NDArray[Any]) -> Floats:
    """Sums of (hits, predicted, true) `(..., 3)` -> F1 `(...)`: a `value` for `significance.py`."""
    return _f1(sums[..., 0], sums[..., 1] + sums[..., 2])


def _scores(hits: Ints, predicted: Ints, true: Ints, names: Sequence[str]) -> dict[str, LabelScore]:
    with np.errstate(invalid="ignore"):
        columns = zip(hits / predicted, hits / true, _f1(hits, predicted + true), true, strict=True)
    return {
        name: LabelScore(float(precision), float(recall), float(f1), int(support))
        for name, (precision, recall, f1, support) in zip(names, columns, strict=True)
    }


def _f1(hits: NDArray[Any], either: NDArray[Any]) -> Floats:
    """nan where a label is neither predicted nor true."""
    with np.errstate(invalid="ignore"):
        return np.asarray(2 * hits / either, np.float64)


def _mean_of_finite(values: Floats) -> Floats:
    """values `(resamples, labels)` -> `(resamples,)`; nan where there is none."""
    usable = np.isfinite(values)
    with np.errstate(invalid="ignore"):
        return np.asarray(np.where(usable, values, 0).sum(axis=1) / usable.sum(axis=1))


def _first_of_each(true: Ints, predicted: Ints) -> Ints:
    """Where each pair begins, of pairs in order."""
    return np.flatnonzero((np.diff(true, prepend=-2) != 0) | (np.diff(predicted, prepend=-2) != 0))


def _grouped(cells: Floats, groups: Ints, labels: int) -> Floats:
    """cells `(resamples, cells)`, groups `(cells,)` -> `(resamples, labels + 1)`: the sums of each label, the
    last of UNSEEN."""
    found = np.zeros((len(cells), labels + 1))
    order = np.argsort(groups, kind="stable")
    starts = np.flatnonzero(np.diff(groups[order], prepend=-2))
    if len(starts):
        found[:, groups[order][starts]] = np.add.reduceat(cells[:, order], starts, axis=1)
    return found


def _wilson_at_the_ends(metrics: dict[str, float], name: str, examples: int) -> dict[str, float]:
    """Where a share is 0 or 1 and has an interval, that of Wilson, as no resample differs."""
    if metrics[name] in (0.0, 1.0) and f"{name}_low" in metrics:
        low, high = share_interval(metrics[name] * examples, examples)
        metrics |= {f"{name}_low": low, f"{name}_high": high}
    return metrics
