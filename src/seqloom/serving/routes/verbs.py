"""seqloom's own verbs over HTTP, the tokenizer, and what says how the server is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, cast

from fastapi import APIRouter
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from seqloom.errors import SeqloomError
from seqloom.files import finite_or_null
from seqloom.protocols import LoadedModel, context_of
from seqloom.serving.http_errors import RequestError, invalid
from seqloom.serving.routes.bodies import (
    CompleteBody,
    DetokenizeBody,
    GenerateBody,
    PredictBody,
    ScoreBody,
    TokenizeBody,
    read_body,
)
from seqloom.serving.routes.completions import (
    Asked,
    Completions,
    checked_prompts,
    new_tokens_of,
)
from seqloom.serving.routes.reading import read_together
from seqloom.serving.routes.tasks import check_number, count_tokens
from seqloom.serving.served_models import ServedModel, ServedModels
from seqloom.tasks.fill_mask.mask_filler import MaskFiller
from seqloom.tasks.language_modeling.generate import NEW_TOKENS
from seqloom.tasks.language_modeling.language_model import LanguageModel
from seqloom.tasks.text.predictor import TextPredictor
from seqloom.tasks.text_to_text.text_to_text_model import TextToTextModel
from seqloom.version import VERSION

router = APIRouter()


@router.get("/health/live")
async def live() -> Response:
    return JSONResponse({"status": "live"})


@router.get("/health/ready")
async def ready(request: Request) -> Response:
    state = request.app.state
    is_ready = state.models.alive and not state.guard.draining
    return JSONResponse({"status": "ready" if is_ready else "not ready"}, 200 if is_ready else 503)


@router.get("/metrics")
async def metrics(request: Request) -> Response:
    models: ServedModels = request.app.state.models
    engines = {name: served.engine for name, served in models.by_name.items()}
    text = request.app.state.metrics.text(engines)
    return PlainTextResponse(text, media_type="text/plain; version=0.0.4")


@router.get("/info")
async def info(request: Request) -> Response:
    """All limits, and what each model can do."""
    models: ServedModels = request.app.state.models
    described = []
    for served in models.by_name.values():
        about: dict[str, object] = {
            "name": served.name,
            "task": served.task,
            "pictures": served.pictures,
            "context": None,
        }
        if served.run is not None:
            about |= {
                "model_type": served.run.model_type,
                "context": context_of(served.run.model),
                "vocabulary": served.run.tokenizer.vocabulary_size,
                "tokenizer": served.run.tokenizer.kind,
            }
        match served.model:
            case LanguageModel():
                about["chat"] = served.chat_template is not None
            case MaskFiller():
                about["mask"] = served.model.spelling
            case TextPredictor():
                about["pairs"] = served.model.head_task.pairs
            case TextToTextModel():
                about["tasks"] = list(served.model.tasks)
        described.append(about)
    return JSONResponse(
        {"version": VERSION, "limits": asdict(request.app.state.limits), "models": described}
    )


@router.post("/tokenize")
async def tokenize(request: Request) -> Response:
    body = await read_body(request, TokenizeBody)
    run = request.app.state.models.named(body.model).text_run
    limits = request.app.state.limits
    (ids,) = await run_in_threadpool(checked_prompts, run, [body.prompt], limits)
    if body.add_special_tokens:
        ids = [*run.tokenizer.special_ids.bos, *ids]
    return JSONResponse({"tokens": ids, "count": len(ids), "max_model_len": context_of(run.model)})


@router.post("/detokenize")
async def detokenize(request: Request) -> Response:
    body = await read_body(request, DetokenizeBody)
    run = request.app.state.models.named(body.model).text_run
    size = run.tokenizer.vocabulary_size
    if not all(0 <= id < size for id in body.tokens):
        raise invalid("tokens", f"must be of ids from 0 to {size - 1}, but one is another")
    return JSONResponse({"prompt": run.tokenizer.decode(body.tokens)})


@router.get("/tokenizer_info")
async def tokenizer_info(request: Request, model: str | None = None) -> Response:
    served: ServedModel = request.app.state.models.named(model)
    tokenizer = served.text_run.tokenizer
    special_ids = tokenizer.special_ids
    named = {
        "bos_token": next(iter(special_ids.bos), None),
        "eos_token": special_ids.eos,
        "unk_token": special_ids.unk,
        "pad_token": special_ids.pad if special_ids.pad >= 0 else None,
    }
    names: dict[str, object] = {}
    for name, id in named.items():
        names[name] = None if id is None else tokenizer.pieces([id])[0]
    return JSONResponse(
        {
            "tokenizer_class": tokenizer.kind,
            "vocab_size": tokenizer.vocabulary_size,
            "chat_template": served.chat_template,
            **names,
        }
    )


@router.post("/api/score")
async def score(request: Request) -> Response:
    """As `seqloom score --json`."""
    body = await read_body(request, ScoreBody)
    served = request.app.state.models.named(body.model)
    model = served.language_model
    check_number(body.texts, request.app.state.limits, "texts")
    tokens = await run_in_threadpool(
        count_tokens, served, [*body.texts, body.prompt], request.app.state.limits
    )

    def read(texts: Sequence[str]) -> list[dict[str, object]]:
        scored = model.score(list(texts), prompt=body.prompt, tokens=body.tokens)
        return [score.summary() for score in scored]

    together = ("score", body.prompt, body.tokens)
    found = await read_together(request, served, together, body.texts, tokens, read)
    return JSONResponse({"scores": finite_or_null(found)})


@router.post("/api/complete")
async def complete(request: Request) -> Response:
    """As `seqloom complete --json`."""
    body = await read_body(request, CompleteBody)
    served = request.app.state.models.named(body.model)
    model = served.language_model
    tokens = await run_in_threadpool(count_tokens, served, [body.prefix], request.app.state.limits)

    def read(prefixes: Sequence[str]) -> list[list[dict[str, object]]]:
        found = []
        for prefix in prefixes:
            completions = model.complete(prefix, body.n, body.words)
            found.append([completion._asdict() for completion in completions])
        return found

    together = ("complete", body.n, body.words)
    (found,) = await read_together(request, served, together, [body.prefix], tokens, read)
    return JSONResponse({"completions": found})


@router.post("/api/generate")
async def generate(request: Request) -> Response:
    """As `seqloom generate --json`: `decode` has the settings of decoding, by name."""
    body = await read_body(request, GenerateBody)
    state = request.app.state
    served = state.models.named(body.model)
    run = served.language_model.run
    try:
        decode = run.decode_settings(body.decode)
    except SeqloomError as error:
        raise RequestError(400, str(error), "decode") from None
    width = decode.width if decode.strategy == "beam" else 1
    if max(decode.n_best, width) > state.limits.rows:
        raise invalid("decode", f"must need at most {state.limits.rows} rows")
    asked = Asked(
        served=served,
        prompts=await run_in_threadpool(checked_prompts, run, body.prompts, state.limits),
        decode=decode,
        new_tokens=new_tokens_of(decode.max_length or NEW_TOKENS, state.limits, "decode"),
    )
    completions = Completions(asked, state.metrics)
    await run_in_threadpool(completions.submit)
    async with completions.answering.for_client(request.receive, state.limits.request_seconds):
        whole = await completions.whole()
    samples = max(1, decode.n_best)
    texts = []
    for number, choice in enumerate(whole["choices"]):
        prompt, sample = divmod(number, samples)
        texts.append(
            {
                "prompt": body.prompts[prompt],
                "sample": sample,
                "text": choice["text"],
                "tokens": [one.id for one in completions.outputs[prompt][sample].tokens],
                "finished": choice["finish_reason"] == "stop",
            }
        )
    return JSONResponse({"texts": texts})


@router.post("/api/predict")
async def predict(request: Request) -> Response:
    """As `predict` from Python: the model's answer to each input, whatever its task."""
    body = await read_body(request, PredictBody)
    state = request.app.state
    served: ServedModel = state.models.named(body.model)
    check_number(body.inputs, state.limits)
    if served.run is None:
        raise RequestError(400, f"post an image to /models/{served.name}", "model")
    if body.decode and "decode" not in served.model.reads.get("predict", ()):
        raise invalid("decode", "is for models of text pairs; leave it out")
    tokens = await run_in_threadpool(count_tokens, served, body.inputs, state.limits)
    model = cast(LoadedModel, served.model)

    def read(chunk: Sequence[object]) -> list[object]:
        return list(model.predict(list(chunk), **body.decode))

    together = ("predict", tuple(sorted(map(repr, body.decode.items()))))
    found = await read_together(request, served, together, body.inputs, tokens, read)
    return JSONResponse({"answers": plain(found)})


def plain(value: Any) -> Any:
    """Arrays as lists."""
    match value:
        case list() | tuple():
            return [plain(item) for item in value]
        case dict():
            return {name: plain(item) for name, item in value.items()}
        case str() | int() | float() | None:
            return value
    return value.tolist()
