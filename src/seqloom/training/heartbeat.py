"""Workers that watch over each other: one that is stopped, or whose machine is lost, is noticed.

A worker that ends closes its connections, which the others see at once. One that is stopped (SIGSTOP, a
debugger) or cut off keeps them, and the others would wait in their next sum. So a thread of each worker
counts up once a second in the store that they share, and looks whether the others do. It needs no word of the
main thread, which may tokenise, validate or wait for hours.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import final

from torch.distributed.distributed_c10d import Store
from torch.distributed.rendezvous import rendezvous

logger = logging.getLogger(__name__)

INTERVAL = 1.0
STOPPED = 5.0
"""Seconds without a sign after which a worker of this machine is given up if its process is stopped."""
ADVICE = "all workers must run to the end; continue with: seqloom train --resume"


@final
@dataclass(frozen=True)
class Worker:
    """Where a worker runs."""

    rank: int
    host: str
    process: int

    def is_stopped(self) -> bool:
        """Whether its process is on this machine and stopped, by a signal or a debugger."""
        if self.host != socket.gethostname():
            return False
        with suppress(OSError):
            state = Path(f"/proc/{self.process}/stat").read_text().rpartition(")")[2].split()[0]
            return state in ("T", "t")
        return False

    def __str__(self) -> str:
        return f"worker {self.rank} (process {self.process} on {self.host})"


@contextmanager
def watched_workers(store: Store, rank: int, size: int, limit: float) -> Iterator[None]:
    """While it lasts, a worker that gives no sign for `limit` seconds ends this process with one line."""
    own = Worker(rank, socket.gethostname(), os.getpid())
    store.set(f"worker/{rank}", f"{own.process} {own.host}")
    ended = threading.Event()
    thread = threading.Thread(target=_watch, args=(store, own, size, limit, ended), daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(2 * INTERVAL)


def _watch(store: Store, own: Worker, size: int, limit: float, ended: threading.Event) -> None:
    try:
        others = [_worker(store, rank) for rank in range(size) if rank != own.rank]
        silent = _silent_worker(store, own, others, limit, ended)
    except RuntimeError as error:
        if not ended.is_set():
            _end(f"the store of the workers does not answer ({error}); {ADVICE}")
        return
    if silent is not None:
        why = "is stopped" if silent.is_stopped() else f"has given no sign for {limit:g} s"
        # whoever ends all workers, as torchrun does, need not wait for a process that cannot hear it
        if silent.is_stopped():
            with suppress(OSError):
                os.kill(silent.process, signal.SIGCONT)
        _end(f"{silent} {why}; {ADVICE}")


def _worker(store: Store, rank: int) -> Worker:
    process, _, host = store.get(f"worker/{rank}").decode().partition(" ")
    return Worker(rank, host, int(process))


def _silent_worker(
    store: Store, own: Worker, others: list[Worker], limit: float, ended: threading.Event
) -> Worker | None:
    """The first of the others to be given up; None if the work has ended before."""
    before = time.monotonic()
    beats: dict[int, int] = {}
    seen = dict.fromkeys((worker.rank for worker in others), before)
    while not ended.wait(INTERVAL):
        store.add(f"beat/{own.rank}", 1)
        now = time.monotonic()
        slept, before = now - before > STOPPED, now
        for worker in others:
            beat = store.add(f"beat/{worker.rank}", 0)
            # after a sleep of this process, nobody else's silence counts
            if slept or beat != beats.get(worker.rank):
                beats[worker.rank], seen[worker.rank] = beat, now
        silent = [worker for worker in others if now - seen[worker.rank] > min(STOPPED, limit)]
        for worker in silent:
            if now - seen[worker.rank] > limit or worker.is_stopped():
                # the lowest worker that is left says it, and the others follow
                left = [other.rank for other in others if other not in silent]
                if left and min(left) < own.rank:
                    ended.wait(STOPPED)
                return None if ended.is_set() else worker
    return None


def _end(line: str) -> None:
    """The main thread waits in the library that adds up, and cannot be told."""
    logger.error(line)
    os._exit(1)


def shared_store(limit: timedelta) -> Store:
    """The store of all workers, at the place that `torchrun` says in its variables."""
    store: Store = next(rendezvous("env://", timeout=limit))[0]
    store.set_timeout(limit)
    return store
