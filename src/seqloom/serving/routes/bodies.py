"""What requests may hold: every field, its type and its bounds. Another field is refused, never ignored."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Annotated, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request

from seqloom.errors import FolderError
from seqloom.files import parse_json
from seqloom.json_values import as_object
from seqloom.serving.http_errors import RequestError, of_validation

M = TypeVar("M", bound=BaseModel)
Seed = Annotated[int, Field(ge=0, lt=2**63)]
Count = Annotated[int, Field(ge=1, le=2**31)]
Zero = Annotated[float, Field(ge=0, le=0)]
Temperature = Annotated[float, Field(ge=0, le=100)]
Share = Annotated[float, Field(gt=0, le=1)]
SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
"""Half a character, perhaps without its other half."""
QUICK = 2**16
"""Bytes that are parsed at once; more are parsed in a thread."""


class Body(BaseModel):
    """The fields of a request. Null means that a field is not given."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class SamplingFields(Body):
    """How a text is drawn, or searched for."""

    temperature: Temperature | None = None
    top_p: Share | None = None
    top_k: Count | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Field(ge=1, le=100)] | None = None
    seed: Seed | None = None
    num_beams: Count | None = None
    stop: str | list[str] | None = None
    n: Count | None = None
    frequency_penalty: Zero | None = None
    presence_penalty: Zero | None = None


class StreamOptions(Body):
    include_usage: bool = False


class CompletionBody(SamplingFields):
    """POST /v1/completions"""

    model: str | None = None
    prompt: str | list[str] | list[int] | list[list[int]]
    max_tokens: Annotated[int, Field(ge=0, le=2**31)] | None = None
    echo: bool | None = None
    logprobs: Annotated[int, Field(ge=0, le=1000)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None


class TextPart(Body):
    type: Literal["text"]
    text: str


class Message(Body):
    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[TextPart]


class ChatBody(SamplingFields):
    """POST /v1/chat/completions"""

    model: str | None = None
    messages: Annotated[list[Message], Field(min_length=1, max_length=1000)]
    max_tokens: Count | None = None
    max_completion_tokens: Count | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=1000)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None


class EmbeddingBody(Body):
    """POST /v1/embeddings"""

    model: str | None = None
    input: str | list[str]
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Count | None = None


class TaskBody(Body):
    """POST / and /models/NAME"""

    inputs: object
    parameters: dict[str, object] = Field(default_factory=dict)
    # feature-extraction has its parameters beside the inputs
    normalize: bool | None = None
    truncate: bool | None = None
    stream: Literal[False] | None = None


class TokenizeBody(Body):
    """POST /tokenize"""

    model: str | None = None
    prompt: str
    add_special_tokens: bool = False


class DetokenizeBody(Body):
    """POST /detokenize"""

    model: str | None = None
    tokens: list[int]


class ScoreBody(Body):
    """POST /api/score"""

    model: str | None = None
    texts: list[str]
    prompt: str = ""
    tokens: bool = False


class CompleteBody(Body):
    """POST /api/complete"""

    model: str | None = None
    prefix: str
    n: Annotated[int, Field(ge=1, le=100)] = 5
    words: Annotated[int, Field(ge=1, le=10)] = 1


class GenerateBody(Body):
    """POST /api/generate"""

    model: str | None = None
    prompts: list[str]
    decode: dict[str, object] = Field(default_factory=dict)


class PredictBody(Body):
    """POST /api/predict"""

    model: str | None = None
    inputs: list[object]
    decode: dict[str, object] = Field(default_factory=dict)


class ExplainBody(Body):
    """POST /api/explain: the options of `seqloom explain`"""

    model: str | None = None
    inputs: str | list[str] = Field(default_factory=list)
    """The text, or several that belong together; of a model of images one in base64."""
    show: str | None = None
    target: str | None = None
    foil: str | None = None
    method: str | None = None
    word: Count | None = None
    part: str | None = None
    layer: Count | None = None
    head: Count | None = None
    picture: Literal["svg", "html"] | None = None


class TraceBody(Body):
    """POST /api/trace"""

    model: str | None = None
    inputs: str | list[str]
    target: str | None = None
    part: str | None = None


class BeamsBody(Body):
    """POST /api/beams"""

    model: str | None = None
    inputs: str
    beam: Annotated[int, Field(ge=2, le=2**31)] = 4
    tokens: Count = 16


class RescoreBody(Body):
    """POST /api/rescore"""

    model: str | None = None
    lists: list[dict[str, object]]
    """As in a file of n-best lists: id, nbest, ref, source."""
    weights: str | None = None
    metric: str = "wer"


def plain_json(content: bytes) -> object:
    """Raises RequestError for what is no JSON, or has a key twice, or a number that is not finite."""
    try:
        # bytes of another encoding would be read too
        plain = parse_json(content.decode().encode(), Path("body"))
        if SURROGATE.search(content):
            json.dumps(plain, ensure_ascii=False).encode()
    except UnicodeError:
        raise RequestError(400, "the body must be UTF-8, of whole characters", "body") from None
    except FolderError as error:
        raise RequestError(400, f"the {error}", "body") from None
    return plain


async def read_body(request: Request, kind: type[M]) -> M:
    """The body of a request. Raises RequestError that names the field."""
    content = await request.body()
    if len(content) > QUICK:
        return await run_in_threadpool(parsed, content, kind)
    return parsed(content, kind)


def parsed(content: bytes, kind: type[M]) -> M:
    plain = as_object(plain_json(content))
    if plain is None:
        raise RequestError(400, "the body must be a JSON object", "body")
    return checked(plain, kind)


def checked(plain: dict[str, object], kind: type[M]) -> M:
    try:
        return kind.model_validate(plain)
    except ValidationError as error:
        raise of_validation(error) from None
