"""Positions: each formula written out, the limit of a table, and what rotations leave alone."""

from __future__ import annotations

import cmath
import math

import pytest
import torch
from torch import Tensor

from seqloom.errors import UsageError
from seqloom.layers.positions import LearnedPositions, rotate, rotation, sinusoids

D = torch.float64


def close(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("width", [6, 7])
def test_sinusoids_are_the_papers(width: int) -> None:
    """PE(p, 2i) = sin(p / 10000^(2i/d)), PE(p, 2i+1) = cos(the same)."""
    positions = torch.tensor([[0, 1, 5], [300, 2, 2]])
    written = [
        [[(math.cos if j % 2 else math.sin)(p / 10000 ** ((j - j % 2) / width)) for j in range(width)] for p in row]
        for row in positions.tolist()
    ]
    close(sinusoids(positions, width, D), torch.tensor(written, dtype=D))


def test_sinusoids_in_low_precision_are_rounded_once() -> None:
    positions = torch.arange(500)
    assert torch.equal(sinusoids(positions, 8, torch.bfloat16), sinusoids(positions, 8, torch.float32).bfloat16())


def test_learned_positions_are_rows_of_a_table_with_a_limit() -> None:
    table = LearnedPositions(4, 3)
    positions = torch.tensor([[0, 3], [2, 2]])
    assert torch.equal(table(positions, 4), table.embedding.weight[positions])
    assert torch.equal(table(positions, 9), table.embedding.weight[positions])  # the bound may be too high: then it is looked at
    with pytest.raises(UsageError, match=r"at most 4 tokens .* one has 6"):
        table(torch.tensor([[0, 5]]), 6)


def test_a_rotation_turns_each_pair_by_its_angle() -> None:
    """(x_i, x_{i + d/2}) as a complex number, times e^(i p / 10000^(2i/d))."""
    heads = torch.randn(2, 3, 4, 6, dtype=D)
    positions = torch.tensor([[0, 1, 2, 9], [5, 5, 700, 3]])
    turned = rotate(heads, rotation(positions, 6, D))
    for row, head, step, pair in [(0, 0, 0, 0), (0, 2, 3, 1), (1, 1, 2, 2), (1, 0, 1, 0)]:
        x = complex(heads[row, head, step, pair], heads[row, head, step, pair + 3])
        y = x * cmath.exp(1j * int(positions[row, step]) / 10000 ** (2 * pair / 6))
        found = turned[row, head, step]
        assert complex(found[pair], found[pair + 3]) == pytest.approx(y, abs=1e-12)
    close(rotate(heads[1:], rotation(positions[1], 6, D)), turned[1:])  # positions of one row, or of each


def test_scores_of_rotated_heads_depend_on_the_distance_only() -> None:
    query, keys = torch.randn(1, 2, 5, 8, dtype=D), torch.randn(1, 2, 5, 8, dtype=D)

    def scores(shift: int) -> Tensor:
        by = rotation(torch.arange(5) + shift, 8, D)
        return rotate(query, by) @ rotate(keys, by).transpose(2, 3)

    close(scores(0), scores(1234))
    assert not torch.allclose(scores(0), query @ keys.transpose(2, 3))
    assert scores(0)[0, 0, 0, 0] == pytest.approx(float(query[0, 0, 0] @ keys[0, 0, 0]))  # position 0 is not turned


def test_rotated_heads_keep_their_type() -> None:
    assert rotate(torch.randn(1, 1, 2, 4).bfloat16(), rotation(torch.arange(2), 4, torch.float32)).dtype is torch.bfloat16
