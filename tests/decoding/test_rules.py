"""What may come next, and the choice of the most likely."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from seqloom.decoding.rules import forbid, most_likely

VALUES = st.sampled_from([-math.inf, -3.0, -2.0, -1.0, -1.0 + 2**-20, -0.0, 0.0])
"""Few values, so that equals are everywhere, at the border too."""


@settings(deadline=None, max_examples=150)
@given(st.data())
def test_most_likely_is_a_stable_sort(data: st.DataObject) -> None:
    columns = data.draw(st.integers(1, 40))
    rows = data.draw(st.lists(st.lists(VALUES, min_size=columns, max_size=columns), min_size=1, max_size=3))
    k = data.draw(st.integers(1, columns))
    values, ids = most_likely(torch.tensor(rows), k)
    expected = [sorted(range(columns), key=lambda i, row=row: (-row[i], i))[:k] for row in rows]  # type: ignore[misc]
    assert ids.tolist() == expected
    assert values.tolist() == [[row[i] for i in best] for row, best in zip(rows, expected, strict=True)]


@pytest.mark.parametrize("k", [1, 2, 7, 500, 5000])
def test_most_likely_of_many_is_a_stable_sort(k: int) -> None:
    """Long rows go other ways inside torch than short ones."""
    for levels in (1, 2, 50, 10**6):
        log_probs = -torch.randint(levels, (3, 5000), generator=torch.Generator().manual_seed(levels)).float()
        values, ids = most_likely(log_probs, k)
        expected = log_probs.sort(dim=-1, descending=True, stable=True)
        assert torch.equal(ids, expected.indices[:, :k])
        assert torch.equal(values, expected.values[:, :k])


def test_forbidden_ids_never_come_and_others_keep_their_log_probability() -> None:
    log_probs = torch.tensor([[-1.0, -2.0, -3.0], [-4.0, -5.0, -6.0]])
    before = log_probs.clone()
    after = forbid([0, 2])(torch.zeros(2, 0), log_probs)
    assert after.tolist() == [[-math.inf, -2.0, -math.inf], [-math.inf, -5.0, -math.inf]]
    assert torch.equal(log_probs, before)
    assert torch.equal(forbid([])(torch.zeros(2, 0), log_probs), before)
