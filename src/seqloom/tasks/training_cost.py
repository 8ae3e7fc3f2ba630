"""What a training would cost, measured on some of its batches."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from seqloom.config import RunConfig
from seqloom.protocols import Batch, Objective, Rows, TrainingData, UpdatingObjective
from seqloom.tasks.training_data import total_steps
from seqloom.tasks.word_vectors.initial_embeddings import load_word_vectors
from seqloom.training.optimisation import make_optimizer

TIMED_STEPS = 5
"""On batches of medium length."""
MEBIBYTE = 2**20


def training_cost(
    data: TrainingData, run: RunConfig, longest: Rows, timed: Sequence[Rows]
) -> dict[str, float]:
    """Parameters; memory of weights, gradients and optimizer, and of the activations of the longest batch;
    the time of a step, measured on the `timed` ones, and of the whole training without its validations."""
    torch.manual_seed(run.train.seed)
    model = data.build().model
    model.train()
    objective = data.objective()
    optimizer = (
        objective.optimizer(model)
        if isinstance(objective, UpdatingObjective)
        else make_optimizer(model, run.train)
    )
    data.initialise(model)
    load_word_vectors(model, run, data.tokenizer)
    # the longest batch comes first: its memory counts, its time does not
    activations, seconds = [], []
    for rows in (longest, *timed):
        started = time.perf_counter()
        batch = data.load(rows, rows)
        if isinstance(objective, UpdatingObjective):
            objective.update(model, batch, optimizer, run.train.learning_rate)
            activations.append(0)
        else:
            activations.append(_training_step(model, objective, optimizer, batch))
        seconds.append(time.perf_counter() - started)
    step_seconds = float(np.median(seconds[1:]))
    sizes = [(parameter.numel(), parameter.requires_grad) for parameter in model.parameters()]
    parameters, trained = (
        sum(size for size, _ in sizes),
        sum(size for size, train in sizes if train),
    )
    return {
        "parameters": parameters,
        "trained_parameters": trained,
        # float32: a weight has 4 bytes, its gradient and Adam's two moments 12
        "memory_of_the_model_mib": round((4 * parameters + 12 * trained) / MEBIBYTE, 1),
        "memory_of_the_longest_batch_mib": round(activations[0] / MEBIBYTE, 1),
        "seconds_a_step": round(step_seconds, 4),
        "minutes_without_validations": round(total_steps(run.train, data) * step_seconds / 60, 1),
    }


def _training_step(
    model: nn.Module, objective: Objective, optimizer: torch.optim.Optimizer, batch: Batch
) -> int:
    """One step; returns the bytes that were saved for the backward pass, parameters not counted."""
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
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return saved
