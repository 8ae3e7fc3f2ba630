"""Hostile requests to a server in a process of its own: no 5xx, no hang, flat memory.

    python -m tests.campaigns.served_hostile [--rounds 6] [--mutated 500] [--seed 0]

Each round sends the requests of tests/serving/test_hostile_requests.py and `--mutated` more: good ones of
every route in which fields are exchanged for values of any kind, or bytes are changed. After each round a
good request is answered, and the memory of the server is noted. Then connections that end in half a header
or half a body are held open until the server closes them, which it does within 10 s (its defaults). Prints
one line of JSON for each; the exit status is 1 where one was not as it must be.
"""

from __future__ import annotations

import contextlib
import json
import random
import socket
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
from tests.campaigns.servers import ServerProcess, exit_status, numbers_parser, server_process
from tests.serving.conftest import SMALL, write_random_run
from tests.serving.test_connections import SLOW
from tests.serving.test_hostile_requests import BODIES, GOOD, RAW, ROUTES, WRONG_FIELDS
from tests.tasks.explain.subjects import RUNS

GOOD_REQUESTS: dict[str, dict[str, Any]] = {
    "/v1/completions": GOOD | {"n": 2, "seed": 1, "stop": ["x"], "logprobs": 2, "top_p": 0.5},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "a"}]},
    "/v1/embeddings": {"model": "labels", "input": ["a"], "encoding_format": "base64"},
    "/models/labels": {"inputs": ["a film"], "parameters": {"top_k": 1}},
    "/models/org/small": {"inputs": "a", "parameters": {"max_new_tokens": 3, "seed": 1}},
    "/tokenize": {"model": "org/small", "prompt": "a"},
    "/detokenize": {"model": "org/small", "tokens": [20]},
    "/api/score": {"model": "org/small", "texts": ["a"], "prompt": "b"},
    "/api/complete": {"model": "org/small", "prefix": "a", "n": 2},
    "/api/generate": {"model": "org/small", "prompts": ["a"], "decode": {"max_length": 3}},
    "/api/predict": {"model": "labels", "inputs": ["a"]},
    "/api/explain": {"model": "org/small", "inputs": "a dog", "show": "lens", "picture": "svg"},
    "/api/trace": {"model": "org/small", "inputs": "a dog", "target": "b"},
    "/api/beams": {"model": "org/small", "inputs": "a dog", "beam": 2, "tokens": 3},
    "/api/rescore": {"model": "org/small", "lists": [{"id": 1, "nbest": [{"hyp": "a"}]}]},
}
VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2, 1.5, -0.0, 1e308, 10**30, 2**31, 2**63, "", "a", "\x00"),
    *(
        "\ud800",
        "é犬🐕",
        "a" * 3000,
        "../../etc/passwd",
        [],
        [[]],
        [0],
        ["a"],
        [None],
        {},
        {"a": 1},
    ),
    *([["a"] * 50] * 50, {"$ref": "#"}, "{{7*7}}", "(a+)+$", "<script>", -(2**63), [-1], [2**40]),
)


def mutated(chance: random.Random) -> tuple[str, bytes]:
    """A path and a body."""
    path = chance.choice(list(GOOD_REQUESTS))
    content = dict(GOOD_REQUESTS[path])
    if chance.random() < 0.3:
        body = bytearray(json.dumps(content).encode())
        for _ in range(chance.randint(1, 4)):
            body[chance.randrange(len(body))] = chance.randrange(256)
        return path, bytes(body)
    for _ in range(chance.randint(1, 3)):
        name = chance.choice([*content, "parameters", "decode", "other"])
        inner = content.get(name)
        if isinstance(inner, dict) and inner and chance.random() < 0.7:
            content[name] = inner | {chance.choice(list(inner)): chance.choice(VALUES)}
        else:
            content[name] = chance.choice(VALUES)
    return path, json.dumps(content).encode()


