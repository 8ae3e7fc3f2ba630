"""The n-grams of one order in sorted arrays, found by a hash table."""

from __future__ import annotations

from typing import final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

GOLDEN = -0x61C8864680B583EB
"""2^64 divided by the golden ratio, as a signed integer."""


@final
class NgramTable(nn.Module):
    """All n-grams of one order from 2 on. Each has a number from 1 on; 0 means an unknown n-gram.

    They are sorted by their keys: number of the first n-1 words (of a single word: its id) x vocabulary +
    last word. So n-grams with one history are neighbours, and the number of a history and one more word give
    the number of the n-gram. A hash table finds keys. It is built when first needed and not saved.
    """

    def __init__(self, size: int, vocabulary_size: int, *, highest: bool) -> None:
        super().__init__()
        self.vocabulary_size = vocabulary_size
        self.keys: Tensor
        self.register_buffer("keys", torch.full((1 + size,), -1, dtype=torch.int64))
        self.log_prob: Tensor
        self.register_buffer("log_prob", torch.zeros(1 + size))
        self.backoff: Tensor
        weights = 1 if highest else 1 + size  # an n-gram of the highest order is never a history
        self.register_buffer("backoff", torch.zeros(weights))
        self.table: Tensor | None
        self.register_buffer("table", None, persistent=False)
        self.register_load_state_dict_post_hook(_forget_table)  # type: ignore[no-untyped-call]

    def fill(
        self,
        keys: NDArray[np.int64],
        log_prob: NDArray[np.float32],
        backoff: NDArray[np.float32],
    ) -> None:
        """Copies the n-grams of this order, sorted by their keys."""
        self.keys[1:] = torch.from_numpy(keys)
        self.log_prob[1:] = torch.from_numpy(log_prob)
        self.backoff[1:] = torch.from_numpy(backoff)[: len(self.backoff) - 1]

    def find(self, history: Tensor, words: Tensor) -> Tensor:
        """Numbers of the n-grams history + word `(n,)`; the histories `(n,)` are given by their numbers."""
        if self.table is None:
            self.table = self._make_table()
        numbers = torch.zeros_like(history)
        pending = history.nonzero()[:, 0]  # indices of the n-grams that are still searched for
        keys = (
            history.index_select(0, pending)
            .mul_(self.vocabulary_size)
            .add_(words.index_select(0, pending))
        )
        slots = self._first_slots(keys)
        while len(pending):
            number = self.table.index_select(0, slots)
            found = self.keys.index_select(0, number) == keys
            numbers.index_copy_(0, pending, number.where(found, 0).long())
            # by another key: the next slot is tried
            taken = ((number != 0) & ~found).nonzero()[:, 0]
            pending, keys = pending.index_select(0, taken), keys.index_select(0, taken)
            slots = slots.index_select(0, taken).add_(1)
        return numbers

    def following(self, history: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The known continuations of histories `(n,)`: (index of the history, next word, number of the
        n-gram)."""
        first = torch.searchsorted(self.keys, history * self.vocabulary_size)
        count = torch.searchsorted(self.keys, (history + 1) * self.vocabulary_size) - first
        index = torch.arange(len(history), device=history.device).repeat_interleave(count)
        number = (
            torch.arange(len(index), device=history.device)
            + (first - count.cumsum(0) + count)[index]
        )
        return index, self.keys[number] % self.vocabulary_size, number

    def _first_slots(self, keys: Tensor) -> Tensor:
        """The slot where the search for a key begins: multiplicative hashing (Knuth), twice."""
        mixed = keys * GOLDEN
        mixed ^= mixed >> 32  # otherwise keys at equal distances would share their slots
        mixed *= GOLDEN
        return (mixed >> (64 - self._slot_bits())).bitwise_and_((1 << self._slot_bits()) - 1)

    def _slot_bits(self) -> int:
        return (2 * len(self.keys)).bit_length()  # at least half of the slots are free

    def _make_table(self) -> Tensor:
        """Linear probing: each number is in the first slot of its key, or in the next free one. Free slots
        hold 0."""
        first_slots, order = self._first_slots(self.keys[1:]).sort()
        steps = torch.arange(len(first_slots), device=first_slots.device)
        slots = (first_slots - steps).cummax(
            0
        ).values + steps  # ascending, each at or after its first slot
        size = max([1 << self._slot_bits(), *(slots[-1:] + 1).tolist()]) + 1
        dtype = torch.int32 if size < 2**31 else torch.int64
        table = torch.zeros(size, dtype=dtype, device=slots.device)
        table[slots] = (order + 1).to(table.dtype)
        return table


def _forget_table(grams: NgramTable, _: object) -> None:
    """Loading has changed the keys."""
    grams.table = None
