"""What each task reads and trains for. One dict."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

from seqloom.errors import UsageError


@final
@dataclass(frozen=True, kw_only=True)
class Task:
    """A kind of work that a model can be trained for."""

    columns: tuple[str, ...]
    """Fields of a record: the columns of its token store."""
    models: tuple[str, ...]
    """Families that can do it, the default first."""
    objective: Callable[[float], Any]
    """Label smoothing -> objective."""


def _translation(smoothing: float) -> Any:
    from seqloom.training.objectives import Translation

    return Translation(smoothing)


TASKS: dict[str, Task] = {
    # text in, text out: pairs of source and target
    "translation": Task(
        columns=("source", "target"),
        models=("seq2seq",),
        objective=_translation,
    ),
}


def task_named(name: str) -> Task:
    """Raises UsageError for an unknown name."""
    if name not in TASKS:
        raise UsageError(f"TASK must be one of {', '.join(TASKS)}, but is {name!r}")
    return TASKS[name]
