"""The page is files of this server alone, and shows text as text."""

from __future__ import annotations

import re

import httpx
import pytest

from seqloom.serving.routes.page import FILES as PAGE_FILES

SCRIPTS = tuple(path for path in PAGE_FILES if path.endswith(".js"))
FILES = {"/": "text/html", "/page.css": "text/css", **dict.fromkeys(SCRIPTS, "text/javascript")}


@pytest.mark.parametrize("path", FILES)
def test_a_file_is_served_under_the_strict_policy(path: str, client: httpx.Client) -> None:
    answer = client.get(path)
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith(FILES[path])
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    head = client.head(path)
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["content-length"] == str(len(answer.content))


def test_nothing_foreign_and_nothing_inline(client: httpx.Client) -> None:
    page = client.get("/").text
    links = re.findall(r'(?:src|href)="([^"]*)"', page)
    assert links == ["data:,", "page.css", "page.js", "#"]
    assert not re.search(r"\son\w+=|\sstyle=|<style", page)
    for path in FILES:
        assert "http" not in client.get(path).text.replace("http-equiv", "")


@pytest.mark.parametrize("path", SCRIPTS)
def test_no_text_becomes_html(path: str, client: httpx.Client) -> None:
    script = client.get(path).text
    for name in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("):
        assert name not in script


@pytest.mark.parametrize(
    "path", ["/page.js/..", "/../page.js", "/page/index.html", "/..%2fserver.py"]
)
def test_no_other_file_is_reached(path: str, client: httpx.Client) -> None:
    answer = client.get(path)
    assert (
        answer.status_code == 404
        or answer.text == client.get("/page.js").text
        or path.endswith("..")
    )
    assert "from __future__" not in answer.text
