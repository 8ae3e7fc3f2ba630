"""Lengths, masks, and reversal under any padding."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from seqloom.shapes import IGNORE, mask_of, prefix_mask, reversal, reverse_each

MASKS = st.integers(0, 7).flatmap(
    lambda steps: st.lists(
        st.lists(st.booleans(), min_size=steps, max_size=steps), min_size=1, max_size=4
    )
)


def test_mask_is_true_at_the_first_steps() -> None:
    assert mask_of(torch.tensor([2, 0, 3]), 3).tolist() == [
        [True, True, False],
        [False] * 3,
        [True] * 3,
    ]


def test_a_prefix_is_seen_whole_and_the_rest_as_it_comes() -> None:
    mask = prefix_mask(torch.tensor([0, 2, 4]), 4)
    for row, prefix in enumerate((0, 2, 4)):
        assert mask[row, 0].tolist() == [
            [seen <= step or seen < prefix for seen in range(4)] for step in range(4)
        ]


@settings(deadline=None)
@given(MASKS)
def test_reversal_turns_the_true_steps_and_leaves_the_rest(rows: list[list[bool]]) -> None:
    mask = torch.tensor(rows, dtype=torch.bool)
    steps = len(rows[0])
    ids = torch.arange(len(rows) * steps).view(len(rows), steps)
    expected = ids.clone()
    for row, flags in enumerate(rows):
        places = [step for step in range(steps) if flags[step]]
        expected[row, places] = ids[row, places[::-1]]
    assert torch.equal(reverse_each(ids, mask), expected)
    assert torch.equal(
        reversal(mask).gather(1, reversal(mask)), torch.arange(steps).expand_as(mask)
    )


@pytest.mark.parametrize("width", [(), (3,), (3, 2)], ids=str)
def test_vectors_are_reversed_whole(width: tuple[int, ...]) -> None:
    mask = torch.tensor([[False, True, True, False, True], [True, True, True, True, True]])
    sequences = torch.randn(2, 5, *width, generator=torch.Generator().manual_seed(0))
    turned = reverse_each(sequences, mask)
    assert torch.equal(turned[0], sequences[0, [0, 4, 2, 3, 1]])
    assert torch.equal(turned[1], sequences[1].flip(0))


def test_ignore_is_what_torch_ignores() -> None:
    logits = torch.tensor([[1.0, 2.0], [0.5, 0.0]])
    assert torch.equal(
        F.cross_entropy(logits, torch.tensor([IGNORE, 1])),
        F.cross_entropy(logits[1:], torch.tensor([1])),
    )
