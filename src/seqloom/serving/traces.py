"""Attention that is kept to be looked at: a page asks for one head of it after the other."""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple, final

import torch
from torch import Tensor
from torch.nn import functional as F

from seqloom.explaining.studies.attention_maps import LONG
from seqloom.serving.http_errors import RequestError

OVERVIEW = 32
"""Rows and columns of a head in the overview, at most."""
BYTES = 2
"""Of a weight: float16, three digits of which are shown."""


class AttentionTrace(NamedTuple):
    """Where a model looked."""

    weights: Tensor
    """`(layers, heads, queries, keys)`, float16."""
    highest: Tensor
    """`(layers, heads)`: the weight that is as dark as can be."""

    @classmethod
    def of(cls, weights: Tensor) -> AttentionTrace:
        """To many tokens attention is spread thin: then a tenth of the rows reach the darkest colour."""
        highest = torch.ones(weights.shape[:2])
        if weights.shape[-1] > LONG:
            largest = weights.amax(dim=-1).float()
            highest = largest.quantile(0.9, dim=-1).clamp(min=0.01)
        return cls(weights.half(), highest)

    def overview(self) -> bytes:
        """Every head, small: the largest weight of each part of it."""
        size = [min(OVERVIEW, length) for length in self.weights.shape[2:]]
        pooled = F.adaptive_max_pool2d(self.weights.float(), size)
        return colours(pooled / self.highest[..., None, None])

    def head(self, layer: int, head: int) -> bytes:
        return colours(self.weights[layer, head].float() / self.highest[layer, head])

    def row(self, layer: int, head: int, query: int) -> list[float]:
        weights: list[float] = self.weights[layer, head, query].tolist()
        return weights


def colours(shares: Tensor) -> bytes:
    """0 to 1 as a byte each, row by row."""
    return (shares.clamp(0, 1) * 255).round().byte().contiguous().numpy().tobytes()


@final
class KeptTraces:
    """Those of all clients, within so many bytes. Ids cannot be guessed."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._kept: OrderedDict[str, AttentionTrace] = OrderedDict()

    def keep(self, trace: AttentionTrace) -> str:
        name = secrets.token_urlsafe(16)
        self._kept[name] = trace
        while sum(one.weights.nbytes for one in self._kept.values()) > self._most_bytes:
            self._kept.popitem(last=False)
        return name

    def named(self, name: str, numbers: Sequence[int] = ()) -> AttentionTrace:
        """`numbers`: layer, head and row, from 0 on. Raises RequestError where there is none of them."""
        if name not in self._kept:
            raise RequestError(404, "there is no such trace; POST /api/trace makes one", "id")
        self._kept.move_to_end(name)
        trace = self._kept[name]
        sizes = trace.weights.shape
        names = zip(("layer", "head", "row"), numbers, sizes, strict=False)
        for field, number, size in names:
            if not 0 <= number < size:
                message = f"{field} must be 0 to {size - 1}, but is {number}"
                raise RequestError(404, message, field)
        return trace
