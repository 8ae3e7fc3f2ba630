"""Connections that are bounded before there is a request: how long its first line and headers may take.

uvicorn bounds neither a client that says nothing nor one that sends half a header.
"""

from __future__ import annotations

import asyncio

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol


def bounded_protocol(header_seconds: float) -> type[H11Protocol]:
    """uvicorn's protocol with a time limit for the headers of each request."""

    class BoundedProtocol(H11Protocol):
        _headers_due: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self._watch_headers()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._watch_headers()

        def connection_lost(self, exc: Exception | None) -> None:
            self._forget()
            super().connection_lost(exc)

        def _watch_headers(self) -> None:
            if self.conn.their_state is not h11.IDLE:
                self._forget()
            elif self._headers_due is None:
                self._headers_due = self.loop.call_later(header_seconds, self.transport.abort)

        def _forget(self) -> None:
            if self._headers_due is not None:
                self._headers_due.cancel()
                self._headers_due = None

    return BoundedProtocol
