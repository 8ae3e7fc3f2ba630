"""The laws of training: a loss is a pair that adds up over rows; a stopped run goes on to the same bits."""

from __future__ import annotations

import math
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn

from seqloom.files import sha256
from seqloom.protocols import Loss, Objective, Task
from seqloom.registry import find_task, register_task
from seqloom.tasks.model import load
from seqloom.testing.tensors import assert_close, run_laws
from seqloom.training.loop import Progress
from seqloom.workflows.train import TrainResult, train

STEPS = 4


def check_objective(objective: Objective, model: nn.Module, batch: Any) -> None:
    """Checks an objective on a batch, a NamedTuple whose tensors all have the row first: the loss is a pair,
    and it and its gradient are the sums over rows. Dropout is off. Raises AssertionError with the law that
    is broken."""
    training = model.training
    model.eval()
    learned = [parameter for parameter in model.parameters() if parameter.requires_grad]

    def measured(part: Any) -> tuple[Loss, tuple[Tensor, ...]]:
        loss = objective(model, part)
        assert isinstance(loss, Loss), "an objective must return a Loss"
        assert loss.total.shape == (), "the total must be one number"
        assert not loss.count.is_floating_point(), "the count must be an integer"
        return loss, torch.autograd.grad(
            loss.total, learned, materialize_grads=True, allow_unused=True
        )

    def the_loss_of_a_batch_is_the_sum_over_its_rows() -> None:
        whole, gradient = measured(batch)
        assert bool(whole.total.isfinite()), "the total must be finite"
        rows = [
            measured(type(batch)(*(part[index : index + 1] for part in batch)))
            for index in range(len(batch[0]))
        ]
        precision = 1e-9 if whole.total.dtype == torch.float64 else 1e-4
        assert int(whole.count) == sum(int(loss.count) for loss, _ in rows)
        assert_close(sum(loss.total for loss, _ in rows), whole.total, precision, precision)
        for mine, *theirs in zip(gradient, *(each for _, each in rows), strict=True):
            assert_close(sum(theirs), mine, precision, precision)

    run_laws(type(objective).__name__, [the_loss_of_a_batch_is_the_sum_over_its_rows])
    model.train(training)


def check_task(
    task: Task,
    data: Sequence[str],
    *,
    test: Sequence[str] = (),
    model: str | None = None,
    settings: Sequence[str] = (),
) -> None:
    """Checks a task on files of training data: a tiny training that is stopped and resumed ends in the same
    bits, and the folder evaluates and answers the same whenever it is opened. `test` are files of `evaluate`
    and `predict`, by default the training data. Raises AssertionError with the law that is broken."""
    if find_task(task.name) is None:
        register_task(task)
    fixed = [
        "train.device=cpu",
        f"train.max_steps={STEPS}",
        f"train.evaluate_every={STEPS}",
        f"train.log_every={STEPS // 2}",
    ]
    files = list(test or data)
    with TemporaryDirectory() as place:
        whole, stopped = Path(place, "whole"), Path(place, "stopped")

        def trained(
            folder: Path, progress: Callable[[Progress], None] = lambda _: None
        ) -> TrainResult:
            return train(
                task.name,
                data,
                output_dir=folder,
                model=model,
                settings=[*fixed, *settings],
                progress=progress,
            )

        def a_stopped_training_goes_on_to_the_same_bits() -> None:
            trained(whole)
            assert trained(stopped, _stop_halfway).stopped == "SIGTERM"
            train(resume=stopped)
            weights = [sha256(folder / "model.safetensors") for folder in (whole, stopped)]
            assert weights[0] == weights[1], "the weights differ"

        def a_folder_is_measured_the_same_whenever_it_is_opened() -> None:
            first, second = (load(whole, "cpu").evaluate(files).metrics for _ in range(2))
            assert first == second
            assert first, "there must be a metric"
            assert not any(math.isnan(value) for value in first.values()), "a metric is nan"

        def a_folder_answers_the_same_whenever_it_is_opened() -> None:
            first, second = (
                [answer.text for answer in load(whole, "cpu").answers(files[:1])] for _ in range(2)
            )
            assert first == second
            assert first, "there must be an answer"

        laws = [
            a_stopped_training_goes_on_to_the_same_bits,
            a_folder_is_measured_the_same_whenever_it_is_opened,
        ]
        if task.verb == "predict":
            laws.append(a_folder_answers_the_same_whenever_it_is_opened)
        run_laws(f"the task {task.name}", laws)


def _stop_halfway(progress: Progress) -> None:
    if progress.step == STEPS // 2:
        signal.raise_signal(signal.SIGTERM)
