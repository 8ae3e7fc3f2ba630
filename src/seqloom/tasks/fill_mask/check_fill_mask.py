"""What `check` says of the texts of a masked language model: their sizes, rows with their masks, and what the
training would cost."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from pathlib import Path

from seqloom.config import RunConfig
from seqloom.errors import UsageError
from seqloom.shapes import IGNORE
from seqloom.tasks.data_report import (
    MARK,
    CorpusFigures,
    DataReport,
    Figures,
    Row,
    pieces_of,
    table_of,
    tokenizer_figures,
    training_table,
)
from seqloom.tasks.fill_mask.training_data import MaskedCorpus, prepare_masked_corpus
from seqloom.tasks.training_cost import TIMED_STEPS, training_cost
from seqloom.tasks.training_data import prepare_data, total_steps
from seqloom.training.distributed import World

SHOWN = 3
"""Rows of the first batch that are shown."""
LABELS = {
    ("next", 0): "next",
    ("next", 1): "from another document",
    ("order", 0): "in order",
    ("order", 1): "swapped",
}
"""What the label of a pair means, by train.sentence_pairs."""


def check_fill_mask(run: RunConfig, test: Sequence[str], folder: Path) -> DataReport:
    """Examines documents as a training with these settings would read them, and takes a few steps of it."""
    if test:
        raise UsageError("--test changes nothing for fill-mask, whose texts have no answers")
    data = prepare_data(prepare_masked_corpus, run, folder, World())
    tokenizer = data.tokenizer
    stores = {"train": data.corpus, "validation": data.validation}
    splits, lengths, unknown = CorpusFigures.of(stores, tokenizer.special_ids)
    training, first_batch = _training(data), _first_batch(data)
    return DataReport(
        splits=splits,
        lengths=lengths,
        tokenizer=tokenizer_figures(tokenizer, unknown),
        training=training,
        first_batch=first_batch,
        tables=[
            table_of("Documents", splits),
            table_of("Length in ids", lengths),
            training_table(
                f"Training ({tokenizer.kind}, {tokenizer.vocabulary_size:,} pieces)", training
            ),
            (
                f"Rows of the first batch, with {MARK.format('what is to be predicted→what is read')}",
                ("", ""),
                _shown_rows(first_batch),
            ),
        ],
    )


def _training(data: MaskedCorpus) -> Figures:
    """How much is read and trained, by the first batches, and what it costs."""
    train = data.run.train
    timed = list(islice(data.batches(0, 0), TIMED_STEPS + 1))
    batches = [data.load(rows, rows) for rows in timed]
    rows = sum(map(len, timed))
    read = sum(int((batch.tokens >= 0).sum()) for batch in batches)
    chosen = sum(int((batch.targets != IGNORE).sum()) for batch in batches)
    steps = data.batches_an_epoch()
    rows_an_epoch = sum(map(len, data.batches(0, 0)))
    return {
        "masks": train.mask_units,
        "sentence_pairs": train.sentence_pairs,
        "longest_row": max(batch.tokens.shape[1] for batch in batches),
        "rows_a_batch": len(timed[0]),
        "batches_an_epoch": steps,
        "tokens_that_an_epoch_reads_about": round(read / rows * rows_an_epoch),
        "tokens_that_an_epoch_trains_about": round(chosen / rows * rows_an_epoch),
        "steps": total_steps(train, data),
        **training_cost(data, data.run, timed[0], timed[1:] or timed),
    }


def _first_batch(data: MaskedCorpus) -> list[dict[str, object]]:
    rows = next(data.batches(0, 0))[:SHOWN]
    batch = data.load(rows, rows)
    view: list[dict[str, object]] = []
    for row, tokens, targets, label in zip(
        rows.tolist(),
        batch.tokens.tolist(),
        batch.targets.tolist(),
        batch.labels.tolist(),
        strict=True,
    ):
        length = sum(token >= 0 for token in tokens)
        begins = data.rows.begins(data.corpus, row)
        view.append(
            {
                "line": data.corpus.place(begins),
                "inputs": data.tokenizer.pieces(tokens[:length]),
                "targets": pieces_of(data.tokenizer, targets[:length]),
                "label": LABELS.get((data.run.train.sentence_pairs, label)),
            }
        )
    return view


def _shown_rows(first_batch: Sequence[Figures]) -> list[Row]:
    rows: list[Row] = []
    for row in first_batch:
        words = []
        for read, true in zip(row["inputs"], row["targets"], strict=True):
            piece = read.strip(" ")
            if true is not None:
                true = true.strip(" ")
                piece = MARK.format(piece) if piece == true else MARK.format(f"{true}→{piece}")
            words.append(piece)
        rows.append((str(row["line"]), " ".join(words)))
        if row["label"] is not None:
            rows.append(("  the second text", str(row["label"])))
    return rows
