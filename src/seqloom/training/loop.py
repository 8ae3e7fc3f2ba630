"""The one training loop: fetch a batch, add up its micro-batches, clip, step, report; validate and save on a
cadence.

Everything it needs is handed to it as a `Job`; it knows neither decoding nor evaluation nor files. All that
is random is re-seeded from (seed, step, micro-batch, rank), so a run that was stopped goes on to the same
bits.
"""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple, final

import numpy as np
import torch
from torch import Tensor, nn

from seqloom.config import TrainConfig
from seqloom.data.batching.order import Rows
from seqloom.data.batching.pair_batches import share
from seqloom.errors import TrainingError
from seqloom.protocols import Objective
from seqloom.training.checkpoints import RETRY, TrainerState
from seqloom.training.distributed import Trained, World, distributed, without_sync
from seqloom.training.optimisation import clip_by_norm, learning_rate


class Progress(NamedTuple):
    """What a person wants to know while it runs."""

    step: int
    total_steps: int
    loss: float
    tokens_per_second: float


@final
@dataclass(frozen=True, kw_only=True)
class Job:
    """All that the loop needs."""

    model: nn.Module
    objective: Objective
    optimizer: torch.optim.Optimizer
    config: TrainConfig
    batches: Callable[[int, int], Iterator[Rows]]
    """(epoch, first batch) -> the global batches of that epoch from there on."""
    load: Callable[[Rows, Rows], Any]
    """(rows of a share, rows of the global batch) -> the batch as tensors."""
    describe: Callable[[Rows], str]
    """Where rows come from, for messages."""
    validate: Callable[[], dict[str, float]]
    """Metrics on the validation data; must hold `config.best`."""
    save: Callable[[TrainerState], None]
    log: Callable[[dict[str, Any]], None]
    progress: Callable[[Progress], None]
    interrupted: Callable[[], int]
    """The number of the signal that asks to stop, 0 where none came."""
    evaluate_every: int
    world: World = World()  # noqa: RUF009


def run(job: Job, state: TrainerState) -> TrainerState:
    """Trains from `state` to `state.total_steps`, to the end of patience, or to a signal (`state.stopped`
    says which).

    Raises TrainingError where a gradient is not finite (before the update: no checkpoint ever holds such a
    value) or nothing is trained in a batch.
    """
    module = distributed(Trained(job.model, job.objective), job.world)
    job.model.train()
    clock = _Clock(state.tokens)
    while not _over(state):
        for rows in job.batches(state.epoch, state.batch):
            result = train_step(job, module, rows, state.step + 1, state.total_steps)
            state.step += 1
            state.batch += 1
            state.tokens += result.count
            state.window = [state.window[0] + result.total, state.window[1] + result.count]
            _after_step(job, state, result, clock)
            if _over(state):
                break
        else:
            state.epoch, state.batch = state.epoch + 1, 0
    return state


def _over(state: TrainerState) -> bool:
    return state.stopped is not None


class StepResult(NamedTuple):
    total: float
    """Σ loss of the global batch, in nats."""
    count: int  # type: ignore[assignment]
    """Trained tokens of the global batch."""
    norm: float
    """‖gradient‖ before clipping."""
    rate: float
    """The learning rate."""


def train_step(job: Job, module: nn.Module, rows: Rows, step: int, total_steps: int) -> StepResult:
    """One update from one global batch, whatever the numbers of micro-batches and workers."""
    total, count = gradient(job, module, rows, step)
    if not count:
        raise TrainingError(
            f"step {step}: a batch must train at least one token, but none is trained in {job.describe(rows)}"
        )
    for parameter in job.model.parameters():
        if parameter.grad is not None:
            parameter.grad.mul_(job.world.size / count)
    norm = float(clip_by_norm(job.model.parameters(), job.config.clip_norm))
    if not math.isfinite(norm):
        raise TrainingError(_not_finite(job, rows, step, total / count))
    rate = learning_rate(job.config, step, total_steps)
    for group in job.optimizer.param_groups:
        group["lr"] = rate * group.get("scale", 1.0)
    job.optimizer.step()
    job.optimizer.zero_grad(set_to_none=True)
    return StepResult(total, count, norm, rate)


def gradient(job: Job, module: nn.Module, rows: Rows, step: int) -> tuple[float, int]:
    """Adds up the gradient of Σ loss over the shares of a global batch; with workers it is their mean.

    Returns (Σ loss, Σ count) of the global batch.
    """
    sums = torch.zeros(2, dtype=torch.float64)
    mine = share(rows, job.world.rank, job.world.size)
    for micro in range(job.config.accumulate):
        torch.manual_seed(stream_seed(job.config.seed, step, micro, job.world.rank))
        batch = job.load(share(mine, micro, job.config.accumulate), rows)
        last = micro == job.config.accumulate - 1
        with nullcontext() if last else without_sync(module), autocast(job.config, batch[0].device):
            total, count = module(batch)
            total.backward()
        sums += torch.stack([total.detach().double(), count.double()]).cpu()
    sums = job.world.sum(sums)
    return float(sums[0]), int(sums[1])


