"""How good labels are: accuracy, macro F1, who is taken for whom."""

from __future__ import annotations

from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from seqloom.evaluation.intervals import share_interval


@final
class Confusion:
    """Counts of (true label, predicted label), and Σ loss."""

    def __init__(self, labels: int) -> None:
        self.counts: NDArray[np.int64] = np.zeros((labels, labels), np.int64)
        """`(true, predicted)`"""
        self.loss = 0.0
        """Σ -log p of the true label, in nats."""

    def add(self, true: NDArray[Any], predicted: NDArray[Any], loss: float) -> None:
        """Labels `(rows,)` each, and the sum of their losses."""
        np.add.at(self.counts, (true, predicted), 1)
        self.loss += loss

    @property
    def total(self) -> int:
        return int(self.counts.sum())

    def macro_f1(self) -> float:
        """The mean of 2 TP / (2 TP + FP + FN) over the labels that are true or predicted anywhere."""
        hits, either = np.diag(self.counts), self.counts.sum(0) + self.counts.sum(1)
        return float(np.mean(2 * hits[either > 0] / either[either > 0]))

    def metrics(self, what: str) -> dict[str, float]:
        """loss, accuracy with its 95 % interval, macro_f1, and how many of `what` there were. At least one must have been added."""
        hits = int(np.trace(self.counts))
        low, high = share_interval(hits, self.total)
        return {
            "loss": self.loss / self.total,
            "accuracy": hits / self.total,
            "accuracy_low": low,
            "accuracy_high": high,
            "macro_f1": self.macro_f1(),
            what: self.total,
        }
