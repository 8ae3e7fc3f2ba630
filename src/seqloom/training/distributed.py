"""Workers: what `torchrun` says, and the few things that workers must agree on."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, final

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from seqloom.protocols import Loss, Objective


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
        """The sum over all workers, on all workers."""
        if self.size == 1:
            return value
        device = "cuda" if dist.get_backend() == "nccl" else "cpu"
        moved = value.to(device)
        dist.all_reduce(moved)
        return moved.to(value.device)

    def largest(self, value: int) -> int:
        """The largest value of all workers, known to all."""
        if self.size < 2:
            return value
        largest = torch.tensor(value)
        dist.all_reduce(largest, dist.ReduceOp.MAX)
        return int(largest)

    def barrier(self) -> None:
        """Waits until all workers are here; over gloo, which workers that share one GPU can use too."""
        self.sum(torch.zeros(1))


@contextmanager
def joined_world() -> Iterator[World]:
    """Joins the workers that `torchrun` started; alone where nobody did. Reads RANK, WORLD_SIZE and their kin only."""
    if "RANK" not in os.environ or int(os.environ.get("WORLD_SIZE", "1")) < 2:
        yield World()
        return
    cuda = torch.cuda.is_available()
    if cuda:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    dist.init_process_group("cpu:gloo,cuda:nccl" if cuda else "gloo")
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
