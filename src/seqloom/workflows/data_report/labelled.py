"""The data doctor for what readers read: examples, labels, lengths; and what a training would cost, measured
on a batch of it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from seqloom.config import RunConfig
from seqloom.data.batching.order import Rows
from seqloom.data.readers.examples import LabelledText, TaggedWords
from seqloom.data.readers.labels import check_known, check_leak
from seqloom.errors import place
from seqloom.runs.progress import Say, tallied
from seqloom.tasks.text.training_data import EncodedExamples, prepare_examples
from seqloom.tasks.translation.training_data import prepared, total_steps
from seqloom.training.distributed import World
from seqloom.training.optimisation import make_optimizer
from seqloom.workflows.data_report.pairs import (
    SPLIT_OFF,
    Table,
    problems_of,
    quantiles,
    shown,
    shown_pieces,
    table_of,
    unknown_among,
)

TRIED = 5
"""Steps of training that are timed, on batches of middling length."""
MOST_LABELS = 30
"""Rows of the table of labels."""


@final
@dataclass(frozen=True, kw_only=True)
class LabelledReport:
    """What was found."""

    splits: dict[str, dict[str, int]]
    """split -> examples, rows."""
    labels: dict[str, dict[str, int]]
    """label -> split -> how many."""
    lengths: dict[str, dict[str, int]]
    """split -> quantiles of the rows' lengths in tokens, marks counted."""
    notices: list[str]
    """What is likely to do harm, in sentences."""
    tokenizer: dict[str, Any]
    training: dict[str, Any]
    """What a training would be, and cost."""
    batch: list[dict[str, Any]]
    """A few rows of the first batch: line, tokens, target."""
    errors: list[str]

    def summary(self) -> dict[str, Any]:
        """All of it, for a program."""
        return {
            "splits": self.splits,
            "labels": self.labels,
            "lengths": {"tokens": self.lengths},
            "notices": self.notices,
            "tokenizer": self.tokenizer,
            "training": self.training,
            "first_batch": self.batch,
            "errors": self.errors,
        }

    def tables(self) -> list[Table]:
        """The same, for people."""
        splits = list(self.splits)
        most = list(self.labels.items())[:MOST_LABELS]
        labels: list[tuple[str, ...]] = [
            (name, *(f"{counts.get(split, 0):,}" for split in splits)) for name, counts in most
        ]
        if len(self.labels) > MOST_LABELS:
            labels.append((f"and {len(self.labels) - MOST_LABELS:,} more", *("" for _ in splits)))
        about = self.tokenizer
        rows: list[tuple[str, ...]] = [
            (one["line"], shown_pieces(one["tokens"]), one["target"]) for one in self.batch
        ]
        return [
            table_of("Examples", self.splits),
            *([("Labels", ("", *splits), labels)] if labels else []),
            table_of("Length of a row in tokens", self.lengths),
            (
                (
                    f"Training ({about['kind']}, {about['vocabulary']:,} pieces,"
                    f" {about['unknown_percent']:.2f} % unknown)"
                ),
                ("", ""),
                [(name.replace("_", " "), shown(value)) for name, value in self.training.items()],
            ),
            ("Rows of the first batch", ("line", "is read", "is to answer"), rows),
        ]

    def problems(self) -> list[str]:
        """Whole sentences: first what must stop a training, then what is likely to do harm."""
        notices = [f"notice: {notice}" for notice in self.notices]
        return (
            [f"error: {error}" for error in self.errors] + notices
            if notices
            else problems_of(self.errors, [])
        )


def check_reading(run: RunConfig, test: Sequence[str], folder: Path, say: Say) -> LabelledReport:
    """Examines examples as a training with these settings would read them, and tries a few of its steps."""
    notices: list[str] = []
    material = prepared(prepare_examples, run, folder, World(), notices.append)
    splits = {
        "train": material.examples,
        "validation" if run.data.validation else SPLIT_OFF: material.validation,
    }
    lengths = {"train": material.items.tokens.lengths, list(splits)[1]: material.held_out.tokens.lengths}
    if test:
        with tallied(say) as tally:
            splits["test"] = list(material.work.read(test, run.data, tally))
        notices += check_known(splits["test"], material.work.labels, "ignore") if material.work.labels else []
        lengths["test"] = material.work.encode(splits["test"], material.how).tokens.lengths
    for name, examples in list(splits.items())[1:]:
        if examples and isinstance(examples[0], LabelledText):
            notices += [f"{name}: {one}" for one in check_leak(material.examples, examples)]
    tokens = material.items.tokens.values
    return LabelledReport(
        splits={
            name: {"examples": len(examples), "rows": len(lengths[name])} for name, examples in splits.items()
        },
        labels=labels_in(splits),
        lengths={name: quantiles(of) for name, of in lengths.items() if len(of)},
        notices=notices,
        tokenizer={
            "kind": material.tokenizer.kind,
            "vocabulary": material.tokenizer.vocabulary_size,
            "unknown_percent": 100
            * unknown_among(tokens, material.tokenizer.special_ids)
            / max(len(tokens), 1),
        },
        training={
            "examples": len(material.examples),
            "batches_an_epoch": material.batches_an_epoch(),
            "steps": total_steps(run.train, material),
            **cost(material, run),
        },
        batch=batch_view(material),
        errors=[],
    )


