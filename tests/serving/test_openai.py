"""The OpenAI subset, by the real client where it is installed and by plain HTTP."""

from __future__ import annotations

import concurrent.futures
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest

import seqloom
from seqloom.serving.limits import ServerLimits
from seqloom.serving.server import serving

MODEL = "org/small"


@pytest.fixture(scope="module")
def ai(url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=0) as client:
        yield client


def events(text: str) -> list[Any]:
    """The objects of a stream that ended as it must."""
    lines = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def test_models(ai: openai.OpenAI) -> None:
    assert [one.id for one in ai.models.list()] == ["org/small", "pairs", "labels"]
    assert ai.models.retrieve(MODEL).id == MODEL
    with pytest.raises(openai.NotFoundError) as error:
        ai.models.retrieve("org/other")
    assert error.value.code == "model_not_found"


def test_a_completion_is_what_the_model_writes(ai: openai.OpenAI, folders: dict[str, Path]) -> None:
    """The server, Python and the other route agree, in a sample, greedily and in a beam."""
    model = seqloom.load(folders[MODEL], "cpu")
    asked: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({"seed": 7}, {"strategy": "sample", "seed": 7}),
        (
            {"seed": 7, "n": 3, "top_p": 0.9},
            {"strategy": "sample", "seed": 7, "n_best": 3, "top_p": 0.9},
        ),
        ({"temperature": 0}, {"strategy": "greedy"}),
        ({"extra_body": {"num_beams": 3}, "n": 2}, {"beam": 3, "n_best": 2}),
    ]
    for given, decode in asked:
        answer = ai.completions.create(model=MODEL, prompt="a dog", max_tokens=20, **given)
        (expected,) = model.generate(["a dog"], max_length=20, **decode)
        assert [choice.text for choice in answer.choices] == [one.text for one in expected]
        for choice, one in zip(answer.choices, expected, strict=True):
            assert choice.finish_reason == ("stop" if one.finished else "length")
        assert answer.usage is not None
        assert answer.usage.prompt_tokens == 5
        assert answer.usage.completion_tokens == sum(len(one.tokens) for one in expected)


def test_choices_are_numbered_by_prompt_and_sample(ai: openai.OpenAI) -> None:
    prompts = ["a dog", "the cat", "zwei"]
    together = ai.completions.create(model=MODEL, prompt=prompts, max_tokens=8, n=2, seed=5)
    assert [choice.index for choice in together.choices] == list(range(6))
    for number, prompt in enumerate(prompts):
        alone = ai.completions.create(model=MODEL, prompt=prompt, max_tokens=8, n=2, seed=5)
        texts = [choice.text for choice in together.choices[2 * number : 2 * number + 2]]
        assert texts == [choice.text for choice in alone.choices]


def test_a_seed_that_is_drawn_is_told(client: httpx.Client) -> None:
    asked = {"model": MODEL, "prompt": "a", "max_tokens": 12}
    first, second = (client.post("/v1/completions", json=asked).json() for _ in range(2))
    assert first["seed"] != second["seed"]
    again = client.post("/v1/completions", json=asked | {"seed": first["seed"]}).json()
    assert again["choices"] == first["choices"]


def test_ids_are_a_prompt_too(client: httpx.Client) -> None:
    asked = {"model": MODEL, "max_tokens": 5, "seed": 1}
    ids = client.post("/tokenize", json={"model": MODEL, "prompt": "a dog"}).json()["tokens"]
    texts = []
    for prompt in ("a dog", ids, ["a dog"], [ids]):
        answer = client.post("/v1/completions", json=asked | {"prompt": prompt}).json()
        texts.append(answer["choices"][0]["text"])
    assert len(set(texts)) == 1


@pytest.mark.parametrize("seed", range(12))
def test_a_stream_joined_is_the_plain_text(seed: int, client: httpx.Client) -> None:
    """Prompts of many bytes, stop strings, several samples, numbers of tokens."""
    chance = random.Random(seed)
    asked: dict[str, Any] = {
        "model": MODEL,
        "prompt": "".join(chance.choices("a é犬🐕\n", k=chance.randint(1, 9))),
        "max_tokens": chance.randint(1, 60),
        "seed": seed,
        "n": chance.randint(1, 3),
        "temperature": chance.choice([0, 0.7, 1.3]),
        "stop": chance.choice([None, "K", ["�", "Z"], ["zz", "a", "\n"]]),
        "echo": chance.random() < 0.3,
    }
    whole = client.post("/v1/completions", json=asked).json()
    stream = client.post(
        "/v1/completions",
        json=asked | {"stream": True, "stream_options": {"include_usage": True}},
    )
    assert stream.headers["content-type"].startswith("text/event-stream")
    *pieces, last = events(stream.text)
    joined = [""] * asked["n"]
    reasons: dict[int, str] = {}
    for piece in pieces:
        assert "usage" not in piece
        (choice,) = piece["choices"]
        joined[choice["index"]] += choice["text"]
        if choice["finish_reason"]:
            reasons[choice["index"]] = choice["finish_reason"]
    assert joined == [choice["text"] for choice in whole["choices"]]
    assert [reasons[k] for k in range(asked["n"])] == [
        choice["finish_reason"] for choice in whole["choices"]
    ]
    assert last["choices"] == []
    assert last["usage"] == whole["usage"]
    stops = [asked["stop"]] if isinstance(asked["stop"], str) else asked["stop"] or []
    if not asked["echo"]:
        assert not any(stop in text for stop in stops for text in joined)


