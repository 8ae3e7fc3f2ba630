"""Chat completions: the next turn of a talk, by a language model that has a chat template."""

from __future__ import annotations

from collections.abc import AsyncIterator

from fastapi import APIRouter
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from seqloom.serving.chat_prompt import chat_ids
from seqloom.serving.event_stream import EventStream
from seqloom.serving.http_errors import RequestError, invalid
from seqloom.serving.limits import ServerLimits
from seqloom.serving.routes.bodies import ChatBody, Message, read_body
from seqloom.serving.routes.completions import (
    Asked,
    Choice,
    Completions,
    checked_prompts,
    decode_config,
    new_tokens_of,
)
from seqloom.serving.routes.openai import check_stream_options

router = APIRouter()


@router.post("/v1/chat/completions")
async def chat_completions(request: Request) -> Response:
    """Only with a chat template: it says how turns become one prompt."""
    body = await read_body(request, ChatBody)
    state = request.app.state
    limits: ServerLimits = state.limits
    served = state.models.named(body.model)
    # a model of another task is told so first
    run = served.language_model.run
    if served.chat_template is None:
        raise RequestError(
            400,
            "this model has no chat template, so it knows no turns; ask /v1/completions with a prompt",
            "messages",
        )
    if body.logprobs or body.top_logprobs:
        raise invalid("logprobs", "is not supported here; ask /v1/completions, or leave it out")
    if body.max_tokens is not None and body.max_completion_tokens is not None:
        raise invalid("max_tokens", "is max_completion_tokens by an older name; leave one out")
    check_stream_options(body)
    messages = [{"role": one.role, "content": text_of(one)} for one in body.messages]
    ids = await run_in_threadpool(chat_ids, run.tokenizer, served.chat_template, messages)
    asked = Asked(
        served=served,
        prompts=checked_prompts(run, [ids], limits),
        decode=decode_config(body, limits),
        new_tokens=new_tokens_of(body.max_completion_tokens or body.max_tokens, limits),
        stream=bool(body.stream),
        include_usage=bool(body.stream_options and body.stream_options.include_usage),
    )
    completions = Completions(asked, state.metrics)
    await run_in_threadpool(completions.submit)
    seconds, answering = limits.request_seconds, completions.answering
    if asked.stream:
        return EventStream(deltas(completions), answering, seconds, state.metrics)
    async with answering.for_client(request.receive, seconds):
        whole = await completions.whole()
    choices = []
    for choice in whole["choices"]:
        message = {"role": "assistant", "content": choice["text"]}
        choices.append(turn(choice) | {"message": message})
    return JSONResponse({**whole, "object": "chat.completion", "choices": choices})


def text_of(message: Message) -> str:
    if isinstance(message.content, str):
        return message.content
    return "".join(part.text for part in message.content)


def turn(choice: Choice) -> dict[str, object]:
    """A choice without its text."""
    return {
        "index": choice["index"],
        "logprobs": choice["logprobs"],
        "finish_reason": choice["finish_reason"],
    }


async def deltas(completions: Completions) -> AsyncIterator[dict[str, object]]:
    """The pieces of a completion as chat clients read them: the first of each choice says whose turn it
    is."""
    begun: set[int] = set()
    async for piece in completions.pieces():
        choices = []
        for choice in piece["choices"]:
            delta = {"content": choice["text"]}
            if choice["index"] not in begun:
                delta = {"role": "assistant", **delta}
                begun.add(choice["index"])
            choices.append(turn(choice) | {"delta": delta})
        yield {**piece, "object": "chat.completion.chunk", "choices": choices}
