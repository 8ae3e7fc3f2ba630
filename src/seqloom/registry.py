"""Every task that a user can name, and where it is.

Imports no torch: a task is imported when it is asked for.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from seqloom.errors import UsageError
from seqloom.familiar_names import near_names
from seqloom.plugins import is_known, register

if TYPE_CHECKING:
    from seqloom.protocols import Task

TASKS: dict[str, str] = {
    "translation": "seqloom.tasks.translation.task:TRANSLATION",
    "summarization": "seqloom.tasks.translation.task:SUMMARIZATION",
    "text2text-generation": "seqloom.tasks.text_to_text.task:TEXT_TO_TEXT",
    "denoising": "seqloom.tasks.denoising.task:DENOISING",
    "text-generation": "seqloom.tasks.language_modeling.task:TEXT_GENERATION",
    "text-classification": "seqloom.tasks.text.task:TEXT_CLASSIFICATION",
    "sentence-similarity": "seqloom.tasks.text.task:SENTENCE_SIMILARITY",
    "token-classification": "seqloom.tasks.text.task:TOKEN_CLASSIFICATION",
    "question-answering": "seqloom.tasks.text.task:QUESTION_ANSWERING",
    "multiple-choice": "seqloom.tasks.text.task:MULTIPLE_CHOICE",
    "image-classification": "seqloom.tasks.images.task:IMAGE_CLASSIFICATION",
    "masked-image-modeling": "seqloom.tasks.images.task:MASKED_IMAGE_MODELING",
    "fill-mask": "seqloom.tasks.fill_mask.task:FILL_MASK",
    "replaced-token": "seqloom.tasks.encoders.task:REPLACED_TOKEN",
    "word-vectors": "seqloom.tasks.word_vectors.task:WORD_VECTORS",
    "feature-extraction": "seqloom.tasks.encoders.task:FEATURE_EXTRACTION",
}
"""task -> module:object"""
IMPORTED = ("replaced-token",)
"""Tasks whose models are not trained, but imported: seqloom import."""
_registered: dict[str, Task] = {}


def register_task(task: Task) -> None:
    """Makes a task of one's own known, for this process. Raises UsageError if the name is taken."""
    register("task", task.name, task, _registered, taken=TASKS)


def task_names() -> list[str]:
    return [*TASKS, *_registered]


def find_task(name: str) -> Task | None:
    """The task of this name; None if there is none."""
    if name not in TASKS:
        return _registered[name] if is_known(name, _registered) else None
    module, _, attribute = TASKS[name].partition(":")
    task: Task = vars(importlib.import_module(module))[attribute]
    return task


def hub_task(name: str) -> str:
    """The task that checkpoints of the hub name for the models of this one."""
    task = find_task(name)
    return (task.hub_task if task is not None else "") or name


def all_tasks() -> list[Task]:
    return [task for name in task_names() if (task := find_task(name)) is not None]


def task_to_train(name: str) -> Task:
    """The task of this name. Raises UsageError if there is none, or where its models are only imported."""
    task = find_task(name)
    if task is None or task.training_data is None:
        trained = ", ".join(known.name for known in all_tasks() if known.training_data is not None)
        why = "" if task is None else "; models for that task are imported: seqloom import"
        near = "" if task else near_names(name, task_names())
        raise UsageError(f"TASK must be one of {trained}, but is {name!r}{why}{near}")
    return task
