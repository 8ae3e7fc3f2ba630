"""Workers, as `torchrun` starts them, and the few things that they must agree on."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from typing import final

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.distributed_c10d import PrefixStore
from torch.nn.parallel import DistributedDataParallel

from seqloom.errors import (
    DataError,
    FolderError,
    SeqloomError,
    TrainingError,
    UsageError,
    one_line,
    shown,
)
from seqloom.protocols import Batch, Objective
from seqloom.training.heartbeat import shared_store, watched_workers

SHARED_ERRORS = (SeqloomError, UsageError, DataError, FolderError, TrainingError)
"""The error classes that workers send to each other, by index; any other is sent as the first."""

WORKER_TIMEOUT = timedelta(days=1)
"""How long a worker waits for the others in a sum. Torch's half hour is too short while the first one
tokenises or validates for all. A dead worker is noticed at once all the same, as its connections are closed,
and one that is stopped or lost by its silence (`heartbeat.py`)."""


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
        """The sum over all workers, on all workers. Raises TrainingError if one of them is gone."""
        if self.size == 1:
            return value
        total = value.to("cpu")
        _reduce(total, dist.ReduceOp.SUM)
        return total.to(value.device)

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
        """A block that all workers finish or none: waits for all at its end, and a SeqloomError of one is
        raised by all.

        Where several fail, the error of the lowest rank counts.
        """
        failure: SeqloomError | None = None
        try:
            yield
        except SeqloomError as error:
            failure = error
        # the largest of (size - rank) belongs to the lowest rank that failed; 0 means that none did
        signal = 0 if failure is None else self.size - self.rank
        sender = self.size - self.largest(signal)
        if sender == self.size:
            return
        own = failure if sender == self.rank else None
        received = self._broadcast_error(own)
        raise received if own is None else own

    def _broadcast_error(self, own: SeqloomError | None) -> SeqloomError:
        """The error of the one worker that has one, on all workers: its index in SHARED_ERRORS and its
        message as bytes, both as sums in which all others are zero."""
        kind = SHARED_ERRORS.index(type(own)) if type(own) in SHARED_ERRORS else 0
        text = b"" if own is None else str(own).encode("utf-8", "surrogatepass")
        kind, length = self.sum(torch.tensor([kind, len(text)])).tolist()
        message = self.sum(torch.tensor(list(text) or [0] * length, dtype=torch.uint8))
        return SHARED_ERRORS[kind](bytes(message.tolist()).decode("utf-8", "surrogatepass"))


def _reduce(value: Tensor, operation: dist.ReduceOp.RedOpType) -> None:
    try:
        dist.all_reduce(value, operation)
    except RuntimeError as error:
        raise TrainingError(
            f"all workers must stay to the end, but one has ended or cannot be reached ({error})"
        ) from error


def _variable(name: str, default: int) -> int:
    """A number that `torchrun` sets. Raises UsageError if it is not a number."""
    value = os.environ.get(name, str(default))
    if value.isdecimal() and value.isascii() and len(value) < 10:
        return int(value)
    raise UsageError(
        f"the environment variable {name} must be a whole number from 0 on, as torchrun sets it, but is"
        f" {shown(value)!r}; unset it"
    )


@contextmanager
def joined_world(limit: float = 600) -> Iterator[World]:
    """Joins the workers that `torchrun` started; a world of one without it. Reads only RANK, WORLD_SIZE and
    the other variables of `torchrun`. A worker that gives no sign for `limit` seconds ends the others."""
    size = _variable("WORLD_SIZE", 1)
    if "RANK" not in os.environ or size < 2:
        yield World()
        return
    if (rank := _variable("RANK", 0)) >= size:
        raise UsageError(
            f"RANK must be below WORLD_SIZE, {size}, but is {rank}; torchrun sets both"
        )
    cuda = torch.cuda.is_available()
    if cuda:
        torch.cuda.set_device(_variable("LOCAL_RANK", 0) % torch.cuda.device_count())
    backend = "cpu:gloo,cuda:nccl" if cuda else "gloo"
    try:
        store = shared_store(WORKER_TIMEOUT)
        dist.init_process_group(
            backend, store=store, rank=rank, world_size=size, timeout=WORKER_TIMEOUT
        )
    except (ValueError, RuntimeError) as error:
        raise TrainingError(
            f"the {size} workers of torchrun must find each other at MASTER_ADDR and MASTER_PORT, but do not"
            f" ({one_line(str(error), 300)})"
        ) from None
    try:
        # a connection of its own, for the main thread may wait on the other
        own = PrefixStore("watch", store.clone())  # type: ignore[attr-defined]
        with watched_workers(own, rank, size, limit):
            yield World(rank, size)
    finally:
        dist.destroy_process_group()


@final
class ModelWithLoss(nn.Module):
    """A model with its objective, as one module from batch to (total, count), which is what DDP can wrap."""

    def __init__(self, model: nn.Module, objective: Objective) -> None:
        super().__init__()
        self.model, self.objective = model, objective

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        return self.objective(self.model, batch)


def data_parallel(module: ModelWithLoss, world: World) -> nn.Module:
    """The module whose gradients are averaged over workers as backward computes them."""
    return DistributedDataParallel(module) if world.size > 1 else module


def no_gradient_sync(module: nn.Module) -> AbstractContextManager[None]:
    """A context in which gradients only add up on this worker: for all micro-batches but the last."""
    return module.no_sync() if isinstance(module, DistributedDataParallel) else nullcontext()
