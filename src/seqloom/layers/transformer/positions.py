"""Where a token stands: vectors that are added to it, rotations of queries and keys, a bias on their scores.

    learned      a row of a table for each position, up to a limit      Gehring et al. 2017; Radford et al. 2018
    sinusoidal   PE(p, 2i) = sin(p / 10000^(2i/d)),  PE(p, 2i+1) = cos(p / 10000^(2i/d))      Vaswani et al. 2017, 3.5
                 or all sines before all cosines, as their code has it, and fairseq and Marian
    rotary       pair i of a query or key turns by the angle p / 10000^(2i/d), d the width of a head, so a score depends
                 on the distance of the two positions only      Su et al. 2021, 3.2; a pair is (i, i + d/2)

    relative     a number for each head and distance that is added to the score, far distances sharing one   Raffel et al. 2020

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
    """A table `(offset + context, width)`, of which the first `offset` rows stand for nothing (RoBERTa, BART:
    2)."""

    def __init__(self, context: int, width: int, offset: int = 0) -> None:
        super().__init__()
        self.context = context
        self.offset = offset
        self.embedding = nn.Embedding(offset + context, width)

    def forward(self, positions: Tensor, bound: int) -> Tensor:
        """positions `(...)`, known to be below `bound` -> `(..., width)`. Raises UsageError where one is
        beyond the table."""
        if (
            bound > self.context and (longest := int(positions.max()) + 1) > self.context
        ):  # looked at only where it may be so
            raise UsageError(
                f"a text must have at most {self.context} tokens here, `<s>` included, but one has {longest};"
                " cut it, or train with a larger model.context, or with other model.positions, which have no"
                " limit"
            )
        embedded: Tensor = self.embedding(positions + self.offset if self.offset else positions)
        return embedded


def angles(positions: Tensor, width: int) -> Tensor:
    """`(..., ceil(width / 2))`: p / 10000^(2i/width), in float64: at p = 1,000 float32 is wrong in the fourth
    digit of the sine."""
    exponents = torch.arange(0, width, 2, device=positions.device, dtype=torch.float64) / width
    return positions[..., None] * BASE**-exponents


def sinusoids(positions: Tensor, width: int, dtype: torch.dtype, *, halves: bool = False) -> Tensor:
    """positions `(...)` -> `(..., width)`: sine and cosine by turns; `halves`: all sines, then all cosines."""
    of_pair = angles(positions, width)
    if halves:
        return torch.cat([of_pair.sin(), of_pair.cos()[..., : width // 2]], dim=-1).to(dtype)
    return torch.stack([of_pair.sin(), of_pair.cos()], dim=-1).flatten(-2)[..., :width].to(dtype)


class Rotation(NamedTuple):
    """Cosine and sine of each pair's angle: `(steps, d/2)`, or `(rows, 1, steps, d/2)`."""

    cos: Tensor
    sin: Tensor


def rotation(positions: Tensor, head_width: int, dtype: torch.dtype) -> Rotation:
    """The rotations of the given positions, for heads of an even width."""
    of_pair = angles(positions if positions.dim() == 1 else positions[:, None], head_width)
    exact = torch.promote_types(dtype, torch.float32)
    return Rotation(of_pair.cos().to(exact), of_pair.sin().to(exact))


def rotate(x: Tensor, by: Rotation) -> Tensor:
    """Queries or keys `(rows, heads, steps, d)`, each pair turned by its angle."""
    first, second = x.chunk(2, dim=-1)
    turned = torch.cat([first * by.cos - second * by.sin, first * by.sin + second * by.cos], dim=-1)
    return turned.to(x.dtype)  # under autocast x is in bfloat16, the angles are not


@final
class RelativeBias(nn.Module):
    """A table `(buckets, heads)`. A bucket is one distance from the query to the key up to half of them, then
    ever more of them, and the last one all from `furthest` on; `both_ways` keeps half of all buckets for keys
    that come after the query."""

    def __init__(self, heads: int, buckets: int, furthest: int, *, both_ways: bool) -> None:
        super().__init__()
        self.furthest = furthest
        self.both_ways = both_ways
        self.table = nn.Parameter(torch.zeros(buckets, heads))

    def forward(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Positions `(steps,)` or `(rows, steps)` of both -> what is added to the scores, `(1 or rows, heads,
        queries, keys)`."""
        distance = keys[..., None, :] - queries[..., :, None]
        of_distance = bucket_of_distance(len(self.table), self.furthest, self.both_ways, self.table.device)
        bucket = of_distance[distance.clamp(-self.furthest, self.furthest) + self.furthest]
        bias = torch.nn.functional.embedding(bucket, self.table).movedim(-1, -3)
        return bias if bias.dim() == 4 else bias[None]


@lru_cache(maxsize=64)
def bucket_of_distance(buckets: int, furthest: int, both_ways: bool, device: torch.device) -> Tensor:
    """`(2 furthest + 1,)`: the bucket of each distance from -furthest, a key long before its query, to
    furthest."""
    with torch.inference_mode(False):  # whoever asks first, all may train with it
        distance = torch.arange(-furthest, furthest + 1, device=device)
        after = (distance > 0).long() * (buckets // 2) if both_ways else 0
        count = buckets // 2 if both_ways else buckets
        distance = distance.abs() if both_ways else (-distance).clamp(min=0)
        exact = count // 2
        # in float32, as the checkpoints of the field were trained: a distance at a border may fall to either
        # side
        far = (
            exact
            + (torch.log(distance.float() / exact) / math.log(furthest / exact) * (count - exact)).long()
        )
        return after + torch.where(distance < exact, distance, far.clamp(max=count - 1))
