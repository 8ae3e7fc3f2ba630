"""Hugging Face's task schemas: POST {"inputs", "parameters"} to / or to /models/NAME."""

from __future__ import annotations

import base64
import binascii
import secrets
import tempfile
from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from seqloom.config import DecodeConfig
from seqloom.decoding.strategies import strategy_of
from seqloom.decoding.string_constraints import cut_at
from seqloom.errors import DataError, SeqloomError
from seqloom.json_values import as_text
from seqloom.serving.answering import Answering
from seqloom.serving.http_errors import RequestError, invalid
from seqloom.serving.limits import ServerLimits
from seqloom.serving.routes.bodies import SamplingFields, TaskBody, read_body
from seqloom.serving.routes.completions import (
    Asked,
    Completions,
    checked_prompts,
    decode_config,
    new_tokens_of,
)
from seqloom.serving.routes.reading import read_together
from seqloom.serving.routes.task_answers import OF_VECTORS, items_of, reading_of, texts_of
from seqloom.serving.routes.task_bodies import (
    GenerationParameters,
    GivenParameters,
    LabelParameters,
    PairParameters,
    TaskParameters,
    WritingParameters,
)
from seqloom.serving.served_models import ServedModel
from seqloom.serving.writing import hypotheses_of, output_for_source
from seqloom.tasks.images.classify import ImageClassifier, ImageLabel
from seqloom.tasks.language_modeling.language_model import LanguageModel
from seqloom.tasks.text_to_text.text_to_text_model import TextToTextModel
from seqloom.tasks.translation.translator import Translator

router = APIRouter()
WRITTEN = {"translation": "translation_text", "summarization": "summary_text"}
"""What the text that a model writes is called, by task; elsewhere generated_text."""


@router.post("/")
async def ask_the_only_model(request: Request) -> Response:
    return await ask(request, request.app.state.models.named(None), "")


@router.post("/models/{name:path}")
async def ask_a_model(request: Request, name: str) -> Response:
    """/models/NAME/pipeline/TASK asks a model for another task than its own, as Hugging Face does."""
    name, _, task = name.partition("/pipeline/")
    return await ask(request, request.app.state.models.named(name), task)


async def ask(request: Request, served: ServedModel, task: str) -> Response:
    if task not in ("", served.task, *OF_VECTORS):
        raise RequestError(404, f"model {served.name} is one of {served.task}", "model")
    if isinstance(served.model, ImageClassifier):
        return JSONResponse(await classified(request, served, served.model))
    body = await read_body(request, TaskBody)
    beside = {"normalize": body.normalize, "truncate": body.truncate}
    wanted = GivenParameters(beside | body.parameters)
    match served.model:
        case LanguageModel() if task not in OF_VECTORS:
            return JSONResponse(await generated(request, served, body.inputs, wanted))
        case Translator():
            return JSONResponse(await outputs(request, served, body.inputs, wanted))
        case TextToTextModel() as model:
            return JSONResponse(await task_outputs(request, served, model, body.inputs, wanted))
    task = task or served.task
    reading = await run_in_threadpool(reading_of, served, task, body.inputs, wanted)
    check_number(reading.inputs, request.app.state.limits)
    tokens = await run_in_threadpool(count_tokens, served, reading.inputs, request.app.state.limits)
    found = await read_together(
        request, served, reading.together, reading.inputs, tokens, reading.read
    )
    return JSONResponse(reading.answer(found))


def check_number(inputs: Sequence[object], limits: ServerLimits, name: str = "inputs") -> None:
    """Raises RequestError for no input, or more than the server takes; `name` is that of the field."""
    if not 1 <= len(inputs) <= limits.inputs:
        raise invalid(name, f"must be 1 to {limits.inputs}, but are {len(inputs)}")


def count_tokens(served: ServedModel, inputs: Sequence[object], limits: ServerLimits) -> int:
    """Raises RequestError for inputs that are too long together."""
    texts = [" ".join(flat(value)) for value in inputs]
    try:
        tokens = [len(ids) for ids in served.text_run.tokenizer.encode(texts)]
    except SeqloomError as error:
        raise invalid("inputs", str(error)) from None
    if max(tokens, default=0) > limits.prompt_tokens:
        raise invalid(
            "inputs",
            f"must have at most {limits.prompt_tokens} tokens each, but one has {max(tokens)}",
        )
    return sum(tokens)


