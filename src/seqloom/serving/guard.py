"""The one door of the server: every request of every route passes it before anything else.

It checks the Host (no DNS rebinding), the Origin (no foreign page), the key, the type and the size of the
body, and how long the body may take. Nothing of a request is logged.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from seqloom.serving.http_errors import RequestError, where
from seqloom.serving.limits import ServerLimits
from seqloom.serving.metrics import Metrics
from seqloom.serving.routes.page import FILES

logger = logging.getLogger(__name__)

OPEN = ("/health/live", "/health/ready")
"""What is answered without a key: whether the server is there; and the files of the page, which hold nothing
of the models and ask for the key."""
LOOPBACK = ("localhost", "127.0.0.1", "::1")
JSON_TYPES = ("application/json", "")
IMAGE_TYPES = ("application/octet-stream", "image/")
SECURITY = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:;"
        " connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
"""Headers of every answer."""


@final
@dataclass(frozen=True, kw_only=True)
class Access:
    """Who may ask."""

    keys: tuple[str, ...] = ()
    """Any of these, as `Authorization: Bearer KEY`; none: everyone who reaches the port."""
    hosts: tuple[str, ...] = LOOPBACK
    """Names under which the server may be called, without ports."""
    origins: tuple[str, ...] = ()
    """Pages of other hosts that may ask, such as https://example.org; they are answered with CORS."""


@final
class Guard:
    """An ASGI application around another."""

    def __init__(
        self, app: ASGIApp, access: Access, limits: ServerLimits, metrics: Metrics
    ) -> None:
        self._app, self._access, self._limits, self._metrics = app, access, limits, metrics
        self.draining = False
        """Whether new requests are refused, as the server is told to stop."""
        self.running = 0
        """Requests that were let in and are not answered yet."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":  # a websocket is closed before it is opened
            await send({"type": "websocket.close"})
            return
        headers = headers_of(scope)
        origin = headers.get("origin", "")
        reply = Reply(send, self._cors(origin))
        body = BoundedBody(receive, self._limits)
        try:
            self._check(scope, headers, origin)
            if scope["method"] == "OPTIONS" and reply.cross_origin:
                await reply.preflight()
            else:
                await self._run(scope, body.receive, reply.send)
        except RequestError as error:
            await reply.error(error, body)
        # a traceback could hold a text of a request
        except Exception as error:  # noqa: BLE001
            logger.error(f"a request failed: {type(error).__name__}{where(error)}")
            await reply.error(RequestError(500, "the server failed on this request"), body)
        finally:
            route = scope.get("route")
            path = "other" if route is None else str(route.path)
            self._metrics.requests[path, reply.status] += 1

    async def _run(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.running += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self.running -= 1

    def _check(self, scope: Scope, headers: Mapping[str, str], origin: str) -> None:
        """Raises RequestError for a request that is not let in."""
        path = str(scope["path"])
        if scope["http_version"] not in ("1.0", "1.1"):
            raise RequestError(400, "the request must be HTTP/1.1")
        size = sum(len(name) + len(value) for name, value in scope["headers"])
        if size + len(scope["raw_path"]) + len(scope["query_string"]) > self._limits.header_bytes:
            raise RequestError(
                431, f"the headers must be at most {self._limits.header_bytes:,} bytes"
            )
        if self.draining and not path.startswith(OPEN):
            raise RequestError(503, "the server is shutting down")
        if not self._may_call(headers.get("host", "")):
            raise RequestError(
                403,
                "the Host of the request is not one of this server's; name it with --allow-host",
            )
        if origin and not self._is_own(origin, headers) and origin not in self._access.origins:
            raise RequestError(403, "pages of other hosts may not ask; allow one with --cors")
        if self._access.keys and not is_open(scope["method"], path):
            given = headers.get("authorization", "")
            scheme, _, key = given.partition(" ")
            known = [same(key.strip(), known_key) for known_key in self._access.keys]
            if scheme.lower() != "bearer" or not any(known):
                raise RequestError(
                    401, "a key is needed: Authorization: Bearer KEY", None, "invalid_api_key"
                )
        length = headers.get("content-length", "0")
        if length.isdecimal() and int(length[:20]) > self._limits.body_bytes:
            raise too_large(self._limits)
        kind = headers.get("content-type", "").split(";")[0].strip().lower()
        if scope["method"] == "POST" and not (kind in JSON_TYPES or kind.startswith(IMAGE_TYPES)):
            raise RequestError(
                415, "the Content-Type of a request must be application/json", "content-type"
            )
        if headers.get("content-encoding", "identity").lower() != "identity":
            raise RequestError(415, "a request must not be compressed", "content-encoding")

    def _may_call(self, host: str) -> bool:
        return "*" in self._access.hosts or host_name(host) in self._access.hosts

    def _is_own(self, origin: str, headers: Mapping[str, str]) -> bool:
        """Whether a page of this server asks."""
        return origin.partition("://")[2] == headers.get("host", "")

    def _cors(self, origin: str) -> dict[str, str]:
        if not origin or origin not in self._access.origins:
            return {}
        return {"Access-Control-Allow-Origin": origin, "Vary": "Origin"}


@final
class BoundedBody:
    """The body of a request, in bounded size and time."""

    def __init__(self, receive: Receive, limits: ServerLimits) -> None:
        self._receive, self._limits = receive, limits
        self._size = 0
        self._complete = False
        self._deadline = asyncio.get_running_loop().time() + limits.body_seconds

    async def receive(self) -> Message:
        if self._complete:
            return await self._receive()
        try:
            async with asyncio.timeout_at(self._deadline):
                message = await self._receive()
        except TimeoutError:
            raise RequestError(
                408, f"the body must be there within {self._limits.body_seconds:g} seconds"
            ) from None
        if message["type"] == "http.request":
            self._size += len(message.get("body", b""))
            self._complete = not message.get("more_body", False)
            if self._size > self._limits.body_bytes:
                raise too_large(self._limits)
        return message

    async def discard(self) -> None:
        """Reads what is left of a body, within its time. A connection that is closed with bytes unread is
        reset, and the client may lose the answer with it (RFC 9112, section 9.6)."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(self._deadline):
                while not self._complete:
                    message = await self._receive()
                    self._complete = not message.get("more_body", False)


