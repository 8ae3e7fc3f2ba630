"""The long-distance probe: what a small reader remembers over a distance, after a fixed budget of training.

The reader is the cell alone, `h_t = cell(x_t, h_{t-1})` and a linear layer on `h` where it must answer.
`attention` is the same Elman reader, but where it answers it looks at all its states (additive attention):
`[h_t; c_t]` instead of `h_t`. What differs between these two is the length of the path back to what must be
remembered, one step instead of `distance` (Bengio, Simard and Frasconi 1994; Bahdanau, Cho and Bengio 2015).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, NamedTuple, final

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from seqloom.config import STRICT, Positive, Share, TrainConfig
from seqloom.data.synthetic.long_memory import Examples, MemoryTask, Part, examples
from seqloom.errors import UsageError, printable
from seqloom.layers.attention import AdditiveScores, attention_weights, weighted_mean
from seqloom.layers.recurrent.cells import CELLS
from seqloom.layers.recurrent.stack import Recurrent
from seqloom.training.loop import Progress
from seqloom.training.optimisation import clip_by_norm, learning_rate, make_optimizer

ATTENTION = "attention"
READERS = (*CELLS, ATTENTION)
EMBEDDING = 16
"""Numbers a word."""
CHECK_ROWS, TEST_ROWS = (256, 1024), 1024
"""Sequences of a look at whether it is learned: few, and where these say so, more."""
LEARNED_ACCURACY, LEARNED_ERROR = 0.99, 0.01
"""A task is learned at this accuracy; adding, at this mean squared error. Training goes on to half that
error, so that what it has learned passes the test."""
CLOSE = 0.04
"""An answer so near the sum is right (Hochreiter and Schmidhuber 1997, section 5.4)."""


@final
@dataclass(frozen=True, kw_only=True)
class ProbeBudget:
    """How each reader is trained: the same for all."""

    __pydantic_config__ = STRICT
    steps: Positive = 3000
    """Updates, at most; training ends where the task is learned."""
    rows: Positive = 32
    """Fresh sequences an update."""
    width: Positive = 64
    """Of the state."""
    learning_rate: Annotated[float, Field(gt=0)] = 0.005
    """Of Adam, at first; it falls linearly to nothing at the last step."""
    shorter: Share = 0.0
    """Share of the updates at a shorter distance, any from the shortest on: in text, too, short dependencies
    come with long ones."""
    check_every: Positive = 100
    """Updates between looks at whether it is learned."""
    seed: Annotated[int, Field(ge=0, lt=2**63, strict=True)] = 0


class ProbeResult(NamedTuple):
    steps: int
    """Updates that were made."""
    stopped: str
    """learned, budget, or not finite (a gradient; the weights are those before it)."""
    parameters: int
    """Of the recurrent layer."""
    seconds: float
    metrics: dict[str, float]
    """On the test examples: accuracy, or mse and within_0.04; and `last_noun`, the accuracy of going by the
    last noun."""
    learned: bool


def reader_named(name: str) -> str:
    """The cell of a reader. Raises UsageError for an unknown name."""
    if name not in READERS:
        raise UsageError(
            f"a cell of the probe must be one of {', '.join(READERS)}, but is {printable(repr(name))}"
        )
    return "elman" if name == ATTENTION else name


@final
class MemoryReader(nn.Module):
    """Reads a row and answers at its last steps."""

    def __init__(self, reader: str, words: int, classes: int, width: int) -> None:
        """`words` 0: inputs are pairs of numbers. `classes` 0: the answer is a number."""
        super().__init__()
        cell = reader_named(reader)
        self.embedding = nn.Embedding(words, EMBEDDING) if words else nn.Identity()
        self.recurrent = Recurrent(cell, EMBEDDING if words else 2, width)
        self.scores = AdditiveScores(width, width, width) if reader == ATTENTION else None
        self.output = nn.Linear(width if self.scores is None else 2 * width, classes or 1)

    def forward(self, inputs: Tensor, answers: int) -> Tensor:
        """inputs `(rows, steps)` or `(rows, steps, 2)` -> `(rows, answers, classes)`."""
        states, _ = self.recurrent(self.embedding(inputs))
        last = states[:, -answers:]
        if self.scores is not None:
            scores = self.scores.scores(last, self.scores.keys(states))
            weights = attention_weights(scores, scores.new_ones((), dtype=torch.bool))
            last = torch.cat([last, weighted_mean(weights, states)], dim=-1)
        outputs: Tensor = self.output(last)
        return outputs


def probe(
    task: MemoryTask,
    reader: str,
    distance: int,
    budget: ProbeBudget,
    progress: Callable[[Progress], None],
    interrupted: Callable[[], int],
) -> ProbeResult | None:
    """Trains a reader until it has learned the task or the budget is used up, then tests it; None where it
    was interrupted.

    Raises UsageError for an unknown reader or a distance that the task does not have.
    """
    torch.manual_seed(budget.seed)
    model = MemoryReader(reader, len(task.words), len(task.classes), budget.width)
    config = TrainConfig(learning_rate=budget.learning_rate, schedule="linear", weight_decay=0.0)
    optimizer = make_optimizer(model, config)
    began, stopped, step = time.perf_counter(), "budget", 0
    for step in range(1, budget.steps + 1):
        batch = examples(
            task, budget.seed, "train", step, budget.rows, trained_distance(task, distance, budget, step)
        )
        loss = _loss(*_answers(model, batch))
        loss.backward()  # type: ignore[no-untyped-call]
        if not math.isfinite(float(clip_by_norm(model.parameters(), config.clip_norm))):
            stopped = "not finite"
            break
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(config, step, budget.steps)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        spent = max(time.perf_counter() - began, 1e-9)
        progress(
            Progress(step, budget.steps, float(loss.detach()), step * batch.inputs[..., :1].size / spent)
        )
        if interrupted():
            return None
        if step % budget.check_every == 0 and all(
            _learned(measure(model, task, budget.seed, "validation", rows, distance), 0.5)
            for rows in CHECK_ROWS
        ):
            stopped = "learned"
            break
    metrics = measure(model, task, budget.seed, "test", TEST_ROWS, distance)
    parameters = sum(p.numel() for p in model.recurrent.parameters())
    return ProbeResult(step, stopped, parameters, time.perf_counter() - began, metrics, _learned(metrics))


def trained_distance(task: MemoryTask, distance: int, budget: ProbeBudget, step: int) -> int:
    """The distance of an update's sequences, a function of the seed."""
    rng = np.random.default_rng([budget.seed, step])
    if rng.random() >= budget.shorter:
        return distance
    return int(rng.integers(task.shortest, distance + 1))


