"""Clients that are slow, that leave, and the end of the server."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import openai
import pytest

from seqloom.serving.guard import Access
from seqloom.serving.limits import ServerLimits
from seqloom.serving.served_models import ServedModels, open_models
from seqloom.serving.server import Address, listening_socket, make_server, served

LIMITS = ServerLimits(header_seconds=0.3, body_seconds=0.3, new_tokens=100_000, rows=2)
LONG = {"model": "org/small", "prompt": "a", "max_tokens": 100_000, "seed": 1}


@pytest.fixture(scope="module")
def models(folders: dict[str, Path]) -> Iterator[ServedModels]:
    opened = open_models([f"org/small={folders['org/small']}"], LIMITS, "cpu")
    yield opened
    opened.stop()


@pytest.fixture(scope="module")
def own_url(models: ServedModels) -> Iterator[str]:
    with served(models, Address(port=0), Access(), LIMITS) as url:
        yield url


def connected(url: str) -> socket.socket:
    place = urlsplit(url)
    assert place.hostname is not None
    assert place.port is not None
    return socket.create_connection((place.hostname, place.port), timeout=20)


def test_small_answers_are_sent_at_once() -> None:
    """A kernel that waits for more to send (Nagle) holds back each piece of an answer for 40 ms."""

    async def accepted_option(listening: socket.socket) -> int:
        options = asyncio.get_running_loop().create_future()

        def accept(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            own = writer.get_extra_info("socket")
            options.set_result(own.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            writer.close()

        async with await asyncio.start_server(accept, sock=listening):
            with socket.create_connection(listening.getsockname(), timeout=20):
                return int(await options)

    # a thread of its own: in this one the browser's tests may have left a loop
    with listening_socket(Address(port=0)) as listening, ThreadPoolExecutor() as threads:
        assert threads.submit(lambda: asyncio.run(accepted_option(listening))).result(20)


POST = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
SLOW: dict[str, tuple[bytes, bytes]] = {
    "silence": (b"", b""),
    "half a line": (b"GET /hea", b""),
    "half a header": (b"GET /health/live HTTP/1.1\r\nHost: loc", b""),
    "half a body": (POST + b"Content-Length: 100\r\n\r\n{", b"HTTP/1.1 408"),
    "half a chunk": (POST + b"Transfer-Encoding: chunked\r\n\r\n5\r\n{", b"HTTP/1.1 408"),
    "half a second request": (
        b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\nGET /hea",
        b"HTTP/1.1 200",
    ),
}


@pytest.mark.parametrize("what", SLOW)
def test_who_does_not_go_on_is_closed(what: str, own_url: str) -> None:
    sent, said = SLOW[what]
    with connected(own_url) as connection:
        connection.sendall(sent)
        got = b""
        with contextlib.suppress(ConnectionError):
            while piece := connection.recv(4096):
                got += piece
        assert got.startswith(said)
        assert bool(got) == bool(said)


def test_a_second_request_on_a_connection_has_its_own_time(own_url: str) -> None:
    with httpx.Client(base_url=own_url) as client:
        for _ in range(3):
            assert client.get("/health/live").status_code == 200


def freed(models: ServedModels) -> bool:
    """Whether no row is held any more; waits for the engine to notice."""
    engine = models.named(None).engine
    for _ in range(600):
        if engine.rows_running == 0 and engine.waiting == 0:
            return True
        time.sleep(0.01)
    return False


@pytest.mark.parametrize("stream", [False, True])
def test_rows_of_clients_that_left_are_free(
    stream: bool, own_url: str, models: ServedModels
) -> None:
    """Running and waiting ones: more clients than rows leave in the middle of their answers."""
    for _ in range(3):
        asking = []
        for _ in range(4):
            connection = connected(own_url)
            body = httpx.Request("POST", own_url, json=LONG | {"stream": stream}).content
            connection.sendall(POST + f"Content-Length: {len(body)}\r\n\r\n".encode() + body)
            asking.append(connection)
        if stream:
            assert asking[0].recv(100).startswith(b"HTTP/1.1 200")
        for connection in asking:
            connection.close()
        assert freed(models)
    answer = httpx.post(f"{own_url}/v1/completions", json=LONG | {"max_tokens": 2})
    assert answer.status_code == 200


def test_running_answers_end_and_new_ones_are_refused(folders: dict[str, Path]) -> None:
    """As after SIGTERM."""
    models = open_models([f"org/small={folders['org/small']}"], LIMITS, "cpu")
    server = make_server(models, Address(port=0), Access(), LIMITS)
    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    url = f"http://127.0.0.1:{listening.getsockname()[1]}"
    while not server.started:
        time.sleep(0.01)
    # other clients may ask on connections that they have
    with httpx.Client(base_url=url) as other, httpx.Client(base_url=url, timeout=60) as client:
        assert other.get("/health/ready").status_code == 200
        # long enough that it is still running when the other client asks
        with client.stream(
            "POST", "/v1/completions", json=LONG | {"max_tokens": 2000, "stream": True}
        ) as stream:
            lines = stream.iter_lines()
            got = [next(lines)]
            server.should_exit = True
            while other.get("/health/ready").status_code == 200:
                time.sleep(0.01)
            assert other.post("/v1/completions", json=LONG).status_code == 503
            got += list(lines)
        assert "data: [DONE]" in got
    thread.join(30)
    assert not thread.is_alive()
    assert not models.alive
    listening.close()


@pytest.mark.parametrize("stream", [False, True])
def test_what_runs_for_longer_than_a_server_waits_is_told(
    stream: bool, folders: dict[str, Path]
) -> None:
    """With an error, never a clean half; and the server waits once, not twice."""
    opened = open_models([f"org/small={folders['org/small']}"], LIMITS, "cpu")
    served_model = opened.named(None)
    table = served_model.text_run.model.get_submodule("embedding")
    table.register_forward_pre_hook(lambda *_: time.sleep(0.02))

    content: dict[str, Any] = LONG | {"stream": stream}

    def ask() -> None:
        with openai.OpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=0) as client:
            list(client.completions.create(**content))

    limits = replace(LIMITS, drain_seconds=1.0)
    with concurrent.futures.ThreadPoolExecutor(1) as threads:
        with served(opened, Address(port=0), Access(), limits) as url:
            asked = threads.submit(ask)
            while not served_model.engine.rows_running:
                time.sleep(0.01)
            told_at = time.monotonic()
        with pytest.raises(openai.APIError, match="the model has stopped"):
            asked.result()
        assert time.monotonic() - told_at < 1.9


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_learns_that_the_engine_died(stream: bool, folders: dict[str, Path]) -> None:
    """In the middle of its answer: half a text is never a whole one."""
    opened = open_models([f"org/small={folders['org/small']}"], LIMITS, "cpu")
    steps = 0

    def die(*_: object) -> None:
        nonlocal steps
        steps += 1
        if steps == 20:
            raise SystemExit

    opened.named(None).text_run.model.get_submodule("embedding").register_forward_pre_hook(die)
    with (
        served(opened, Address(port=0), Access(), LIMITS) as url,
        openai.OpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=0) as client,
    ):
        asked: dict[str, Any] = LONG | {"max_tokens": 300, "stream": stream}
        with pytest.raises(openai.APIError, match="the model has stopped"):
            list(client.completions.create(**asked))
        assert httpx.get(f"{url}/health/ready").status_code == 503
        assert httpx.get(f"{url}/health/live").status_code == 200
        assert httpx.post(f"{url}/v1/completions", json=LONG).status_code == 503