@final
class Reply:
    """What is sent back, with the headers of every answer."""

    def __init__(self, send: Send, headers: dict[str, str]) -> None:
        self._send = send
        self._headers = SECURITY | headers
        self.cross_origin = bool(headers)
        self.status = 0

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            own = [(name.lower().encode(), value.encode()) for name, value in self._headers.items()]
            message["headers"] = [*message.get("headers", []), *own]
        await self._send(message)

    async def preflight(self) -> None:
        """Tells the browser of an allowed page what it may send."""
        self._headers |= {
            "Access-Control-Allow-Methods": "GET, POST",
            "Access-Control-Allow-Headers": "authorization, content-type",
        }
        await self.send({"type": "http.response.start", "status": 204, "headers": []})
        await self.send({"type": "http.response.body", "body": b""})

    async def error(self, error: RequestError, body: BoundedBody) -> None:
        """An answer, after which the connection is closed: there may be more of the request."""
        if self.status:
            return
        content = json.dumps(error.content).encode()
        headers = error.headers | {
            "content-type": "application/json",
            "content-length": str(len(content)),
            "connection": "close",
        }
        pairs = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
        await self.send({"type": "http.response.start", "status": error.status, "headers": pairs})
        await self.send({"type": "http.response.body", "body": content, "more_body": True})
        await body.discard()
        await self.send({"type": "http.response.body", "body": b""})


def is_open(method: str, path: str) -> bool:
    """Whether it needs no key."""
    return path in OPEN or (method in ("GET", "HEAD") and path in FILES)


def headers_of(scope: Scope) -> dict[str, str]:
    """The headers by name; of those that stand several times all, joined, so that none of them counts
    alone."""
    found: dict[str, str] = {}
    for name, value in scope["headers"]:
        text = value.decode("latin-1")
        known = name.decode("latin-1").lower()
        found[known] = f"{found[known]},{text}" if known in found else text
    return found


def host_name(host: str) -> str:
    """Without the port: [::1]:8000 -> ::1."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.rpartition(":")[0].lower() if ":" in host else host.lower()


def same(given: str, key: str) -> bool:
    """Takes as long whatever is given."""
    return hmac.compare_digest(given.encode(), key.encode())


def too_large(limits: ServerLimits) -> RequestError:
    return RequestError(413, f"the body must be at most {limits.body_bytes:,} bytes")
