"""What each task reads, and which families of models can do it. One dict."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
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
    decode: Mapping[str, Any] = field(default_factory=dict)
    """Settings of decoding where this task has other defaults."""


TASKS: dict[str, Task] = {
    # text in, text out: pairs of source and target
    "translation": Task(columns=("source", "target"), models=("seq2seq", "transformer", "t5")),
    # language modelling: documents
    "text-generation": Task(columns=("text",), models=("gpt", "recurrent_lm", "ngram"), decode={"strategy": "sample"}),
    # an image in, one label out
    "image-classification": Task(columns=(), models=("vit",)),
}


def task_named(name: str) -> Task:
    """Raises UsageError for an unknown name."""
    if name not in TASKS:
        raise UsageError(f"TASK must be one of {', '.join(TASKS)}, but is {name!r}")
    return TASKS[name]
