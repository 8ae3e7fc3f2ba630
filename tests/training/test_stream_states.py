"""The state of streams between windows: streams keep apart, in any order, over checkpoints and workers."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from seqloom.training.distributed import World
from seqloom.training.stream_states import StreamStates


class State(NamedTuple):
    hidden: Tensor
    inner: tuple[Tensor, None]


def state(*values: float) -> State:
    column = torch.tensor(values, dtype=torch.float32)[:, None].requires_grad_()
    return State(column * 1, (column.expand(-1, 3) * 10, None))


def test_there_is_no_state_at_first() -> None:
    assert StreamStates(3).get(torch.tensor([0, 1])) is None


def test_streams_keep_apart_whatever_their_order() -> None:
    states = StreamStates(4)
    states.set(torch.tensor([2, 0]), state(3, 1))
    states.set(torch.tensor([1, 3]), state(2, 4))
    taken = states.get(torch.tensor([3, 2, 1, 0]))
    assert isinstance(taken, State)
    assert taken.hidden[:, 0].tolist() == [4, 3, 2, 1]
    assert taken.inner[0][:, 2].tolist() == [40, 30, 20, 10]
    assert taken.inner[1] is None


def test_a_state_has_no_history_and_is_not_changed_by_its_user() -> None:
    states = StreamStates(1)
    states.set(torch.tensor([0]), state(5))
    taken = states.get(torch.tensor([0]))
    assert not taken.hidden.requires_grad
    taken.hidden.add_(1)
    assert states.get(torch.tensor([0])).hidden.item() == 5


def test_a_checkpoint_gives_back_all_streams() -> None:
    states, resumed = StreamStates(3), StreamStates(3)
    states.set(torch.tensor([0, 1, 2]), state(1, 2, 3))
    resumed.load(state(0), states.tensors(World()))
    for streams in ([0], [2, 1]):
        for mine, its in zip(
            states.get(torch.tensor(streams)), resumed.get(torch.tensor(streams)), strict=True
        ):
            assert str(mine) == str(its)
    resumed.load(state(0), [])
    assert resumed.get(torch.tensor([0])) is None


def test_workers_add_only_their_own_streams() -> None:
    """Two workers that both resumed from one checkpoint: their sum is no stream counted twice."""
    first, second = StreamStates(4), StreamStates(4)
    for worker in (first, second):
        worker.load(state(0), [torch.full((4, 1), 7.0), torch.full((4, 3), 7.0)])
    first.set(torch.tensor([0, 2]), state(1, 3))
    second.set(torch.tensor([1, 3]), state(2, 4))
    parts = [worker.tensors(World()) for worker in (first, second)]
    assert (parts[0][0] + parts[1][0])[:, 0].tolist() == [1, 2, 3, 4]
