"""What metrics.jsonl holds, for programs that track experiments too: TensorBoard, Weights & Biases, MLflow,
Trackio. Each is a function that takes its records, and is closed at the end; each is an extra."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from seqloom.config import TRACKERS, RunConfig
from seqloom.errors import MissingExtraError, SeqloomError, one_line
from seqloom.json_values import as_object
from seqloom.run_file import to_plain
from seqloom.training.metrics_log import Metrics

BOARD = "tensorboard"
"""The folder in a run folder."""
PROJECT = "seqloom"
"""The project, or experiment, of runs; W&B and MLflow have variables of the environment for another."""
FOLDER_TAG = "seqloom.folder"
"""The tag of MLflow by which a run is found again."""
Write = Callable[[Metrics], None]


class TrackedRun(NamedTuple):
    """A run that is told to others."""

    folder: Path
    settings: Mapping[str, object]
    """`section.name` -> value."""
    step: int
    """Where it goes on."""


@contextmanager
def open_trackers(run_config: RunConfig, folder: Path, step: int) -> Iterator[list[Write]]:
    """A function for each tracker that a run asks for, open while it lasts. Raises MissingExtraError if
    one is not installed."""
    wanted: list[str] = list(run_config.train.trackers)
    if run_config.train.tensorboard and BOARD not in wanted:
        wanted.append(BOARD)
    settings = {
        f"{section}.{name}": value
        for section, values in to_plain(run_config).items()
        for name, value in (as_object(values) or {}).items()
    }
    run = TrackedRun(folder, settings, step)
    writers: list[Write] = []
    with ExitStack() as stack:
        for name in wanted:
            write, close = _opened(name, run)
            stack.callback(close)
            writers.append(write)
        yield writers


def _opened(name: str, run: TrackedRun) -> tuple[Write, Callable[[], None]]:
    """Raises SeqloomError with what the tracker says where it does not begin, such as without a network."""
    try:
        return OPEN[name](run)
    except SeqloomError:
        raise
    except Exception as error:  # noqa: BLE001  # each has exceptions of its own
        raise SeqloomError(
            f"train.trackers={name}: it does not begin ({one_line(str(error), 400)}); leave it out, or see"
            " its own documentation"
        ) from None


def _numbers(record: Metrics) -> dict[str, float]:
    """The metrics of a record, as `training/loss` and `validation/loss`."""
    numbers = {}
    for name, value in record.items():
        if name not in ("step", "tokens") and isinstance(value, int | float):
            kind = "validation" if name.startswith("validation_") else "training"
            numbers[f"{kind}/{name.removeprefix('validation_')}"] = value
    return numbers


def _import(module: str, name: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError:
        raise MissingExtraError(f"train.trackers={name}", name) from None


def _tensorboard(run: TrackedRun) -> tuple[Write, Callable[[], None]]:
    """What was written after `step` by a run that was killed is hidden."""
    module = _import("torch.utils.tensorboard", BOARD)
    writer = module.SummaryWriter(str(run.folder / BOARD), purge_step=run.step + 1)

    def write(record: Metrics) -> None:
        for name, value in _numbers(record).items():
            writer.add_scalar(name, value, record["step"])
        writer.flush()

    return write, writer.close


def _wandb(run: TrackedRun) -> tuple[Write, Callable[[], None]]:
    """WANDB_MODE=offline writes to the run folder alone."""
    wandb = _import("wandb", "wandb")
    tracked = wandb.init(
        project=PROJECT,
        name=run.folder.name,
        id=_name(run.folder),
        resume="allow",
        dir=str(run.folder),
        config=dict(run.settings),
    )
    return lambda record: tracked.log(_numbers(record), step=record["step"]), tracked.finish


def _mlflow(run: TrackedRun) -> tuple[Write, Callable[[], None]]:
    """Where MLFLOW_TRACKING_URI says, or else where MLflow keeps its own. A training that goes on is the same
    run there."""
    mlflow = _import("mlflow", "mlflow")
    folder = _name(run.folder)
    before: list[Any] = []
    if run.step:
        same_folder = f"tags.`{FOLDER_TAG}` = '{folder}'"
        before = mlflow.search_runs(filter_string=same_folder, output_format="list", max_results=1)
    if before:
        mlflow.start_run(run_id=before[0].info.run_id)
    else:
        mlflow.start_run(run_name=run.folder.name, tags={FOLDER_TAG: folder})
    for name, value in run.settings.items():
        mlflow.log_param(name, str(value)[:500])
    return (
        lambda record: mlflow.log_metrics(_numbers(record), step=record["step"]),
        mlflow.end_run,
    )


def _trackio(run: TrackedRun) -> tuple[Write, Callable[[], None]]:
    """On this machine alone."""
    trackio = _import("trackio", "trackio")
    trackio.init(project=PROJECT, name=run.folder.name, config=dict(run.settings), resume="allow")
    return (
        lambda record: trackio.log(_numbers(record), step=record["step"]),
        trackio.finish,
    )


def _name(folder: Path) -> str:
    """A name that is the same when a run goes on, and another for a folder elsewhere."""
    text = str(folder.resolve())
    return "".join(c if c.isalnum() else "-" for c in text)[-60:].strip("-")


OPEN = dict(zip(TRACKERS, (_tensorboard, _wandb, _mlflow, _trackio), strict=True))
