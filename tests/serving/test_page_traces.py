"""Views of the page that ask for their numbers bit by bit, in a real browser; signing in; accessibility."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.serving.chromium import FIELDS, NODES, answered, opened_page, until, violations, visit
from tests.serving.conftest import write_random_run
from tests.tasks.explain.subjects import SENTENCE

from seqloom.serving.guard import Access
from seqloom.serving.limits import ServerLimits
from seqloom.serving.served_models import open_models
from seqloom.serving.server import Address, served, serving

KEY = "a key of more than 16 letters"


def test_the_tree_of_a_search_is_read_step_by_step(page: Any, server: str) -> None:
    visit(page, server, model="text-gpt", view="beams", text="the red", beams="3", tokens="4")
    answered(page)
    content = {"model": "text-gpt", "inputs": "the red", "beam": 3, "tokens": 4}
    found = httpx.post(f"{server}/api/beams", json=content).json()
    for step in (1, 3):
        page.fill(".row input", str(step))
        until(page, f"document.querySelector('caption').textContent.includes('step {step},')")
        totals = sorted((n["total"] for n in found["nodes"] if n["step"] == step), reverse=True)
        cells = [cell.inner_text() for cell in page.query_selector_all("tbody td:nth-child(3)")]
        assert cells == [f"{total:.3f}" for total in totals]
    assert (
        page.query_selector_all("ol li")[0]
        .inner_text()
        .endswith(f"(score {found['outputs'][0]['score']:.3f})")
    )


def test_96_heads_of_1000_tokens(browser: Any, tmp_path: Path) -> None:
    """Within the bounds of the page, and every number that is read is the model's."""
    sizes: dict[str, Any] = {"width": 32, "heads": 8, "layers": 12, "context": 1024}
    run = write_random_run(tmp_path / "long", "text-generation", "gpt", **sizes)
    text = "".join("abcde fgh"[number * number % 9] for number in range(1000))
    with serving(str(run), device="cpu") as url, opened_page(browser, url) as page:
        began = time.monotonic()
        visit(page, url, view="heads")
        assert time.monotonic() - began < 5
        page.fill("#field-text", text)
        page.click("#ask")
        answered(page)
        page.fill(".row input >> nth=1", "3")
        page.focus(".map")
        for key in ("ArrowUp", "ArrowUp", "ArrowRight"):
            page.keyboard.press(key)
        said = "document.querySelector('article [role=status]').textContent"
        until(page, f"{said}.includes('(999) looks at')")
        read = page.evaluate(said)
        assert page.evaluate("document.querySelectorAll('*').length") <= NODES
        session = page.context.new_cdp_session(page)
        session.send("Performance.enable")
        session.send("HeapProfiler.collectGarbage")
        metrics = {
            one["name"]: one["value"] for one in session.send("Performance.getMetrics")["metrics"]
        }
        assert metrics["JSHeapUsedSize"] <= 100 * 2**20
        content = {"inputs": text[:1000]}
        trace = httpx.post(f"{url}/api/trace", json=content, timeout=60).json()
        place = f"{url}/api/trace/{trace['id']}"
        weights = httpx.get(f"{place}/attention/11/2/998").json()["weights"]
        assert read.endswith(f"(2): {weights[1]:.3f}")
        assert sum(weights) == pytest.approx(1, abs=2e-3)
        assert len(httpx.get(f"{place}/attention/11/2").content) == len(trace["source"]) ** 2
        assert len(httpx.get(f"{place}/heads").content) == 96 * 32 * 32


def test_signing_in(browser: Any, folders: dict[str, Path]) -> None:
    """By keyboard; a wrong key is told; the key is not in the address, and outlives a reload."""
    opened = open_models([f"org/small={folders['org/small']}"], ServerLimits(), "cpu")
    context = browser.new_context()
    page = context.new_page()
    with served(opened, Address(port=0), Access(keys=(KEY,)), ServerLimits()) as url:
        page.goto(f"{url}/#text=a")
        until(page, "document.activeElement.id === 'key'")
        assert page.is_hidden("#view")
        page.keyboard.type("another key of 16 letters")
        page.keyboard.press("Enter")
        until(page, "document.getElementById('sign-in-status').textContent !== ''")
        page.fill("#key", KEY)
        page.keyboard.press("Enter")
        until(page, "document.querySelector('[role=tab][aria-selected=true]') !== null")
        assert page.is_hidden("#sign-in")
        page.reload()
        until(page, "document.querySelector('[role=tab][aria-selected=true]') !== null")
        page.click("#ask")
        answered(page)
        assert KEY not in page.url
        assert page.evaluate("localStorage.length") == 0
        page.evaluate("sessionStorage.clear()")
        page.click("#ask")
        until(page, "!document.getElementById('sign-in').hidden")
        assert page.evaluate("document.cookie") == ""
    context.close()


@contextmanager
def behind_a_proxy(url: str) -> Iterator[str]:
    """Another server that shows this one under a path, as the docs say of nginx."""

    class Proxy(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.forward(b"")

        def do_POST(self) -> None:
            self.forward(self.rfile.read(int(self.headers["Content-Length"])))

        def forward(self, body: bytes) -> None:
            path = self.path.removeprefix("/models")
            answer = httpx.request(
                self.command, url + path, content=body, headers=dict(self.headers), timeout=60
            )
            self.send_response(answer.status_code if path != self.path else 404)
            self.send_header("Content-Type", answer.headers["content-type"])
            self.end_headers()
            self.wfile.write(answer.content)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Proxy) as proxy:
        threading.Thread(target=proxy.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{proxy.server_port}/models"
        proxy.shutdown()


def test_the_page_works_under_a_path(browser: Any, server: str) -> None:
    with behind_a_proxy(server) as url, opened_page(browser, url) as page:
        for view in ("surprise", "heads", "lens"):
            visit(page, url, model="text-gpt", view=view, text="the red dog")
            answered(page)


ALIKE = {"lens", "knockout", "induction", "words", "projection"}
"""Views of a picture and no more, as attribution is; scripts/page_pictures.py tries them too."""


def test_the_views_are_accessible(page: Any, server: str) -> None:
    """Each once, with its answer, in light or dark; by axe, which pip installs (axe-playwright-python)."""
    pytest.importorskip("axe_playwright_python")
    seen: set[tuple[str, str]] = set()
    for model, fields in {**FIELDS, "text-recurrent-lm": {"text": SENTENCE}}.items():
        visit(page, server, model=model)
        tabs = page.evaluate(
            "[...document.querySelectorAll('[role=tab]')].map((one) => [one.id.slice(4), one.innerText])"
        )
        for view, title in tabs:
            if view in ALIKE or (view, title) in seen:
                continue
            seen.add((view, title))
            visit(page, server, model=model, view=view, tokens="4", **fields)
            answered(page)
            page.emulate_media(color_scheme="dark" if len(seen) % 2 else "light")
            assert violations(page) == [], (model, view)
    assert len(seen) > 12
