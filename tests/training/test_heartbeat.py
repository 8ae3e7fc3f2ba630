"""A worker that is stopped or lost is noticed in time, and one that works is not."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from types import SimpleNamespace

import pytest
from tests.training.test_distributed import two_workers
from torch.distributed import HashStore  # type: ignore[attr-defined]
from torch.distributed.distributed_c10d import Store

from seqloom.training import heartbeat
from seqloom.training.heartbeat import Worker

ELSEWHERE = Worker(1, "another-machine", 1)
HERE = Worker(0, socket.gethostname(), os.getpid())


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setattr(heartbeat, "INTERVAL", 0.01)
    found: Store = HashStore()
    found.set_timeout(timedelta(seconds=5))
    return found


@pytest.fixture
def beating(store: Store) -> Iterator[None]:
    """Worker 1 gives signs."""
    ended = threading.Event()

    def beat() -> None:
        while not ended.wait(0.01):
            store.add("beat/1", 1)

    thread = threading.Thread(target=beat)
    thread.start()
    yield
    ended.set()
    thread.join()


def given_up(store: Store, *others: Worker, limit: float, seconds: float) -> Worker | None:
    ended = threading.Event()
    timer = threading.Timer(seconds, ended.set)
    timer.start()
    try:
        return heartbeat._silent_worker(store, HERE, list(others), limit, ended)
    finally:
        timer.cancel()


def test_a_lost_worker_is_given_up_after_the_limit(store: Store) -> None:
    began = time.monotonic()
    assert given_up(store, ELSEWHERE, limit=0.3, seconds=20) == ELSEWHERE
    assert time.monotonic() - began >= 0.3


@pytest.mark.usefixtures("beating")
def test_a_worker_that_works_is_not(store: Store) -> None:
    lost = Worker(2, "another-machine", 1)
    assert given_up(store, ELSEWHERE, limit=1, seconds=2) is None
    assert given_up(store, ELSEWHERE, lost, limit=1, seconds=20) == lost


def test_nobody_is_given_up_after_a_sleep_of_ones_own(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Ctrl-Z stops all workers, and `fg` continues them."""
    clock = iter(range(0, 10**6, 20))
    # not the clock of the whole process, which the loop of a server in another thread reads too
    monkeypatch.setattr(heartbeat, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    assert given_up(store, ELSEWHERE, limit=10, seconds=0.5) is None


def test_a_stopped_process_is_known() -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        worker = Worker(1, socket.gethostname(), process.pid)
        try:
            assert not worker.is_stopped()
            process.send_signal(signal.SIGSTOP)
            os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
            assert worker.is_stopped()
            assert not Worker(1, "another-machine", process.pid).is_stopped()
        finally:
            process.kill()
    assert not worker.is_stopped()


STOPPING = """
import os, signal, threading
from seqloom.cli.terminal import notices_on_standard_error
from seqloom.training.distributed import joined_world

os.dup2(1, 2)
with notices_on_standard_error(), joined_world() as world:
    world.barrier()
    if world.rank:
        # to this thread: sent to the process, another may take it, and this one reach the barrier
        signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
    world.barrier()
    print("not noticed", flush=True)
"""


def test_a_stopped_worker_ends_the_others_with_one_line() -> None:
    first, _ = two_workers(STOPPING)
    assert "worker 1 (process" in first
    assert "is stopped; all workers must run to the end; continue with" in first
    assert "not noticed" not in first
