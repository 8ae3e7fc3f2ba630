"""`seqloom serve`: the socket, the signals and the end."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import final

import uvicorn

from seqloom import files
from seqloom.errors import UsageError, printable
from seqloom.serving.app import make_app
from seqloom.serving.connections import bounded_protocol
from seqloom.serving.guard import LOOPBACK, Access, Guard
from seqloom.serving.limits import ServerLimits
from seqloom.serving.served_models import ServedModels, named_folders, open_models

logger = logging.getLogger(__name__)

KEY_VARIABLE = "SEQLOOM_KEY"
SHORTEST_KEY = 16
CLOSING_SECONDS = 2
"""For clients to take the last answers, once the models are stopped."""


@final
@dataclass(frozen=True, kw_only=True)
class Address:
    """Where a server listens."""

    host: str = "127.0.0.1"
    port: int = 8000
    """0 takes a free one."""


@final
class Server(uvicorn.Server):
    """uvicorn, which first lets what runs come to its end and refuses what is new."""

    def __init__(
        self, config: uvicorn.Config, guard: Guard, models: ServedModels, drain_seconds: float
    ) -> None:
        super().__init__(config)
        self._guard, self._models, self._drain_seconds = guard, models, drain_seconds

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._guard.draining = True
        deadline = time.monotonic() + self._drain_seconds
        # until then new requests are answered, with 503
        while self._guard.running and time.monotonic() < deadline and not self.force_exit:
            await asyncio.sleep(0.02)
        # what still runs is answered with an error, so that no client takes a part for the whole
        await asyncio.get_running_loop().run_in_executor(None, self._models.stop)
        await super().shutdown(sockets)


def require_key(address: Address, access: Access) -> None:
    """Raises UsageError for an address that others can reach without a key."""
    if address.host not in LOOPBACK and not access.keys:
        raise UsageError(
            f"a server that others can reach ({printable(address.host)}) needs a key: set"
            f" {KEY_VARIABLE}, or name a file with --key-file"
        )


def make_server(
    models: ServedModels, address: Address, access: Access, limits: ServerLimits
) -> Server:
    """A server that is not running yet. Raises UsageError as `require_key` does."""
    require_key(address, access)
    _, guard = make_app(models, limits, access)
    config = uvicorn.Config(
        guard,
        host=address.host,
        port=address.port,
        http=bounded_protocol(limits.header_seconds),
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        limit_concurrency=limits.connections,
        h11_max_incomplete_event_size=limits.header_bytes,
        timeout_graceful_shutdown=CLOSING_SECONDS,
    )
    return Server(config, guard, models, limits.drain_seconds)


def listening_socket(address: Address) -> socket.socket:
    """Raises UsageError where it cannot listen."""
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    # asyncio sends small answers at once (TCP_NODELAY) only where the protocol is named
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((address.host, address.port))
    except (OSError, OverflowError) as error:
        listening.close()
        raise UsageError(
            f"the server cannot listen on {printable(address.host)} port {address.port} ({error}); give"
            " another --port or --host"
        ) from None
    return listening


def url_of(address: Address, listening: socket.socket) -> str:
    host = f"[{address.host}]" if ":" in address.host else address.host
    return f"http://{host}:{listening.getsockname()[1]}"


def serve(
    *folders: str,
    address: Address | None = None,
    access: Access | None = None,
    limits: ServerLimits | None = None,
    device: str = "auto",
) -> None:
    """Serves models until it is told to stop (Ctrl-C, SIGTERM): run folders, or NAME=FOLDER."""
    limits, address = limits or ServerLimits(), address or Address()
    named_folders(folders)
    # the thread of an engine must not keep the event loop waiting
    sys.setswitchinterval(0.001)
    require_key(address, access or Access())
    with listening_socket(address) as listening:
        models = open_models(folders, limits, device)
        server = make_server(models, address, access or Access(), limits)
        logger.info(f"serving {', '.join(models.by_name)} at {url_of(address, listening)}")
        try:
            server.run(sockets=[listening])
        finally:
            models.stop()


@contextmanager
def serving(
    *folders: str,
    address: Address | None = None,
    access: Access | None = None,
    limits: ServerLimits | None = None,
    device: str = "auto",
) -> Iterator[str]:
    """Serves models in a thread of this process for as long as the block runs, and gives the address:

    with seqloom.serving("runs/tales") as url: ...
    """
    limits = limits or ServerLimits()
    models = open_models(folders, limits, device)
    with served(models, address or Address(port=0), access or Access(), limits) as url:
        yield url


@contextmanager
def served(
    models: ServedModels, address: Address, access: Access, limits: ServerLimits
) -> Iterator[str]:
    """The same for models that are open. They are stopped at the end."""
    server = make_server(models, address, access, limits)
    with listening_socket(address) as listening:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        while not server.started and thread.is_alive():
            time.sleep(0.01)
        try:
            yield url_of(address, listening)
        finally:
            server.should_exit = True
            thread.join()


def keys_from(path: str | None) -> tuple[str, ...]:
    """The keys in a file, one a line, or in the environment; never on the command line, which every user of
    the machine can read. Raises UsageError for a short one, and for a file that others can read."""
    if path is not None:
        place = Path(path)
        text = files.read_text(place)
        if os.stat(place).st_mode & 0o077:
            raise UsageError(
                f"{printable(path)}: others may read this file of keys; run: chmod 600 {printable(path)}"
            )
    else:
        text = os.environ.get(KEY_VARIABLE, "")
    keys = tuple(line.strip() for line in text.splitlines() if line.strip())
    if path is not None and not keys:
        raise UsageError(f"{printable(path)}: must hold a key, but is empty")
    if any(len(key) < SHORTEST_KEY or not key.isascii() for key in keys):
        raise UsageError(
            f"a key must have at least {SHORTEST_KEY} ASCII characters; make a longer one"
        )
    return keys
