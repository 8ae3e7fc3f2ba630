"""Trainings of a benchmark, which count only where they come to their end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

from seqloom.workflows import train as workflow
from seqloom.workflows.train import TrainArguments, TrainResult


def train(
    task: str | None = None, data: Sequence[str] = (), **options: Unpack[TrainArguments]
) -> TrainResult:
    """As `seqloom.workflows.train.train`. A signal stops a training, and would let the benchmark go on and
    measure half a model: here it ends the program."""
    result = workflow.train(task, data, **options)
    if result.stopped.startswith("SIG"):
        raise SystemExit("stopped; give the same command again to go on")
    return result
