"""How good a model is on files of known examples, whatever its task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from seqloom.protocols import Evaluation, Request
from seqloom.tasks.model import load


def evaluate(
    folder: str | Path,
    paths: Sequence[str],
    given: Mapping[str, Any],
    decode: Mapping[str, Any],
    stride: int | None = None,
    measure: Mapping[str, Any] | None = None,
) -> Evaluation:
    """`given` are settings of reading (`DataConfig`), `measure` of measuring (`EvaluateConfig`); those that
    are not given are as in the training.
    `stride` is how far the windows of a language model with limited context move on; by default half a
    window."""
    return load(folder).evaluate(
        paths, Request(data=given, decode=decode, evaluate=measure or {}, stride=stride)
    )
