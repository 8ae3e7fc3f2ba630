"""What cannot be said in one answer: attention of every head, asked for one by one, and the tree of a beam
search."""

from __future__ import annotations

from collections.abc import Sequence

from fastapi import APIRouter
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from torch import Tensor

from seqloom.config import DecodeConfig
from seqloom.decoding.beam_tree import BeamTree
from seqloom.decoding.hypotheses import Hypothesis
from seqloom.errors import SeqloomError
from seqloom.explaining.studies.attention_maps import choose_maps
from seqloom.json_values import several_texts
from seqloom.layers.attention import HeadAttention
from seqloom.protocols import NO_REQUEST, context_of, modules_of
from seqloom.run_file import parse
from seqloom.serving.answering import Answering
from seqloom.serving.engine import WritingJob
from seqloom.serving.http_errors import RequestError, invalid, of_command
from seqloom.serving.limits import ServerLimits
from seqloom.serving.routes.bodies import BeamsBody, TraceBody, read_body
from seqloom.serving.routes.completions import checked_prompts, read_ids
from seqloom.serving.routes.reading import read_together
from seqloom.serving.routes.tasks import check_number, count_tokens
from seqloom.serving.served_models import ServedModel
from seqloom.serving.traces import BYTES, AttentionTrace
from seqloom.serving.writing import continuation, output_for_source, token_text
from seqloom.tasks.explain.attention import maps_of, sides_of
from seqloom.tasks.explain.explained_model import ExplainedModel
from seqloom.tasks.explain.look import Look
from seqloom.tasks.language_modeling.generate import text_after
from seqloom.tasks.translation.translator import Translator

router = APIRouter()


@router.post("/api/trace")
async def trace(request: Request) -> Response:
    """Reads a text and keeps the attention of all heads of a part of the model."""
    body = await read_body(request, TraceBody)
    limits: ServerLimits = request.app.state.limits
    served: ServedModel = request.app.state.models.named(body.model)
    model = served.model
    if "attention" not in served.pictures or not isinstance(model, ExplainedModel):
        raise RequestError(400, f"model {served.name} has no attention to texts", "model")
    inputs = several_texts(body.inputs)
    check_number(inputs, limits)
    check_words(inputs)
    tokens = await run_in_threadpool(check_size, served, [*inputs, body.target or ""], limits)

    def read(some: Sequence[Sequence[str]]) -> list[tuple[dict[str, object], Tensor]]:
        try:
            return [attention_of(model, one, body) for one in some]
        except SeqloomError as error:
            raise of_command(error, served.folders, "inputs") from None

    alone = object()
    ((content, weights),) = await read_together(request, served, alone, [inputs], tokens, read)
    check_bytes(weights.numel(), limits)
    kept = await run_in_threadpool(AttentionTrace.of, weights)
    name = request.app.state.traces.keep(kept)
    return JSONResponse({"id": name, **content, "highest": kept.highest.tolist()})


def attention_of(
    model: ExplainedModel, inputs: Sequence[str], body: TraceBody
) -> tuple[dict[str, object], Tensor]:
    """What is looked at, what looks, and the weights."""
    look = Look(show="attention", target=body.target, part=body.part)
    given = model.model_input(inputs, look, NO_REQUEST)
    maps = maps_of(given)
    chosen = choose_maps(maps, body.part, None, None)
    looking, looked_at = sides_of(given, chosen)
    layers, heads = chosen.weights.shape[:2]
    content = {"part": chosen.part, "parts": list(maps), "layers": layers, "heads": heads}
    return content | {"source": list(looked_at), "target": list(looking)}, chosen.weights


def check_size(served: ServedModel, texts: Sequence[str], limits: ServerLimits) -> int:
    """How many tokens there are. Raises RequestError for too many, also where there are many heads."""
    tokens = count_tokens(served, texts, limits)
    if tokens > limits.traced_tokens:
        raise invalid(
            "inputs", f"must have at most {limits.traced_tokens} tokens, but have {tokens}"
        )
    modules = modules_of(served.text_run.model, HeadAttention).values()
    heads = sum(module.heads for module in modules)
    check_bytes(heads * tokens**2, limits)
    return tokens


def check_words(inputs: Sequence[str]) -> None:
    """Raises RequestError for nothing but blanks."""
    if not any(text.strip() for text in inputs):
        raise invalid("inputs", "must hold a word, but is empty")


