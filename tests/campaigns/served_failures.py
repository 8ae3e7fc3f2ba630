"""Clients that leave, servers that die, and more clients than there is room for.

    python -m tests.campaigns.served_failures [--clients 100] [--at-once 64]

`disconnects`: on the only row of a slow model, as many clients leave in the middle of an answer, half of them
of a stream; the row is free within two steps of the model. `overload`: 64 clients on 16 rows and a queue of
16: each is answered, all alike, or gets 429 with Retry-After. `drain`: SIGTERM while 16 streams run: all end
whole, new requests get 503, and the process ends by that signal. `killed`: SIGKILL instead: every client
raises. Prints one line of JSON for each; the exit status is 1 where one was not as it must be.
"""

from __future__ import annotations

import signal
import socket
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, final
from urllib.parse import urlsplit

import httpx
import openai
from tests.campaigns.servers import exit_status, numbers_parser, server_process
from tests.serving.conftest import SMALL, write_random_run
from torch import Tensor, nn

from seqloom.protocols import State
from seqloom.serving.engine import Engine, EngineLimits
from seqloom.serving.guard import Access
from seqloom.serving.limits import ServerLimits
from seqloom.serving.served_models import ServedModels, open_models
from seqloom.serving.server import Address, served

STEP = 0.03
"""Seconds of a step of the slow model: a client's leaving is known long before the next."""
LONG = {"model": "slow", "prompt": "a", "max_tokens": 4000, "seed": 1}


@final
class SlowModel(nn.Module):
    """A model that counts its steps and takes its time for each."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model, self.steps = model, 0

    def forward(self, tokens: Tensor, state: State) -> Any:
        self.steps += 1
        time.sleep(STEP)
        return self.model(tokens, state)


def wait_for(condition: Callable[[], bool]) -> None:
    """Raises TimeoutError where it does not come about."""
    deadline = time.monotonic() + 30
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError("the server hangs")
        time.sleep(0.002)


def disconnects(folder: Path, clients: int) -> dict[str, Any]:
    (opened,) = open_models([f"slow={folder}"], ServerLimits(), "cpu").by_name.values()
    slow = SlowModel(opened.text_run.model)
    engine, taken = Engine(slow, EngineLimits(rows=1)), Counter[int]()
    models = ServedModels([replace(opened, engine=engine)])
    opened.engine.stop()
    with served(models, Address(port=0), Access(), ServerLimits()) as url:
        place = urlsplit(url)
        for number in range(clients):
            content = LONG | {"stream": number % 2 == 0}
            body = httpx.Request("POST", url, json=content).content
            head = f"POST /v1/completions HTTP/1.1\r\nHost: {place.netloc}\r\n"
            head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
            with socket.create_connection((place.hostname or "", place.port or 0)) as client:
                client.sendall(head.encode() + body)
                begun_at = slow.steps
                wait_for(lambda: slow.steps >= begun_at + 4)  # noqa: B023
                left_at = slow.steps
            wait_for(lambda: not engine.rows_running)
            taken[slow.steps - left_at] += 1
    return {"disconnects": clients, "steps_until_free": dict(sorted(taken.items()))}


def overload(folder: Path, at_once: int) -> dict[str, Any]:
    begin = threading.Barrier(at_once)
    with server_process(f"small={folder}", "--limit", "rows=16", "--limit", "queue=16") as server:
        asked = {"prompt": "a", "max_tokens": 100, "seed": 1}

        def ask(_: int) -> httpx.Response:
            begin.wait()
            return httpx.post(f"{server.url}/v1/completions", json=asked, timeout=120)

        with ThreadPoolExecutor(at_once) as threads:
            answers = list(threads.map(ask, range(at_once)))
        alone = httpx.post(f"{server.url}/v1/completions", json=asked, timeout=120).json()
    statuses = Counter(answer.status_code for answer in answers)
    good = [answer.json()["choices"] for answer in answers if answer.status_code == 200]
    refused = [answer for answer in answers if answer.status_code == 429]
    return {
        "clients": at_once,
        "statuses": dict(statuses),
        "equal_texts": sum(one == alone["choices"] for one in good),
        "with_retry_after": sum("retry-after" in answer.headers for answer in refused),
    }


def read_stream(url: str, started: threading.Barrier, tokens: int) -> str:
    """How a stream ended, as OpenAI's client sees it."""
    with openai.OpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=0) as client:
        try:
            reasons = []
            for number, piece in enumerate(
                client.completions.create(
                    model="small", prompt="a", max_tokens=tokens, seed=1, stream=True
                )
            ):
                reasons += [
                    choice.finish_reason for choice in piece.choices if choice.finish_reason
                ]
                if number == 2:
                    started.wait(60)
        # a cut stream reaches the caller as an error of the transport
        except (openai.OpenAIError, httpx.TransportError) as error:
            return type(error).__name__
    return "whole" if reasons else "clean half"


def ended(folder: Path, how: signal.Signals, tokens: int, streams: int = 16) -> dict[str, Any]:
    """A signal once all streams have begun."""
    started = threading.Barrier(streams + 1)
    with (
        server_process(f"small={folder}", "--limit", "drain_seconds=300") as server,
        httpx.Client(base_url=server.url, timeout=60) as other,
        ThreadPoolExecutor(streams) as threads,
    ):
        other.get("/health/ready").raise_for_status()
        running = [threads.submit(read_stream, server.url, started, tokens) for _ in range(streams)]
        started.wait(60)
        server.process.send_signal(how)
        new: Counter[str] = Counter()
        while not all(one.done() for one in running):
            try:
                answer = other.post("/v1/completions", json={"prompt": "a", "max_tokens": 1})
                new[str(answer.status_code)] += 1
            except httpx.TransportError:
                new["no connection"] += 1
            time.sleep(0.05)
        ends = Counter(one.result() for one in running)
        code = server.process.wait(60)
    return {"signal": how.name, "streams": dict(ends), "new_requests": dict(new), "exit": code}


def main(words: Sequence[str] | None = None) -> list[dict[str, Any]]:
    options = numbers_parser(__doc__, clients=100, at_once=64).parse_args(words)
    with tempfile.TemporaryDirectory() as place:
        folder = write_random_run(Path(place) / "small", "text-generation", "gpt", **SMALL)
        return [
            disconnects(folder, options.clients),
            overload(folder, options.at_once),
            ended(folder, signal.SIGTERM, 400),
            ended(folder, signal.SIGKILL, 4000),
        ]


def is_right(reports: Sequence[dict[str, Any]]) -> bool:
    left, many, drained, killed = reports
    answered, refused = many["statuses"].get(200, 0), many["statuses"].get(429, 0)
    return (
        max(left["steps_until_free"]) <= 2
        and answered + refused == many["clients"]
        and (many["equal_texts"], many["with_retry_after"]) == (answered, refused)
        and set(drained["streams"]) == {"whole"}
        and drained["exit"] == -signal.SIGTERM
        and not {"whole", "clean half"} & set(killed["streams"])
    )


if __name__ == "__main__":
    found = main()
    sys.exit(exit_status(found, is_right(found)))