def flat(value: object) -> list[str]:
    """All strings in an input."""
    match value:
        case str():
            return [value]
        case dict():
            return flat(list(value.values()))
        case [*parts]:
            return [text for part in parts for text in flat(part)]
    return []


def sampling_fields(parameters: WritingParameters, stop: list[str] | None) -> SamplingFields:
    """The same wishes in OpenAI's words: without do_sample the likeliest token comes."""
    sampled = parameters.do_sample
    if sampled is None:
        sampled = parameters.temperature is not None or parameters.top_p is not None
        sampled = sampled or parameters.top_k is not None or parameters.seed is not None
    beams = (parameters.num_beams or 1) > 1
    if not sampled and not beams and parameters.temperature not in (None, 0):
        raise invalid("temperature", "changes nothing without do_sample; leave it out")
    return SamplingFields(
        temperature=parameters.temperature if sampled else (None if beams else 0),
        top_p=parameters.top_p,
        top_k=parameters.top_k,
        repetition_penalty=parameters.repetition_penalty,
        seed=parameters.seed,
        num_beams=parameters.num_beams,
        stop=stop,
    )


async def generated(
    request: Request, served: ServedModel, inputs: object, wanted: GivenParameters
) -> list[dict[str, object]]:
    """text-generation"""
    limits: ServerLimits = request.app.state.limits
    parameters = wanted.parameters(GenerationParameters)
    decode = decode_config(sampling_fields(parameters, parameters.stop), limits)
    run, texts = served.text_run, texts_of(inputs)
    beam = decode.strategy == "beam"
    if parameters.details and beam:
        raise invalid("details", "does not go with a beam search; leave it or num_beams out")
    asked = Asked(
        served=served,
        prompts=await run_in_threadpool(checked_prompts, run, texts, limits),
        decode=decode,
        new_tokens=new_tokens_of(parameters.max_new_tokens, limits, "max_new_tokens"),
        logprobs=0 if parameters.details else None,
    )
    completions = Completions(asked, request.app.state.metrics)
    await run_in_threadpool(completions.submit)
    async with completions.answering.for_client(request.receive, limits.request_seconds):
        whole = await completions.whole()
    found = []
    for text, choice, (output, *_) in zip(
        texts, whole["choices"], completions.outputs, strict=True
    ):
        written = text + choice["text"] if parameters.return_full_text else choice["text"]
        answer: dict[str, object] = {"generated_text": written}
        if parameters.details:
            finished = choice["finish_reason"] == "stop"
            rows = [(token, False) for token in output.tokens]
            rows += [(token, True) for token in output.ending]
            spelled = output.logprobs()["tokens"]
            answer["details"] = {
                "finish_reason": "eos_token" if finished else "length",
                "generated_tokens": len(rows),
                "seed": whole.get("seed"),
                "prefill": [],
                "tokens": [
                    {"id": token.id, "text": text, "logprob": token.log_prob, "special": special}
                    for text, (token, special) in zip(spelled, rows, strict=True)
                ],
            }
        found.append(answer)
    return found


async def outputs(
    request: Request, served: ServedModel, inputs: object, wanted: GivenParameters
) -> list[dict[str, object]]:
    """translation, summarization and other texts from texts. Settings that are not given are the folder's."""
    state = request.app.state
    wishes = wanted.parameters(PairParameters).wishes
    texts, run = texts_of(inputs), served.text_run
    check_number(texts, state.limits)
    await run_in_threadpool(count_tokens, served, texts, state.limits)
    decode = await run_in_threadpool(pair_settings, served, wishes, state.limits)
    answering = Answering(served)

    def submit() -> None:
        sources = run.tokenizer.encode(texts)
        written = [number for number, text in enumerate(texts) if text.strip()]
        try:
            jobs = [
                output_for_source(run, sources[number], decode, answering.finisher(place))
                for place, number in enumerate(written)
            ]
        except SeqloomError as error:
            raise invalid("inputs", str(error)) from None
        if not jobs:
            raise invalid("inputs", "must hold a word")
        answering.submit(jobs)

    await run_in_threadpool(submit)
    async with answering.for_client(request.receive, state.limits.request_seconds):
        results = iter(await answering.results())
    name = WRITTEN.get(served.task, "generated_text")
    found: list[dict[str, object]] = []
    special_ids = run.tokenizer.special_ids
    for text in texts:
        written = ""
        if text.strip():
            best = hypotheses_of(next(results), strategy_of(decode))[0]
            state.metrics.generated_tokens += len(best.tokens)
            tokens = [*special_ids.bos[1:], *best.tokens]
            written = cut_at(run.tokenizer.decode(tokens), decode.stop)
        found.append({name: written})
    return found


