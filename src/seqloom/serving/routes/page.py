"""The page at /: the files of a folder, which ask the other routes."""

from __future__ import annotations

from importlib.resources import files

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

router = APIRouter()

PAGE = files("seqloom.serving") / "page"
TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}
FILES = {"/" if path.name == "index.html" else f"/{path.name}": path for path in PAGE.iterdir()}


async def sent(request: Request) -> Response:
    file = FILES[request.scope["route"].path]
    return Response(file.read_bytes(), media_type=TYPES["." + file.name.rpartition(".")[2]])


for path in FILES:
    router.add_api_route(path, sent, methods=["GET", "HEAD"])
