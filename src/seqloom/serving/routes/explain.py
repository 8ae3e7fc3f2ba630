"""What a model does with an input: the numbers of `seqloom explain --json`, and its picture."""

from __future__ import annotations

import base64
import binascii
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import torch
from fastapi import APIRouter
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from seqloom.data.images.image_files import Picture
from seqloom.errors import DataError, SeqloomError, printable
from seqloom.explaining.charts import html_of, svg_of
from seqloom.explaining.explanation import Explanation
from seqloom.files import finite_or_null
from seqloom.json_values import several_texts
from seqloom.layers.attention import HeadAttention
from seqloom.protocols import modules_of
from seqloom.run_file import parse
from seqloom.serving.http_errors import RequestError, invalid, of_command
from seqloom.serving.limits import ServerLimits
from seqloom.serving.routes.bodies import ExplainBody, read_body
from seqloom.serving.routes.reading import read_together
from seqloom.serving.routes.tasks import check_number, count_tokens
from seqloom.serving.served_models import ServedModel
from seqloom.tasks.explain.explained_model import ExplainedModel
from seqloom.tasks.explain.look import Look
from seqloom.tasks.images.classify import ImageClassifier
from seqloom.tasks.images.explain import first_image

router = APIRouter()
DRAWN = {"svg": svg_of, "html": html_of}


@router.post("/api/explain")
async def explain(request: Request) -> Response:
    """As `seqloom explain --json`."""
    body = await read_body(request, ExplainBody)
    limits: ServerLimits = request.app.state.limits
    served: ServedModel = request.app.state.models.named(body.model)
    inputs = several_texts(body.inputs)
    look = look_of(body, served)
    tokens = await run_in_threadpool(check_size, served, inputs, look, limits)
    given: Any = image_of(inputs) if isinstance(served.model, ImageClassifier) else inputs

    def read(chunk: Sequence[object]) -> list[Explanation]:
        # attributions need gradients, which the thread of the engine does not keep
        with torch.inference_mode(False):
            return [looked_at(served, given, look) for given in chunk]

    alone = object()
    (explanation,) = await read_together(request, served, alone, [given], tokens, read)
    numbers = explanation.summary()
    if count_numbers(numbers) > limits.explained_numbers:
        raise invalid(
            "inputs",
            f"must be shorter, as an explanation has at most {limits.explained_numbers:,} numbers",
        )
    content = {"explanation": finite_or_null(numbers), "text": explanation.text}
    if body.picture is not None:
        draw = DRAWN[body.picture]
        content[body.picture] = await run_in_threadpool(lambda: draw(explanation.draw()))
    return JSONResponse(content)


def look_of(body: ExplainBody, served: ServedModel) -> Look:
    """Raises RequestError for a picture that there is not, or an option that it does not read."""
    if not served.pictures:
        raise RequestError(400, f"there are no pictures of model {served.name}", "model")
    show = body.show or served.pictures[0]
    if show not in served.pictures:
        raise invalid(
            "show",
            f"must be one of {', '.join(served.pictures)} for model {served.name}, but is"
            f" {printable(show[:100])}",
        )
    given = body.model_dump(exclude_none=True, exclude={"model", "inputs", "show", "picture"})
    try:
        return parse(Look, {"show": show, **given}, "--")
    except SeqloomError as error:
        raise of_command(error, served.folders, "inputs") from None


def check_size(served: ServedModel, inputs: Sequence[str], look: Look, limits: ServerLimits) -> int:
    """About how many tokens are read. Raises RequestError for too many, or too many numbers."""
    if served.run is None:
        return limits.explained_tokens
    if look.show != "induction":
        check_number(inputs, limits)
    texts = [*inputs, look.target or "", look.foil or ""]
    tokens = count_tokens(served, texts, limits)
    if tokens > limits.explained_tokens:
        raise invalid(
            "inputs",
            f"must have at most {limits.explained_tokens} tokens to be explained, but have {tokens}",
        )
    modules = modules_of(served.run.model, HeadAttention).values()
    heads = sum(module.heads for module in modules)
    all_heads = look.show == "attention" and look.layer is None and look.head is None
    if all_heads and heads * tokens**2 > limits.explained_numbers:
        raise invalid(
            "layer",
            f"and head must be given: the maps of all {heads} heads over {tokens} tokens are more than"
            f" {limits.explained_numbers:,} numbers",
        )
    return tokens


def looked_at(served: ServedModel, given: Any, look: Look) -> Explanation:
    """Raises RequestError."""
    try:
        if isinstance(served.model, ImageClassifier):
            return served.model.looked_at(given, look)
        # no file that a request names is opened
        return cast(ExplainedModel, served.model).looked_at(given, look, files=False)
    except SeqloomError as error:
        raise of_command(error, served.folders, "inputs") from None


def image_of(inputs: Sequence[str]) -> Picture:
    """Raises RequestError for what is no image in base64."""
    if len(inputs) != 1:
        raise invalid("inputs", f"must be one image in base64, but are {len(inputs)}")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "image.png"
        try:
            path.write_bytes(base64.b64decode(inputs[0], validate=True))
            return first_image(str(path))._replace(path="image")
        except (binascii.Error, ValueError, DataError):
            raise invalid("inputs", "must be an image in base64 that can be read") from None


def count_numbers(value: object) -> int:
    """How many values an explanation has."""
    match value:
        case dict():
            return sum(map(count_numbers, value.values()))
        case [list(), *_]:
            return sum(map(count_numbers, value))
        case [*items]:
            return len(items)
    return 1