def labels_in(splits: dict[str, Sequence[Any]]) -> dict[str, dict[str, int]]:
    """label -> split -> how many; the most frequent in the training first."""
    found: dict[str, dict[str, int]] = {}
    for name, examples in splits.items():
        counts = Counter(label for one in examples for label in _labels(one))
        if examples and len(counts) > max(len(examples) // 2, 50):  # numbers
            return {}
        for label, number in counts.most_common():
            found.setdefault(label, {})[name] = number
    return found


def _labels(example: Any) -> Sequence[str]:
    if isinstance(example, LabelledText):
        return example.labels
    return example.tags if isinstance(example, TaggedWords) else ()


def cost(material: EncodedExamples, run: RunConfig) -> dict[str, Any]:
    """parameters; memory of weights, gradients and optimizer, and of what a batch keeps for its gradient; the
    time of a step, measured, and of the whole training without its validations."""
    torch.manual_seed(run.train.seed)
    model, _ = material.build()
    model.train()
    optimizer, objective = make_optimizer(model, run.train), material.objective()
    material.initialise(model)
    batches = list(material.batches(0, 0))
    by_cost = sorted(range(len(batches)), key=lambda at: int(material.items.costs[batches[at]].max()))
    middle = by_cost[max(len(by_cost) // 2 - TRIED // 2, 0) :][:TRIED]
    saved, seconds = 0, []
    for nth, at in enumerate([by_cost[-1], *middle]):
        began = time.perf_counter()
        kept = _step(model, objective, optimizer, material.load(batches[at], batches[at]))
        saved = kept if nth == 0 else saved
        seconds.append(time.perf_counter() - began)
    steps, one = total_steps(run.train, material), float(np.median(seconds[1:]))
    parameters = sum(p.numel() for p in model.parameters())
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    return {
        "parameters": parameters,
        "trained_parameters": trained,
        "memory_of_the_model_mib": round((4 * parameters + 12 * trained) / 2**20, 1),
        "memory_of_the_longest_batch_mib": round(saved / 2**20, 1),
        "seconds_a_step": round(one, 4),
        "minutes_without_validations": round(steps * one / 60, 1),
    }


def _step(model: torch.nn.Module, objective: Any, optimizer: torch.optim.Optimizer, batch: Any) -> int:
    """One step; the bytes that it kept for its gradient, parameters not counted."""
    seen = {p.data_ptr() for p in model.parameters()}
    kept = 0

    def keep(tensor: Tensor) -> Tensor:
        nonlocal kept
        if tensor.data_ptr() not in seen:
            seen.add(tensor.data_ptr())
            kept += tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        total, count = objective(model, batch)
    (total / count.clamp(min=1)).backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return kept


def batch_view(material: EncodedExamples) -> list[dict[str, Any]]:
    """The longest, a middling and the shortest item of the first batch."""
    rows: Rows = next(iter(material.batches(0, 0)))
    by_cost = rows[np.argsort(material.items.costs[rows], kind="stable")]
    view = []
    for item in dict.fromkeys((int(by_cost[-1]), int(by_cost[len(by_cost) // 2]), int(by_cost[0]))):
        example = item if material.items.example is None else int(material.items.example[item])
        first = int(material.items.first_row[item])
        ids = [int(i) for i in material.items.tokens[first]]
        size = material.tokenizer.vocabulary_size
        pieces = ["(mark)" if i >= size else material.tokenizer.pieces([i])[0] for i in ids]
        view.append(
            {
                "line": place(*material.items.where[example]),
                "tokens": pieces,
                "target": _target(material.examples[example]),
            }
        )
    return view


def _target(example: Any) -> str:
    if isinstance(example, LabelledText):
        return ", ".join(example.labels)
    if isinstance(example, TaggedWords):
        return " ".join(example.tags[:16]) + (" ..." if len(example.tags) > 16 else "")
    if hasattr(example, "options"):
        return str(example.answer)
    return example.answers[0].text if example.answers else "(no answer)"
