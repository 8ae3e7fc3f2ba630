"""The page at /: a plain first one, which asks a model and shows what it answers."""

from __future__ import annotations

from importlib.resources import files

from fastapi import APIRouter
from starlette.responses import Response

router = APIRouter()

PAGE = files("seqloom.serving") / "page"


def sent(name: str, media_type: str) -> Response:
    return Response((PAGE / name).read_bytes(), media_type=media_type)


@router.get("/")
async def page() -> Response:
    return sent("index.html", "text/html")


@router.get("/page.js")
async def script() -> Response:
    return sent("page.js", "text/javascript")


@router.get("/page.css")
async def style() -> Response:
    return sent("page.css", "text/css")
