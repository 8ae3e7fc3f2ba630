"""Weights in a faster layout, kept while text is decoded and nowhere else.

Every step of decoding multiplies a few rows with the same large matrices. A copy of a matrix in the layout
that suits such a product pays for itself within a few steps, but it does not follow a change of the weight.
So copies are made and read only while somebody has opened a `PackedWeights`, which says that the weights stay
as they are. Outside of it every forward pass reads the weight itself.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import final

from torch import Tensor


@final
class PackedWeights:
    """Packed copies by weight, made at their first use; as large as the weights. They live as long as this
    object and are read only while it is open:

        weights = PackedWeights()
        with weights:
            logits, state = model(tokens, state)

    It may be opened again and again, as a generator must that gives up control between its steps. Within
    another one that is open in the same thread it adds nothing: the outer one serves.
    """

    def __init__(self) -> None:
        self._packed: dict[int, tuple[Tensor, Tensor]] = {}
        """By the id of the weight: the weight, which keeps the id its own, and its packed copy."""

    def __enter__(self) -> None:
        outer = current()
        _THREAD.opened.append(self if outer is None else outer)

    def __exit__(self, *_: object) -> None:
        _THREAD.opened.pop()

    def get(self, weight: Tensor, pack: Callable[[Tensor], Tensor]) -> Tensor:
        """The packed copy of `weight`, made by `pack` when it is first asked for."""
        known = self._packed.get(id(weight))
        if known is None:
            known = self._packed[id(weight)] = weight, pack(weight.detach())
        return known[1]


@final
class _Thread(threading.local):
    def __init__(self) -> None:
        self.opened: list[PackedWeights] = []


_THREAD = _Thread()


def current() -> PackedWeights | None:
    """The one that is open in this thread; None outside of decoding."""
    opened = _THREAD.opened
    return opened[-1] if opened else None


@contextmanager
def packed_weights() -> Iterator[None]:
    """A `PackedWeights` for one block, or as a decorator for one call of a function."""
    with PackedWeights():
        yield
