"""How good a text-to-text model is at one task, and at several together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from torch import nn

from seqloom.config import DecodeConfig
from seqloom.protocols import Evaluation
from seqloom.tasks.text_to_text.mixed_task import MixedTask
from seqloom.tasks.text_to_text.scores import HowToScore, main_score, score_texts
from seqloom.tasks.translation.evaluate_pairs import evaluate_pairs
from seqloom.tasks.translation.translate import decode_texts

SCORE = "score"
"""The mean over the tasks of their main metrics, each 0 to 100: accuracy of labels, Spearman's correlation of
numbers, F1 of answers and tags, BLEU, ROUGE-1."""


def evaluate_task(
    model: nn.Module,
    task: MixedTask,
    examples: Sequence[Any],
    decode: DecodeConfig | None,
    how: HowToScore,
) -> Evaluation:
    """Teacher-forced numbers, and where `decode` is given the metrics of the task, of what is decoded. The
    model must be in evaluation mode."""
    texts = [task.texts(example) for example in examples]
    sources = [one["source"] for one in texts]
    pairs = list(zip(sources, [one["target"] for one in texts], strict=True))
    taught = evaluate_pairs(model, how.tokenizer, pairs, None).metrics
    if decode is None:
        return Evaluation(taught)
    outputs = decode_texts(model, how.tokenizer, sources, replace(decode, n_best=1))
    best = [some[0] for some in outputs]
    found = score_texts(task.form, task.measure, examples, [one.text for one in best], how)
    del taught["pairs"]  # the task counts its examples under their own name
    unfinished = sum(not one.finished for one in best)
    return replace(found, metrics={**taught, **found.metrics, "unfinished": unfinished})


def joined(tasks: Sequence[MixedTask], found: Sequence[Evaluation]) -> Evaluation:
    """Each metric under the name of its task, and the means over the tasks: of the loss, and of the score."""
    metrics = {"loss": float(np.mean([one.metrics["loss"] for one in found]))}
    if all(one.outputs for one in found):
        scores = [
            main_score(task.form, task.measure, one.metrics)
            for task, one in zip(tasks, found, strict=True)
        ]
        metrics[SCORE] = float(np.mean(scores))
    signatures: dict[str, str] = {}
    details: dict[str, Any] = {}
    outputs: list[str] = []
    for task, one in zip(tasks, found, strict=True):
        metrics |= _named(task.name, one.metrics)
        signatures |= _named(task.name, one.signatures)
        outputs += one.outputs
        if one.details:
            details[task.name] = one.details
    return Evaluation(metrics, signatures, outputs, details)


def _named(name: str, values: Mapping[str, Any]) -> dict[str, Any]:
    return {f"{name}_{key}": value for key, value in values.items()}
