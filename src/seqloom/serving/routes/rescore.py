"""N-best lists over HTTP: what `seqloom rescore --json` answers."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path

from fastapi import APIRouter
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from seqloom.config import DataConfig
from seqloom.errors import SeqloomError
from seqloom.serving.http_errors import RequestError, invalid, of_command
from seqloom.serving.routes.bodies import RescoreBody, read_body
from seqloom.serving.routes.reading import read_together
from seqloom.serving.routes.tasks import check_number, count_tokens, flat
from seqloom.serving.served_models import ServedModel
from seqloom.tasks.language_modeling.language_model import LanguageModel
from seqloom.tasks.translation.translator import Translator
from seqloom.workflows.analysis.rescore import RescoreConfig, Rescored
from seqloom.workflows.analysis.rescore import rescore as run_rescore

router = APIRouter()


@router.post("/api/rescore")
async def rescore(request: Request) -> Response:
    """As `seqloom rescore --json`: each list with the best first; where there are references, how much
    better the chosen ones are."""
    body = await read_body(request, RescoreBody)
    limits = request.app.state.limits
    served: ServedModel = request.app.state.models.named(body.model)
    if not isinstance(served.model, LanguageModel | Translator):
        raise RequestError(
            400, f"model {served.name} is one of {served.task} and scores no hypotheses", "model"
        )
    texts = [text for nbest in body.lists for text in flat(nbest)]
    check_number([*body.lists, *texts], limits, "lists")
    tokens = await run_in_threadpool(count_tokens, served, body.lists, limits)

    def read(chunk: Sequence[RescoreBody]) -> list[Rescored]:
        return [rescored(served, body) for body in chunk]

    alone = object()
    (found,) = await read_together(request, served, alone, [body], tokens, read)
    lists: list[object] = [json.loads(line) for line in found.json_lines()]
    summary: dict[str, dict[str, object]] = found.summary()
    for part in found.results:
        del summary[part]["file"]
    return JSONResponse({"lists": lists, "summary": summary})


def rescored(served: ServedModel, body: RescoreBody) -> Rescored:
    """Raises RequestError."""
    run = served.text_run
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "lists.jsonl"
        path.write_text("".join(json.dumps(nbest) + "\n" for nbest in body.lists))
        config = RescoreConfig(
            folders=[str(run.folder)],
            path=str(path),
            weights=body.weights,
            metric=body.metric,
            data=DataConfig(),
        )
        try:
            found = run_rescore(config, {str(run.folder): run})
        except SeqloomError as error:
            raise of_command(error, served.folders | {str(path): "lists"}, "lists") from None
    if found.error is not None:
        raise invalid("lists", str(found.error).replace(str(path), "lists"))
    return found
