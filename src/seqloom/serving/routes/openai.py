"""The subset of OpenAI's API that language models and encoders can answer."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
from fastapi import APIRouter
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from seqloom.config import DecodeConfig
from seqloom.json_values import several_texts
from seqloom.serving.event_stream import EventStream
from seqloom.serving.http_errors import invalid
from seqloom.serving.limits import ServerLimits
from seqloom.serving.routes.bodies import ChatBody, CompletionBody, EmbeddingBody, read_body
from seqloom.serving.routes.completions import (
    Asked,
    Completions,
    checked_prompts,
    decode_config,
    new_tokens_of,
)
from seqloom.serving.routes.reading import read_together
from seqloom.serving.routes.vectors import check_text_lengths, text_vectors
from seqloom.serving.served_models import ServedModel, ServedModels

router = APIRouter()


@router.get("/v1/models")
async def list_models(request: Request) -> Response:
    models: ServedModels = request.app.state.models
    return JSONResponse(
        {"object": "list", "data": [described(served) for served in models.by_name.values()]}
    )


@router.get("/v1/models/{name:path}")
async def one_model(request: Request, name: str) -> Response:
    return JSONResponse(described(request.app.state.models.named(name)))


def described(served: ServedModel) -> dict[str, object]:
    return {
        "id": served.name,
        "object": "model",
        "created": served.created,
        "owned_by": "seqloom",
        "task": served.task,
    }


@router.post("/v1/completions")
async def completions(request: Request) -> Response:
    body = await read_body(request, CompletionBody)
    limits: ServerLimits = request.app.state.limits
    served = request.app.state.models.named(body.model)
    run = served.language_model.run
    decode = decode_config(body, limits)
    new_tokens = new_tokens_of(body.max_tokens, limits)
    if not new_tokens and not body.echo:
        raise invalid("max_tokens", "may be 0 only with echo")
    if body.echo and body.stream and body.logprobs is not None:
        raise invalid("stream", "does not go with echo and logprobs; leave one out")
    check_logprobs(body.logprobs, decode, limits)
    check_stream_options(body)
    prompts = await run_in_threadpool(checked_prompts, run, as_prompts(body.prompt), limits)
    if len(prompts) * decode.n_best > limits.inputs:
        raise invalid("n", f"times the prompts must be at most {limits.inputs}")
    asked = Asked(
        served=served,
        prompts=prompts,
        decode=decode,
        new_tokens=new_tokens,
        echo=bool(body.echo),
        logprobs=body.logprobs,
        stream=bool(body.stream),
        include_usage=bool(body.stream_options and body.stream_options.include_usage),
    )
    return await answered(request, asked)


def as_prompts(
    prompt: str | list[str] | list[int] | list[list[int]],
) -> Sequence[str] | Sequence[Sequence[int]]:
    """One prompt, or several, as several."""
    if isinstance(prompt, str):
        return [prompt]
    if prompt and type(prompt[0]) is int:
        return [prompt]
    return cast(list[str] | list[list[int]], prompt)


def check_logprobs(logprobs: int | None, decode: DecodeConfig, limits: ServerLimits) -> None:
    if logprobs is not None and logprobs > limits.top_logprobs:
        raise invalid("logprobs", f"must be at most {limits.top_logprobs}, but is {logprobs}")
    if logprobs is not None and decode.width > 1 and decode.strategy == "beam":
        raise invalid("logprobs", "does not go with a beam search; leave it or num_beams out")


def check_stream_options(body: CompletionBody | ChatBody) -> None:
    if body.stream_options is not None and not body.stream:
        raise invalid("stream_options", "needs stream")


async def answered(request: Request, asked: Asked) -> Response:
    """The answer as one object, or as a stream. Raises RequestError."""
    state = request.app.state
    completions = Completions(asked, state.metrics)
    await run_in_threadpool(completions.submit)
    seconds = state.limits.request_seconds
    if asked.stream:
        return EventStream(completions.pieces(), completions.answering, seconds, state.metrics)
    async with completions.answering.for_client(request.receive, seconds):
        return JSONResponse(await completions.whole())


@router.post("/v1/embeddings")
async def embeddings(request: Request) -> Response:
    body = await read_body(request, EmbeddingBody)
    state = request.app.state
    served = state.models.named(body.model)
    texts = several_texts(body.input)
    if not 1 <= len(texts) <= state.limits.inputs or not all(texts):
        raise invalid("input", f"must be 1 to {state.limits.inputs} texts, none of them empty")
    tokens = await run_in_threadpool(check_text_lengths, served, texts, "input")
    vectors = await read_together(
        request, served, "vectors", texts, tokens, lambda chunk: list(text_vectors(served, chunk))
    )
    width = len(vectors[0])
    if body.dimensions not in (None, width):
        raise invalid("dimensions", f"must be the {width} of this model, but is {body.dimensions}")
    data = []
    for index, vector in enumerate(vectors):
        plain: Any = vector.tolist()
        if body.encoding_format == "base64":
            plain = base64.b64encode(vector.astype(np.dtype("<f4")).tobytes()).decode()
        data.append({"object": "embedding", "index": index, "embedding": plain})
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return JSONResponse({"object": "list", "data": data, "model": served.name, "usage": usage})