def test_the_client_reads_a_stream(ai: openai.OpenAI) -> None:
    stream = ai.completions.create(model=MODEL, prompt="a", max_tokens=30, seed=1, stream=True)
    joined = "".join(piece.choices[0].text for piece in stream)
    whole = ai.completions.create(model=MODEL, prompt="a", max_tokens=30, seed=1)
    assert joined == whole.choices[0].text


def test_numbers_of_a_prompt_are_those_of_score(
    client: httpx.Client, folders: dict[str, Path]
) -> None:
    """As lm-evaluation-harness asks: echo, one more token, log p of each token."""
    scorer = seqloom.load(folders[MODEL], "cpu")
    texts = ["a dog runs in the park", "犬 🐕", "the"]
    answer = client.post(
        "/v1/completions",
        json={
            "model": MODEL,
            "prompt": texts,
            "max_tokens": 1,
            "temperature": 0,
            "echo": True,
            "logprobs": 1,
            "seed": 1234,
        },
    ).json()
    for choice, scored in zip(answer["choices"], scorer.score(texts, tokens=True), strict=True):
        numbers = choice["logprobs"]
        assert len({len(numbers[name]) for name in numbers}) == 1
        found = numbers["token_logprobs"][:-1]
        expected = [float(np.log(token.probability)) for token in scored.table[:-1]]
        np.testing.assert_allclose(found, expected, atol=1e-5)
        assert sum(found) == pytest.approx(scored.log_probability_without_end, abs=1e-4)
        for token, top, entry in zip(
            numbers["tokens"], numbers["top_logprobs"], scored.table[:-1], strict=False
        ):
            assert (token in top) == (entry.rank == 1)
        assert numbers["text_offset"][0] == 0
        assert choice["text"].startswith(scored.text)


@pytest.mark.parametrize("stream", [False, True])
def test_the_end_of_a_text_has_a_number(stream: bool, client: httpx.Client) -> None:
    """lm-evaluation-harness takes the last number for that of the one token that it asks for."""
    ended = 0
    asked = {"model": MODEL, "prompt": "a", "max_tokens": 400, "logprobs": 1, "temperature": 9}
    for seed in range(4):
        asked["seed"] = seed
        answer = client.post("/v1/completions", json=asked | {"stream": stream})
        objects = events(answer.text) if stream else [answer.json()]
        choices = [choice for one in objects for choice in one["choices"]]
        numbers = [number for one in choices for number in one["logprobs"]["token_logprobs"]]
        spelled = [token for one in choices for token in one["logprobs"]["tokens"]]
        (reason,) = [one["finish_reason"] for one in choices if one["finish_reason"]]
        assert len(numbers) == len(spelled)
        assert (len(numbers) == 400) if reason == "length" else (spelled[-1] == "</s>")
        ended += reason == "stop"
    assert ended


def test_only_the_numbers_of_a_prompt(client: httpx.Client) -> None:
    asked = {"model": MODEL, "prompt": "a dog", "echo": True, "logprobs": 3, "max_tokens": 0}
    (choice,) = client.post("/v1/completions", json=asked).json()["choices"]
    assert choice["text"] == "a dog"
    assert [len(top) for top in choice["logprobs"]["top_logprobs"]] == [3] * 5
    assert choice["logprobs"]["text_offset"] == [0, 1, 2, 3, 4]


def test_there_is_no_chat_without_a_template(ai: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="/v1/completions"):
        ai.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "a"}])


def test_more_than_may_wait_is_told_when_to_come_again(folders: dict[str, Path]) -> None:
    """One row, a queue of one: of many at once some are answered, the others get 429."""
    limits = ServerLimits(rows=1, queue=1)
    asked = {"prompt": "a", "max_tokens": 200, "seed": 1}
    with (
        serving(str(folders[MODEL]), limits=limits, device="cpu") as url,
        concurrent.futures.ThreadPoolExecutor(12) as threads,
    ):
        sent = [
            threads.submit(httpx.post, f"{url}/v1/completions", json=asked, timeout=60)
            for _ in range(12)
        ]
        answers = [one.result() for one in sent]
    statuses = {answer.status_code for answer in answers}
    assert statuses <= {200, 429}
    assert 200 in statuses
    whole = {
        answer.text.partition('"choices"')[2] for answer in answers if answer.status_code == 200
    }
    assert len(whole) == 1, "those that were answered got the same text"
    for answer in answers:
        assert answer.status_code == 200 or answer.headers["retry-after"] == "1"
