"""Weights in a faster layout, kept while text is decoded and nowhere else.

Every step of decoding multiplies a few rows with the same large matrices. A copy of a matrix in the layout
that suits such a product pays for itself within a few steps, but it does not follow a change of the weight.
So copies are made and read only while somebody has opened a `PackedWeights`, which says that the weights stay
as they are. Outside of it every forward pass reads the weight itself.

The copies may also have fewer bits (`storage`). Then results differ, and only whoever decodes asks for it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, TypeVar, final

if TYPE_CHECKING:  # the settings of the command line need this module, and no torch
    from torch import Tensor, nn

Storage = Literal["float32", "bfloat16", "int8"]
"""Of a weight: exactly; its upper half; or whole numbers up to 127 with a scale for each row."""

Packable = TypeVar("Packable")
Packed = TypeVar("Packed")


@final
class PackedWeights:
    """Packed copies by weight, made at their first use; as large as the weights. They live as long as this
    object and are read only while it is open:

        weights = PackedWeights()
        with weights:
            logits, state = model(tokens, state)

    It may be opened again and again, as a generator must that gives up control between its steps. Within
    another one of the same storage that is open in the same thread it adds nothing: the outer one serves,
    unless this one alone shall go without compiled code.
    """

    def __init__(self, storage: Storage = "float32", *, compiled: bool = True) -> None:
        self.storage = storage
        self.compiled = compiled
        """Whether compiled code may serve."""
        self._packed: dict[int, tuple[object, Any]] = {}
        """By the id of a weight or module: that itself, which keeps the id its own, and its packed copy."""
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        outer = current()
        serves = outer is not None and self._is_served_by(outer)
        _THREAD.opened.append(outer if outer is not None and serves else self)

    def __exit__(self, *_: object) -> None:
        _THREAD.opened.pop()

    def _is_served_by(self, outer: PackedWeights) -> bool:
        return outer.storage == self.storage and self.compiled >= outer.compiled

    def get(self, original: Packable, pack: Callable[[Packable], Packed]) -> Packed:
        """The packed copy of a weight, or of all weights of a module, made by `pack` when it is first asked
        for."""
        known = self._packed.get(id(original))
        if known is None:
            with self._lock:
                known = self._packed.get(id(original))
                if known is None:
                    known = self._packed[id(original)] = original, pack(original)
        packed: Packed = known[1]
        return packed


@final
class KeptWeights:
    """The `PackedWeights` of a model that is asked again and again, for as long as nobody changes its
    weights."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._kept: dict[Storage, tuple[list[object], PackedWeights]] = {}

    def of(self, storage: Storage = "float32") -> PackedWeights:
        outer = current()
        if outer is not None and outer.storage == storage:
            return outer  # who opened it says that the weights stay as they are
        marks: list[object] = [_mark(weight) for weight in self._model.parameters()]
        kept = self._kept.get(storage)
        if kept is None or kept[0] != marks:
            kept = self._kept[storage] = marks, PackedWeights(storage)
        return kept[1]


def _mark(weight: Tensor) -> tuple[int, int, int]:
    """Another one after each change of a weight."""
    changes = 0 if weight.is_inference() else weight._version
    return id(weight), weight.data_ptr(), changes


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
    """The `PackedWeights` that is open, or one for a block; as a decorator for a call of a function."""
    with current() or PackedWeights():
        yield