def pair_settings(
    served: ServedModel, wishes: WritingParameters, limits: ServerLimits
) -> DecodeConfig:
    """The folder's settings of decoding with what a request changes."""
    given = {
        "max_length": wishes.max_new_tokens,
        "temperature": wishes.temperature,
        "top_k": wishes.top_k,
        "top_p": wishes.top_p,
        "repetition_penalty": wishes.repetition_penalty,
        "seed": wishes.seed,
        "beam": wishes.num_beams,
    }
    changes: dict[str, object] = {name: value for name, value in given.items() if value is not None}
    if wishes.do_sample:
        changes |= {"strategy": "sample", "seed": changes.get("seed", secrets.randbelow(2**63))}
    elif wishes.do_sample is False:
        changes["strategy"] = "beam"
    new_tokens_of(wishes.max_new_tokens, limits, "max_new_tokens")
    if (wishes.num_beams or 1) > limits.rows:
        raise invalid("num_beams", f"must be at most {limits.rows}, but is {wishes.num_beams}")
    try:
        decode = served.text_run.decode_settings({**changes, "n_best": 1})
    except SeqloomError as error:
        raise RequestError(400, str(error), "generate_parameters") from None
    if decode.strategy == "beam" and decode.beam > limits.rows:
        raise RequestError(
            400,
            f"this model searches with a beam of {decode.beam}, but the server decodes {limits.rows} rows at"
            " most; give a smaller num_beams",
            "generate_parameters",
        )
    return decode


async def task_outputs(
    request: Request,
    served: ServedModel,
    model: TextToTextModel,
    inputs: object,
    wanted: GivenParameters,
) -> list[dict[str, object]]:
    """Answers of a text-to-text model that knows several tasks."""
    parameters = wanted.parameters(TaskParameters)
    given = items_of(inputs)
    check_number(given, request.app.state.limits)
    tokens = await run_in_threadpool(count_tokens, served, given, request.app.state.limits)

    def read(chunk: Sequence[Any]) -> list[str]:
        return model.predict(chunk, parameters.task)

    found = await read_together(request, served, f"task {parameters.task}", given, tokens, read)
    return [{"generated_text": text} for text in found]


async def classified(
    request: Request, served: ServedModel, model: ImageClassifier
) -> list[dict[str, object]]:
    """image-classification: the bytes of an image, or JSON that holds them in base64."""
    image, parameters = await request.body(), LabelParameters()
    if image[:1] == b"{":
        body = await read_body(request, TaskBody)
        parameters = GivenParameters(body.parameters).parameters(LabelParameters)
        try:
            image = base64.b64decode(as_text(body.inputs) or "?", validate=True)
        except (binascii.Error, ValueError):
            raise invalid("inputs", "must be an image in base64") from None
    if not image:
        raise invalid("inputs", "must be an image, but is empty")

    def read(images: Sequence[bytes]) -> list[ImageLabel]:
        found = []
        for image in images:
            with tempfile.NamedTemporaryFile(suffix=".png") as file:
                file.write(image)
                file.flush()
                try:
                    found += model.predict([file.name])
                except DataError:
                    raise invalid("inputs", "is no image that can be read") from None
        return found

    (label,) = await read_together(request, served, "images", [image], 256, read)
    ranked = sorted(label.probabilities.items(), key=lambda item: -item[1])
    return [{"label": name, "score": score} for name, score in ranked[: parameters.top_k or 5]]