def known() -> Iterator[tuple[str, bytes]]:
    for field, values in WRONG_FIELDS.items():
        for value in values:
            yield "/v1/completions", json.dumps(GOOD | {field: value}).encode()
    for path in GOOD_REQUESTS:
        for body in BODIES.values():
            yield path, body
    for path, contents in ROUTES.items():
        for content in contents:
            yield path, json.dumps(content).encode()


def answer_to(place: tuple[str, int], sent: bytes, limit: float) -> tuple[bytes, float]:
    """What came until the server closed the connection, and after how many seconds it did. Raises
    TimeoutError where it does not."""
    began, got = time.monotonic(), b""
    with (
        socket.create_connection(place, timeout=limit) as connection,
        contextlib.suppress(ConnectionError),
    ):
        connection.sendall(sent)
        while piece := connection.recv(2**16):
            got += piece
    return got, time.monotonic() - began


def of_round(server: ServerProcess, requests: Sequence[tuple[str, bytes]]) -> dict[str, Any]:
    statuses: Counter[int] = Counter()
    slowest, wrong = 0.0, []
    with httpx.Client(base_url=server.url, timeout=30) as client:
        for path, body in requests:
            began = time.monotonic()
            headers = {"Content-Type": "application/json"}
            answer = client.post(path, content=body, headers=headers)
            slowest = max(slowest, time.monotonic() - began)
            statuses[answer.status_code] += 1
            if answer.status_code >= 500:
                wrong.append([path, body.decode("latin-1")[:200], answer.text[:200]])
        good = client.post("/v1/completions", json=GOOD)
    return {
        "requests": len(requests),
        "statuses": dict(sorted(statuses.items())),
        "slowest_seconds": round(slowest, 2),
        "good_one": good.status_code,
        "memory_mb": round(server.memory / 2**20, 1),
        "wrong": wrong,
    }


def of_connections(server: ServerProcess) -> dict[str, Any]:
    """Bytes that are no request, and requests that do not go on, all at once."""
    place = (str(urlsplit(server.url).hostname), int(urlsplit(server.url).port or 0))
    halves = {name: sent for name, (sent, _) in SLOW.items()}
    sent = [*halves.values(), *RAW.values()]
    with ThreadPoolExecutor(len(sent)) as threads:
        ended = list(threads.map(lambda one: answer_to(place, one, 30), sent))
    statuses = Counter(got[9:12].decode("latin-1") for got, _ in ended)
    seconds = max(taken for _, taken in ended)
    return {
        "connections": len(sent),
        "statuses": dict(statuses),
        "slowest_seconds": round(seconds, 1),
        "memory_mb": round(server.memory / 2**20, 1),
    }


def main(words: Sequence[str] | None = None) -> list[dict[str, Any]]:
    options = numbers_parser(__doc__, rounds=6, mutated=500, seed=0).parse_args(words)
    with tempfile.TemporaryDirectory() as name:
        place, found = Path(name), []
        small = write_random_run(place / "gpt", "text-generation", "gpt", **SMALL)
        folders = [
            f"org/small={small}",
            f"labels={RUNS / 'labels-bag'}",
            f"pairs={RUNS / 'translation-t5'}",
        ]
        with server_process(*folders) as server:
            # what is loaded for the first picture is no leak
            of_round(
                server, [(path, json.dumps(one).encode()) for path, one in GOOD_REQUESTS.items()]
            )
            for number in range(options.rounds):
                chance = random.Random(options.seed + number)
                more = [mutated(chance) for _ in range(options.mutated)]
                found.append(of_round(server, [*known(), *more]))
            found.append(of_connections(server))
    return found


def is_right(reports: Sequence[dict[str, Any]]) -> bool:
    *rounds, connections = reports
    first, last = rounds[len(rounds) // 2], rounds[-1]
    return (
        not any(report["wrong"] for report in rounds)
        and all(report["good_one"] == 200 for report in rounds)
        and last["memory_mb"] <= 1.02 * first["memory_mb"]
        and connections["slowest_seconds"] <= 11
    )


if __name__ == "__main__":
    reports = main()
    sys.exit(exit_status(reports, is_right(reports)))
