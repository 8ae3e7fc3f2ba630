"""What a training would cost, measured on some of its batches."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from seqloom.config import RunConfig
from seqloom.data.batching.pair_batches import shard
from seqloom.protocols import Batch, Objective, Rows, TrainingData, device_of, updating
from seqloom.shapes import on_device
from seqloom.tasks.model_to_train import ModelToTrain, model_to_train
from seqloom.tasks.training_data import total_steps
from seqloom.training.loop import autocast
from seqloom.training.objectives import chosen_objective

TIMED_STEPS = 5
"""On batches of medium length."""
MEBIBYTE = 2**20


def training_cost(
    data: TrainingData, run: RunConfig, longest: Rows, timed: Sequence[Rows]
) -> dict[str, float]:
    """Parameters; memory of weights, gradients and optimizer, and of the activations of the longest batch;
    the time of a step, measured on the `timed` ones, and of the whole training without its validations."""
    start = model_to_train(data, run)
    model = start.new.model
    start = start._replace(objective=chosen_objective(run.train.objective, start.objective))
    model.train()
    # the longest batch comes first: its memory counts, its time does not
    activations, seconds = [], []
    for rows in (longest, *timed):
        started = time.perf_counter()
        activations.append(_training_step(start, data, rows, run))
        seconds.append(time.perf_counter() - started)
    step_seconds = float(np.median(seconds[1:]))
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    # a gradient and the two moments of Adam are each as large as what is trained
    memory = _bytes(model.parameters()) + 3 * _bytes(trained)
    return {
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "trained_parameters": sum(parameter.numel() for parameter in trained),
        "memory_of_the_model_mib": round(memory / MEBIBYTE, 1),
        "memory_of_the_longest_batch_mib": round(activations[0] / MEBIBYTE, 1),
        "seconds_a_step": round(step_seconds, 4),
        "minutes_without_validations": round(total_steps(run.train, data) * step_seconds / 60, 1),
    }


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _training_step(start: ModelToTrain, data: TrainingData, rows: Rows, run: RunConfig) -> int:
    """One step; returns the most bytes that were saved for the backward pass of a micro-batch, parameters not
    counted."""
    (model, *_), objective, optimizer = start
    device, parts = device_of(model), run.train.accumulate
    own = updating(objective)
    if own is not None:
        batch = on_device(data.load(rows, rows), device)
        own.update(model, batch, optimizer, run.train.learning_rate)
        return 0
    saved = 0
    for part in range(parts):
        batch = on_device(data.load(shard(rows, part, parts), rows), device)
        with autocast(run.train, device):
            saved = max(saved, _backward(model, objective, batch))
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    if device.type == "cuda":
        torch.cuda.synchronize()
    return saved


def _backward(model: nn.Module, objective: Objective, batch: Batch) -> int:
    """Adds to the gradient; returns the bytes that were saved for it, parameters not counted."""
    seen = {parameter.data_ptr() for parameter in model.parameters()}
    saved = 0

    def count(tensor: Tensor) -> Tensor:
        nonlocal saved
        if tensor.data_ptr() not in seen:
            seen.add(tensor.data_ptr())
            saved += tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
        total, targets = objective(model, batch)
    torch.autograd.backward(total / targets.clamp(min=1))
    return saved
