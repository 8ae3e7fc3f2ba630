"""The long-distance probe: what a small recurrent model remembers over a distance after a fixed budget of
training.

The reader is the cell alone, `h_t = cell(x_t, h_{t-1})` and a linear layer on `h` where it must answer.
`attention` is the same Elman reader, but where it answers it looks at all its states (additive attention):
`[h_t; c_t]` instead of `h_t`. What differs between these two is the length of the path back to what must be
remembered, one step instead of `distance` (Bengio, Simard and Frasconi 1994; Bahdanau, Cho and Bengio 2015).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, NamedTuple, final

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from seqloom.config import STRICT, Positive, Share, TrainConfig
from seqloom.data.synthetic.long_memory import Examples, MemoryTask, Part, examples
from seqloom.errors import TrainingError, UsageError, printable
from seqloom.layers.attention import AdditiveScores, attention_weights, weighted_mean
from seqloom.layers.recurrent.cells import CELLS
from seqloom.layers.recurrent.stack import RecurrentStack, RecurrentStackConfig
from seqloom.protocols import Loss, Rows
from seqloom.training.checkpoints import TrainerState
from seqloom.training.loop import Progress, Trainer
from seqloom.training.optimisation import make_optimizer

ATTENTION, CHRONO = "attention", "lstm-chrono"
READERS = (*CELLS, CHRONO, ATTENTION)
EMBEDDING = 16
"""Numbers a word."""
CHECK_ROWS, TEST_ROWS = (256, 1024), 1024
"""Sequences of a validation: few, and more where the few pass."""
LEARNED_ACCURACY, LEARNED_ERROR = 0.99, 0.01
"""A task is learned at this accuracy; adding, at this mean squared error."""
STOP_SHARE = 0.5
"""Training continues to this share of that error, so that what is learned passes the test too."""
STOPPED = {"target": "learned", "max_steps": "budget"}
"""Why the loop ended -> why the probe ended; anything else is a signal."""
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
    return {ATTENTION: "elman", CHRONO: "lstm"}.get(name, name)


@final
class MemoryReader(nn.Module):
    """Reads a row and answers at its last steps."""

    def __init__(
        self, reader: str, words: int, classes: int, width: int, distance: int = 0
    ) -> None:
        """`words` 0: inputs are pairs of numbers. `classes` 0: the answer is a number. The gates of
        `lstm-chrono` start for the distance."""
        super().__init__()
        cell = reader_named(reader)
        self.embedding = nn.Embedding(words, EMBEDDING) if words else nn.Identity()
        self.recurrent = RecurrentStack(
            RecurrentStackConfig(
                cell,
                EMBEDDING if words else 2,
                width,
                chrono_steps=max(3, distance) if reader == CHRONO else 0,
            )
        )
        self.scores = AdditiveScores(width, width, width) if reader == ATTENTION else None
        read = width if self.scores is None else 2 * width
        self.output = nn.Linear(read, classes or 1)

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


class ProbeBatch(NamedTuple):
    """Examples as tensors."""

    inputs: Tensor
    targets: Tensor
    """`(rows, answers)`"""


@final
@dataclass(kw_only=True)
class _ProbeTraining:
    """The training of one reader, as functions for the training loop."""

    task: MemoryTask
    distance: int
    budget: ProbeBudget
    model: MemoryReader
    show: Callable[[Progress], None]
    state: TrainerState
    tokens_read: int = 0

    def batches(self, _epoch: int, start: int) -> Iterator[Rows]:
        """The only "row" of a batch is the number of its update."""
        return (np.array([step]) for step in range(start + 1, self.budget.steps + 1))

    def load(self, rows: Rows, _global_rows: Rows) -> ProbeBatch:
        step, budget = int(rows[0]), self.budget
        distance = trained_distance(self.task, self.distance, budget, step)
        batch = examples(self.task, budget.seed, "train", step, budget.rows, distance)
        self.tokens_read += batch.inputs[..., :1].size
        return _tensors(batch)

    def validate(self) -> dict[str, float]:
        """The error; the larger number of rows is read only if the smaller one passes."""
        error = math.inf
        if self.state.step % self.budget.check_every == 0:
            for rows in CHECK_ROWS:
                metrics = measure(
                    self.model, self.task, self.budget.seed, "validation", rows, self.distance
                )
                error = _error(metrics)
                if not error <= STOP_SHARE * _learned_error(self.task):
                    break
        return {"loss": error}

    def progress(self, now: Progress) -> None:
        # the loss counts an update as one, so the loop reports updates a second
        tokens_per_update = self.tokens_read / now.step
        self.show(now._replace(tokens_per_second=now.tokens_per_second * tokens_per_update))


def probe(
    task: MemoryTask,
    reader: str,
    distance: int,
    budget: ProbeBudget,
    progress: Callable[[Progress], None],
    interrupted: Callable[[], int],
) -> ProbeResult | None:
    """Trains a reader until it has learned the task or the budget is used up, then tests it; None if it
    was interrupted.

    Raises UsageError for an unknown reader or a distance that the task does not have.
    """
    torch.manual_seed(budget.seed)
    model = MemoryReader(reader, len(task.words), len(task.classes), budget.width, distance)
    config = TrainConfig(
        learning_rate=budget.learning_rate,
        schedule="linear",
        weight_decay=0.0,
        seed=budget.seed,
        log_every=1,
    )
    state = TrainerState(total_steps=budget.steps)
    training = _ProbeTraining(
        task=task, distance=distance, budget=budget, model=model, show=progress, state=state
    )
    trainer = Trainer(
        model=model,
        objective=probe_loss,
        optimizer=make_optimizer(model, config),
        config=config,
        batches=training.batches,
        load=training.load,
        describe=str,
        validate=training.validate,
        save=lambda _: None,
        log=lambda _: None,
        progress=training.progress,
        interrupted=interrupted,
        evaluate_every=budget.check_every,
        target=STOP_SHARE * _learned_error(task),
    )
    start = time.perf_counter()
    try:
        trainer.run(state)
    except TrainingError:
        steps, stopped = state.step + 1, "not finite"
    else:
        if state.stopped not in STOPPED:
            return None
        steps, stopped = state.step, STOPPED[state.stopped]
    metrics = measure(model, task, budget.seed, "test", TEST_ROWS, distance)
    parameters = sum(p.numel() for p in model.recurrent.parameters())
    learned = _error(metrics) <= _learned_error(task)
    return ProbeResult(steps, stopped, parameters, time.perf_counter() - start, metrics, learned)


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
    inputs, targets = _tensors(batch)
    outputs = model(inputs, targets.shape[1])
    if not task.classes:
        error = (outputs[..., 0] - targets).double()
        within = (error.abs() < CLOSE).double().mean()
        return {"mse": float(error.square().mean()), f"within_{CLOSE}": float(within)}
    metrics = {"accuracy": float((outputs.argmax(dim=-1) == targets).double().mean())}
    if task.last_noun is not None:
        metrics["last_noun"] = float((task.last_noun(batch.inputs) == batch.targets[:, 0]).mean())
    return metrics


def probe_loss(model: nn.Module, batch: ProbeBatch) -> Loss:
    """Mean cross-entropy in nats, or mean squared error where the targets are numbers; each update counts as
    one."""
    outputs = model(batch.inputs, batch.targets.shape[1])
    if batch.targets.is_floating_point():
        mean = F.mse_loss(outputs[..., 0], batch.targets)
    else:
        mean = F.cross_entropy(outputs.flatten(0, 1), batch.targets.flatten())
    return Loss(mean, torch.tensor(1))


def _tensors(batch: Examples) -> ProbeBatch:
    return ProbeBatch(torch.from_numpy(batch.inputs), torch.from_numpy(batch.targets))


def _error(metrics: dict[str, float]) -> float:
    """Mean squared error, or the share of wrong answers."""
    return metrics["mse"] if "mse" in metrics else 1 - metrics["accuracy"]


def _learned_error(task: MemoryTask) -> float:
    """The error up to which a task counts as learned."""
    return 1 - LEARNED_ACCURACY if task.classes else LEARNED_ERROR
