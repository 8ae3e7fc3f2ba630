"""A model with the state of the rows that are decoded: it makes the calls that a search asks for."""

from __future__ import annotations

from typing import NamedTuple, final

import torch
from torch import Tensor

from seqloom.packed_weights import PackedWeights
from seqloom.protocols import (
    Decodable,
    NextLogProbs,
    State,
    WantedTokens,
    join_rows,
    next_log_probs,
    reorder_in_place,
    select_rows,
)


class Prefill(NamedTuple):
    """A search begins: the model reads each prompt once."""

    prompts: Tensor
    """`(prompts, longest)`, padded on the left."""
    rows_per_input: int
    """Rows that go on from each prompt, with states and log-probabilities that are copies."""
    wanted: WantedTokens | None = None
    """What it needs to know of the next tokens; None for all."""


class Step(NamedTuple):
    """A search goes on: the model reads one more token of each live row."""

    tokens: Tensor
    """`(rows, 1)`"""
    parents: Tensor | None
    """`(rows,)`: the earlier row that each continues; None where each continues itself."""
    wanted: WantedTokens | None = None
    """As in `Prefill`."""


@final
class Decoder:
    """A model and its state.

    A row keeps its slot in the state for as long as it lives, so its cache is not copied; only a further
    child of a row is copied, into the slot of a row that died.
    """

    def __init__(self, model: Decodable) -> None:
        self.model = model
        self._state: State = None
        # open during calls only: the caller may do anything between two steps
        self._weights = PackedWeights()
        self._slots: list[int] = []
        """The slot of each live row."""
        self._order: Tensor | None = None
        """The same as a tensor; None where row k is in slot k."""

    @property
    def rows(self) -> int:
        return len(self._slots)

    def read(
        self, tokens: Tensor, state: State, wanted: WantedTokens | None
    ) -> tuple[NextLogProbs, State]:
        """tokens `(rows, steps)` -> what may come after the last one, and the state. Its own state stays."""
        with self._weights, torch.inference_mode():
            return next_log_probs(self.model, tokens, state, None, wanted)

    def prefill(self, call: Prefill, state: State) -> NextLogProbs:
        """Reads the prompts after `state`, which has a row for each."""
        following, state = self.read(call.prompts, state, call.wanted)
        self.drop()
        return self.join(following, state, call.rows_per_input)

    @torch.inference_mode()
    def join(self, following: NextLogProbs, state: State, rows_per_input: int) -> NextLogProbs:
        """Rows join those that are there, below them: some for each row of a state that has read its prompt.
        -> what may come next in them."""
        device = following.log_probs.device
        if rows_per_input > 1:
            inputs = torch.arange(len(following.log_probs), device=device)
            repeated = inputs.repeat_interleave(rows_per_input)
            following, state = following.select(repeated), select_rows(state, repeated)
        before = len(self._slots)
        self._state = join_rows([self._state, state]) if before else state
        self._slots += range(before, before + len(following.log_probs))
        self._order = self._order_of_slots(device)
        return following

    def drop(self) -> None:
        """All rows leave."""
        self._state, self._slots, self._order = None, [], None

    @torch.inference_mode()
    def step(self, call: Step) -> NextLogProbs:
        tokens = call.tokens
        if call.parents is not None:
            self._reorder(call.parents.tolist(), tokens.device)
        if self._order is not None:
            tokens = torch.empty_like(tokens).index_copy_(0, self._order, tokens)
        with self._weights:
            following, self._state = next_log_probs(
                self.model, tokens, self._state, self._order, call.wanted
            )
        return following

    def _reorder(self, parents: list[int], device: torch.device) -> None:
        slots_before, count = len(self._slots), len(parents)
        parent_slots = [self._slots[parent] for parent in parents]
        # the first child of each parent stays in its slot, unless the state gets too short for that slot
        first_child: dict[int, int] = {}
        for child, slot in enumerate(parent_slots):
            if slot < count:
                first_child.setdefault(slot, child)
        # every other child takes a free slot, and its parent's state is copied there
        free = (slot for slot in range(count) if slot not in first_child)
        self._slots, sources = [], [0] * count
        for child, parent_slot in enumerate(parent_slots):
            slot = parent_slot if first_child.get(parent_slot) == child else next(free)
            self._slots.append(slot)
            sources[slot] = parent_slot
        if sources != list(range(slots_before)):
            self._state = reorder_in_place(self._state, torch.tensor(sources, device=device))
        self._order = self._order_of_slots(device)

    def _order_of_slots(self, device: torch.device) -> Tensor | None:
        if self._slots == list(range(len(self._slots))):
            return None
        return torch.tensor(self._slots, device=device)
