"""Checks labelled examples: their labels, lengths and overlap, and what a training would cost, measured on
some of its batches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TypedDict

import numpy as np

from seqloom.config import RunConfig
from seqloom.errors import place
from seqloom.protocols import Rows
from seqloom.runs.progress import collect_logs, logged_report
from seqloom.tasks.data_report import (
    SPLIT_OFF,
    DataReport,
    Row,
    Table,
    quantiles,
    shown_pieces,
    table_of,
    tokenizer_figures,
    training_table,
    unknown_percent,
)
from seqloom.tasks.text.head_task import E, HeadTask
from seqloom.tasks.text.text_tasks import TextTaskSpec
from seqloom.tasks.text.training_data import EncodedExamples, prepare_examples
from seqloom.tasks.training_cost import TIMED_STEPS, training_cost
from seqloom.tasks.training_data import prepare_data, total_steps
from seqloom.training.distributed import World

MOST_LABELS = 30
"""Rows of the table of labels."""


class ExampleView(TypedDict):
    """An example as the model reads it."""

    line: str
    tokens: list[str]
    target: str


def check_labelled(
    spec: TextTaskSpec[E], run: RunConfig, test: Sequence[str], folder: Path
) -> DataReport:
    """Examines examples as a training with these settings would read them, and takes a few steps of it."""
    with collect_logs() as notices:
        data = prepare_data(partial(prepare_examples, spec), run, folder, World())
    tokenizer, validation = data.tokenizer, "validation" if run.data.validation else SPLIT_OFF
    examples = {"train": data.examples, validation: data.validation}
    lengths = {"train": data.dataset.tokens.lengths, validation: data.held_out.tokens.lengths}
    if test:
        with logged_report() as report:
            examples["test"] = list(data.head_task.read(test, run.data, report))
        notices += data.head_task.check_labels(examples["test"], "ignore")
        tested = data.head_task.encode(examples["test"], data.options)
        examples["test"] = tested.kept(examples["test"])
        lengths["test"] = tested.tokens.lengths
    for name, split in examples.items():
        if name != "train" and split:
            notices += [
                f"{name}: {leak}" for leak in data.head_task.check_leak(data.examples, split)
            ]
    splits: dict[str, dict[str, float]] = {
        name: {"examples": len(split), "rows": len(lengths[name])}
        for name, split in examples.items()
    }
    labels = count_labels(data.head_task, examples)
    row_lengths = {name: quantiles(split) for name, split in lengths.items() if len(split)}
    unknown = unknown_percent(data.dataset.tokens.values, tokenizer.special_ids)
    with collect_logs() as more:
        batches = sorted(data.batches(0, 0), key=lambda rows: int(data.dataset.costs[rows].max()))
        middle = max(len(batches) // 2 - TIMED_STEPS // 2, 0)
        cost = training_cost(data, run, batches[-1], batches[middle : middle + TIMED_STEPS])
    training = {
        "examples": len(data.examples),
        "batches_an_epoch": data.batches_an_epoch(),
        "steps": total_steps(run.train, data),
        **cost,
    }
    first_batch = batch_view(data)
    about = f"{tokenizer.kind}, {tokenizer.vocabulary_size:,} pieces, {unknown:.2f} % unknown"
    rows: list[Row] = [
        (batch["line"], shown_pieces(batch["tokens"]), batch["target"]) for batch in first_batch
    ]
    return DataReport(
        splits=splits,
        labels=labels,
        lengths={"tokens": row_lengths},
        notices=notices + more,
        tokenizer=tokenizer_figures(tokenizer, unknown),
        training=training,
        first_batch=first_batch,
        tables=[
            table_of("Examples", splits),
            *_labels_tables(labels, list(splits)),
            table_of("Length of a row in tokens", row_lengths),
            training_table(f"Training ({about})", training),
            ("Rows of the first batch", ("line", "is read", "is to answer"), rows),
        ],
    )


def count_labels(
    head_task: HeadTask[E], splits: Mapping[str, Sequence[E]]
) -> dict[str, dict[str, int]]:
    """label -> split -> how many; the most frequent of train first. Empty where there are so many labels that
    they must be numbers."""
    label_counts: dict[str, dict[str, int]] = {}
    for name, examples in splits.items():
        counts = Counter[str]()
        for example in examples:
            counts.update(head_task.labels_of(example))
        if examples and len(counts) > max(len(examples) // 2, 50):
            return {}
        for label, number in counts.most_common():
            label_counts.setdefault(label, {})[name] = number
    return label_counts


def _labels_tables(labels: dict[str, dict[str, int]], splits: Sequence[str]) -> list[Table]:
    """The table of labels; none where there are no labels."""
    rows: list[Row] = []
    for name, counts in list(labels.items())[:MOST_LABELS]:
        rows.append((name, *(f"{counts.get(split, 0):,}" for split in splits)))
    if len(labels) > MOST_LABELS:
        rows.append((f"and {len(labels) - MOST_LABELS:,} more", *[""] * len(splits)))
    return [("Labels", ("", *splits), rows)] if rows else []


def batch_view(data: EncodedExamples[E]) -> list[ExampleView]:
    """The longest, the median and the shortest item of the first batch."""
    dataset, tokenizer = data.dataset, data.tokenizer
    rows: Rows = next(iter(data.batches(0, 0)))
    by_cost = rows[np.argsort(dataset.costs[rows], kind="stable")].tolist()
    view: list[ExampleView] = []
    for item in dict.fromkeys((by_cost[-1], by_cost[len(by_cost) // 2], by_cost[0])):
        example = item if dataset.example_of is None else int(dataset.example_of[item])
        pieces: list[str] = []
        for token in dataset.tokens[int(dataset.row_offsets[item])].tolist():
            # the model may have special tokens beyond the vocabulary
            is_mark = token >= tokenizer.vocabulary_size
            pieces += ["(mark)"] if is_mark else tokenizer.pieces([token])
        target = data.head_task.describe_answer(data.examples[example])
        view.append({"line": place(*dataset.origins[example]), "tokens": pieces, "target": target})
    return view
