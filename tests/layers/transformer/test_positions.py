"""Positions: each formula written out, the limit of a table, and what rotations leave alone."""

from __future__ import annotations

import cmath
import math

import pytest
import torch
from torch import Tensor

from seqloom.errors import UsageError
from seqloom.layers.transformer.positions import (
    LearnedPositions,
    RelativeBias,
    apply_rotary,
    distance_buckets,
    rotary_angles,
    sinusoids,
)

D = torch.float64


def close(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("width", [6, 7])
def test_sinusoids_are_the_papers(width: int) -> None:
    """PE(p, 2i) = sin(p / 10000^(2i/d)), PE(p, 2i+1) = cos(the same)."""
    positions = torch.tensor([[0, 1, 5], [300, 2, 2]])
    written = [
        [
            [
                (math.cos if j % 2 else math.sin)(p / 10000 ** ((j - j % 2) / width))
                for j in range(width)
            ]
            for p in row
        ]
        for row in positions.tolist()
    ]
    close(sinusoids(positions, width, D), torch.tensor(written, dtype=D))


def test_sinusoids_in_low_precision_are_rounded_once() -> None:
    positions = torch.arange(500)
    assert torch.equal(
        sinusoids(positions, 8, torch.bfloat16), sinusoids(positions, 8, torch.float32).bfloat16()
    )


@pytest.mark.parametrize("width", [6, 7])
def test_halves_have_all_sines_first(width: int) -> None:
    positions = torch.tensor([[0, 1, 5], [300, 2, 2]])
    by_turns, halves = sinusoids(positions, width, D), sinusoids(positions, width, D, halves=True)
    close(halves, torch.cat([by_turns[..., 0::2], by_turns[..., 1::2]], dim=-1))
    assert not torch.allclose(halves, by_turns)


def test_learned_positions_are_rows_of_a_table_with_a_limit() -> None:
    table = LearnedPositions(4, 3)
    positions = torch.tensor([[0, 3], [2, 2]])
    assert torch.equal(table(positions, 4), table.embedding.weight[positions])
    # the bound may be too high: then it is looked at
    assert torch.equal(table(positions, 9), table.embedding.weight[positions])
    with pytest.raises(UsageError, match=r"at most 4 tokens .* one has 6"):
        table(torch.tensor([[0, 5]]), 6)


def test_the_first_rows_of_a_table_may_stand_for_nothing() -> None:
    table = LearnedPositions(4, 3, offset=2)
    assert table.embedding.weight.shape == (6, 3)
    assert torch.equal(table(torch.arange(4), 4), table.embedding.weight[2:])
    with pytest.raises(UsageError, match=r"at most 4 tokens .* one has 5"):
        table(torch.tensor([4]), 5)


def test_a_table_that_begins_as_sinusoids_has_one_map_from_each_position_to_the_next() -> None:
    positions = LearnedPositions(16, 8, offset=2).double()
    first = positions.embedding.weight[:2].detach().clone()
    positions.begin_as_sinusoids(0.05)
    table = positions.embedding.weight.detach()
    assert torch.equal(table[:2], first)
    assert float(table[2:].abs().max()) == pytest.approx(0.05)
    rows = table[2:]
    step = torch.linalg.lstsq(rows[:-1], rows[1:]).solution
    close(rows[:-1] @ step, rows[1:])


def test_a_rotation_turns_each_pair_by_its_angle() -> None:
    """(x_i, x_{i + d/2}) as a complex number, times e^(i p / 10000^(2i/d))."""
    heads = torch.randn(2, 3, 4, 6, dtype=D)
    positions = torch.tensor([[0, 1, 2, 9], [5, 5, 700, 3]])
    rotated = apply_rotary(heads, rotary_angles(positions, 6, D))
    for row, head, step, pair in [(0, 0, 0, 0), (0, 2, 3, 1), (1, 1, 2, 2), (1, 0, 1, 0)]:
        x = complex(heads[row, head, step, pair], heads[row, head, step, pair + 3])
        y = x * cmath.exp(1j * int(positions[row, step]) / 10000 ** (2 * pair / 6))
        found = rotated[row, head, step]
        assert complex(found[pair], found[pair + 3]) == pytest.approx(y, abs=1e-12)
    # positions of one row, or of each
    close(apply_rotary(heads[1:], rotary_angles(positions[1], 6, D)), rotated[1:])


def test_scores_of_rotated_heads_depend_on_the_distance_only() -> None:
    query, keys = torch.randn(1, 2, 5, 8, dtype=D), torch.randn(1, 2, 5, 8, dtype=D)

    def scores(shift: int) -> Tensor:
        by = rotary_angles(torch.arange(5) + shift, 8, D)
        return apply_rotary(query, by) @ apply_rotary(keys, by).transpose(2, 3)

    close(scores(0), scores(1234))
    assert not torch.allclose(scores(0), query @ keys.transpose(2, 3))
    # position 0 is not rotated
    assert scores(0)[0, 0, 0, 0] == pytest.approx(float(query[0, 0, 0] @ keys[0, 0, 0]))


def test_rotated_heads_keep_their_type() -> None:
    assert (
        apply_rotary(
            torch.randn(1, 1, 2, 4).bfloat16(), rotary_angles(torch.arange(2), 4, torch.float32)
        ).dtype
        is torch.bfloat16
    )


# Relative positions


def buckets_by_rule(
    distance: int, buckets: int, max_distance: int, *, bidirectional: bool
) -> list[int]:
    """The bucket of a key so far after its query, by the rule of Raffel et al. 2020 (Mesh TensorFlow) in
    whole numbers. At a border, where floating point may fall to either side, both."""
    count = buckets // 2 if bidirectional else buckets
    first = count if bidirectional and distance > 0 else 0
    far = abs(distance) if bidirectional else max(-distance, 0)
    exact = count // 2
    if far < exact:
        return [first + far]
    wide = count - exact
    # log(far / exact) / log(max_distance / exact) * wide >= b
    reached = [b for b in range(wide) if far**wide * exact**b >= max_distance**b * exact**wide]
    last = reached[-1]
    at_border = last > 0 and far**wide * exact**last == max_distance**last * exact**wide
    return [first + exact + last - 1, first + exact + last] if at_border else [first + exact + last]


KINDS = [(32, 128), (4, 5), (8, 6), (12, 40), (64, 100), (4, 3)]


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize(("buckets", "max_distance"), KINDS)
def test_buckets_are_the_papers(buckets: int, max_distance: int, bidirectional: bool) -> None:
    found = distance_buckets(buckets, max_distance, bidirectional, torch.device("cpu")).tolist()
    assert len(found) == 2 * max_distance + 1
    for distance, bucket in zip(range(-max_distance, max_distance + 1), found, strict=True):
        assert bucket in buckets_by_rule(
            distance, buckets, max_distance, bidirectional=bidirectional
        ), distance
    assert (min(found), max(found)) == (0, buckets - 1)


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize(("buckets", "max_distance"), KINDS)
def test_buckets_are_those_of_transformers(
    buckets: int, max_distance: int, bidirectional: bool
) -> None:
    """To the last border, as checkpoints were trained with it."""
    t5 = pytest.importorskip("transformers.models.t5.modeling_t5")
    distances = torch.arange(-3 * max_distance, 3 * max_distance + 1)
    theirs = t5.T5Attention._relative_position_bucket(
        distances, bidirectional, buckets, max_distance
    )
    ours = distance_buckets(buckets, max_distance, bidirectional, torch.device("cpu"))
    assert torch.equal(ours[distances.clamp(-max_distance, max_distance) + max_distance], theirs)


@pytest.mark.parametrize("bidirectional", [True, False])
def test_a_bias_is_the_number_of_the_bucket_of_the_distance(bidirectional: bool) -> None:
    bias = RelativeBias(3, 8, 6, bidirectional=bidirectional).double()
    torch.nn.init.normal_(bias.table)
    queries, keys = torch.tensor([4, 0, 30]), torch.tensor([0, 9, 4, 5])
    found = bias(queries, keys)
    assert found.shape == (1, 3, 3, 4)
    for i, query in enumerate(queries.tolist()):
        for j, key in enumerate(keys.tolist()):
            bucket = buckets_by_rule(
                max(min(key - query, 6), -6), 8, 6, bidirectional=bidirectional
            )[-1]
            assert torch.equal(found[0, :, i, j], bias.table[bucket])
    rows = torch.stack([keys, keys + 7])  # of rows that stand elsewhere, each by itself
    close(bias(rows, rows), torch.cat([bias(keys, keys), bias(keys, keys)]))
    close(bias(queries, rows), torch.cat([bias(queries, keys), bias(queries, keys + 7)]))


def test_buckets_first_asked_for_under_inference_mode_may_be_trained_with() -> None:
    distance_buckets.cache_clear()
    bias, at = RelativeBias(2, 4, 5, bidirectional=True), torch.arange(6)
    with torch.inference_mode():
        bias(at, at)
    assert not distance_buckets(4, 5, True, torch.device("cpu")).is_inference()
    bias(at, at).sum().backward()
    assert bias.table.grad is not None
    assert float(bias.table.grad.sum()) == 2 * 36
