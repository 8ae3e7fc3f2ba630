"""What a comparison does to one cell of its table: trains a run folder, measures it, asks it one item at a
time."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import torch

from seqloom import files
from seqloom.data.formats.read_report import ReadReport
from seqloom.errors import UsageError
from seqloom.evaluation.classification import RESAMPLES
from seqloom.evaluation.predictions import head_outputs
from seqloom.interop.checkpoint import empty_model
from seqloom.models.encoder_with_head import EncoderWithHead
from seqloom.run_file import apply_settings
from seqloom.runs import run_folder
from seqloom.runs.progress import Say, silent
from seqloom.runs.settings import absolute, model_fields, read_resumed, resolve
from seqloom.tasks.registry import TASKS
from seqloom.tasks.text.predictor import TextPredictor, load_reader, read_as_trained
from seqloom.tasks.text.text_tasks import TASK_DATA
from seqloom.tasks.text.training_data import configure, prepare_examples
from seqloom.training import metrics_log
from seqloom.training.checkpoints import newest_checkpoint, read_state
from seqloom.training.loop import Progress
from seqloom.workflows.compare.budget import scaled_widths
from seqloom.workflows.compare.models import ModelEntry
from seqloom.workflows.compare.plan import ComparisonPlan
from seqloom.workflows.train import train

TIMED, WARMUP = 200, 20
"""Items that are asked one at a time, and those before them that do not count."""
SAMPLE, AT_A_TIME = 64, 16
"""Training examples whose tokens are counted."""

Count = Callable[[dict[str, int]], int | None]
"""Fields of a model -> its parameters; None where it cannot have them."""


class CellRun(NamedTuple):
    """A training that came to its end, or was stopped."""

    stopped: str
    """As in TrainResult."""
    steps: int
    planned: int
    """Steps that it would have had, with more patience."""
    metrics: dict[str, float]
    """Of its best checkpoint on the validation part."""
    seconds: float
    """Of training, validations and reading not counted."""
    trained: int
    """What the losses counted: examples, or words of tagged texts."""


class CellResult(NamedTuple):
    """A model on the data that it is compared on."""

    metrics: dict[str, float]
    by_item: list[float]
    """How right each answer is; empty where that is not known."""
    parameters: int
    tokens_each: float
    """Tokens that it reads for each thing that its loss counts."""
    tokenizer: str
    """SHA-256 of its file."""


class CellSteps(NamedTuple):
    """The work itself, as functions, so that a comparison can be tested without it."""

    train: Callable[[Path, ModelEntry, list[str], ComparisonPlan, Say, Callable[[Progress], None]], CellRun]
    """(folder, model, settings, plan, say, progress): a new run, or on with one that was stopped."""
    measure: Callable[[Path, ComparisonPlan, Say], CellResult]
    latency: Callable[[Path, ComparisonPlan], float]
    """Seconds that one item takes: the median of many, after a warm-up."""
    parameters: Callable[[ModelEntry, list[str], Path, ComparisonPlan], Count]
    """(model, settings, folder of a model of the same data, plan)"""


def train_cell(
    place: Path,
    entry: ModelEntry,
    settings: list[str],
    plan: ComparisonPlan,
    say: Say,
    progress: Callable[[Progress], None],
) -> CellRun:
    """A run folder of `workflows.train`: new, gone on with, or as it stands where it is finished."""
    began = time.perf_counter()
    if (place / run_folder.RUN).is_file():
        done = (place / files.MANIFEST).is_file()
        result = train(resume=place, say=silent if done else say, progress=progress)
    else:
        start = None if entry.start is None else absolute(entry.start)
        result = train(
            plan.task,
            plan.data,
            output_dir=place,
            model=entry.model,
            validation=plan.validation,
            settings=settings,
            start=start,
            say=say,
            progress=progress,
        )
    took = time.perf_counter() - began
    newest, _ = newest_checkpoint(place)
    planned = read_state(newest).total_steps if newest is not None else result.step
    trained, seconds = trained_in(place)
    return CellRun(result.stopped, result.step, planned, result.metrics, seconds or took, trained)


def trained_in(place: Path) -> tuple[int, float]:
    """(what the losses counted, seconds) of a run by its log; validations are not in these seconds."""
    records: list[dict[str, Any]] = [one for one in metrics_log.read(place) if one.get("tokens_per_second")]
    if not records:
        return 0, 0.0
    last = records[-1]
    return int(last["tokens"]), last["tokens"] / last["tokens_per_second"]


def measure_cell(place: Path, plan: ComparisonPlan, say: Say) -> CellResult:
    """On the test files, or on the validation part. Labels of the test that the training has not got are
    said, and counted as wrong."""
    reader = load_reader(place, _given(plan), say=say)
    if plan.test:
        report, _ = reader.report(plan.test)
    else:
        material = prepare_examples(read_resumed(place), place, False, silent)
        found = head_outputs(reader.model, material.held_out)
        report = material.work.report(material.validation, material.held_out, found, RESAMPLES)
    by_item = [] if report.by_example is None else np.asarray(report.by_example, np.float64).tolist()
    parameters = sum(parameter.numel() for parameter in reader.model.parameters())
    tokenizer = files.sha256(place / run_folder.TOKENIZER) if (place / run_folder.TOKENIZER).is_file() else ""
    return CellResult(report.metrics, by_item, parameters, _tokens_each(reader, plan), tokenizer)


def _given(plan: ComparisonPlan) -> dict[str, Any]:
    """How files are read, as all models were told; an unknown label at the end of all the work is no error."""
    given = dict(apply_settings({}, list(plan.settings)).get("data", {}))
    return given | ({"unseen_labels": "ignore"} if "unseen_labels" in TASKS[plan.task].reads else {})


def _some_examples(reader: TextPredictor, plan: ComparisonPlan, count: int) -> list[Any]:
    data = read_as_trained(reader.bundle.folder, reader.bundle.task, reader.given, plan.data, answers=True)
    return list(islice(reader.work.read(plan.data, data, ReadReport()), count))


@torch.inference_mode()
def _tokens_each(reader: TextPredictor, plan: ComparisonPlan) -> float:
    """By some training examples."""
    examples = _some_examples(reader, plan, SAMPLE)
    items = reader.work.encode(examples, reader.how)
    device, tokens, counted = next(reader.model.parameters()).device, 0, 0
    for first in range(0, len(items), AT_A_TIME):
        whole = items.batch(np.arange(first, min(first + AT_A_TIME, len(items))))
        batch = type(whole)(*(part.to(device) for part in whole))
        tokens += int((batch.tokens >= 0).sum())
        counted += int(reader.model.loss(batch).count)
    return tokens / max(counted, 1)


def latency_of_cell(place: Path, plan: ComparisonPlan) -> float:
    """Seconds of one training example, all the way from text to answer."""
    reader = load_reader(place, _given(plan))
    examples = _some_examples(reader, plan, TIMED)
    seconds = []
    for at in range(WARMUP + TIMED):
        began = time.perf_counter()
        reader.ask([examples[at % len(examples)]])
        seconds.append(time.perf_counter() - began)
    return median(seconds[WARMUP:])


def count_parameters(entry: ModelEntry, settings: list[str], like: Path, plan: ComparisonPlan) -> Count:
    """Of a model that begins anew, beside one that was trained on the same data; nothing is allocated."""
    content, configured = run_folder.config_in(like)
    run = resolve(plan.task, plan.data, like, entry.model, plan.validation, settings, None)
    work, tokenizer = TASK_DATA[plan.task].again(configured), run_folder.tokenizer_of(like, content)

    def count(fields: dict[str, int]) -> int | None:
        try:
            model = empty_model(
                EncoderWithHead, configure(replace(run, model=run.model | fields), work, tokenizer, (), None)
            )
        except UsageError:
            return None
        return sum(parameter.numel() for parameter in model.parameters())

    return count


def fields_at(entry: ModelEntry, settings: list[str], width: int) -> dict[str, int]:
    """The fields of a model at a width; those that were set stay, but for the width."""
    given = model_fields(apply_settings({}, settings).get("model", {}))
    name, _, size = (entry.model or "").partition(":")
    config = run_folder.model_config(name, size or "small", 1000, given)
    return scaled_widths(config, given.keys() - {"width"}, width)


TOOLS = CellSteps(train_cell, measure_cell, latency_of_cell, count_parameters)
