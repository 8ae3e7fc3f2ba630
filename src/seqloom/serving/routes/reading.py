"""Texts that a model reads for several requests at once."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

from starlette.requests import Request

from seqloom.serving.answering import Answering
from seqloom.serving.engine import Read, ReadingJob
from seqloom.serving.served_models import ServedModel


async def read_together(
    request: Request,
    served: ServedModel,
    together: Hashable,
    inputs: Sequence[object],
    tokens: int,
    read: Read,
) -> list[Any]:
    """One output for each input. Requests with an equal `together` share calls of `read`. Raises
    RequestError."""
    answering = Answering(served)
    finish = answering.finisher(0)
    answering.submit(
        [ReadingJob(read=read, together=together, inputs=inputs, tokens=tokens, finish=finish)]
    )
    async with answering.for_client(request.receive, request.app.state.limits.request_seconds):
        (outputs,) = await answering.results()
    found: list[Any] = outputs
    return found
