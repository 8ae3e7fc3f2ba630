"""The classes of a softmax, of which some, such as `<pad>`, can never be a target."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, final

from torch import Tensor

from seqloom.errors import UsageError


@final
class Classes(NamedTuple):
    """The classes of a softmax; those that are suppressed have no probability, and take none from others."""

    size: int
    suppressed: tuple[slice, ...] = ()
    """Rising, and apart from each other. Slices, as an index would have to be on the device of the logits."""

    @classmethod
    def without(cls, size: int, ids: Sequence[int]) -> Classes:
        """All but these ids. Raises UsageError if they are no ids of the vocabulary, or all of it."""
        unique = {*ids}
        if not all(0 <= token_id < size for token_id in unique) or len(unique) >= size:
            raise UsageError(
                f"suppressed_ids must be some of the {size} of the vocabulary, but are {[*ids][:20]}"
            )
        slices: list[slice] = []
        for token_id in sorted(unique):
            follows = slices and slices[-1].stop == token_id
            start = slices.pop().start if follows else token_id
            slices.append(slice(start, token_id + 1))
        return cls(size, tuple(slices))

    @property
    def possible(self) -> list[slice]:
        """All others, as slices."""
        ends = [0, *(part.stop for part in self.suppressed)]
        starts = [*(part.start for part in self.suppressed), self.size]
        return [slice(*span) for span in zip(ends, starts, strict=True) if span[0] < span[1]]

    @property
    def possible_count(self) -> int:
        """How many are not suppressed."""
        return sum(part.stop - part.start for part in self.possible)

    def suppress_(self, logits: Tensor) -> Tensor:
        """logits `(..., size)`, in place: -inf for what cannot be."""
        for part in self.suppressed:
            logits[..., part] = -math.inf
        return logits
