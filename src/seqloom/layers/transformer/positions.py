"""Positions of tokens: vectors added to embeddings, rotations of queries and keys, a bias on scores.

    learned      Gehring et al. 2017; Radford et al. 2018
                 a row of a table for each position, up to a limit
    sinusoidal   Vaswani et al. 2017, 3.5
                 PE(p, 2i) = sin(p / 10000^(2i/d)),  PE(p, 2i+1) = cos(p / 10000^(2i/d))
                 or all sines before all cosines, as in their code, fairseq and Marian
    rotary       Su et al. 2021, 3.2
                 pair i of a query or key, (i, i + d/2), is rotated by the angle p / 10000^(2i/d), d the width
                 of a head, so a score depends only on the distance of the two positions
    relative     Raffel et al. 2020
                 a number for each head and distance is added to the score; far distances share one

`positions` is `(steps,)` where all rows agree, else `(rows, steps)`.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple, final

import torch
from torch import Tensor, nn

from seqloom.errors import UsageError

BASE = 10000.0


@final
class LearnedPositions(nn.Module):
    """A table `(offset + context, width)`, whose first `offset` rows are unused (RoBERTa, BART: 2)."""

    def __init__(self, context: int, width: int, offset: int = 0) -> None:
        super().__init__()
        self.context = context
        self.offset = offset
        self.embedding = nn.Embedding(offset + context, width)

    def forward(self, positions: Tensor, bound: int) -> Tensor:
        """positions `(...)`, known to be below `bound` -> `(..., width)`. Raises UsageError where one is
        beyond the table."""
        # only then the positions themselves are looked at, which waits for a GPU
        if bound > self.context:
            longest = int(positions.max()) + 1
            if longest > self.context:
                raise UsageError(
                    f"a text must have at most {self.context} tokens here, `<s>` included, but one has"
                    f" {longest}; cut it, or train with a larger model.context, or with other"
                    " model.positions, which have no limit"
                )
        if self.offset:
            positions = positions + self.offset
        embedded: Tensor = self.embedding(positions)
        return embedded

    @torch.no_grad()
    def begin_as_sinusoids(self, size: float) -> None:
        """Rows that are sinusoids of this size, whose wavelengths reach as far as the table. Then one linear
        map leads from any position to the next one, while rows that are drawn have to learn each step."""
        table = self.embedding.weight[self.offset :]
        places = torch.arange(self.context, device=table.device)
        base = float(max(self.context, 2))
        table.copy_(size * sinusoids(places, table.shape[1], table.dtype, base=base))


def angles(positions: Tensor, width: int, base: float = BASE) -> Tensor:
    """`(..., ceil(width / 2))`: p / base^(2i/width), in float64: at p = 1,000 float32 is wrong in the fourth
    digit of the sine."""
    exponents = torch.arange(0, width, 2, device=positions.device, dtype=torch.float64) / width
    return positions[..., None] * base**-exponents


def sinusoids(
    positions: Tensor,
    width: int,
    dtype: torch.dtype,
    *,
    halves: bool = False,
    base: float = BASE,
) -> Tensor:
    """positions `(...)` -> `(..., width)`: sine and cosine alternate; `halves`: sines, then cosines."""
    pair_angles = angles(positions, width, base)
    if halves:
        return torch.cat([pair_angles.sin(), pair_angles.cos()[..., : width // 2]], dim=-1).to(
            dtype
        )
    return (
        torch.stack([pair_angles.sin(), pair_angles.cos()], dim=-1)
        .flatten(-2)[..., :width]
        .to(dtype)
    )


class RotaryAngles(NamedTuple):
    """Cosine and sine of each pair's angle: `(steps, d/2)`, or `(rows, 1, steps, d/2)`."""

    cos: Tensor
    sin: Tensor


def rotary_angles(positions: Tensor, head_width: int, dtype: torch.dtype) -> RotaryAngles:
    """The rotations of the given positions, for heads of an even width."""
    if positions.dim() > 1:
        positions = positions[:, None]
    pair_angles = angles(positions, head_width)
    exact = torch.promote_types(dtype, torch.float32)
    return RotaryAngles(pair_angles.cos().to(exact), pair_angles.sin().to(exact))


def apply_rotary(x: Tensor, by: RotaryAngles) -> Tensor:
    """Queries or keys `(rows, heads, steps, d)`, each pair rotated by its angle."""
    first, second = x.chunk(2, dim=-1)
    rotated = torch.cat(
        [first * by.cos - second * by.sin, first * by.sin + second * by.cos], dim=-1
    )
    return rotated.to(x.dtype)  # under autocast x is in bfloat16, the angles are not


@final
class RelativeBias(nn.Module):
    """A table `(buckets, heads)` over distances from query to key. Short distances, up to half of the
    buckets, have one each. Later buckets hold more and more distances, the last one all from `max_distance`
    on. `bidirectional` keeps half of all buckets for keys after the query."""

    def __init__(self, heads: int, buckets: int, max_distance: int, *, bidirectional: bool) -> None:
        super().__init__()
        self.max_distance = max_distance
        self.bidirectional = bidirectional
        self.table = nn.Parameter(torch.zeros(buckets, heads))

    def forward(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Positions `(steps,)` or `(rows, steps)` of both -> what is added to the scores, `(1 or rows, heads,
        queries, keys)`."""
        distance = keys[..., None, :] - queries[..., :, None]
        limit = self.max_distance
        buckets = distance_buckets(len(self.table), limit, self.bidirectional, self.table.device)
        bucket = buckets[distance.clamp(-limit, limit) + limit]
        bias = torch.nn.functional.embedding(bucket, self.table).movedim(-1, -3)
        return bias if bias.dim() == 4 else bias[None]


@lru_cache(maxsize=64)
def distance_buckets(
    buckets: int, max_distance: int, bidirectional: bool, device: torch.device
) -> Tensor:
    """`(2 max_distance + 1,)`: the bucket of each distance from -max_distance, a key long before its query,
    to max_distance."""
    with torch.inference_mode(False):  # a cached tensor of inference mode could not be trained with
        distance = torch.arange(-max_distance, max_distance + 1, device=device)
        after = (distance > 0).long() * (buckets // 2) if bidirectional else 0
        count = buckets // 2 if bidirectional else buckets
        distance = distance.abs() if bidirectional else (-distance).clamp(min=0)
        exact = count // 2
        # In float32, as published checkpoints were trained: it decides the bucket of distances at a border.
        ratio = torch.log(distance.float() / exact) / math.log(max_distance / exact)
        far = exact + (ratio * (count - exact)).long()
        return after + torch.where(distance < exact, distance, far.clamp(max=count - 1))
