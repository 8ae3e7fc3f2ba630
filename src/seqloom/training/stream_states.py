"""The state that a model carries from one window of a stream to the next: truncated backpropagation through
time.

Lane k of a stream is row k of the carried state, whatever micro-batch or worker reads it. The state is part
of a checkpoint: with it a run that was stopped goes on to the same bits, on any number of workers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from torch import Tensor

from seqloom.protocols import State, detach, select_rows, tensors_of, with_tensors
from seqloom.training.distributed import World


@final
class StreamStates:
    """The states of all lanes."""

    def __init__(self, lanes: int) -> None:
        self.lanes = lanes
        self._state: State = None
        self._mine: set[int] = set()
        """Lanes that this worker reads."""

    def take(self, lanes: Tensor) -> State:
        """The state that these lanes `(rows,)` go on with; None where nothing was read yet."""
        return None if self._state is None else select_rows(self._state, lanes)

    def put(self, lanes: Tensor, state: State) -> None:
        """Keeps what the lanes `(rows,)` go on with, without its history."""
        state = detach(state)
        if self._state is None:
            self._state = with_tensors(
                state, [part.new_zeros(self.lanes, *part.shape[1:]) for part in tensors_of(state)]
            )
        for whole, part in zip(tensors_of(self._state), tensors_of(state), strict=True):
            whole.index_copy_(0, lanes, part)
        self._mine.update(lanes.tolist())

    def tensors(self, world: World) -> list[Tensor]:
        """All lanes of all workers, `(lanes, ...)` each, for a checkpoint; every worker must ask."""
        return [world.sum(self._only_mine(part)) for part in tensors_of(self._state)]

    def _only_mine(self, part: Tensor) -> Tensor:
        if len(self._mine) == self.lanes:
            return part
        kept = part.new_zeros(part.shape)
        mine = sorted(self._mine)
        kept[mine] = part[mine]
        return kept

    def load(self, template: State, tensors: Sequence[Tensor]) -> None:
        """Goes on from a checkpoint; `template` is any state of the model, which says what the tensors are
        parts of."""
        self._state = with_tensors(template, list(tensors)) if tensors else None
