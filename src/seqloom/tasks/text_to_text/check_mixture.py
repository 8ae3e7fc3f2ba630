"""What `check` says of several tasks: how often each is drawn from, its lengths, and what it looks like as
texts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from seqloom.config import RunConfig
from seqloom.data.batching.pair_batches import SOURCE, TARGET, costs
from seqloom.errors import UsageError, place
from seqloom.runs.progress import collect_logs
from seqloom.tasks.data_report import (
    DataReport,
    Row,
    quantiles,
    table_of,
    tokenizer_figures,
    training_table,
    unknown_percent,
)
from seqloom.tasks.text_to_text.training_data import TaskMixture, prepare_mixture
from seqloom.tasks.training_data import prepare_data, total_steps
from seqloom.tasks.translation.check_pairs import batch_errors, check_pairs
from seqloom.training.distributed import World

SHOWN = 160
"""Characters of a text."""
PROGRESS = ("pairs tokenised", "examples read")
"""How notices end that only say how far the work is."""


def check(run: RunConfig, test: Sequence[str], folder: Path) -> DataReport:
    """Examines pairs of texts, or several tasks, as a training with these settings would read them."""
    if not run.tasks:
        return check_pairs(run, test, folder)
    if test:
        raise UsageError("--test is for one task, but the run file has several; leave it out")
    with collect_logs() as notices:
        data = prepare_data(prepare_mixture, run, folder, World())
    lengths = _lengths(data)
    mixing = data.mixing
    tasks: dict[str, dict[str, float]] = {}
    for number, (store, one) in enumerate(zip(data.store.stores, data.tasks, strict=True)):
        draws = int(mixing.draws[number])
        tasks[one.task.name] = {
            "train": len(store),
            "validation": len(one.validation),
            "an_epoch": draws,
            "rate": float(mixing.rates[number]),
            "passes_an_epoch": draws / len(store),
        }
    rows = next(data.batches(0, 0))
    batch = data.load(rows, rows)
    all_rows = np.arange(len(data.store))
    training = {
        "examples_an_epoch": len(mixing),
        "longest_pair_in_ids": int(costs(data.store, all_rows, data.tokenizer.special_ids).max()),
        "batches_an_epoch": data.batches_an_epoch(),
        "steps": total_steps(run.train, data),
        "examples_of_the_first_batch": len(rows),
    }
    samples = [_sample(data, number) for number in range(len(data.tasks))]
    unknown = [unknown_percent(ids.tokens, data.tokenizer.special_ids) for ids in data.store.stores]
    shown: list[Row] = []
    for sample in samples:
        shown.append((f"{sample['task']} ({sample['line']})", ""))
        shown += [(f"  {side}", _excerpt(sample[side])) for side in ("source", "target")]
    return DataReport(
        splits=tasks,
        lengths=lengths,
        notices=[notice for notice in dict.fromkeys(notices) if not notice.endswith(PROGRESS)],
        tokenizer=tokenizer_figures(data.tokenizer, dict(zip(tasks, unknown, strict=True))),
        training=training,
        first_batch=samples,
        errors=batch_errors(batch, data.tokenizer),
        tables=[
            table_of("Tasks", tasks),
            table_of("Length in ids", lengths),
            training_table("Training", training),
            ("The first example of each task", ("", ""), shown),
        ],
    )


def _lengths(data: TaskMixture) -> dict[str, dict[str, int]]:
    """Task and side -> quantiles in ids."""
    lengths = {}
    for store, task in zip(data.store.stores, data.tasks, strict=True):
        for column, side in ((SOURCE, "source"), (TARGET, "target")):
            ids = store.lengths(np.arange(len(store)), column)
            lengths[f"{task.task.name} {side}"] = quantiles(ids)
    return lengths


def _sample(data: TaskMixture, number: int) -> dict[str, str]:
    task = data.tasks[number]
    record = next(task.records())
    return {
        "task": task.task.name,
        "line": place(record.path, record.line or None),
        **record.fields,
    }


def _excerpt(text: str) -> str:
    return text if len(text) <= SHOWN else text[: SHOWN - 4] + " ..."