@torch.no_grad()
def measure(
    model: MemoryReader, task: MemoryTask, seed: int, part: Part, rows: int, distance: int
) -> dict[str, float]:
    """Metrics on `rows` examples of a part."""
    batch = examples(task, seed, part, 0, rows, distance)
    outputs, targets = _answers(model, batch)
    if not task.classes:
        error = (outputs[..., 0] - targets).double()
        return {
            "mse": float(error.square().mean()),
            f"within_{CLOSE}": float((error.abs() < CLOSE).double().mean()),
        }
    metrics = {"accuracy": float((outputs.argmax(dim=-1) == targets).double().mean())}
    if task.last_noun is not None:
        metrics["last_noun"] = float((task.last_noun(batch.inputs) == batch.targets[:, 0]).mean())
    return metrics


def _answers(model: MemoryReader, batch: Examples) -> tuple[Tensor, Tensor]:
    """outputs `(rows, answers, classes)`, targets `(rows, answers)`."""
    targets = torch.from_numpy(batch.targets)
    return model(torch.from_numpy(batch.inputs), targets.shape[1]), targets


def _loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """Mean cross-entropy in nats, or mean squared error where the targets are numbers."""
    if targets.is_floating_point():
        return F.mse_loss(outputs[..., 0], targets)
    return F.cross_entropy(outputs.flatten(0, 1), targets.flatten())


def _learned(metrics: dict[str, float], part: float = 1.0) -> bool:
    """Whether the error is at most a part of what counts as learned."""
    if "mse" in metrics:
        return metrics["mse"] <= part * LEARNED_ERROR
    return 1 - metrics["accuracy"] <= part * (1 - LEARNED_ACCURACY)
