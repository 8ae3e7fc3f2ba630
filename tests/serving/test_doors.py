"""No route answers without its key, under a foreign name, or to a foreign page."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi.routing import APIRoute

from seqloom.errors import UsageError
from seqloom.serving.app import make_app
from seqloom.serving.guard import LOOPBACK, OPEN, Access, is_open
from seqloom.serving.limits import ServerLimits
from seqloom.serving.routes.page import FILES
from seqloom.serving.served_models import ServedModels, open_models
from seqloom.serving.server import Address, keys_from, make_server, served

KEY = "a key of more than 16 letters"
PAGE = "https://example.org"
WRONG: dict[str, dict[str, str]] = {
    "no key": {},
    "a wrong key": {"Authorization": "Bearer another key of 16 letters"},
    "a key without Bearer": {"Authorization": KEY},
    "an empty key": {"Authorization": "Bearer"},
    "a key and a foreign Host": {"Authorization": f"Bearer {KEY}", "Host": "evil.example"},
    "a key and a Host that begins alike": {
        "Authorization": f"Bearer {KEY}",
        "Host": "localhost.evil.example",
    },
    "a key and a foreign Origin": {
        "Authorization": f"Bearer {KEY}",
        "Origin": "https://evil.example",
    },
    "a key and the Origin of a file": {"Authorization": f"Bearer {KEY}", "Origin": "null"},
}


@pytest.fixture(scope="module")
def models(folders: dict[str, Path]) -> Iterator[ServedModels]:
    opened = open_models([f"org/small={folders['org/small']}"], ServerLimits(), "cpu")
    yield opened
    opened.stop()


@pytest.fixture(scope="module")
def locked(models: ServedModels) -> Iterator[str]:
    """A server with a key, which one page may ask."""
    access = Access(keys=("another key, of the same server", KEY), origins=(PAGE,))
    with served(models, Address(port=0), access, ServerLimits()) as url:
        yield url


def routes(models: ServedModels) -> list[tuple[str, str]]:
    """Every method and path of the application itself."""
    app, _ = make_app(models, ServerLimits(), Access())
    found = []
    pending: list[Any] = list(app.router.routes)
    while pending:
        route = pending.pop()
        inner = vars(route).get("original_router") or vars(route).get("router")
        if inner is not None:
            pending += inner.routes
        elif isinstance(route, APIRoute):
            found += [(method, route.path) for method in route.methods or ()]
    return sorted(found)


@pytest.mark.parametrize("how", WRONG)
def test_every_route_is_closed(how: str, models: ServedModels, locked: str) -> None:
    """The routes are those of the application, so that a new one is asked too; in other spellings too."""
    found = routes(models)
    assert len(found) >= 18
    with httpx.Client(base_url=locked) as client:
        for method, path in found:
            own = path.replace("{name:path}", "org/small")
            for spelled in (
                own,
                "/" + own,
                own + "/",
                own.upper(),
                f"/v1/..{own}",
                f"{own}?key={KEY}",
            ):
                for asked in (method, "HEAD", "OPTIONS"):
                    answer = client.request(asked, spelled, headers=WRONG[how], json={})
                    # httpx folds `..`, so this may be another route
                    if is_open(asked, answer.url.path) and not WRONG[how].keys() & {
                        "Host",
                        "Origin",
                    }:
                        continue
                    assert answer.status_code in (401, 403), (asked, spelled, answer.text)


@pytest.mark.parametrize("path", OPEN)
def test_whether_it_is_there_needs_no_key(path: str, locked: str) -> None:
    assert httpx.get(locked + path).status_code == 200
    assert httpx.get(locked + path, headers={"Host": "evil.example"}).status_code == 403


def test_the_page_needs_no_key_but_what_it_asks_for_does(locked: str) -> None:
    """Its files hold nothing of the models; posts to the same address do."""
    for path in FILES:
        assert httpx.get(locked + path).status_code == 200
        assert httpx.get(locked + path, headers={"Host": "evil.example"}).status_code == 403
        assert httpx.post(locked + path, json={"inputs": "a"}).status_code == 401
        assert "org/small" not in httpx.get(locked + path).text


def test_each_key_opens(locked: str) -> None:
    for key in (KEY, "another key, of the same server"):
        answer = httpx.get(locked + "/v1/models", headers={"Authorization": f"bearer {key}"})
        assert answer.status_code == 200


def test_a_page_may_ask_only_where_it_is_allowed_to(locked: str) -> None:
    key = {"Authorization": f"Bearer {KEY}"}
    answer = httpx.get(locked + "/v1/models", headers=key | {"Origin": PAGE})
    assert answer.headers["access-control-allow-origin"] == PAGE
    preflight = httpx.options(locked + "/v1/completions", headers={"Origin": PAGE})
    assert preflight.status_code == 401, "a browser asks without a key, so there is nothing to see"
    plain = httpx.get(locked + "/v1/models", headers=key)
    assert "access-control-allow-origin" not in plain.headers
    own = httpx.get(locked + "/v1/models", headers=key | {"Origin": locked})
    assert own.status_code == 200


@pytest.mark.parametrize(
    "host", ["localhost", "127.0.0.1:1", "[::1]", "[::1]:8000", "LOCALHOST:80"]
)
def test_names_of_loopback(host: str, locked: str) -> None:
    assert httpx.get(locked + "/health/live", headers={"Host": host}).status_code == 200


def test_no_form_of_a_page_is_read(locked: str) -> None:
    """A page can post these without asking first."""
    for kind in (
        "text/plain",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=x",
    ):
        headers = {"Authorization": f"Bearer {KEY}", "Content-Type": kind}
        answer = httpx.post(locked + "/v1/completions", headers=headers, content=b"{}")
        assert answer.status_code == 415


def test_every_answer_has_a_strict_policy(locked: str) -> None:
    for path in ("/health/live", "/v1/models", "/nothing"):
        headers = httpx.get(locked + path).headers
        assert "default-src 'none'" in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert "server" not in headers


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "example.org"])
def test_others_reach_it_only_with_a_key(host: str, models: ServedModels) -> None:
    with pytest.raises(UsageError, match="needs a key"):
        make_server(models, Address(host=host), Access(), ServerLimits())
    make_server(models, Address(host=host), Access(keys=(KEY,)), ServerLimits())


def test_keys_are_long_and_for_their_owner_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "keys"
    place.write_text(f"{KEY}\n\nanother key of 16 letters\n")
    place.chmod(0o644)
    with pytest.raises(UsageError, match="chmod 600"):
        keys_from(str(place))
    place.chmod(0o600)
    assert keys_from(str(place)) == (KEY, "another key of 16 letters")
    place.write_text("short")
    with pytest.raises(UsageError, match="at least 16"):
        keys_from(str(place))
    monkeypatch.setenv("SEQLOOM_KEY", KEY)
    assert keys_from(None) == (KEY,)
    monkeypatch.delenv("SEQLOOM_KEY")
    assert keys_from(None) == ()
    assert all(name in Access().hosts for name in LOOPBACK)
