"""How far a corpus is tokenised is said, and how long it will take where that can be known."""

from __future__ import annotations

import pytest

from seqloom.data.batching.corpus_store import Totals
from seqloom.tasks.language_modeling import training_data
from seqloom.tasks.language_modeling.training_data import corpus_progress


def test_what_is_left_is_said_where_the_size_is_known(
    notices: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training_data, "every_few_seconds", lambda: lambda: True)
    clock = iter([0.0, 10.0, 0.0])
    monkeypatch.setattr("time.monotonic", lambda: next(clock))
    totals = Totals(bytes=100_000_000, ids=30_000_000)
    corpus_progress("training", 700_000_000)(totals)
    corpus_progress("validation")(totals)
    assert notices == [
        "training: 100 MB, 30,000,000 tokens, 60 s left",
        "validation: 100 MB, 30,000,000 tokens",
    ]
