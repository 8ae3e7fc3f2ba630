"""The model of a run as its training begins: on its device, adapted, with its optimizer."""

from __future__ import annotations

from typing import NamedTuple

import torch

from seqloom.config import RunConfig
from seqloom.layers.low_rank import adapt
from seqloom.protocols import NewModel, Objective, TrainingData, updating
from seqloom.runs.adapters import whole_parts
from seqloom.runs.run_folder import choose_device
from seqloom.tasks.word_vectors.initial_embeddings import load_word_vectors
from seqloom.training.optimisation import make_optimizer


class ModelToTrain(NamedTuple):
    """A model at step 0."""

    new: NewModel
    objective: Objective
    """That of the task."""
    optimizer: torch.optim.Optimizer


def model_to_train(data: TrainingData, run: RunConfig, word_vectors: bool = True) -> ModelToTrain:
    """What a training of `run` begins with. `word_vectors`: whether `train.word_vectors` are read, which a
    run that goes on has in its weights."""
    config = run.train
    torch.manual_seed(config.seed)
    new = data.build()
    model = new.model
    model.to(choose_device(config.device), weight_dtype(run))
    if config.lora_rank is not None:
        adapt(
            model,
            config.lora_targets,
            config.lora_rank,
            config.lora_alpha,
            config.seed,
            trained=whole_parts(run, new.config),
        )
    objective = data.objective()
    own = updating(objective)
    optimizer = make_optimizer(model, config) if own is None else own.optimizer(model)
    data.initialise(model)
    if word_vectors:
        load_word_vectors(model, run, data.tokenizer)
    return ModelToTrain(new, objective, optimizer)


def weight_dtype(run: RunConfig) -> torch.dtype:
    """With bfloat16 the weights are float32."""
    return torch.float64 if run.train.dtype == "float64" else torch.float32
