"""The floor of a comparison: what somebody scores who has learnt nothing. A label for all, the frequencies of
words, or the input itself."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from seqloom.arrays import Numbers
from seqloom.data.formats.read_report import ReadReport
from seqloom.errors import SeqloomError
from seqloom.evaluation.predictions import HeadOutputs, predict_dataset
from seqloom.runs.progress import mute_logs
from seqloom.runs.settings import read_resumed
from seqloom.tasks.text.predictor import TextPredictor
from seqloom.tasks.text.training_data import prepare_examples
from seqloom.workflows.compare.cells import evaluated, reader_of
from seqloom.workflows.compare.plan import ComparisonPlan
from seqloom.workflows.train import train

UNIGRAM = "floor-unigram"
"""Folder of the language model that knows how often each word occurs."""


class Floor(NamedTuple):
    name: str
    """In words, as a row of the table has it."""
    score: float


def floor_of(
    plan: ComparisonPlan, folder: Path, cell: Path, metrics: dict[str, float]
) -> Floor | None:
    """The floor of the comparison in `folder`; None if there is none for its task and score. `cell` is a
    finished run of it, and `metrics` what was measured there."""
    copied = metrics.get(f"copy_{plan.score}")
    if copied is not None:
        return Floor("copy of the input", copied)
    with mute_logs():
        if plan.score == "bits_per_byte":
            return _unigram(plan, folder)
        reader = reader_of(cell, plan)
        if reader is not None:
            return _constant(plan, cell, reader)
        examples = evaluated(cell, plan).examples
    truths = Counter(example.truth for example in examples)
    if plan.score != "accuracy" or not truths:
        return None
    return Floor(*_most_frequent(truths, len(examples)))


def _most_frequent(truths: Counter[str], total: int) -> tuple[str, float]:
    label, number = truths.most_common(1)[0]
    return f"always {label}", number / total


def _constant(plan: ComparisonPlan, cell: Path, reader: TextPredictor[Any]) -> Floor | None:
    """The same answer to each example: the most frequent label, or the mean, of the training files."""
    head_task = reader.head_task
    if head_task.kind == "span":
        return None
    data = reader.data_settings(plan.data, answers=True)
    training = list(head_task.read(plan.data, data, ReadReport()))
    if plan.test:
        tested = reader.data_settings(plan.test, answers=True)
        examples = list(head_task.read(plan.test, tested, ReadReport()))
        kept, dataset = head_task.encode_checked(examples, reader.options, tested)
    else:
        held_out = prepare_examples(reader.text_task, read_resumed(cell), cell, False)
        kept, dataset = held_out.validation, held_out.held_out
    outputs = predict_dataset(reader.encoder, dataset)
    labels = Counter(label for example in training for label in head_task.labels_of(example))
    if head_task.kind == "regression":
        answer = np.asarray(
            np.mean([float(head_task.labels_of(example)[0]) for example in training])
        )
        name = "always the mean score"
    elif head_task.kind == "choice":
        answer, name = np.asarray(0.0), "always the first option"
    else:
        counts = np.array([labels[label] for label in head_task.labels], np.float64)
        answer = counts / max(counts.sum(), 1)
        name = f"always {head_task.labels[int(counts.argmax())]}"
    constant = HeadOutputs(
        [
            np.broadcast_to(answer, probabilities.shape).astype(np.float32)
            for probabilities in outputs.probabilities
        ],
        [_same(prediction, answer) for prediction in outputs.predictions],
        float("nan"),
    )
    score = head_task.evaluate(kept, dataset, constant, 0).metrics.get(plan.score)
    return None if score is None else Floor(name, score)


def _same(predictions: Numbers, answer: Numbers) -> Numbers:
    """The label of the answer in place of each."""
    return np.full_like(predictions, answer.argmax() if np.ndim(answer) else 0)


def _unigram(plan: ComparisonPlan, folder: Path) -> Floor | None:
    """A language model that knows how often each token occurs, and no context."""
    place = folder / UNIGRAM
    tokens = [setting for setting in plan.settings if setting.strip().startswith("data.")]
    try:
        if not place.exists():
            settings = [*tokens, "model.order=1"]
            train(plan.task, plan.data, output_dir=place, model="ngram", settings=settings)
        return Floor("unigrams", evaluated(place, plan).metrics[plan.score])
    except SeqloomError:
        # a corpus may be too small to estimate it
        return None
