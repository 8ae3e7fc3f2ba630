"""The one training loop: fetch a batch, accumulate the gradients of its micro-batches, clip, update, report;
validate and save at intervals.

The loop knows neither decoding nor evaluation nor files: a `Trainer` is given them as functions. Torch's
generator is re-seeded at every micro-batch, from (seed, step, micro-batch, rank), so a resumed run
continues to the same bits.
"""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, final

import numpy as np
import torch
from torch import Tensor, nn

from seqloom.config import TrainConfig
from seqloom.data.batching.pair_batches import shard
from seqloom.errors import TrainingError
from seqloom.protocols import Batch, Objective, Rows, updating
from seqloom.training.checkpoints import RETRY, TrainerState
from seqloom.training.distributed import ModelWithLoss, World, data_parallel, no_gradient_sync
from seqloom.training.metrics_log import Metrics
from seqloom.training.optimisation import clip_by_norm, learning_rate, set_rates


class Progress(NamedTuple):
    """What is shown to the user during training."""

    step: int
    total_steps: int
    loss: float
    tokens_per_second: float


class StepResult(NamedTuple):
    """One update."""

    total: float
    """Σ loss of the global batch, in nats."""
    count: int  # type: ignore[assignment]
    """Trained tokens of the global batch."""
    gradient_norm: float | None
    """‖gradient‖ before clipping; None if the objective updates the model itself."""
    learning_rate: float


