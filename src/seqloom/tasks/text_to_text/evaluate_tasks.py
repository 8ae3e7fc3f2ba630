"""How good a text-to-text model is at one task, and at several together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from torch import nn

from seqloom.config import DecodeConfig
from seqloom.errors import place
from seqloom.protocols import EvaluatedExample, Evaluation
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
    sources = [text["source"] for text in texts]
    pairs = list(zip(sources, [text["target"] for text in texts], strict=True))
    taught = evaluate_pairs(model, how.tokenizer, pairs, None).metrics
    if decode is None:
        return Evaluation(taught)
    outputs = decode_texts(model, how.tokenizer, sources, replace(decode, n_best=1))
    best = [candidates[0] for candidates in outputs]
    found = score_texts(task.form, task.measure, examples, [output.text for output in best], how)
    del taught["pairs"]  # the task counts its examples under their own name
    unfinished = sum(not output.finished for output in best)
    rightness = [None] * len(best) if found.by_example is None else found.by_example.tolist()
    answered = [
        EvaluatedExample(place(example.path, example.line), *pair, output.text, right)
        for example, pair, output, right in zip(examples, pairs, best, rightness, strict=True)
    ]
    metrics = {**taught, **found.metrics, "unfinished": unfinished}
    return replace(found, metrics=metrics, examples=answered)


def joined(tasks: Sequence[MixedTask], found: Sequence[Evaluation]) -> Evaluation:
    """Each metric under the name of its task, and the means over the tasks: of the loss, and of the score."""
    metrics = {"loss": float(np.mean([evaluation.metrics["loss"] for evaluation in found]))}
    if all(evaluation.outputs for evaluation in found):
        scores = [
            main_score(task.form, task.measure, evaluation.metrics)
            for task, evaluation in zip(tasks, found, strict=True)
        ]
        metrics[SCORE] = float(np.mean(scores))
    signatures: dict[str, str] = {}
    details: dict[str, Any] = {}
    outputs: list[str] = []
    examples: list[EvaluatedExample] = []
    for task, one in zip(tasks, found, strict=True):
        metrics |= _named(task.name, one.metrics)
        signatures |= _named(task.name, one.signatures)
        outputs += one.outputs
        examples += one.examples
        if one.details:
            details[task.name] = one.details
    return Evaluation(metrics, signatures, outputs, details, examples=examples)


def _named(name: str, values: Mapping[str, Any]) -> dict[str, Any]:
    return {f"{name}_{key}": value for key, value in values.items()}
