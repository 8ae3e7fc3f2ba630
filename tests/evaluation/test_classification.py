"""Counts of confusions and what follows from them, beside the definitions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqloom.evaluation.classification import Confusion
from seqloom.evaluation.intervals import share_interval


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=40), st.integers(1, 40))
def test_metrics_are_their_definitions(pairs: list[tuple[int, int]], cut: int) -> None:
    """Whatever the batches."""
    confusion = Confusion(4)
    for part in (pairs[:cut], pairs[cut:]):
        both = np.array(part, np.int64).reshape(-1, 2)
        confusion.add(both[:, 0], both[:, 1], 0.5 * len(part))
    scores = []
    for label in range(4):
        hits = sum(t == p == label for t, p in pairs)
        precise, found = sum(p == label for _, p in pairs), sum(t == label for t, _ in pairs)
        if precise or found:
            precision, recall = hits / precise if precise else 0, hits / found if found else 0
            scores.append(2 * precision * recall / (precision + recall) if hits else 0)
    metrics = confusion.metrics("images")
    hits = sum(t == p for t, p in pairs)
    assert metrics == pytest.approx(
        {
            "loss": 0.5,
            "accuracy": hits / len(pairs),
            "accuracy_low": share_interval(hits, len(pairs))[0],
            "accuracy_high": share_interval(hits, len(pairs))[1],
            "macro_f1": sum(scores) / len(scores),
            "images": len(pairs),
        }
    )
    assert confusion.counts.tolist() == [[pairs.count((t, p)) for p in range(4)] for t in range(4)]


def test_true_and_predicted_are_told_apart() -> None:
    confusion = Confusion(2)
    confusion.add(np.array([0, 0, 1]), np.array([1, 1, 1]), 1.0)
    assert confusion.counts.tolist() == [[0, 2], [0, 1]]
    assert confusion.macro_f1() == pytest.approx((0 + 2 / 4) / 2)