def stream_seed(seed: int, *context: int) -> int:
    """A seed for torch's global stream that is a function of (seed, step, micro-batch, rank)."""
    return int(np.random.SeedSequence([seed, *context]).generate_state(1, np.uint64)[0] >> np.uint64(1))


def autocast(config: TrainConfig, device: torch.device) -> torch.autocast:
    return torch.autocast(device.type, torch.bfloat16, enabled=config.dtype == "bfloat16")


def _after_step(job: Job, state: TrainerState, result: StepResult, clock: _Clock) -> None:
    """Reports, validates, saves, and decides whether to stop."""
    mean = state.window[0] / state.window[1]
    job.progress(Progress(state.step, state.total_steps, mean, clock.rate(state.tokens)))
    if not math.isfinite(mean):
        raise TrainingError(f"step {state.step}: the loss must be finite, but is {mean}; {RETRY}")
    ended = state.step >= state.total_steps
    if state.step % job.config.log_every == 0 or ended:
        record = {"loss": mean, "learning_rate": result.rate, "gradient_norm": result.norm}
        job.log(
            {
                "step": state.step,
                "epoch": state.epoch,
                **record,
                "tokens": state.tokens,
                "tokens_per_second": clock.rate(state.tokens),
            }
        )
        state.window = [0.0, 0.0]
    validates = ended or state.step % job.evaluate_every == 0
    if validates:
        with clock.paused():
            _validate(job, state)
    if ended:
        state.stopped = state.stopped or "max_steps"
    asked = job.world.largest(job.interrupted())
    if validates or asked:
        with clock.paused():
            job.save(state)
    if asked and state.stopped is None:  # after the save: a resumed run is not stopped
        state.stopped = signal.Signals(asked).name


def _validate(job: Job, state: TrainerState) -> None:
    """The first worker measures; all hear the value that decides, so that all decide alike."""
    metrics: dict[str, float] = {}
    value = 0.0
    if job.world.first:
        job.model.eval()
        with torch.no_grad():
            metrics = job.validate()
        job.model.train()
        value = metrics[job.config.best] if job.config.best == "loss" else -metrics[job.config.best]
    value = float(job.world.sum(torch.tensor(value, dtype=torch.float64)))
    if math.isfinite(value) and (state.best is None or value < state.best):
        state.best, state.best_step, state.without_better = value, state.step, 0
    else:
        state.without_better += 1
    if job.config.patience is not None and state.without_better >= job.config.patience:
        state.stopped = "patience"
    job.log(
        {
            "step": state.step,
            "epoch": state.epoch,
            "tokens": state.tokens,
            **{f"validation_{name}": v for name, v in metrics.items()},
        }
    )


def _not_finite(job: Job, rows: Rows, step: int, loss: float) -> str:
    layer = first_not_finite(job, rows)
    if layer is None:
        names = (
            name
            for name, p in job.model.named_parameters()
            if p.grad is not None and not bool(torch.isfinite(p.grad).all())
        )
        layer = f"the gradient of {next(names, 'the model')}"
    return (
        f"step {step}: the gradient must be finite, but is not (loss {loss:.4g}; first in {layer};"
        f" {job.describe(rows)}); nothing was changed by this step; {RETRY}, or set train.dtype=float32"
    )


def first_not_finite(job: Job, rows: Rows) -> str | None:
    """The first layer whose output is not finite when the batch is read once more."""
    found: list[str] = []

    def look(name: str) -> Callable[[nn.Module, Any, Any], None]:
        def hook(_: nn.Module, __: Any, output: Any) -> None:
            values = [
                part
                for part in (output if isinstance(output, tuple) else (output,))
                if isinstance(part, Tensor)
            ]
            if not found and not all(bool(torch.isfinite(value).all()) for value in values):
                found.append(name)

        return hook

    hooks = [layer.register_forward_hook(look(name)) for name, layer in job.model.named_modules() if name]
    try:
        with torch.no_grad(), autocast(job.config, next(job.model.parameters()).device):
            job.objective(job.model, job.load(share(rows, job.world.rank, job.world.size), rows))
    finally:
        for hook in hooks:
            hook.remove()
    return found[0] if found else None


@final
class _Clock:
    """Trained tokens a second, validations not counted."""

    def __init__(self, tokens: int) -> None:
        self.start, self.tokens = time.perf_counter(), tokens

    def rate(self, tokens: int) -> float:
        return (tokens - self.tokens) / max(time.perf_counter() - self.start, 1e-9)

    @contextmanager
    def paused(self) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self.start += time.perf_counter() - began
