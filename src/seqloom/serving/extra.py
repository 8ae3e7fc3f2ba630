"""The extra `serve`, without which nothing of this package can be imported."""

from __future__ import annotations

import importlib

from seqloom.errors import MissingExtraError


def require_extra() -> None:
    """Raises MissingExtraError where fastapi or uvicorn is not installed."""
    try:
        importlib.import_module("fastapi")
        importlib.import_module("uvicorn")
    except ImportError:
        raise MissingExtraError("a server", "serve") from None
