"""Requests that are wrong, huge or malicious: each is refused with a word about it, and the next good one is
answered as ever."""

from __future__ import annotations

import contextlib
import json
import re
import socket
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

TOKENS = 2**31
DEEP = b'{"prompt":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
GOOD = {"model": "org/small", "prompt": "a dog", "max_tokens": 2, "temperature": 0}
"""What a request must be; a wrong one changes one thing."""
WRONG_FIELDS: dict[str, list[Any]] = {
    "max_tokens": [-1, 1e9, 10**30, 1.5, "8", True, [], {}, 401, -(2**63), 2**63],
    "n": [0, -1, 17, 10**9, 1.5, "2", True, [1]],
    "temperature": [-0.1, 101, "hot", True, [], {}, 1e308, 10**400],
    "top_p": [0, -1, 1.1, "a", True, []],
    "top_k": [0, -1, 0.01, "a", True, 2**40],
    "min_p": [-0.1, 1.1, "a"],
    "repetition_penalty": [0, 0.9, -1, 1e9, "a"],
    "num_beams": [0, -1, 17, 10**6, "a", True],
    "seed": [-1, 2**63, 2**70, 1.5, "a", True],
    "stop": [5, "", [""], ["a"] * 17, ["a" * 200], [1], {}, True, [["a"]], ["\n"] * 100_000],
    "logprobs": [-1, 21, 1.5, "a", True],
    "echo": ["yes", 1, [], {}],
    "stream": ["yes", 1, []],
    "stream_options": [{"include_usage": True}, 1, {"other": 1}, []],
    "prompt": [
        [],
        5,
        None,
        {},
        True,
        [[]] * 300,
        ["a"] * 257,
        [-1],
        [10**6],
        [2**70],
        [1.5],
        [["a"]],
        [[1], "a"],
        [True],
        "a" * 601,
        [[5] * 601],
        "\ud800",
        ["ok", "\udfff"],
        {"text": "a"},
    ],
    "model": [
        5,
        "",
        "org",
        "../../etc/passwd",
        "org/small/..",
        "\u0000",
        "ORG/SMALL",
        [],
        "a" * 5000,
    ],
    "presence_penalty": [0.5, "a"],
    "frequency_penalty": [-1, []],
    **{
        name: [value]
        for name, value in {
            "suffix": "x",
            "best_of": 2,
            "logit_bias": {"5": 100},
            "response_format": {"type": "json_object"},
            "user": "me",
            "regex": "(a+)+$",
            "guided_json": {},
            "grammar": "root ::= x",
            "prompt_embeds": "AAAA",
            "chat_template": "{% for x in range(10**9) %}{% endfor %}",
            "__proto__": {},
            "tools": [],
            "priority": -1,
        }.items()
    },
}
BODIES: dict[str, bytes] = {
    "nothing": b"",
    "no JSON": b"hello",
    "half an object": b'{"prompt": "a"',
    "a list": b"[]",
    "a text": b'"a"',
    "a number": b"5",
    "null": b"null",
    "NaN": b'{"prompt": "a", "temperature": NaN}',
    "Infinity": b'{"prompt": "a", "temperature": Infinity}',
    "1e999": b'{"prompt": "a", "temperature": 1e999}',
    "a key twice": b'{"model": "org/small", "prompt": "a", "prompt": "b"}',
    "deep": DEEP,
    "deep objects": b'{"a":' * 50_000 + b"1" + b"}" * 50_000,
    "a long number": b'{"prompt": "a", "n": ' + b"9" * 5000 + b"}",
    "no UTF-8": b'{"prompt": "\xff\xfe"}',
    "half a character": b'{"prompt": "\xe2\x82"}',
    "UTF-16": json.dumps(GOOD).encode("utf-16"),
    "a lone surrogate": b'{"model": "org/small", "prompt": "\\ud800"}',
    "trailing data": json.dumps(GOOD).encode() + b" x",
    "two objects": json.dumps(GOOD).encode() * 2,
    "NUL": b"\x00" * 100,
    "pickle": b"\x80\x04\x95\x00",
    "gzip": b"\x1f\x8b\x08\x00",
    "single quotes": b"{'prompt': 'a'}",
    "a comment": b'{"prompt": "a" /* b */}',
}
ROUTES: dict[str, list[Any]] = {
    "/v1/chat/completions": [
        {},
        {"messages": []},
        {"messages": [{"role": "user", "content": "a"}]},
        {"messages": [{"role": "evil", "content": "a"}]},
        {
            "messages": [
                {"role": "user", "content": [{"type": "image_url", "image_url": "http://a"}]}
            ]
        },
        {"messages": [{"role": "user", "content": "a"}] * 1001},
        {"messages": "a"},
    ],
    "/v1/embeddings": [
        {},
        {"input": "a"},
        {"input": []},
        {"input": [""]},
        {"input": [5]},
        {"input": "a", "encoding_format": "x"},
        {"input": "a", "dimensions": 0},
        {"input": "a", "model": "labels"},
        {"input": ["a"] * 300, "model": "labels"},
    ],
    "/models/labels": [
        {},
        {"inputs": 5},
        {"inputs": []},
        {"inputs": None},
        {"inputs": {"text": "a"}},
        {"inputs": ["a", 5]},
        {"inputs": "a", "parameters": {"top_k": 0}},
        {"inputs": "a", "parameters": {"function_to_apply": "x"}},
        {"inputs": "a", "parameters": []},
        {"inputs": "a", "parameters": {"other": 1}},
        {"inputs": ["a"] * 257},
        {"inputs": "a b " * 4000},
        {"inputs": "a", "options": {"wait_for_model": True}},
    ],
    "/models/pairs": [
        {"inputs": ""},
        {"inputs": ["", " "]},
        {"inputs": {"a": 1}},
        {"inputs": "a", "parameters": {"src_lang": "en"}},
        {"inputs": "a", "parameters": {"task": "x"}},
        {"inputs": "a", "parameters": {"generate_parameters": {"num_beams": 10**6}}},
        {"inputs": "a", "parameters": {"generate_parameters": {"max_new_tokens": 10**9}}},
        {"inputs": "a", "parameters": {"generate_parameters": {"temperature": 0.5}}},
        {"inputs": "a" * 700},
    ],
    "/models/org/small": [
        {"inputs": 5},
        {"inputs": "a", "parameters": {"max_new_tokens": 10**9}},
        {"inputs": "a", "parameters": {"max_new_tokens": -1}},
        {"inputs": "a", "parameters": {"temperature": 0.5, "do_sample": False}},
        {"inputs": "a", "parameters": {"grammar": {}}},
        {"inputs": "a", "parameters": {"stop": "a"}},
        {"inputs": "a", "parameters": {"stop": ["a"] * 40}},
        {"inputs": "a", "parameters": {"details": True, "num_beams": 2}},
        {"inputs": "a", "stream": True},
    ],
    "/models/nothing": [{"inputs": "a"}],
    "/models/..%2f..%2fetc": [{"inputs": "a"}],
    "/models/%00": [{"inputs": "a"}],
    "/": [{"inputs": "a"}, {}],
    "/tokenize": [{}, {"prompt": 5}, {"prompt": "a"}, {"model": "org/small", "prompt": "a" * 700}],
    "/detokenize": [
        {},
        {"model": "org/small", "tokens": [-1]},
        {"model": "org/small", "tokens": [10**9]},
        {"model": "org/small", "tokens": ["a"]},
    ],
    "/api/score": [
        {},
        {"model": "org/small", "texts": []},
        {"model": "org/small", "texts": ["a"] * 300},
        {"model": "labels", "texts": ["a"]},
        {"model": "org/small", "texts": ["a" * 700]},
    ],
    "/api/complete": [
        {},
        {"model": "org/small", "prefix": 5},
        {"model": "org/small", "prefix": "a", "n": 0},
        {"model": "org/small", "prefix": "a", "words": 1000},
    ],
    "/api/generate": [
        {},
        {"model": "org/small", "prompts": []},
        {"model": "org/small", "prompts": ["a"], "decode": {"beam": 1000}},
        {"model": "org/small", "prompts": ["a"], "decode": {"other": 1}},
        {"model": "org/small", "prompts": ["a"], "decode": {"max_length": 10**9}},
        {"model": "org/small", "prompts": ["a"], "decode": {"processors": ["x"]}},
        {"model": "org/small", "prompts": ["a"], "decode": {"strategy": "sample", "n_best": 100}},
    ],
    "/api/predict": [
        {},
        {"model": "labels", "inputs": []},
        {"model": "labels", "inputs": [5]},
        {"model": "labels", "inputs": [["a", "b", "c"]]},
        {"model": "labels", "inputs": ["a"], "decode": {"beam": 3}},
        {"model": "labels", "inputs": ["a"], "decode": {"texts": []}},
        {"model": "org/small", "inputs": ["a"]},
    ],
    "/api/trace": [
        {},
        {"model": "org/small", "inputs": ""},
        {"model": "org/small", "inputs": ["a", "b"]},
        {"model": "org/small", "inputs": "a", "part": "x"},
        {"model": "org/small", "inputs": "a", "want": "b"},
        {"model": "labels", "inputs": "a"},
        {"model": "org/small", "inputs": "a" * 700},
    ],
    "/api/beams": [
        {},
        {"model": "org/small", "inputs": "a", "beam": 1},
        {"model": "org/small", "inputs": "a", "beam": 17},
        {"model": "org/small", "inputs": "a", "tokens": 0},
        {"model": "org/small", "inputs": "a", "tokens": 65},
        {"model": "org/small", "inputs": "a" * 60, "tokens": 10},
        {"model": "labels", "inputs": "a"},
        {"model": "pairs", "inputs": ""},
    ],
    "/nothing": [{}],
    "/v1/completions/": [GOOD],
    "/v1/../v1/completions": [{}],
}
RAW: dict[str, bytes] = {
    "no HTTP": b"hello\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "HTTP/9": b"GET / HTTP/9.9\r\nHost: localhost\r\n\r\n",
    "no Host": b"GET /health/live HTTP/1.1\r\n\r\n",
    "two Hosts": b"GET /health/live HTTP/1.1\r\nHost: localhost\r\nHost: evil\r\n\r\n",
    "a long header": b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 100_000 + b"\r\n\r\n",
    "a header of a megabyte": b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 2**20,
    "many headers": b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"X: a\r\n" * 20_000 + b"\r\n",
    "a long path": b"GET /" + b"a" * 60_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "a header that is folded": b"GET / HTTP/1.1\r\nHost: localhost\r\n evil\r\n\r\n",
    "a blank before the colon": b"GET / HTTP/1.1\r\nHost : localhost\r\n\r\n",
    "NUL in a header": b"GET / HTTP/1.1\r\nHost: local\x00host\r\n\r\n",
    "two lengths": b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
    "a length and chunks": (
        b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"0\r\n\r\nGET /info HTTP/1.1\r\n\r\n"
    ),
    "a negative length": b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
    "a length that is no number": b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: a\r\n\r\n",
    "a huge length": b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999999\r\n\r\n",
    "a wrong chunk": (
        b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nab\r\n"
    ),
    "a huge chunk": (
        b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"ffffffffffffffff\r\nab"
    ),
    "another encoding": (
        b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: gzip\r\n\r\nabc"
    ),
    "a websocket": (
        b"GET /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    ),
    "a proxy request": b"GET http://evil.example/ HTTP/1.1\r\nHost: evil.example\r\n\r\n",
    "CONNECT": b"CONNECT evil.example:443 HTTP/1.1\r\nHost: evil.example:443\r\n\r\n",
    "TRACE": b"TRACE / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "half a request": b"POST /v1/completions HTTP/1.1\r\nHost: loc",
    "half a body": (
        b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 500\r\n"
        b"Content-Type: application/json\r\n\r\n{"
    ),
    "nothing at all": b"",
}


def test_there_are_many_of_them() -> None:
    fields = sum(len(values) for values in WRONG_FIELDS.values())
    routes = sum(len(values) for values in ROUTES.values())
    assert fields + routes + len(BODIES) + len(RAW) >= 200


def is_refused(answer: httpx.Response) -> bool:
    """With a line about it, of ours, that holds nothing of the server's."""
    error = answer.json()["error"]
    message = error["message"]
    clean = "Traceback" not in message and "/tmp/" not in message
    clean = clean and not re.search("0x[0-9a-f]{5}", message)
    return 400 <= answer.status_code < 500 and clean and 0 < len(message) < 2100


def still_answers(client: httpx.Client) -> bool:
    return client.post("/v1/completions", json=GOOD).status_code == 200


@pytest.mark.parametrize("field", WRONG_FIELDS)
def test_a_wrong_field_is_named(field: str, client: httpx.Client) -> None:
    for value in WRONG_FIELDS[field]:
        content = json.dumps(GOOD | {field: value}).encode()
        headers = {"Content-Type": "application/json"}
        answer = client.post("/v1/completions", content=content, headers=headers)
        assert is_refused(answer), (value, answer.status_code, answer.text[:300])
        assert answer.json()["error"]["param"] in (field, "body", None), (value, answer.text)
        assert field in answer.text or answer.json()["error"]["param"] == "body", answer.text
    assert still_answers(client)


@pytest.mark.parametrize("what", BODIES)
def test_a_body_that_is_none(what: str, client: httpx.Client) -> None:
    for path in ("/v1/completions", "/models/labels", "/api/score"):
        answer = client.post(
            path, content=BODIES[what], headers={"Content-Type": "application/json"}
        )
        assert is_refused(answer), (path, answer.status_code, answer.text[:300])
    assert still_answers(client)


@pytest.mark.parametrize("path", ROUTES)
def test_wrong_requests_of_each_route(path: str, client: httpx.Client) -> None:
    for content in ROUTES[path]:
        answer = client.post(path, json=content)
        assert is_refused(answer), (content, answer.status_code, answer.text[:300])
    assert still_answers(client)


@pytest.mark.parametrize("what", RAW)
def test_bytes_that_are_no_request(what: str, url: str, client: httpx.Client) -> None:
    """The connection is closed, at the latest when its time is over; what was said before is no success."""
    place = urlsplit(url)
    assert place.hostname is not None
    assert place.port is not None
    with socket.create_connection((place.hostname, place.port), timeout=20) as connection:
        try:
            connection.sendall(RAW[what])
            said = b""
            while piece := connection.recv(2**16):
                said += piece
        except ConnectionError:
            pass
        assert said[:13] not in (b"HTTP/1.1 200 ", b"HTTP/1.1 101 "), said[:200]
        assert b" 500 " not in said[:20]
    assert still_answers(client)


def test_a_body_that_is_too_large_is_not_read(client: httpx.Client) -> None:
    large = b"[" + b"1," * (3 * 2**20) + b"1]"
    headers = {"Content-Type": "application/json"}
    answer = client.post("/v1/completions", content=large, headers=headers)
    assert answer.status_code == 413

    def chunks() -> Any:
        for _ in range(100):
            yield b"a" * 2**16

    # the server may have closed the connection before all was sent
    with contextlib.suppress(httpx.WriteError):
        assert client.post("/v1/completions", content=chunks(), headers=headers).status_code == 413
    assert still_answers(client)


@pytest.mark.parametrize(
    "text",
    ["</s>", "<s><pad><unk>", "\x00", "\x1b[31m", "<script>alert(1)</script>", "\u202e", "{{7*7}}"],
)
def test_text_is_only_text(text: str, client: httpx.Client) -> None:
    ids = client.post("/tokenize", json={"model": "org/small", "prompt": text}).json()["tokens"]
    back = client.post("/detokenize", json={"model": "org/small", "tokens": ids}).json()["prompt"]
    assert back == text
    assert min(ids) >= 16, "no text becomes a special token"
    answer = client.post("/v1/completions", json=GOOD | {"prompt": text, "echo": True})
    assert answer.json()["choices"][0]["text"].startswith(text)
