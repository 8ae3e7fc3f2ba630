"""Whether a seeded request is answered the same alone and in company.

    python -m tests.campaigns.served_company [--rounds 20] [--seed 0]

Of each kind of model (n-gram, LSTM, GPT, seq2seq, T5; stored ones) 16 requests, samples and beams, are
answered alone, then all at once, and then in `--rounds` rounds in any order at any time, beside as many
requests without a seed. Language models answer with ids, models of text pairs with texts. Prints one line of
JSON for each; the exit status is 1 where an answer was another.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import httpx
from tests.campaigns.servers import exit_status, numbers_parser
from tests.tasks.explain.subjects import RUNS

from seqloom.serving.limits import ServerLimits
from seqloom.serving.server import serving

LANGUAGE_MODELS = ("text-ngram", "text-recurrent-lm", "text-gpt")
PAIRS = ("translation-seq2seq", "translation-t5")
SENTENCES = ("the red dog", "a green bird likes the park", "the old cat sees a dog", "the cat")
REQUESTS = 16


class Sent(NamedTuple):
    """A request, and when it is sent."""

    path: str
    content: dict[str, Any]
    delay: float = 0.0


def request(model: str, number: int) -> Sent:
    """The seeded one of this number: most are samples, some are beams, which need no seed."""
    text, length = SENTENCES[number % 4], 5 + 2 * (number % 8)
    decode: dict[str, Any] = {"strategy": "sample", "seed": number, "n_best": 1 + number % 2}
    if model in LANGUAGE_MODELS:
        if number % 5 == 4:
            decode = {"strategy": "beam", "beam": 3, "n_best": 2}
        content = {"prompts": [text], "decode": decode | {"max_length": length}}
        return Sent("/api/generate", {"model": model, **content})
    wishes: dict[str, Any] = {"do_sample": True, "temperature": 1.5, "seed": number}
    if number % 5 == 4:
        wishes = {"num_beams": 3}
    return of_pairs(model, text, wishes | {"max_new_tokens": length})


def unseeded(model: str, number: int) -> Sent:
    text = SENTENCES[number % 4]
    if model in LANGUAGE_MODELS:
        content = {"model": model, "prompt": text, "max_tokens": 5 + number, "n": 1 + number % 2}
        return Sent("/v1/completions", content)
    return of_pairs(model, text, {"do_sample": True, "max_new_tokens": 5 + number})


def of_pairs(model: str, text: str, wishes: dict[str, Any]) -> Sent:
    content = {"inputs": text, "parameters": {"generate_parameters": wishes}}
    return Sent(f"/models/{model}", content)


def answers(url: str, sent: Sequence[Sent], at_once: int) -> list[Any]:
    def answer(one: Sent) -> Any:
        time.sleep(one.delay)
        return httpx.post(url + one.path, json=one.content, timeout=120).raise_for_status().json()

    with ThreadPoolExecutor(at_once) as threads:
        return list(threads.map(answer, sent))


def of_model(url: str, model: str, rounds: int, seed: int) -> dict[str, Any]:
    asked = [request(model, number) for number in range(REQUESTS)]
    alone = answers(url, asked, 1)
    equal = sum(a == b for a, b in zip(alone, answers(url, asked, REQUESTS), strict=True))
    for number in range(rounds):
        chance = random.Random(seed + number)
        crowd = [unseeded(model, other) for other in range(REQUESTS)]
        late = [one._replace(delay=chance.uniform(0, 0.2)) for one in [*asked, *crowd]]
        order = chance.sample(range(len(late)), len(late))
        found = answers(url, [late[at] for at in order], len(late))
        by_number = dict(zip(order, found, strict=True))
        equal += sum(by_number[at] == alone[at] for at in range(REQUESTS))
    distinct = len({json.dumps(one) for one in alone})
    tried = REQUESTS * (rounds + 1)
    return {"model": model, "answers": tried, "equal": equal, "distinct": distinct}


def main(words: Sequence[str] | None = None) -> list[dict[str, Any]]:
    parser = numbers_parser(__doc__, rounds=20, seed=0)
    parser.add_argument("--models", nargs="+", default=[*LANGUAGE_MODELS, *PAIRS])
    options = parser.parse_args(words)
    folders = [f"{name}={RUNS / name}" for name in options.models]
    with serving(*folders, limits=ServerLimits(queue=128), device="cpu") as url:
        return [of_model(url, name, options.rounds, options.seed) for name in options.models]


if __name__ == "__main__":
    reports = main()
    sys.exit(exit_status(reports, all(one["equal"] == one["answers"] for one in reports)))