@final
@dataclass(frozen=True, kw_only=True)
class Trainer:
    """A model and all that its training needs, as functions."""

    model: nn.Module
    objective: Objective
    optimizer: torch.optim.Optimizer
    config: TrainConfig
    batches: Callable[[int, int], Iterator[Rows]]
    """(epoch, first batch) -> the global batches of that epoch from there on."""
    load: Callable[[Rows, Rows], Batch]
    """(rows of a share, rows of the global batch) -> the batch as tensors."""
    describe: Callable[[Rows], str]
    """Where rows come from, for messages."""
    validate: Callable[[], dict[str, float]]
    """Metrics on the validation data; must hold `config.best`."""
    save: Callable[[TrainerState], None]
    log: Callable[[Metrics], None]
    progress: Callable[[Progress], None]
    interrupted: Callable[[], int]
    """The number of the signal that asks to stop, 0 without one."""
    evaluate_every: int
    target: float | None = None
    """Training ends at a validation value (smaller is better) of at most this."""
    world: World = World()  # noqa: RUF009

    def run(self, state: TrainerState) -> TrainerState:
        """Trains from `state` until `total_steps`, the target, the end of patience or a signal;
        `state.stopped` says which.

        Raises TrainingError if a gradient is not finite (before the update, so no checkpoint ever holds
        such a value) or a batch trains no token.
        """
        module = data_parallel(ModelWithLoss(self.model, self.objective), self.world)
        self.model.train()
        throughput = _Throughput(state.tokens)
        while not state.is_over():
            for rows in self.batches(state.epoch, state.batch):
                result = self.train_step(module, rows, state.step + 1, state.total_steps)
                state.step += 1
                state.batch += 1
                state.tokens += result.count
                state.window = [state.window[0] + result.total, state.window[1] + result.count]
                self._after_step(state, result, throughput)
                if state.is_over():
                    break
            else:
                state.epoch, state.batch = state.epoch + 1, 0
        return state

    def train_step(self, module: nn.Module, rows: Rows, step: int, total_steps: int) -> StepResult:
        """One update from one global batch, whatever the numbers of micro-batches and workers."""
        rate = learning_rate(self.config, step, total_steps)
        own = updating(self.objective)
        if own is not None:
            batch = self.load(rows, rows)
            loss = own.update(self.model, batch, self.optimizer, rate)
            self._check_count(int(loss.count), rows, step)
            return StepResult(float(loss.total), int(loss.count), None, rate)
        total, count = self.accumulate_gradient(module, rows, step)
        self._check_count(count, rows, step)
        # backward added up Σ loss, and data parallel took the mean over workers: make it the gradient of the
        # mean
        for parameter in self.model.parameters():
            if parameter.grad is not None:
                parameter.grad.mul_(self.world.size / count)
        norm = float(clip_by_norm(self.model.parameters(), self.config.clip_norm))
        if not math.isfinite(norm):
            raise TrainingError(self._not_finite(rows, step, total / count))
        set_rates(self.optimizer, rate, self.config.relative_rate)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return StepResult(total, count, norm, rate)

    def _check_count(self, count: int, rows: Rows, step: int) -> None:
        if not count:
            raise TrainingError(
                f"step {step}: a batch must train at least one token, but none is trained in"
                f" {self.describe(rows)}"
            )

    def accumulate_gradient(self, module: nn.Module, rows: Rows, step: int) -> tuple[float, int]:
        """Adds the gradient of Σ loss over the micro-batches of a global batch; with workers it is their
        mean.

        Returns (Σ loss, Σ count) of the global batch.
        """
        sums = torch.zeros(2, dtype=torch.float64)
        worker_rows = shard(rows, self.world.rank, self.world.size)
        last = self.config.accumulate - 1
        for micro in range(self.config.accumulate):
            torch.manual_seed(step_seed(self.config.seed, step, micro, self.world.rank))
            batch = self.load(shard(worker_rows, micro, self.config.accumulate), rows)
            sync = nullcontext() if micro == last else no_gradient_sync(module)
            with sync, autocast(self.config, batch[0].device):
                total, count = module(batch)
                total.backward()
            sums += torch.stack([total.detach().double(), count.double()]).cpu()
        sums = self.world.sum(sums)
        return float(sums[0]), int(sums[1])

    def _after_step(self, state: TrainerState, result: StepResult, throughput: _Throughput) -> None:
        """Reports, validates, saves, and decides whether to stop."""
        mean = state.window[0] / state.window[1]
        rate = throughput.rate(state.tokens)
        self.progress(Progress(state.step, state.total_steps, mean, rate))
        if not math.isfinite(mean):
            raise TrainingError(
                f"step {state.step}: the loss must be finite, but is {mean}; {RETRY}"
            )
        at_end = state.step >= state.total_steps
        if state.step % self.config.log_every == 0 or at_end:
            norm = result.gradient_norm
            self.log(
                {
                    "step": state.step,
                    "epoch": state.epoch,
                    "loss": mean,
                    "learning_rate": result.learning_rate,
                    **({} if norm is None else {"gradient_norm": norm}),
                    "tokens": state.tokens,
                    "tokens_per_second": rate,
                }
            )
            state.window = [0.0, 0.0]
        validates = at_end or state.step % self.evaluate_every == 0
        if validates:
            with throughput.paused():
                self._validate(state)
        if at_end:
            state.stopped = state.stopped or "max_steps"
        signal_number = self.world.largest(self.interrupted())
        if validates or signal_number:
            with throughput.paused():
                self.save(state)
        if signal_number and state.stopped is None:  # after the save: a resumed run is not stopped
            state.stopped = signal.Signals(signal_number).name

    def _validate(self, state: TrainerState) -> None:
        """The first worker measures; all receive the deciding value, so that all decide alike."""
        metrics: dict[str, float] = {}
        value = 0.0
        if self.world.first:
            self.model.eval()
            with torch.no_grad():
                metrics = self.validate()
            self.model.train()
            metric = metrics[self.config.best]
            value = metric if self.config.best == "loss" else -metric
        value = float(self.world.sum(torch.tensor(value, dtype=torch.float64)))
        if math.isfinite(value) and (state.best is None or value < state.best):
            state.best, state.best_step, state.without_better = value, state.step, 0
        else:
            state.without_better += 1
        if self.config.patience is not None and state.without_better >= self.config.patience:
            state.stopped = "patience"
        if self.target is not None and value <= self.target:
            state.stopped = "target"
        named = {f"validation_{name}": metric for name, metric in metrics.items()}
        self.log({"step": state.step, "epoch": state.epoch, "tokens": state.tokens, **named})

    def _not_finite(self, rows: Rows, step: int, loss: float) -> str:
        """The error message of a gradient that is not finite."""
        origin = self._first_not_finite(rows)
        if origin is None:
            names = (
                name
                for name, parameter in self.model.named_parameters()
                if parameter.grad is not None and not bool(torch.isfinite(parameter.grad).all())
            )
            origin = f"the gradient of {next(names, 'the model')}"
        return (
            f"step {step}: the gradient must be finite, but is not (loss {loss:.4g}; first in {origin};"
            f" {self.describe(rows)}); nothing was changed by this step; {RETRY}, or set train.dtype=float32"
        )

    def _first_not_finite(self, rows: Rows) -> str | None:
        """The first layer whose output is not finite when the batch is read once more."""
        broken: list[str] = []

        def check(name: str, _layer: nn.Module, _inputs: object, output: object) -> None:
            parts = output if isinstance(output, tuple) else (output,)
            tensors = [part for part in parts if isinstance(part, Tensor)]
            if not broken and not all(bool(torch.isfinite(tensor).all()) for tensor in tensors):
                broken.append(name)

        hooks = [
            layer.register_forward_hook(partial(check, name))
            for name, layer in self.model.named_modules()
            if name
        ]
        try:
            with torch.no_grad(), autocast(self.config, next(self.model.parameters()).device):
                worker_rows = shard(rows, self.world.rank, self.world.size)
                self.objective(self.model, self.load(worker_rows, rows))
        finally:
            for hook in hooks:
                hook.remove()
        return broken[0] if broken else None


def step_seed(seed: int, *context: int) -> int:
    """A seed for torch's generator that is a function of (seed, step, micro-batch, rank)."""
    return int(
        np.random.SeedSequence([seed, *context]).generate_state(1, np.uint64)[0] >> np.uint64(1)
    )


def autocast(config: TrainConfig, device: torch.device) -> torch.autocast:
    return torch.autocast(device.type, torch.bfloat16, enabled=config.dtype == "bfloat16")


@final
class _Throughput:
    """Trained tokens a second, validation and saving not counted."""

    def __init__(self, tokens: int) -> None:
        self.start, self.tokens = time.perf_counter(), tokens

    def rate(self, tokens: int) -> float:
        return (tokens - self.tokens) / max(time.perf_counter() - self.start, 1e-9)

    @contextmanager
    def paused(self) -> Iterator[None]:
        paused_at = time.perf_counter()
        yield
        self.start += time.perf_counter() - paused_at
