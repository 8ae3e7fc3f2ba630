"""Whether a stream is the plain text, whatever is written and wherever it stops.

    python -m tests.campaigns.served_texts [--seeds 1000] [--texts 20] [--undecodable 100000]

Small GPTs with random weights write bytes, and pieces of a BPE, after prompts of characters of one to four
bytes. For each seed the stream joined must be the text of the same request without a stream. Of `--texts`
texts each part of one to four characters is a stop string: the stream ends right before its first place, and
never holds a part of it. Last, tokens that never form a character are given out in linear time. Prints one
line of JSON for each; the exit status is 1 where one was wrong.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
from tests.campaigns.servers import exit_status, numbers_parser
from tests.serving.conftest import LIMITS, SMALL, write_random_run

from seqloom.serving.server import serving
from seqloom.tasks.language_modeling.streamed_text import StreamedText
from seqloom.text.tokenizers import train_tokenizer

LETTERS = "a é\u0301ß犬🐕👩‍👧\n한ع\u200d"


def plain(client: httpx.Client, asked: dict[str, Any]) -> list[str]:
    answer = client.post("/v1/completions", json=asked).raise_for_status().json()
    return [choice["text"] for choice in answer["choices"]]


def streamed(client: httpx.Client, asked: dict[str, Any]) -> Iterator[tuple[int, str]]:
    """Number and text of each piece. Raises ValueError for a stream that does not end as it must."""
    answer = client.post("/v1/completions", json=asked | {"stream": True}).raise_for_status()
    *events, end, rest = answer.text.split("\n\n")
    if (end, rest) != ("data: [DONE]", ""):
        raise ValueError(f"a stream ended with {end!r}")
    for event in events:
        (choice,) = json.loads(event.removeprefix("data: "))["choices"]
        yield choice["index"], choice["text"]


def joined(client: httpx.Client, asked: dict[str, Any]) -> list[str]:
    texts = [""] * asked["n"]
    for index, piece in streamed(client, asked):
        # half of a character would be a lone surrogate, or an error here
        piece.encode()
        texts[index] += piece
    return texts


def of_seeds(client: httpx.Client, seeds: int) -> dict[str, Any]:
    equal = undecodable = several_bytes = 0
    for seed in range(seeds):
        chance = random.Random(seed)
        asked = {
            "model": chance.choice(["bytes", "bpe"]),
            "prompt": "".join(chance.choices(LETTERS, k=chance.randint(1, 12))),
            "max_tokens": chance.randint(1, 60),
            "seed": seed,
            "n": chance.randint(1, 3),
            "temperature": chance.choice([0.7, 1, 1.5]),
            "echo": chance.random() < 0.3,
            "stop": chance.choice([None, "\ufffd", ["a", "\n"], ["🐕", "é犬"]]),
        }
        texts = plain(client, asked)
        equal += texts == joined(client, asked)
        undecodable += any("\ufffd" in text for text in texts)
        several_bytes += any(ord(letter) > 127 for text in texts for letter in text)
    return {"seeds": seeds, "equal": equal, "with_undecodable_bytes": undecodable} | {
        "with_several_bytes": several_bytes
    }


def of_stops(client: httpx.Client, texts: int) -> dict[str, Any]:
    """The expected text is that without a stop string, cut by hand."""
    tried = right = 0
    for seed in range(texts):
        asked: dict[str, Any] = {"model": ["bytes", "bpe"][seed % 2], "prompt": "a", "seed": seed}
        asked |= {"max_tokens": 24, "n": 1}
        (whole,) = plain(client, asked)
        parts = {whole[at : at + size] for at in range(len(whole)) for size in range(1, 5)}
        for stop in sorted(parts - {""}):
            expected = whole[: whole.find(stop)]
            shown, clean = "", True
            for _, piece in streamed(client, asked | {"stop": [stop, "no such text"]}):
                shown += piece
                clean = clean and expected.startswith(shown)
            tried, right = tried + 1, right + (clean and shown == expected)
    return {"stop_strings": tried, "right": right}


def of_bytes(count: int) -> dict[str, Any]:
    """Seconds for a quarter of the tokens, and for all of them."""
    tokenizer = train_tokenizer(["a"], "bytes", 300, "none")
    start = tokenizer.token_bytes.index(b"\xf0")
    seconds = []
    for size in (count // 4, count):
        text, began = StreamedText(tokenizer, [], ["stop", "\ufffda"]), time.process_time()
        given = sum(len(text.add(start)) for _ in range(size))
        given += len(text.rest())
        seconds.append(round(time.process_time() - began, 3))
        if given != size:
            raise ValueError(f"{size} bytes gave {given} characters")
    return {"undecodable_bytes": count, "seconds_of_a_quarter": seconds[0], "seconds": seconds[1]}


def main(words: Sequence[str] | None = None) -> list[dict[str, Any]]:
    parser = numbers_parser(__doc__, seeds=1000, texts=20, undecodable=100_000)
    options = parser.parse_args(words)
    with tempfile.TemporaryDirectory() as place:
        folders = [
            f"{kind}={write_random_run(Path(place) / kind, 'text-generation', 'gpt', kind, **SMALL)}"
            for kind in ("bytes", "bpe")
        ]
        with (
            serving(*folders, limits=LIMITS, device="cpu") as url,
            httpx.Client(base_url=url, timeout=60) as client,
        ):
            found = [of_seeds(client, options.seeds), of_stops(client, options.texts)]
    return [*found, of_bytes(options.undecodable)]


if __name__ == "__main__":
    reports = main()
    seeds, stops, _ = reports
    right = (seeds["equal"], stops["right"]) == (seeds["seeds"], stops["stop_strings"])
    sys.exit(exit_status(reports, right))
