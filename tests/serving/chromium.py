"""The page in a real browser: what tests of it share."""

from __future__ import annotations

import importlib
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlencode

from tests.tasks.explain.subjects import INPUTS, PAIR, SENTENCE

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
NODES = 1500
FIELDS: dict[str, dict[str, str]] = {
    "text-gpt": {"text": SENTENCE, "seed": "1"},
    "text-ngram": {"text": SENTENCE, "seed": "1"},
    "translation-seq2seq": {"text": "the red dog"},
    "labels-bert": {"text": SENTENCE},
    "labels-gpt": {"text": PAIR[0], "second": PAIR[1]},
    "similar-recurrent": {"text": PAIR[0], "second": PAIR[1]},
    "tags-recurrent": {"text": SENTENCE},
    "questions-bert": {"question": INPUTS["questions-bert"][0], "context": SENTENCE},
    "choices-gpt": {"text": "the red dog", "options": "sees the cat\nlikes the park"},
    "masks-bert": {"text": INPUTS["masks-bert"][0]},
    "words": {"text": "dog - red + old"},
    "vectors-bert": {"text": "the red dog\nthe cat\na bird"},
}
"""Model -> what is typed into its first view."""


def until(page: Any, condition: str) -> None:
    """Waits for what JavaScript says; the policy of the page forbids `wait_for_function`."""
    for _ in range(400):
        if page.evaluate(condition):
            return
        page.wait_for_timeout(25)
    raise AssertionError(
        f"{condition} did not come about; the page says: {page.inner_text('body')}"
    )


def visit(page: Any, server: str, **parts: str) -> None:
    page.goto("about:blank")
    page.goto(f"{server}/#{urlencode(parts)}")
    until(page, "document.querySelector('[role=tab][aria-selected=true]') !== null")


def answered(page: Any) -> None:
    until(page, "document.getElementById('status').textContent === 'Done.'")


def violations(page: Any) -> list[tuple[str, str]]:
    """What axe says is hard to use for some people: the name of its rule and an example. It comes with
    axe-playwright-python, which must be there."""
    axe = importlib.import_module("axe_playwright_python.sync_playwright").Axe()
    found = axe.run(page).response["violations"]
    return [(one["id"], one["nodes"][0]["html"]) for one in found]


@contextmanager
def opened_page(browser: Any, url: str, **options: Any) -> Iterator[Any]:
    """A page that may ask nobody but the server, and that must not complain."""
    context = browser.new_context(**options)
    page = context.new_page()
    wrong: list[str] = []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("dialog", lambda dialog: wrong.append(dialog.message))
    page.on("console", lambda said: wrong.append(said.text) if said.type == "error" else None)
    own = (url, "data:", "blob:")
    page.on("request", lambda sent: None if sent.url.startswith(own) else wrong.append(sent.url))
    yield page
    context.close()
    assert wrong == []
