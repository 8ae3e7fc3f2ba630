"""What may be done with any state, whatever the model."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from seqloom.protocols import (
    Loss,
    NeuralDecodable,
    Shared,
    State,
    detach,
    fork,
    next_logits,
    select_rows,
)


class Cell(NamedTuple):
    hidden: tuple[Tensor, ...]
    source: Tensor
    position: int
    nothing: None
    memory: Shared[Tensor]


def state() -> Cell:
    hidden = torch.arange(12.0).view(3, 2, 2).requires_grad_()
    return Cell(
        (hidden * 1, hidden * 2), torch.tensor([0, 1, 1]), 5, None, Shared(torch.ones(2, 4))
    )


def test_choosing_rows_changes_what_belongs_to_rows_only() -> None:
    whole = state()
    few: Cell = select_rows(whole, torch.tensor([2, 2, 0, 1]))
    assert isinstance(few, Cell)
    for mine, its in zip(few.hidden, whole.hidden, strict=True):
        assert torch.equal(mine, torch.stack([its[2], its[2], its[0], its[1]]))
    assert few.source.tolist() == [1, 1, 0, 1]
    assert (few.position, few.nothing) == (5, None)
    assert few.memory is whole.memory
    none: Cell = select_rows(whole, torch.tensor([], dtype=torch.long))
    assert none.hidden[0].shape == (0, 2, 2)


def test_a_bare_tensor_and_none_are_states_too() -> None:
    rows = torch.tensor([1])
    assert select_rows(torch.tensor([3, 4]), rows).tolist() == [4]
    assert select_rows(None, rows) is None
    assert select_rows((), rows) == ()


def test_a_fork_has_buffers_of_its_own() -> None:
    whole = state()
    twin: Cell = fork(whole)
    with torch.no_grad():
        for part in (*twin.hidden, twin.source):
            part.add_(1)
    assert whole.source.tolist() == [0, 1, 1]
    assert torch.equal(whole.hidden[0], torch.arange(12.0).view(3, 2, 2))
    assert twin.memory is whole.memory
    assert isinstance(twin, Cell)


def test_a_detached_state_has_no_history() -> None:
    whole = state()
    cut: Cell = detach(whole)
    assert whole.hidden[0].requires_grad
    assert not any(part.requires_grad for part in cut.hidden)
    assert torch.equal(cut.hidden[1], whole.hidden[1])
    assert cut.memory is whole.memory


class Whole:
    """The call only: logits are the tokens, one-hot; the state counts."""

    def __call__(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        return torch.nn.functional.one_hot(tokens, 4).float(), state + tokens.shape[1]


class Halves(Whole):
    """Both halves; notes for how many positions logits were formed."""

    def __init__(self) -> None:
        self.output = self
        self.formed = 0

    def read(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        return super().__call__(tokens, state)

    def logits(self, hidden: Tensor) -> Tensor:
        self.formed += hidden[..., 0].numel()
        return 2 * hidden

    def loss(self, hidden: Tensor, targets: Tensor, smoothing: float = 0.0) -> Loss:
        raise AssertionError("decoding needs no loss")


def test_next_logits_are_those_after_the_last_step() -> None:
    tokens = torch.tensor([[0, 1, 2], [2, 1, 3]])
    last = [[0.0, 0.0, 1.0, 0.0], [0.0, 0.0, 0.0, 1.0]]
    whole: Any = Whole()
    assert not isinstance(whole, NeuralDecodable)
    logits, after = next_logits(whole, tokens, 0)
    assert (logits.tolist(), after) == (last, 3)

    halves = Halves()
    logits, after = next_logits(as_model(halves), tokens, 0)
    assert (logits.tolist(), after) == ([[2 * value for value in row] for row in last], 3)
    assert halves.formed == 2


def as_model(model: Any) -> Any:
    assert isinstance(model, NeuralDecodable)
    return model
