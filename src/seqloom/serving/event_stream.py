"""Server-sent events: an answer that is sent while it is written."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from typing import final

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from seqloom.serving.answering import Answering, ClientLeftError
from seqloom.serving.http_errors import RequestError
from seqloom.serving.metrics import Metrics

DONE = b"data: [DONE]\n\n"


@final
class EventStream(Response):
    """Each object as one event, then [DONE]; where the answer fails an `error`, and then no [DONE], so that
    nobody takes half a text for a whole one."""

    media_type = "text/event-stream"

    def __init__(
        self,
        objects: AsyncIterator[Mapping[str, object]],
        answering: Answering,
        seconds: float,
        metrics: Metrics,
    ) -> None:
        self.status_code = 200
        self.background = None
        self.body = b""
        self._objects, self._answering, self._seconds = objects, answering, seconds
        self._metrics = metrics
        self.init_headers({"X-Accel-Buffering": "no"})
        del self.headers["content-length"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})

        async def write(content: bytes, more: bool = True) -> None:
            await send({"type": "http.response.body", "body": content, "more_body": more})

        try:
            async with self._answering.for_client(receive, self._seconds):
                waiting = b""
                async for content in self._objects:
                    waiting += event(content)
                    if not self._answering.more_to_come:
                        await write(waiting)
                        waiting = b""
                await write(waiting + DONE)
        except ClientLeftError:
            self._metrics.aborted += 1
            return
        except RequestError as error:
            await write(event(error.content))
        await write(b"", more=False)


def event(content: Mapping[str, object]) -> bytes:
    """JSON in ASCII, so that no proxy can tear a character."""
    return b"data: " + json.dumps(content).encode() + b"\n\n"
