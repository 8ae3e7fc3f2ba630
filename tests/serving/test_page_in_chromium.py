"""The page in a real browser: what each kind of model shows, by mouse and by keyboard; and no text becomes
anything but text."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import httpx
import numpy as np
import pytest
from PIL import Image
from tests.serving.chromium import FIELDS, NODES, answered, until, visit
from tests.tasks.explain.subjects import SENTENCE

PAYLOADS = (
    "<script>window.hacked = 1</script>",
    "<img src=x onerror='window.hacked = 1'>",
    "<svg onload='window.hacked = 1'></svg>",
    "<iframe srcdoc='<script>parent.hacked = 1</script>'></iframe>",
    "<a href='javascript:window.hacked = 1'>x</a>",
    "<style>* { display: none }</style>",
    "<base href='https://example.org/'>",
    "<link rel=stylesheet href='https://example.org/x.css'>",
    "<meta http-equiv=refresh content='0;url=https://example.org'>",
    "<object data='https://example.org'></object>",
    "<input autofocus onfocus='window.hacked = 1'>",
    "<details open ontoggle='window.hacked = 1'>x</details>",
    "<form action='https://example.org'><button>x</button></form>",
    "{{constructor.constructor('window.hacked = 1')()}}",
    "javascript:window.hacked = 1",
)
AROUND = (
    "{}",
    '">{}',
    "'>{}",
    "</option>{}",
    "</textarea>{}",
    "</title>{}",
    "-->{}",
    "]]>{}",
    "{}\\",
    "%3C{}",
)
INJECTIONS = [around.format(payload) for payload in PAYLOADS for around in AROUND]


@pytest.mark.parametrize("model", FIELDS)
def test_the_first_view_of_each_kind(model: str, page: Any, server: str) -> None:
    visit(page, server, model=model)
    assert page.evaluate("document.querySelectorAll('*').length") < NODES
    assert len(page.inner_text("#says")) > 60
    fields = "[...document.querySelectorAll('input, select, textarea')]"
    assert page.evaluate(f"{fields}.every((one) => one.labels.length === 1)")
    for name, value in FIELDS[model].items():
        page.fill(f"#field-{name}", value)
    page.click("#ask")
    answered(page)
    assert page.inner_text("#answers").strip()
    assert page.evaluate("document.querySelectorAll('*').length") < NODES


def test_pictures_are_drawn_and_kept(page: Any, server: str, tmp_path: Path) -> None:
    visit(page, server, model="text-gpt", text="the red dog")
    for view in ("lens", "words"):
        page.click(f"#tab-{view}")
        if view == "words":
            page.fill("#field-words", "red, cat, dog")
        page.click("#ask")
        answered(page)
        until(page, "document.querySelector('.picture img').naturalWidth > 100")
    for label, begins in (
        ("SVG", b"<svg"),
        ("PNG", b"\x89PNG"),
        ("HTML", b"<!DOCTYPE html>"),
        ("numbers", b'{"show"'),
    ):
        with page.expect_download() as download:
            page.click(f"button:has-text('{label}')")
        place = tmp_path / label
        download.value.save_as(place)
        assert place.read_bytes().startswith(begins)


@pytest.mark.parametrize(
    ("model", "view"), [("text-ngram", "backoff"), ("text-recurrent-lm", "gates")]
)
def test_numbers_below_a_picture(model: str, view: str, page: Any, server: str) -> None:
    visit(page, server, model=model, view=view, text=SENTENCE)
    answered(page)
    page.click("[role=option]:nth-child(3)")
    content = {"model": model, "inputs": SENTENCE, "show": view}
    found = httpx.post(f"{server}/api/explain", json=content).json()["explanation"]
    if view == "backoff":
        assert f"p({found['words'][2]}) =" in page.inner_text(".details caption")
        added = page.inner_text(".details tbody tr td:last-child")
        assert float(added) == pytest.approx(found["levels"][2][0]["added"], rel=0.01)
    else:
        assert f"h = {found['values']['h'][0][2]:.4f}" in page.inner_text(".details")


def test_a_row_of_a_head_is_read_as_numbers(page: Any, server: str) -> None:
    visit(page, server, model="text-gpt", view="attention", text=SENTENCE)
    answered(page)
    page.click("[role=option]:nth-child(3)")
    read = [float(cell.inner_text()) for cell in page.query_selector_all(".details .share")]
    content = {"model": "text-gpt", "inputs": SENTENCE, "show": "attention"}
    found = httpx.post(f"{server}/api/explain", json=content).json()["explanation"]
    row = found["weights"][-1][0][2]
    assert row[3:] == [0] * (len(row) - 3), "no token sees those after it, so rows differ"
    assert read == pytest.approx(sorted(row, reverse=True)[:10], abs=6e-4)


def test_an_image(page: Any, server: str, tmp_path: Path) -> None:
    pixels = np.random.default_rng(1).integers(0, 255, (8, 8)).astype(np.uint8)
    Image.fromarray(pixels).save(tmp_path / "image.png")
    for view in ("answer", "attention", "attribution"):
        visit(page, server, model="images-vit", view=view)
        page.set_input_files("#field-image", tmp_path / "image.png")
        page.click("#ask")
        answered(page)
        assert page.query_selector("#answers table, #answers img")


def test_a_link_restores_a_view_and_two_models_stand_side_by_side(page: Any, server: str) -> None:
    visit(page, server, model="text-gpt")
    page.fill("#field-text", "the red")
    page.select_option("#beside", "text-ngram")
    page.click("#ask")
    answered(page)
    assert "seed=" in page.url, "the seed that was drawn is in the link"
    found = page.inner_text("#answers")
    assert "text-gpt" in found
    assert "text-ngram" in found
    visit(page, server, model="text-gpt", view="surprise", text="the red dog")
    answered(page)
    tokens = page.query_selector_all("[role=option]")
    content = {"model": "text-gpt", "texts": ["the red dog"], "tokens": True}
    score = httpx.post(f"{server}/api/score", json=content).json()["scores"][0]
    bits = [row["surprisal"] for row in score["table"]][: len(tokens)]
    for token, expected in zip(tokens, bits, strict=True):
        assert f"{expected:.1f} bits" in token.get_attribute("title")


def test_by_keyboard_alone(page: Any, server: str) -> None:
    visit(page, server)

    def tab_to(selector: str) -> None:
        for _ in range(40):
            page.keyboard.press("Tab")
            if page.evaluate(f"document.activeElement.matches({json.dumps(selector)})"):
                return
        raise AssertionError(f"the key Tab does not reach {selector}")

    tab_to("#model")
    page.keyboard.type("text-ng")
    until(page, "document.getElementById('model').value === 'text-ngram'")
    tab_to("[role=tab]")
    page.keyboard.press("ArrowRight")
    until(page, "document.activeElement.id === 'tab-surprise'")
    tab_to("#field-text")
    page.keyboard.type("the red dog")
    tab_to("#ask")
    page.keyboard.press("Enter")
    answered(page)
    tab_to("[role=option]")
    page.keyboard.press("ArrowRight")
    until(page, "document.querySelector('.details caption') !== null")
    tab_to(".details button")
    page.keyboard.press("Enter")
    until(page, "document.activeElement !== null && location.hash.includes('view=write')")
    answered(page)


def stays_text(page: Any, where: str) -> None:
    """All of the texts are in the page as they are, and nothing else came of them."""
    shown = page.evaluate(f"document.querySelector('{where}').textContent")
    assert [text for text in INJECTIONS if text not in shown] == []
    made = "script, iframe, object, base, meta, style, form, svg, a"
    assert page.evaluate(f"document.querySelectorAll('{where} :is({made})').length") == 0
    assert page.evaluate("window.hacked") is None


def test_texts_stay_texts(page: Any, server: str) -> None:
    """As names in an answer, as tokens of a model, as labels, as an error, and in the address."""
    assert len(INJECTIONS) == 150
    visit(page, server, model="vectors-bert", text="\n".join(["the dog", *INJECTIONS]))
    answered(page)
    stays_text(page, "#answers")
    labels = dict.fromkeys(INJECTIONS, 1 / 150)
    logprobs = {
        "tokens": INJECTIONS,
        "token_logprobs": [-1.0] * 150,
        "top_logprobs": [{text: -1.0} for text in INJECTIONS],
        "text_offset": [0] * 150,
    }

    def replied(content: Any, status: int = 200) -> Callable[[Any], None]:
        return lambda route: route.fulfill(status=status, json=content)

    page.route("**/v1/completions", replied({"choices": [{"logprobs": logprobs}]}))
    visit(page, server, model="text-gpt", view="surprise", text="".join(INJECTIONS))
    answered(page)
    stays_text(page, "#answers")
    page.keyboard.press("Tab")
    page.click("[role=option]:nth-child(7)")
    assert page.inner_text(".details th") == INJECTIONS[6]
    said = {"label": INJECTIONS[0], "probabilities": labels}
    page.route("**/api/predict", replied({"answers": [said]}))
    visit(page, server, model="labels-bert", text="a")
    answered(page)
    assert page.inner_text(".large") == INJECTIONS[0]
    name = INJECTIONS[17]
    models = [{"name": name, "task": name, "pictures": []} for name in INJECTIONS]
    page.route("**/info", replied({"models": models}))
    page.goto("about:blank")
    page.goto(f"{server}/#{urlencode({'model': name, 'view': name, 'text': name})}")
    until(page, "document.querySelectorAll('#model option').length === 150")
    stays_text(page, "#model")


def test_an_error_is_said_in_words(page: Any, server: str) -> None:
    said = {"error": {"message": INJECTIONS[1], "param": None}}
    page.route("**/api/predict", lambda route: route.fulfill(status=200, json=said))
    page.route(
        "**/v1/completions", lambda route: route.fulfill(body=f"data: {json.dumps(said)}\n\n")
    )
    visit(page, server, model="text-gpt", text="a")
    until(page, f"document.getElementById('status').textContent === {json.dumps(INJECTIONS[1])}")
