"""Workers: what `torchrun` says, and the few things that workers must agree on."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, final

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from seqloom.errors import DataError, FolderError, SeqloomError, TrainingError, UsageError
from seqloom.protocols import Loss, Objective

TOLD = (SeqloomError, UsageError, DataError, FolderError, TrainingError)
"""The errors that workers tell each other, by number; any other is told as the first."""

PATIENCE = timedelta(days=1)
"""How long a worker waits for the others. Torch's half hour is too short while the first one tokenises or
validates for all; a worker that has died is noticed at once all the same: its connections are closed, and
`torchrun` ends the rest."""


@final
@dataclass(frozen=True)
class World:
    """Which worker this is, and of how many."""

    rank: int = 0
    size: int = 1

    @property
    def first(self) -> bool:
        return self.rank == 0

    def sum(self, value: Tensor) -> Tensor:
        """The sum over all workers, on all workers. Raises TrainingError where one of them is gone."""
        if self.size == 1:
            return value
        moved = value.to("cpu")
        _reduce(moved, dist.ReduceOp.SUM)
        return moved.to(value.device)

    def largest(self, value: int) -> int:
        """The largest value of all workers, known to all."""
        if self.size < 2:
            return value
        largest = torch.tensor(value)
        _reduce(largest, dist.ReduceOp.MAX)
        return int(largest)

    def barrier(self) -> None:
        """Waits until all workers are here; over gloo, which workers that share one GPU can use too."""
        self.sum(torch.zeros(1))

    @contextmanager
    def together(self) -> Iterator[None]:
        """A part that all workers finish or none: waits for all at its end, and a SeqloomError of one is
        raised by all.

        Where several fail, the first of them is heard.
        """
        failed: SeqloomError | None = None
        try:
            yield
        except SeqloomError as error:
            failed = error
        speaker = self.size - self.largest(0 if failed is None else self.size - self.rank)
        if speaker == self.size:
            return
        mine = failed if speaker == self.rank else None
        told = self._told(mine)
        raise told if mine is None else mine

    def _told(self, mine: SeqloomError | None) -> SeqloomError:
        """The error of the one worker that has one to tell, known to all: its number in TOLD and its message
        as bytes."""
        kind = TOLD.index(type(mine)) if type(mine) in TOLD else 0
        text = b"" if mine is None else str(mine).encode("utf-8", "surrogatepass")
        kind, length = self.sum(torch.tensor([kind, len(text)])).tolist()
        message = self.sum(torch.tensor(list(text) or [0] * length, dtype=torch.uint8))
        return TOLD[kind](bytes(message.tolist()).decode("utf-8", "surrogatepass"))


def _reduce(value: Tensor, how: dist.ReduceOp.RedOpType) -> None:
    try:
        dist.all_reduce(value, how)
    except RuntimeError as error:
        raise TrainingError(
            f"all workers must stay to the end, but one has ended or cannot be reached ({error})"
        ) from error


@contextmanager
def joined_world() -> Iterator[World]:
    """Joins the workers that `torchrun` started; alone where nobody did. Reads RANK, WORLD_SIZE and their kin
    only."""
    if "RANK" not in os.environ or int(os.environ.get("WORLD_SIZE", "1")) < 2:
        yield World()
        return
    cuda = torch.cuda.is_available()
    if cuda:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    dist.init_process_group("cpu:gloo,cuda:nccl" if cuda else "gloo", timeout=PATIENCE)
    try:
        yield World(dist.get_rank(), dist.get_world_size())
    finally:
        dist.destroy_process_group()


@final
class Trained(nn.Module):
    """A model with its objective, as one module from batch to (total, count), which is what DDP can wrap."""

    def __init__(self, model: nn.Module, objective: Objective) -> None:
        super().__init__()
        self.model, self.objective = model, objective

    def forward(self, batch: Any) -> tuple[Tensor, Tensor]:
        loss: Loss = self.objective(self.model, batch)
        return loss.total, loss.count


def distributed(trained: Trained, world: World) -> nn.Module:
    """The module whose gradients are averaged over workers as backward forms them."""
    return DistributedDataParallel(trained) if world.size > 1 else trained


def without_sync(module: nn.Module) -> Any:
    """A context in which gradients only add up on this worker: for all micro-batches but the last."""
    return module.no_sync() if isinstance(module, DistributedDataParallel) else nullcontext()
