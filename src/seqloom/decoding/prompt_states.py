"""The states after the prompts that were read last, so that a prompt which goes on from one of them (the next
turn of a chat, a text that grows) is read from there."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import final

from seqloom.protocols import State, fork, tensors_of

SHORTEST = 16
"""Tokens of a prompt that is worth a copy of its state."""
MOST_BYTES = 2**28
"""Of all states together. A model on a GPU keeps them there."""


@final
class PromptStates:
    """States of a language model by the prompt that was read, the latest last."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._states: OrderedDict[tuple[int, ...], State] = OrderedDict()
        self._bytes = 0

    def longest(self, prompt: Sequence[int]) -> tuple[int, State]:
        """The most tokens at the beginning of a prompt that were read, not all of it, and a copy of the state
        after them; 0 and None where there are none."""
        ids = tuple(prompt)
        best: tuple[int, ...] = ()
        for known in self._states:
            if len(best) < len(known) < len(ids) and ids[: len(known)] == known:
                best = known
        if not best:
            return 0, None
        self._states.move_to_end(best)
        return len(best), fork(self._states[best])

    def keep(self, prompt: Sequence[int], state: State) -> None:
        """Remembers a copy of the state; the oldest ones make room for it."""
        ids, size = tuple(prompt), size_of(state)
        if len(ids) < SHORTEST or ids in self._states or size > self._most_bytes:
            return
        self._states[ids] = fork(state)
        self._bytes += size
        while self._bytes > self._most_bytes:
            _, oldest = self._states.popitem(last=False)
            self._bytes -= size_of(oldest)


def size_of(state: State) -> int:
    return sum(tensor.nbytes for tensor in tensors_of(state))
