"""What `check` says of the texts of a denoising model: their sizes, and what noise makes of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from seqloom.config import RunConfig
from seqloom.errors import UsageError
from seqloom.tasks.data_report import (
    CorpusFigures,
    DataReport,
    Row,
    pieces_of,
    shown_pieces,
    table_of,
    tokenizer_figures,
    training_table,
)
from seqloom.tasks.denoising.training_data import prepare_noisy_corpus
from seqloom.tasks.training_data import prepare_data, total_steps
from seqloom.training.distributed import World

SHOWN = 3
"""Windows of the first batch that are shown."""


def check_denoising(run: RunConfig, test: Sequence[str], folder: Path) -> DataReport:
    """Examines documents as a training with these settings would read them."""
    if test:
        raise UsageError("--test changes nothing for denoising, whose texts have no answers")
    data = prepare_data(prepare_noisy_corpus, run, folder, World())
    tokenizer, windows = data.tokenizer, data.windows
    stores = {"train": data.corpus, "validation": data.validation}
    splits, lengths, unknown = CorpusFigures.of(stores, tokenizer.special_ids)
    rows = next(data.batches(0, 0))
    texts = [windows.text(data.corpus, int(row)) for row in rows]
    noisy = [windows.denoising(data.corpus, int(row)) for row in rows]
    corrupted = sum(int(noised.corrupted.sum()) for noised in noisy)
    training = {
        "noise": ", ".join(windows.names),
        "window": windows.plan.window,
        "longest source": max(len(noised.source) for noised in noisy) + 1,
        "longest target": max(len(noised.target) for noised in noisy) + 1,
        "corrupted tokens of the first batch": corrupted,
        "tokens of the first batch": sum(map(len, texts)),
        "windows a batch": len(rows),
        "batches an epoch": data.batches_an_epoch(),
        "steps": total_steps(run.train, data),
    }
    first_batch = []
    shown: list[Row] = []
    for row, text, noised in list(zip(rows, texts, noisy, strict=True))[:SHOWN]:
        place = data.describe(np.asarray([row])).removeprefix("the windows in the documents of ")
        parts = {"text": text, "source": noised.source, "target": noised.target}
        pieces = {name: pieces_of(tokenizer, ids.tolist()) for name, ids in parts.items()}
        first_batch.append({"line": place, **pieces})
        shown.append((place, ""))
        shown += [(f"  {name}", shown_pieces(pieces[name])) for name in parts]
    return DataReport(
        splits=splits,
        lengths=lengths,
        tokenizer=tokenizer_figures(tokenizer, unknown, sentinels=len(tokenizer.sentinels)),
        training=training,
        first_batch=first_batch,
        tables=[
            table_of("Documents", splits),
            table_of("Length in ids", lengths),
            training_table("Training", training),
            ("Windows of the first batch, and what noise makes of them", ("", ""), shown),
        ],
    )
