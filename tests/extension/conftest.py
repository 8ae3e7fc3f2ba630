"""Plugins that live outside of the package, loaded for one test and forgotten after it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import command  # noqa: F401

from seqloom import models, plugins, registry
from seqloom.decoding.logits_processors import PROCESSORS
from seqloom.evaluation.text_metrics import METRICS
from seqloom.layers.recurrent.cells import CELLS
from seqloom.training.objectives import OBJECTIVES

FOLDER = Path(__file__).parent / "plugins"
TABLES: tuple[dict[Any, Any], ...] = (
    *(plugins.registered, plugins.loaded, CELLS, PROCESSORS, METRICS, OBJECTIVES),
    *(models._registered, registry._registered),
)


def forget_plugins(before: list[dict[Any, Any]]) -> None:
    for module in {*plugins.loaded, *plugins.registered.values()}:
        if module not in before[1] and "." not in module:
            sys.modules.pop(module, None)
    for table, content in zip(TABLES, before, strict=True):
        table.clear()
        table.update(content)


@pytest.fixture(autouse=True)
def no_plugins_stay() -> Iterator[None]:
    """Each test begins without plugins, as a new process does."""
    before = [dict(table) for table in TABLES]
    yield
    forget_plugins(before)


def plugin(name: str) -> str:
    """The path of a plugin of these tests."""
    return str(FOLDER / f"{name}.py")
