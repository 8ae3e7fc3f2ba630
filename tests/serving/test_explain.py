"""/api/explain answers what `explain` answers from Python, for a model of every family, and within bounds;
/api/rescore what `rescore` does."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image
from tests.cli.conftest import run
from tests.serving.conftest import LIMITS
from tests.tasks.explain.subjects import INPUTS, RUNS

import seqloom
from seqloom.errors import SeqloomError
from seqloom.long_work import UnwantedWorkError, ends_unless
from seqloom.serving.limits import ServerLimits
from seqloom.serving.server import serving
from seqloom.tasks.explain.explained_model import ExplainedModel
from seqloom.tasks.explain.look import SHOWS

WORDS, TEXTS = ["red,cat,dog,zzzz"], ["the red dog", "the cat", "a bird"]
SPECIAL: dict[str, list[str]] = {"induction": [], "words": WORDS, "projection": TEXTS}
NAMES = [*INPUTS, "images-vit"]


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with serving(*(f"{name}={RUNS / name}" for name in NAMES), limits=LIMITS, device="cpu") as url:
        yield url


@pytest.fixture(scope="module")
def listed(server: str) -> dict[str, Any]:
    return {one["name"]: one for one in httpx.get(f"{server}/info").json()["models"]}


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("image") / "image.png"
    pixels = np.random.default_rng(1).integers(0, 255, (8, 8)).astype(np.uint8)
    Image.fromarray(pixels).save(place)
    return place


def asked(server: str, model: str, **fields: Any) -> httpx.Response:
    return httpx.post(f"{server}/api/explain", json={"model": model, **fields}, timeout=60)


def same(found: Any, expected: Any) -> None:
    """Numbers to five digits, everything else exactly."""
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            same(found[name], value)
    elif isinstance(expected, list) and expected and not isinstance(expected[0], str):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            same(one, other)
    elif isinstance(expected, float):
        assert found == pytest.approx(expected, rel=1e-4, abs=1e-5)
    else:
        assert found == expected


@pytest.mark.parametrize("name", INPUTS)
def test_each_picture_of_each_family(name: str, server: str, listed: dict[str, Any]) -> None:
    """What is listed is shown as from Python; what is not listed is refused by both."""
    model: Any = seqloom.load(RUNS / name, "cpu")
    assert isinstance(model, ExplainedModel)
    assert listed[name]["pictures"][0] == model.default_show()
    for show in SHOWS:
        inputs = SPECIAL.get(show, list(INPUTS[name]))
        answer = asked(server, name, inputs=inputs, show=show)
        if show in listed[name]["pictures"]:
            expected = json.loads(json.dumps(model.explain(inputs, show=show).summary()))
            assert answer.status_code == 200, answer.text
            same(answer.json()["explanation"], expected)
        else:
            assert answer.status_code == 400
            assert answer.json()["error"]["param"] == "show"
            with pytest.raises(SeqloomError):
                model.explain(inputs, show=show)


def test_options_and_the_picture(server: str) -> None:
    model: Any = seqloom.load(RUNS / "text-gpt", "cpu")
    written = httpx.post(f"{server}/v1/completions", json={"model": "text-gpt", "prompt": "a"})
    assert written.status_code == 200, "weights that are packed to write take no part"
    for options in (
        {"show": "attribution", "method": "integrated-gradients", "target": "cat", "foil": "dog"},
        {"show": "attention", "layer": 1, "head": 2},
        {"show": "attention", "layer": 1},
        {"show": "lens", "target": "and a cat"},
    ):
        answer = asked(server, "text-gpt", inputs="the red dog", picture="svg", **options).json()
        expected = model.explain("the red dog", **options)
        same(answer["explanation"], json.loads(json.dumps(expected.summary())))
        assert answer["text"] == list(expected.text) or options["show"] == "attribution"
        assert answer["svg"].startswith("<svg")


def test_an_image(server: str, image: Path) -> None:
    model: Any = seqloom.load(RUNS / "images-vit", "cpu")
    content = base64.b64encode(image.read_bytes()).decode()
    for show in ("attention", "attribution"):
        answer = asked(server, "images-vit", inputs=content, show=show, picture="svg").json()
        expected = model.explain(str(image), show=show).summary() | {"image": "image"}
        same(answer["explanation"], json.loads(json.dumps(expected)))
        assert "/tmp" not in answer["svg"]


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("text-gpt", {"method": "leave-one-out"}),
        ("text-gpt", {"method": "integrated-gradients"}),
        ("text-gpt", {"show": "knockout"}),
        ("images-vit", {}),
    ],
)
def test_what_takes_many_passes_ends_once_nobody_waits(
    name: str, options: dict[str, str], image: Path
) -> None:
    model: Any = seqloom.load(RUNS / name, "cpu")
    given = str(image) if name == "images-vit" else "the red dog"
    with ends_unless(lambda: False), pytest.raises(UnwantedWorkError):
        model.explain(given, **{"show": "attribution", **options})


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"inputs": "a " * 300}, "inputs"),
        ({"inputs": ""}, "inputs"),
        ({"inputs": []}, "inputs"),
        ({"inputs": ["a"] * 257}, "inputs"),
        ({"inputs": "the dog", "show": "gates"}, "show"),
        ({"inputs": "the dog", "show": "<script>"}, "show"),
        ({"inputs": "the dog", "layer": 99}, "layer"),
        ({"inputs": "the dog", "head": 0}, "head"),
        ({"inputs": "the dog", "part": "nothing"}, "part"),
        ({"inputs": "the dog", "show": "surprisal", "foil": "cat"}, "foil"),
        ({"inputs": "the dog", "show": "attribution", "method": "magic"}, "method"),
        ({"inputs": "the dog", "show": "attribution", "target": "a " * 300}, "inputs"),
        ({"inputs": "the dog", "column": "x"}, "column"),
        ({"inputs": "the dog", "picture": "png"}, "picture"),
        ({"inputs": "the dog", "output": "/tmp/x.svg"}, "output"),
    ],
)
def test_what_cannot_be_is_refused_by_the_name_of_its_field(
    fields: dict[str, Any], param: str, server: str
) -> None:
    answer = asked(server, "text-gpt", **fields)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["param"] == param
    assert "--" not in error["message"]
    assert str(RUNS) not in error["message"]


def test_no_file_is_opened(server: str, image: Path) -> None:
    """The command reads the words of a file that is named; the server takes the name for a word."""
    place = image.with_name("words")
    place.write_text("red\ncat\ndog\n")
    words = asked(server, "text-gpt", inputs=str(place), show="words")
    assert words.status_code == 400
    assert "there is 0" in words.json()["error"]["message"]
    answer = asked(server, "images-vit", inputs=str(image))
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "inputs")


def test_the_numbers_of_an_answer_are_bounded() -> None:
    (text,) = INPUTS["text-gpt"]
    limits = ServerLimits(explained_numbers=90)
    with serving(str(RUNS / "text-gpt"), limits=limits, device="cpu") as url:
        for fields, param in (
            ({"show": "attention"}, "layer"),
            ({"show": "lens", "target": "cat " * 7}, "inputs"),
        ):
            answer = httpx.post(f"{url}/api/explain", json={"inputs": text, **fields})
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
        one = {"inputs": text, "show": "attention", "layer": 1}
        assert httpx.post(f"{url}/api/explain", json=one).status_code == 200


LISTS: list[dict[str, Any]] = [
    {
        "id": 1,
        "nbest": [{"text": "the cat", "score": -1.0}, {"text": "the red dog", "score": -1.1}],
    },
    {"id": "b", "nbest": [{"text": "a dog", "score": -2.0}, {"text": "dog a", "score": -2.5}]},
]


@pytest.mark.parametrize("model", ["text-gpt", "text-ngram", "translation-t5"])
@pytest.mark.parametrize("references", [False, True])
def test_rescoring_is_that_of_the_command(
    model: str, references: bool, server: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lists = [{**one, "source": "the dog"} for one in LISTS]
    if references:
        lists = [{**one, "ref": "the red dog"} for one in lists]
    path = tmp_path / "lists.jsonl"
    path.write_text("".join(json.dumps(one) + "\n" for one in lists))
    assert run("rescore", RUNS / model, path, "--json", "--weights", "given=1,lm=2") == 0
    printed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    asked_for = {"model": model, "lists": lists, "weights": "given=1,lm=2"}
    answer = httpx.post(f"{server}/api/rescore", json=asked_for).json()
    if references:
        del printed[0]["test"]["file"]
        same(answer["summary"], printed[0])
    else:
        same(answer["lists"], printed)


ONE: list[dict[str, Any]] = [{"nbest": [{"text": "a"}]}]


@pytest.mark.parametrize(
    ("model", "fields", "param"),
    [
        ("labels-bert", {"lists": LISTS}, "model"),
        ("text-gpt", {"lists": []}, "lists"),
        ("text-gpt", {"lists": [{"id": 1}]}, "lists"),
        ("text-gpt", {"lists": [{"nbest": [{"score": 1}]}]}, "lists"),
        ("text-gpt", {"lists": [{"nbest": [{"text": 5}]}]}, "lists"),
        ("text-gpt", {"lists": [{"nbest": [{"text": "a", "score": 1e308}]}]}, "lists"),
        ("text-gpt", {"lists": [{"nbest": [{"text": "a"}] * 300}]}, "lists"),
        ("text-gpt", {"lists": [*ONE, {"nbest": []}]}, "lists"),
        ("text-gpt", {"lists": ONE, "weights": "nothing"}, "weights"),
        ("text-gpt", {"lists": ONE, "metric": "luck"}, "metric"),
        ("text-gpt", {"lists": ONE, "output": "/tmp/x"}, "output"),
        ("translation-t5", {"lists": LISTS}, "lists"),
    ],
)
def test_wrong_lists(model: str, fields: dict[str, Any], param: str, server: str) -> None:
    answer = httpx.post(f"{server}/api/rescore", json={"model": model, **fields})
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["param"] == param
    assert "/tmp" not in error["message"]
    assert "--" not in error["message"]
