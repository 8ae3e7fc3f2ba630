"""What `check` says of the text of word vectors: what is left of it as words, and how often the most frequent
ones are read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from seqloom.config import RunConfig
from seqloom.errors import UsageError
from seqloom.tasks.data_report import (
    CorpusFigures,
    DataReport,
    Row,
    shown,
    table_of,
    training_table,
)
from seqloom.tasks.training_data import count_ids, prepare_data, total_steps
from seqloom.tasks.word_vectors.cells import CellTrainingData
from seqloom.tasks.word_vectors.training_data import SentenceCorpus
from seqloom.text.special_tokens import SPECIAL_TOKENS
from seqloom.training.distributed import World

SHOWN = 10
"""Most frequent words that are shown."""
Prepare = Callable[[RunConfig, Path, bool], SentenceCorpus | CellTrainingData]


def check_word_vectors(
    prepare: Prepare, run: RunConfig, test: Sequence[str], folder: Path
) -> DataReport:
    """Examines text as a training with these settings would read it."""
    if test:
        raise UsageError("--test changes nothing for word-vectors, whose texts have no answers")
    data = prepare_data(prepare, run, folder, World())
    tokenizer = data.tokenizer
    stores = {"train": data.corpus}
    if data.validation is not data.corpus:
        stores["validation"] = data.validation
    splits, lengths, unknown = CorpusFigures.of(stores, tokenizer.special_ids)
    counts = count_ids(data.corpus.tokens, tokenizer.vocabulary_size)
    counts[: len(SPECIAL_TOKENS)] = 0
    kept = np.ones(len(counts)) if data.kept is None else data.kept
    training = {"words": int(counts.sum()), **data.figures(counts)}
    training |= {"steps": total_steps(run.train, data)}
    frequent = {}
    rows: list[Row] = []
    for number in np.argsort(-counts, kind="stable")[:SHOWN].tolist():
        if counts[number]:
            word, count = tokenizer.decode([number]), int(counts[number])
            frequent[word] = {"count": count, "kept": round(float(kept[number]), 4)}
            rows.append((word, f"{count:,}", shown(float(kept[number]))))
    figures: dict[str, object] = {
        "kind": tokenizer.kind,
        "vocabulary": int((counts > 0).sum()),
        **{f"left out of {name}, percent": round(share, 3) for name, share in unknown.items()},
    }
    return DataReport(
        splits=splits,
        lengths=lengths,
        tokenizer={**figures, "frequent": frequent},
        training=training,
        first_batch=[],
        tables=[
            table_of("Sentences", splits),
            table_of("Length in ids", lengths),
            training_table("Words", figures),
            training_table("Training", training),
            ("Most frequent words", ("", "count", "probability that one is read"), rows),
        ],
    )
