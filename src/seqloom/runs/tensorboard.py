"""What metrics.jsonl holds, as TensorBoard files too."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from seqloom.errors import MissingExtraError
from seqloom.training.metrics_log import Metrics

BOARD = "tensorboard"
"""The folder in a run folder."""


def open_board(folder: Path, step: int) -> Callable[[Metrics], None]:
    """A function that takes the records of metrics.jsonl; what was written after `step` by a run that was
    killed is hidden.

    Raises MissingExtraError without the extra `tensorboard`.
    """
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise MissingExtraError("train.tensorboard", BOARD) from None
    writer = SummaryWriter(str(folder / BOARD), purge_step=step + 1)

    def write(record: Metrics) -> None:
        for name, value in record.items():
            if name not in ("step", "tokens") and isinstance(value, int | float):
                kind = "validation" if name.startswith("validation_") else "training"
                writer.add_scalar(
                    f"{kind}/{name.removeprefix('validation_')}", value, record["step"]
                )
        writer.flush()

    return write
