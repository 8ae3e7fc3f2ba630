"""What a check found in data: figures, tables and findings, for programs and for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, NamedTuple, final

import numpy as np

from seqloom.arrays import Integers
from seqloom.data.batching.corpus_store import CorpusStore
from seqloom.protocols import SpecialIds, StoredTokenizer, Tokenizer
from seqloom.shapes import IGNORE

SPLIT_OFF = "split off"
"""The name of validation data that were taken from the training data."""
QUANTILES = {"min": 0.0, "median": 0.5, "95%": 0.95, "99%": 0.99, "max": 1.0}
LEAK = 0.9
"""A validation or test set with at least this share of its examples in train measures nothing."""
SHOWN_PIECES = 16
"""Of a text of the first batch."""
MARK = "⟦{}⟧"
"""What is to be seen in a cell; a terminal shows it in colour."""
PADDING, UNTRAINED = "<pad>", "(untrained)"
"""How padding and targets that are not trained are shown."""

Figures = Mapping[str, Any]
"""Name -> a number or a text, or figures again: a check of each task has its own."""
Row = tuple[str, ...]
Table = tuple[str, Row, list[Row]]
"""Title, header, rows."""


class Finding(NamedTuple):
    """Something to look at: how often, where first, and what to do if it is likely to do harm."""

    what: str
    number: int
    first: str
    advice: str = ""


@final
@dataclass(frozen=True, kw_only=True)
class DataReport:
    """What a check found in the data of a task. The fields are in the order of the JSON output; those that
    are None do not concern the task."""

    splits: dict[str, dict[str, float]]
    """split -> counts."""
    labels: dict[str, dict[str, int]] | None = None
    """label -> split -> how many."""
    lengths: Figures
    """split -> quantiles, or unit -> split -> quantiles."""
    findings: list[Finding] | None = None
    notices: list[str] | None = None
    """What is likely to do harm, in sentences."""
    tokenizer: Figures
    training: Figures
    """What a training on the data would be."""
    first_batch: Sequence[Mapping[str, Any]]
    """A few rows of it, as pieces; None if nothing is trained."""
    errors: list[str] = field(default_factory=list)
    """What must stop a training, in sentences."""
    tables: list[Table]
    """The same, for people."""

    def to_json(self) -> dict[str, Any]:
        content = {name: value for name, value in vars(self).items() if value is not None}
        del content["tables"]
        if self.findings is not None:
            content["findings"] = [finding._asdict() for finding in self.findings]
        return content

    def problems(self) -> list[str]:
        """Whole sentences: first what must stop a training, then what is likely to do harm."""
        lines = [f"error: {error}" for error in self.errors]
        for what, number, first, advice in self.findings or ():
            if advice:
                lines.append(f"warning: {what}: {number:,} (first: {first}); {advice}")
        lines += [f"notice: {notice}" for notice in self.notices or ()]
        return lines or ["nothing found that is likely to do harm"]


def table_of(title: str, rows: Mapping[str, Mapping[str, object]]) -> Table:
    """A row of numbers for each name."""
    header = ("", *(name.replace("_", " ") for name in next(iter(rows.values()))))
    return title, header, [(name, *map(shown, values.values())) for name, values in rows.items()]


def findings_table(findings: Sequence[Finding]) -> Table:
    rows: list[Row] = [(what, f"{number:,}", first) for what, number, first, _ in findings]
    return "Worth a look", ("what", "how many", "first"), rows or [("nothing", "", "")]


def training_table(title: str, training: Mapping[str, object]) -> Table:
    return (
        title,
        ("", ""),
        [(name.replace("_", " "), shown(value)) for name, value in training.items()],
    )


def shown(value: object) -> str:
    """Numbers with commas, and with four significant digits."""
    match value:
        case int():
            return f"{value:,}"
        case float():
            return f"{value:,.4g}"
    return str(value)


def shown_pieces(pieces: Sequence[str | None]) -> str:
    """Pieces separated by spaces, with ␣ for the spaces inside. Repeated padding is counted, and the middle
    of a long text is left out."""
    words: list[str] = []
    for piece, repeats in groupby(
        UNTRAINED if piece is None else piece.replace(" ", "␣") for piece in pieces
    ):
        count = len(list(repeats))
        words += [f"{piece}×{count}"] if piece in (UNTRAINED, PADDING) else [piece] * count
    left_out = len(words) - SHOWN_PIECES
    if left_out > 1:
        half = SHOWN_PIECES // 2
        words = [*words[:half], f"[… {left_out} more …]", *words[-half:]]
    return " ".join(words)


def pieces_of(tokenizer: Tokenizer, ids: Sequence[int]) -> list[str | None]:
    """The pieces in a row of a batch: None if nothing is trained, <pad> at padding."""
    pieces: list[str | None] = []
    for token_id in ids:
        if token_id == IGNORE:
            pieces.append(None)
        elif token_id == tokenizer.special_ids.pad:
            pieces.append(PADDING)
        else:
            pieces += tokenizer.pieces([token_id])
    return pieces


def tokenizer_figures(tokenizer: StoredTokenizer, unknown: object, **more: object) -> Figures:
    """`unknown`: the percentage of unknown tokens, or that of each part."""
    known = {"kind": tokenizer.kind, "vocabulary": tokenizer.vocabulary_size}
    return {**known, **more, "unknown_percent": unknown}


def quantiles(values: Integers) -> dict[str, int]:
    numbers = np.quantile(values, list(QUANTILES.values()), method="higher")
    return {name: int(number) for name, number in zip(QUANTILES, numbers, strict=True)}


def unknown_percent(ids: Integers, special_ids: SpecialIds) -> float:
    return 100 * count_unknown(ids, special_ids) / max(len(ids), 1)


def count_unknown(ids: Integers, special_ids: SpecialIds) -> int:
    return 0 if special_ids.unk is None else int(np.count_nonzero(ids == special_ids.unk))


class CorpusFigures(NamedTuple):
    """What checks of a corpus say of each of its splits."""

    splits: dict[str, dict[str, float]]
    lengths: dict[str, dict[str, int]]
    """Quantiles of the documents, in ids."""
    unknown: dict[str, float]
    """Percent of the ids."""

    @classmethod
    def of(cls, stores: Mapping[str, CorpusStore], special_ids: SpecialIds) -> CorpusFigures:
        figures = cls({}, {}, {})
        for name, store in stores.items():
            totals = store.totals
            figures.splits[name] = {"documents": totals.documents, "ids": totals.ids}
            figures.lengths[name] = quantiles(np.diff(store.offsets))
            figures.unknown[name] = unknown_percent(store.tokens, special_ids)
        return figures


def leak_errors(name: str, unit: str, hashes: Integers, train: Integers) -> list[str]:
    """What is wrong with a split whose examples, given by their hashes, are nearly all in train."""
    known, total = int(np.isin(hashes, train).sum()), len(hashes)
    if known < LEAK * total:
        return []
    error = (
        f"{name} must hold other {unit} than train, but {known:,} of its {total:,} stand in train too, so a"
        " score on it says nothing; leave them out of one of both"
    )
    return [error]
