"""The routes of the server, and how they are put together."""

from __future__ import annotations

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from seqloom.errors import SeqloomError
from seqloom.serving.answering import ClientLeftError
from seqloom.serving.guard import Access, Guard
from seqloom.serving.http_errors import RequestError, of_error
from seqloom.serving.limits import ServerLimits
from seqloom.serving.metrics import Metrics
from seqloom.serving.routes import chat, explain, openai, page, rescore, tasks, trace, verbs
from seqloom.serving.served_models import ServedModels
from seqloom.serving.traces import KeptTraces
from seqloom.version import VERSION


async def request_error(_: Request, error: RequestError) -> Response:
    headers = error.headers
    if error.status in (408, 413):
        headers["Connection"] = "close"
    return JSONResponse(error.content, error.status, headers)


async def failed(request: Request, error: Exception) -> Response:
    """What the code of models and tokenizers says about an input, or that it broke."""
    return await request_error(request, of_error(error, request.app.state.models.folders))


async def client_left(request: Request, _: Exception) -> Response:
    """Nobody reads this answer."""
    request.app.state.metrics.aborted += 1
    return Response(status_code=499)


async def no_route(_: Request, error: HTTPException) -> Response:
    status = error.status_code
    message = {404: "there is no such route", 405: "this route does not take that method"}
    wrong = RequestError(status, message.get(status, "the request is not what it must be"))
    return JSONResponse(wrong.content, status, error.headers)


def make_app(models: ServedModels, limits: ServerLimits, access: Access) -> tuple[FastAPI, Guard]:
    """The application, and the guard around it, which is what a server runs."""
    app = FastAPI(
        title="seqloom",
        version=VERSION,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
        exception_handlers={
            RequestError: request_error,
            ClientLeftError: client_left,
            SeqloomError: failed,
            Exception: failed,
            HTTPException: no_route,
        },
    )
    metrics = Metrics()
    app.state.models, app.state.limits, app.state.metrics = models, limits, metrics
    app.state.traces = KeptTraces(limits.trace_bytes)
    for module in (page, openai, chat, verbs, explain, trace, rescore, tasks):
        app.include_router(module.router)
    guard = Guard(app, access, limits, metrics)
    app.state.guard = guard
    return app, guard
