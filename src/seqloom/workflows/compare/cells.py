"""One cell of a comparison, a model with a seed: training its run folder, measuring it, timing it one item
at a time, and finding the width that gives it a number of parameters."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Collection
from contextlib import nullcontext
from dataclasses import replace
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import torch

from seqloom import files, manifest
from seqloom.data.formats.read_report import ReadReport
from seqloom.errors import UsageError, printable
from seqloom.evaluation.classification import RESAMPLES
from seqloom.evaluation.predictions import predict_dataset
from seqloom.interop.checkpoint import empty_model
from seqloom.json_values import as_whole_number
from seqloom.models.encoder_with_head import EncoderWithHead
from seqloom.protocols import Evaluation, Request
from seqloom.registry import task_to_train
from seqloom.run_file import apply_settings
from seqloom.runs import run_folder
from seqloom.runs.new_model import model_config
from seqloom.runs.progress import mute_logs
from seqloom.runs.settings import absolute, model_fields, read_resumed
from seqloom.shapes import on_device
from seqloom.tasks.model import load
from seqloom.tasks.settings import resolve
from seqloom.tasks.text.predictor import TextPredictor, load_reader
from seqloom.tasks.text.training_data import configure, prepare_examples
from seqloom.training import metrics_log
from seqloom.training.checkpoints import newest_checkpoint, read_state
from seqloom.training.loop import Progress
from seqloom.workflows.compare.plan import ComparisonPlan, ModelEntry
from seqloom.workflows.train import train

TIMED, WARMUP = 200, 20
"""Items that are answered one at a time, and those before them that are not timed."""
SAMPLE, BATCH = 64, 16
"""Training examples whose tokens are counted."""

TOLERANCE = 0.05
"""How far the number of parameters may be from the number asked for."""
LARGEST_WIDTH = 2**14
LARGEST_GAP = 64
"""Two neighbouring widths that a model can have are at most this far apart."""
WIDTHS = (
    "width",
    "embedding_width",
    "feed_forward_width",
    "encoder_width",
    "attention_width",
    "readout_width",
    "maps",
)
"""Fields of a model that grow together; the first that a model has is the one that is solved for."""

ParameterCount = Callable[[dict[str, int]], int | None]
"""Fields of a model -> its parameters; None if the model cannot have these fields."""


class CellRun(NamedTuple):
    """A training that is finished, or was stopped."""

    stopped: str
    """As in TrainResult."""
    steps: int
    planned: int
    """Steps that it would have had without early stopping."""
    metrics: dict[str, float]
    """Of its best checkpoint on the validation part."""
    seconds: float
    """Of training, without validations and reading."""
    trained: int
    """Targets that the losses counted: examples, or words of tagged texts."""


class CellResult(NamedTuple):
    """A model measured on the data of the comparison."""

    metrics: dict[str, float]
    by_item: list[Any]
    """How right each answer is, or the statistics of it; empty if that is not known."""
    parameters: int
    tokens_per_target: float
    """Tokens that it reads for each target that its loss counts."""
    tokenizer: str
    """SHA-256 of its file."""


class SolvedWidth(NamedTuple):
    width: int
    parameters: int


def train_cell(
    folder: Path,
    entry: ModelEntry,
    settings: list[str],
    plan: ComparisonPlan,
    progress: Callable[[Progress], None],
) -> CellRun:
    """Trains a run folder with `workflows.train`: starts a new one, resumes one, or reads a finished one."""
    started = time.perf_counter()
    if (folder / run_folder.RUN).is_file():
        finished = (folder / manifest.MANIFEST).is_file()
        with mute_logs() if finished else nullcontext():
            result = train(resume=folder, progress=progress)
    else:
        result = train(
            plan.task,
            plan.data,
            output_dir=folder,
            model=entry.model,
            validation=plan.validation,
            settings=settings,
            start=absolute(entry.checkpoint),
            progress=progress,
        )
    elapsed = time.perf_counter() - started
    newest, _ = newest_checkpoint(folder)
    planned = read_state(newest).total_steps if newest is not None else result.step
    trained, seconds = trained_in(folder)
    return CellRun(
        result.stopped, result.step, planned, result.metrics, seconds or elapsed, trained
    )


def train_quietly(
    folder: Path, entry: ModelEntry, settings: list[str], plan: ComparisonPlan
) -> None:
    """`train_cell` in a process of its own, whose result is the folder."""
    if not (folder / manifest.MANIFEST).is_file():
        train_cell(folder, entry, settings, plan, lambda _: None)


def trained_in(folder: Path) -> tuple[int, float]:
    """(targets trained, seconds) of a run by its log; validations are not in these seconds."""
    records = [record for record in metrics_log.read(folder) if record.get("tokens_per_second")]
    if not records:
        return 0, 0.0
    last = records[-1]
    return int(last["tokens"]), last["tokens"] / last["tokens_per_second"]


def measure_cell(folder: Path, plan: ComparisonPlan) -> CellResult:
    """Measures on the test files, or on the validation part. Test labels that training did not have are
    reported, and count as wrong."""
    tokenizer = folder / run_folder.TOKENIZER
    sha256 = files.sha256(tokenizer) if tokenizer.is_file() else ""
    report = evaluated(folder, plan)
    reader = reader_of(folder, plan)
    model = load(folder).model if reader is None else reader.model
    parameters = sum(parameter.numel() for parameter in model.parameters())
    by_item: list[Any] = [] if report.by_example is None else report.by_example.tolist()
    if plan.score in report.statistics:
        by_item = report.statistics[plan.score].tolist()
    tokens = 1.0 if reader is None else _tokens_per_target(reader, plan)
    return CellResult(report.metrics, by_item, parameters, tokens, sha256)


def reader_of(folder: Path, plan: ComparisonPlan) -> TextPredictor[Any] | None:
    """The model of a run folder, which reads files as all of the comparison do; None for one that answers no
    examples with a head."""
    model: object = load(folder)
    if not isinstance(model, TextPredictor):
        return None
    return TextPredictor(model.text_task, model.run, data_settings(plan))


def evaluated(folder: Path, plan: ComparisonPlan) -> Evaluation:
    """A run folder on the test files, or on the validation part."""
    reader = reader_of(folder, plan)
    if reader is None:
        request = Request(data=data_settings(plan))
        return load(folder).evaluate(plan.test or plan.validation, request)
    if plan.test:
        return reader.measure(plan.test)
    data = prepare_examples(reader.text_task, read_resumed(folder), folder, False)
    outputs = predict_dataset(reader.encoder, data.held_out)
    return data.head_task.evaluate(data.validation, data.held_out, outputs, RESAMPLES)


def data_settings(plan: ComparisonPlan) -> dict[str, object]:
    """How all models read files. An unknown test label is no error: it would lose all the work before it."""
    reading = task_to_train(plan.task).reading
    given = apply_settings({}, list(plan.settings)).get("data", {})
    settings = {name: value for name, value in given.items() if f"data.{name}" in reading}
    if "data.unseen_labels" in reading:
        settings["unseen_labels"] = "ignore"
    return settings


def _training_examples(reader: TextPredictor[Any], plan: ComparisonPlan, count: int) -> list[Any]:
    data = reader.data_settings(plan.data, answers=True)
    return list(islice(reader.head_task.read(plan.data, data, ReadReport()), count))


@torch.inference_mode()
def _tokens_per_target(reader: TextPredictor[Any], plan: ComparisonPlan) -> float:
    items = reader.head_task.encode(_training_examples(reader, plan, SAMPLE), reader.options)
    device, tokens, targets = next(reader.model.parameters()).device, 0, 0
    for first in range(0, len(items), BATCH):
        batch = on_device(items.batch(np.arange(first, min(first + BATCH, len(items)))), device)
        tokens += int((batch.tokens >= 0).sum())
        targets += int(reader.encoder.loss(batch).count)
    return tokens / max(targets, 1)


def cell_latency(folder: Path, plan: ComparisonPlan) -> float:
    """Median seconds for one training example, from text to answer; 0 for models that answer no examples."""
    reader = reader_of(folder, plan)
    if reader is None:
        return 0.0
    examples = _training_examples(reader, plan, TIMED)
    seconds = []
    for number in range(WARMUP + TIMED):
        started = time.perf_counter()
        reader.answer([examples[number % len(examples)]])
        seconds.append(time.perf_counter() - started)
    return median(seconds[WARMUP:])


def parameter_count(
    entry: ModelEntry, settings: list[str], like: Path, plan: ComparisonPlan
) -> ParameterCount:
    """Counts the parameters of a model trained from scratch on the data of the run folder `like`; nothing is
    allocated."""
    content, _ = run_folder.config_in(like)
    run = resolve(plan.task, plan.data, like, entry.model, plan.validation, settings, None)
    head_task, tokenizer = load_reader(like).head_task, run_folder.tokenizer_of(like, content)

    def count(fields: dict[str, int]) -> int | None:
        sized = replace(run, model=run.model | fields)
        try:
            model = empty_model(EncoderWithHead, configure(sized, head_task, tokenizer, (), None))
        except UsageError:
            return None
        return sum(parameter.numel() for parameter in model.parameters())

    return count


def fields_at(entry: ModelEntry, settings: list[str], width: int) -> dict[str, int]:
    """The fields of a model at a width. Those that the user set stay as they are, except the width."""
    own = model_fields(apply_settings({}, settings).get("model", {}))
    name, _, size = (entry.model or "").partition(":")
    config = model_config(name, size or "small", 1000, own)
    return scaled_widths(config, own.keys() - {"width"}, width)


def scaled_widths(config: object, fixed: Collection[str], width: int) -> dict[str, int]:
    """The fields of a model at a width: those in WIDTHS grow in proportion, except the fixed ones."""
    fields = vars(config)
    growing = [
        name
        for name in WIDTHS
        if as_whole_number(fields.get(name)) is not None and name not in fixed
    ]
    return {name: max(round(fields[name] * width / fields[growing[0]]), 1) for name in growing}


def solve_width(name: str, count: Callable[[int], int | None], wanted: int) -> SolvedWidth:
    """The width whose number of parameters is nearest to `wanted`.

    `count` gives the parameters at a width, None if the model cannot have that width (its heads do not
    divide it); they grow with the width. Raises UsageError with the nearest where none is within TOLERANCE.
    """
    first = 1 + bisect_left(
        range(1, LARGEST_WIDTH), wanted, key=lambda width: _next_count(count, width)
    )
    solutions = []
    for width in range(max(first - LARGEST_GAP, 1), first + LARGEST_GAP):
        parameters = count(width)
        if parameters is not None:
            solutions.append(SolvedWidth(width, parameters))
    nearest = min(solutions, key=lambda solution: abs(solution.parameters - wanted), default=None)
    if nearest is None:
        raise UsageError(
            f"{printable(name)} has no width that could be solved for; leave it out, or choose --match steps"
            " or time"
        )
    if abs(nearest.parameters - wanted) > TOLERANCE * wanted:
        raise UsageError(
            f"{printable(name)} cannot have {wanted:,} parameters within {TOLERANCE:.0%}: the nearest is"
            f" {nearest.parameters:,} at width {nearest.width}; choose another --parameters, or leave it out"
        )
    return nearest


def _next_count(count: Callable[[int], int | None], width: int) -> int:
    """The parameters at the first possible width from here on."""
    counts = map(count, range(width, width + LARGEST_GAP))
    return next((parameters for parameters in counts if parameters is not None), 0)
