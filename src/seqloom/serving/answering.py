"""One request and the jobs that an engine does for it: their events, until the client has left."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, NamedTuple, final

from starlette.types import Receive

from seqloom.serving.engine import Finish, Job, OverloadedError, StoppedError
from seqloom.serving.http_errors import RequestError, of_error
from seqloom.serving.served_models import ServedModel


class Event(NamedTuple):
    """Something that happened to a job."""

    job: int
    """Its number within the request."""
    content: Any
    final: bool = False
    """Whether the content is its result, or the exception that it failed with."""


class ClientLeftError(Exception):
    """Nobody waits for the answer."""


@final
class Answering:
    """The jobs of one request. Events come in order, from the thread of the engine."""

    def __init__(self, served: ServedModel) -> None:
        self._served, self._engine = served, served.engine
        self._loop = asyncio.get_running_loop()
        self._events: asyncio.Queue[Event | None] = asyncio.Queue()
        self._jobs: Sequence[Job] = ()

    def listener(self, job: int) -> Finish:
        """What the thread of the engine calls while a job goes on."""
        return lambda content: self._put(Event(job, content))

    def finisher(self, job: int) -> Finish:
        """What it calls at the end of a job."""
        return lambda content: self._put(Event(job, content, final=True))

    def _put(self, event: Event | None) -> None:
        self._loop.call_soon_threadsafe(self._events.put_nowait, event)

    def submit(self, jobs: Sequence[Job]) -> None:
        """Raises RequestError where the engine takes no more."""
        try:
            self._engine.submit(jobs)
        except (OverloadedError, StoppedError) as error:
            raise of_error(error, {}) from None
        self._jobs = jobs

    @property
    def more_to_come(self) -> bool:
        """Whether an event is there already."""
        return not self._events.empty()

    async def events(self) -> AsyncIterator[Event]:
        """Those of all jobs, until the last has its result. Raises RequestError where one fails,
        ClientLeftError where nobody waits any more."""
        left = len(self._jobs)
        while left:
            event = await self._events.get()
            if event is None:
                raise ClientLeftError
            if isinstance(event.content, Exception):
                raise of_error(event.content, self._served.folders)
            left -= event.final
            yield event

    async def results(self) -> list[Any]:
        """The result of each job."""
        found: list[Any] = [None] * len(self._jobs)
        async for event in self.events():
            if event.final:
                found[event.job] = event.content
        return found

    def cancel(self) -> None:
        """Nobody waits any more."""
        self._engine.cancel(self._jobs)
        self._put(None)

    @asynccontextmanager
    async def for_client(self, receive: Receive, seconds: float) -> AsyncIterator[None]:
        """While the client is there. Its jobs are cancelled once it leaves, and at the end of the block."""
        watch = asyncio.create_task(self._cancel_when_gone(receive))
        try:
            async with asyncio.timeout(seconds):
                yield
        except TimeoutError:
            raise RequestError(503, f"the answer took more than {seconds:g} seconds") from None
        finally:
            watch.cancel()
            self._engine.cancel(self._jobs)

    async def _cancel_when_gone(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self.cancel()