def check_bytes(weights: int, limits: ServerLimits) -> None:
    """Raises RequestError for more weights than may be kept."""
    if BYTES * weights > limits.trace_bytes:
        raise invalid(
            "inputs",
            f"must be shorter: the attention of all heads needs {BYTES * weights:,} bytes, and at most"
            f" {limits.trace_bytes:,} may be kept (trace_bytes)",
        )


@router.get("/api/trace/{name}/heads")
async def overview(request: Request, name: str) -> Response:
    """Of every head at most 32 × 32 bytes, head by head and row by row."""
    kept: AttentionTrace = request.app.state.traces.named(name)
    return as_bytes(await run_in_threadpool(kept.overview))


@router.get("/api/trace/{name}/attention/{layer:int}/{head:int}")
async def one_head(request: Request, name: str, layer: int, head: int) -> Response:
    """A byte for each weight; 255 stands for `highest` and more. Layer and head count from 0."""
    kept: AttentionTrace = request.app.state.traces.named(name, (layer, head))
    return as_bytes(await run_in_threadpool(kept.head, layer, head))


@router.get("/api/trace/{name}/attention/{layer:int}/{head:int}/{row:int}")
async def one_row(request: Request, name: str, layer: int, head: int, row: int) -> Response:
    """The weights of what looks, as numbers."""
    kept: AttentionTrace = request.app.state.traces.named(name, (layer, head, row))
    return JSONResponse({"weights": kept.row(layer, head, row)})


def as_bytes(content: bytes) -> Response:
    return Response(content, media_type="application/octet-stream")


@router.post("/api/beams")
async def beams(request: Request) -> Response:
    """A beam search with the hypotheses of each of its steps, those that fell too."""
    body = await read_body(request, BeamsBody)
    limits: ServerLimits = request.app.state.limits
    served: ServedModel = request.app.state.models.named(body.model)
    if body.beam > limits.rows:
        raise invalid("beam", f"must be at most {limits.rows}, but is {body.beam}")
    if body.tokens > limits.tree_tokens:
        raise invalid("tokens", f"must be at most {limits.tree_tokens}, but is {body.tokens}")
    answering, tree = Answering(served), BeamTree(body.beam)
    job, prompt = await run_in_threadpool(tree_job, served, body, tree, answering, limits)
    answering.submit([job])
    async with answering.for_client(request.receive, limits.request_seconds):
        (found,) = await answering.results()
    tokenizer = served.text_run.tokenizer
    nodes = []
    for node in tree.nodes:
        nodes.append(
            node._asdict() | {"token": token_text(tokenizer, node.token), "id": node.token}
        )
    hypotheses: list[Hypothesis] = found[0]
    outputs = [
        {
            "text": text_after(tokenizer, prompt, one.tokens),
            "score": one.score,
            "log_probability": one.log_probability,
            "finished": one.finished,
        }
        for one in hypotheses
    ]
    return JSONResponse({"beam": body.beam, "nodes": nodes, "outputs": outputs})


def tree_job(
    served: ServedModel,
    body: BeamsBody,
    tree: BeamTree,
    answering: Answering,
    limits: ServerLimits,
) -> tuple[WritingJob, list[int]]:
    """The search, and what precedes its text. Raises RequestError."""
    run, finish = served.text_run, answering.finisher(0)
    wishes = {"strategy": "beam", "beam": body.beam, "n_best": body.beam}
    try:
        if isinstance(served.model, Translator):
            check_words([body.inputs])
            (source,) = run.tokenizer.encode([body.inputs])
            decode = run.decode_settings(wishes | {"max_length": body.tokens})
            return output_for_source(run, source, decode, finish, tree), [
                *run.tokenizer.special_ids.bos[1:]
            ]
        (prompt,) = checked_prompts(served.language_model.run, [body.inputs], limits)
        read, context = read_ids(run, prompt), context_of(run.model)
        if context is not None and len(read) + body.tokens > context:
            raise invalid(
                "tokens",
                f"and those of the text must be at most the {context} that the model reads, but are"
                f" {body.tokens} and {len(read)}",
            )
        decode = parse(DecodeConfig, wishes, "")
        return continuation(run, read, decode, body.tokens, tree, finish), prompt
    except SeqloomError as error:
        raise RequestError(400, str(error), "inputs") from None
