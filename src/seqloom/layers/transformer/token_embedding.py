"""How a model embeds one token of each row, where all rows have read equally many, as the compiled step does
it."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import partial
from typing import NamedTuple, final

import torch
from torch import Tensor, nn

from seqloom.layers.packed_linear import packed_linear
from seqloom.layers.transformer.key_value_cache import MIN_SLOTS
from seqloom.layers.transformer.positions import LearnedPositions
from seqloom.layers.transformer.step_arguments import NormArguments, StepArguments, TokenArguments
from seqloom.native.library import in_memory
from seqloom.packed_weights import PackedWeights

ByPosition = Callable[[Tensor], Tensor]
"""Makes a tensor for the positions 0, 1, 2, ... `(n,)`."""


class TokenEmbedding(NamedTuple):
    """`norm(scale * weight[token] + positions[p])`, and what a position does to scores."""

    weight: Tensor
    """`(vocabulary, width)`"""
    pad: int
    start: int
    """The id that begins a document; where none does, that of `<pad>`."""
    positions: ByPosition | None = None
    """`(n,)` -> `(n, width)`; None where nothing is added."""
    limit: int | None = None
    """How many positions there are."""
    scale: float = 1.0
    norm: nn.Module | None = None
    bias: ByPosition | None = None
    """`(n,)` -> `(heads, n)`: what is added to the scores that the last of n tokens has for all of them. It
    depends on distances only."""

    def with_learned(self, positions: LearnedPositions) -> TokenEmbedding:
        limit = positions.context
        return self._replace(positions=partial(positions, bound=limit), limit=limit)


@final
class _Table:
    """A tensor by position, made anew for twice as many when it gets too short."""

    def __init__(self, make: ByPosition, limit: int | None) -> None:
        self._make, self._limit = make, limit
        self.tensor, self.positions = torch.empty(0), 0

    def reach(self, position: int) -> None:
        if position < self.positions:
            return
        self.positions = max(MIN_SLOTS, 2 * (position + 1))
        if self._limit is not None:
            self.positions = min(self.positions, self._limit)
        made = self._make(torch.arange(self.positions, device="cpu"))
        self.tensor = made.detach().float().contiguous()


@final
class NativeEmbedding:
    """A `TokenEmbedding` as the compiled step reads it."""

    def __init__(
        self, given: TokenEmbedding, weights: PackedWeights, norm: NormArguments | None
    ) -> None:
        self._limit = given.limit
        self._positions = given.positions and _Table(given.positions, given.limit)
        self._bias = given.bias and _Table(given.bias, given.limit)
        self._weight = given.weight
        vocabulary, self._width = given.weight.shape
        self._tokens = TokenArguments(
            vocabulary=vocabulary, pad=given.pad, start=given.start, scale=given.scale
        )
        if norm is not None:
            self._tokens.norm = norm
        if weights.storage == "float32" and in_memory(given.weight, torch.float32):
            self._tokens.embedding = self._weight.data_ptr()
        else:
            self._tokens.stored = packed_linear(weights, given.weight).arguments(None)

    def put(self, arguments: StepArguments, tokens: Tensor, known: Tensor, position: int) -> bool:
        """tokens `(rows, 1)` at a position, for the step that keeps their ids in `known`, `(rows, slots)`.
        False where there is no such position."""
        if self._limit is not None and position >= self._limit:
            return False
        own = arguments.tokens
        ctypes.memmove(ctypes.byref(own), ctypes.byref(self._tokens), ctypes.sizeof(own))
        own.ids, own.known, own.known_stride = tokens.data_ptr(), known.data_ptr(), known.stride(0)
        if self._positions is not None:
            self._positions.reach(position)
            own.positions = self._positions.tensor.data_ptr() + 4 * self._width * position
        if self._bias is not None:
            self._bias.reach(position)
            # that of a query at the last place, of which the last keys are as far as here
            unused = self._bias.positions - 1 - position
            arguments.bias = self._bias.tensor.data_ptr() + 4 * unused
            arguments.head_bias = self._bias.positions
        return True
