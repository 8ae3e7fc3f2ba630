"""What a training says of itself where no bar shows it: lines of the log."""

from __future__ import annotations

import logging
import time
from typing import final

from seqloom.long_work import duration
from seqloom.training.checkpoints import TrainerState
from seqloom.training.loop import Progress
from seqloom.training.metrics_log import Metrics

logger = logging.getLogger(__name__)

FIRST_STEPS = 5
"""Steps after which the time of all is estimated."""
MOST_METRICS = 4
"""Of a validation, in a line."""


@final
class TrainingLines:
    """A line for each line of metrics.jsonl, and an estimate of the time after the first steps."""

    def __init__(self, state: TrainerState) -> None:
        self.state, self.first, self.started = state, state.step, time.monotonic()

    def _left(self) -> str:
        """The time left if it goes on like this, validations counted."""
        done = max(self.state.step - self.first, 1)
        seconds = (time.monotonic() - self.started) / done
        return duration(seconds * (self.state.total_steps - self.state.step))

    def progress(self, now: Progress) -> None:
        if now.step - self.first == FIRST_STEPS and now.step < now.total_steps:
            logger.info(f"about {self._left()} for the other {now.total_steps - now.step:,} steps")

    def record(self, record: Metrics) -> None:
        step = f"step {self.state.step:,} of {self.state.total_steps:,}"
        if "loss" in record:
            logger.info(
                f"{step}: loss {record['loss']:.4g}, {record['tokens_per_second']:,.0f} tokens/s,"
                f" {self._left()} left"
            )
            return
        shown = [
            f"{name.removeprefix('validation_')} {value:.4g}"
            for name, value in record.items()
            if name.startswith("validation_") and not name.endswith(("_low", "_high"))
        ]
        best = ", the best so far" if self.state.best_step == self.state.step else ""
        logger.info(f"{step}: validation {', '.join(shown[:MOST_METRICS])}{best}")
