"""The states that a model carries from one window of a stream to the next: truncated backpropagation through
time.

Row k of the states belongs to stream k, whatever micro-batch or worker reads it. The states are part of a
checkpoint: with them a resumed run continues to the same bits, on any number of workers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, final, runtime_checkable

from torch import Tensor

from seqloom.protocols import Objective, State, detach, select_rows, tensors_of, with_tensors
from seqloom.training.distributed import World


@final
class StreamStates:
    """The states of all streams."""

    def __init__(self, streams: int) -> None:
        self.streams = streams
        self._state: State = None
        self._read_here: set[int] = set()
        """Streams that this worker reads."""

    def get(self, streams: Tensor) -> State:
        """The state in which these streams `(rows,)` continue; None if nothing was read yet."""
        return None if self._state is None else select_rows(self._state, streams)

    def set(self, streams: Tensor, state: State) -> None:
        """Keeps the state in which the streams `(rows,)` continue, without its history."""
        state = detach(state)
        if self._state is None:
            empty = [part.new_zeros(self.streams, *part.shape[1:]) for part in tensors_of(state)]
            self._state = with_tensors(state, empty)
        for whole, part in zip(tensors_of(self._state), tensors_of(state), strict=True):
            whole.index_copy_(0, streams, part)
        self._read_here.update(streams.tolist())

    def tensors(self, world: World) -> list[Tensor]:
        """The tensors `(streams, ...)` of all workers' streams, for a checkpoint; every worker must call
        it."""
        return [world.sum(self._read_here_only(part)) for part in tensors_of(self._state)]

    def _read_here_only(self, part: Tensor) -> Tensor:
        """Zeros at the streams of other workers, so that the sum over workers counts no stream twice."""
        if len(self._read_here) == self.streams:
            return part
        masked = part.new_zeros(part.shape)
        streams = sorted(self._read_here)
        masked[streams] = part[streams]
        return masked

    def load(self, template: State, tensors: Sequence[Tensor]) -> None:
        """Continues from a checkpoint; `template` is any state of the model, which says where in a state each
        tensor belongs."""
        self._state = with_tensors(template, list(tensors)) if tensors else None


@runtime_checkable
class StreamObjective(Objective, Protocol):
    """An objective that may carry states from batch to batch."""

    @property
    def stream_states(self) -> StreamStates | None: ...


def stream_states_of(objective: Objective) -> StreamStates | None:
    """The states that an objective carries from batch to batch, which belong into a checkpoint."""
    return objective.stream_states if isinstance(objective, StreamObjective) else None
