"""Which verb the models of a task are for."""

from __future__ import annotations

from seqloom.errors import UsageError, printable
from seqloom.runs.run_folder import LoadedRun

ASKED = {
    "text-generation": "generate",
    **dict.fromkeys(("translation", "fill-mask", "feature-extraction"), "predict"),
}
"""task -> the verb that its models are for."""


def refuse_other_task(bundle: LoadedRun, verb: str, task: str) -> None:
    """Raises UsageError where the model is of another task than the verb is for."""
    if bundle.task != task:
        folder, other = printable(str(bundle.folder)), ASKED.get(bundle.task)
        better = f"; use: seqloom {other} {folder}" if other not in (None, verb) else ""
        raise UsageError(
            f"{folder}: {verb} needs a model of {task}, but this one is of {printable(bundle.task)}{better}"
        )
