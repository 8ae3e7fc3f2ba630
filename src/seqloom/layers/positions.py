"""Where a token stands: learned and sinusoidal vectors that are added to it, and rotations of queries and keys.

    learned      a row of a table for each position, up to a limit      Gehring et al. 2017; Radford et al. 2018
    sinusoidal   PE(p, 2i) = sin(p / 10000^(2i/d)),  PE(p, 2i+1) = cos(p / 10000^(2i/d))      Vaswani et al. 2017, 3.5
    rotary       pair i of a query or key turns by the angle p / 10000^(2i/d), d the width of a head, so a score depends
                 on the distance of the two positions only      Su et al. 2021, 3.2; a pair is (i, i + d/2)

`positions` is `(steps,)` where all rows agree, else `(rows, steps)`.
"""

from __future__ import annotations

from typing import NamedTuple, final

import torch
from torch import Tensor, nn

from seqloom.errors import UsageError

BASE = 10000.0


@final
class LearnedPositions(nn.Module):
    """A table `(context, width)`."""

    def __init__(self, context: int, width: int) -> None:
        super().__init__()
        self.context = context
        self.embedding = nn.Embedding(context, width)

    def forward(self, positions: Tensor, bound: int) -> Tensor:
        """positions `(...)`, known to be below `bound` -> `(..., width)`. Raises UsageError where one is beyond the table."""
        if bound > self.context and (longest := int(positions.max()) + 1) > self.context:  # looked at only where it may be so
            raise UsageError(
                f"a text must have at most {self.context} tokens here, `<s>` included, but one has {longest}; "
                "cut it, or train with a larger model.context, or with model.positions=rotary, which has no limit"
            )
        embedded: Tensor = self.embedding(positions)
        return embedded


def angles(positions: Tensor, width: int, dtype: torch.dtype) -> Tensor:
    """`(..., ceil(width / 2))`: p / 10000^(2i/width), in float32 or better."""
    exact = torch.promote_types(dtype, torch.float32)
    exponents = torch.arange(0, width, 2, device=positions.device, dtype=exact) / width
    return positions[..., None].to(exact) * BASE**-exponents


def sinusoids(positions: Tensor, width: int, dtype: torch.dtype) -> Tensor:
    """positions `(...)` -> `(..., width)`: sine and cosine by turns."""
    of_pair = angles(positions, width, dtype)
    return torch.stack([of_pair.sin(), of_pair.cos()], dim=-1).flatten(-2)[..., :width].to(dtype)


class Rotation(NamedTuple):
    """Cosine and sine of each pair's angle: `(steps, d/2)`, or `(rows, 1, steps, d/2)`."""

    cos: Tensor
    sin: Tensor


def rotation(positions: Tensor, head_width: int, dtype: torch.dtype) -> Rotation:
    """The rotations of the given positions, for heads of an even width."""
    of_pair = angles(positions if positions.dim() == 1 else positions[:, None], head_width, dtype)
    return Rotation(of_pair.cos(), of_pair.sin())


def rotate(x: Tensor, by: Rotation) -> Tensor:
    """Queries or keys `(rows, heads, steps, d)`, each pair turned by its angle."""
    first, second = x.chunk(2, dim=-1)
    turned = torch.cat([first * by.cos - second * by.sin, first * by.sin + second * by.cos], dim=-1)
    return turned.to(x.dtype)  # under autocast x is in bfloat16, the angles are not
