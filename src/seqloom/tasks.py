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
    best: tuple[str, ...] = ("loss",)
    """What may choose its best checkpoint."""
    decode: Mapping[str, Any] = field(default_factory=dict)
    """Settings of decoding where this task has other defaults."""
    trained: bool = True
    """Whether `train` can train a model for it; models for the others are imported."""


TASKS: dict[str, Task] = {
    # text in, text out: pairs of source and target
    "translation": Task(
        columns=("source", "target"), models=("seq2seq", "transformer", "t5"), best=("loss", "bleu", "chrf", "exact_match")
    ),
    # language modelling: documents
    "text-generation": Task(columns=("text",), models=("gpt", "recurrent_lm", "ngram"), decode={"strategy": "sample"}),
    # an image in, one label out
    "image-classification": Task(columns=(), models=("vit",), best=("loss", "accuracy")),
    # a text in, the tokens at its masks out
    "fill-mask": Task(columns=("text",), models=("bert",), trained=False),
    # a text in, one vector out
    "feature-extraction": Task(columns=("text",), models=("bert",), trained=False),
    # two texts in, how alike they are out: what vectors are measured by
    "sentence-similarity": Task(columns=("source", "target", "score"), models=("bert",), trained=False),
}


def task_named(name: str) -> Task:
    """A task that can be trained. Raises UsageError for another name."""
    if name not in TASKS or not TASKS[name].trained:
        trained = ", ".join(one for one, task in TASKS.items() if task.trained)
        why = "; models for that task are imported: seqloom import" if name in TASKS else ""
        raise UsageError(f"TASK must be one of {trained}, but is {name!r}{why}")
    return TASKS[name]
