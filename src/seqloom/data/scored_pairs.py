"""Pairs of texts with a score of how alike they are: which columns hold them, and their records."""

from __future__ import annotations

import math
from collections.abc import Iterator

from seqloom.config import DataConfig
from seqloom.data.columns import Record, Wanted, listed, pair_record, require
from seqloom.data.lines import Tally
from seqloom.errors import DataError, place, printable

NAMES = {
    "source": ("source", "sentence1", "sentence_1", "sentence_a", "text1", "text_a", "question1"),
    "target": ("target", "sentence2", "sentence_2", "sentence_b", "text2", "text_b", "question2"),
    "score": ("score", "similarity", "similarity_score", "relatedness_score", "label", "stars"),
}
"""role -> names of columns that are known without being told."""


def scored_columns(names: list[str], options: DataConfig, tally: Tally, path: str, line: int | None) -> tuple[str, ...]:
    """The names of the two texts and of the score, by option or by guess, which is said. Raises DataError where neither helps."""
    chosen: dict[str, str] = {}
    guessed = []
    for role, known in NAMES.items():
        asked: str | None = getattr(options, role)
        require(role, asked, names, path, line, "column")
        found = asked or next((name for one in known for name in names if name.strip().casefold() == one), None)
        if found is None:
            raise DataError(
                f"the column of the {role} is not known by name (found: {listed(names)}); say which with --set data.{role}=NAME", path, line
            )
        chosen[role] = found
        if asked is None and found != role:
            guessed.append(f"{printable(found)!r} is taken as {role}")
    if guessed:
        tally.remark(f"{place(path)}: {', '.join(guessed)}; to take others: --set data.source=NAME, data.target=NAME, data.score=NAME")
    return tuple(chosen.values())


def scored_record(texts: list[str], path: str, line: int, tally: Tally) -> Iterator[Record]:
    """The record of a pair and its score, or none where a part is blank. Raises DataError where the score is no number."""
    *pair, score = texts
    for record in pair_record(pair, path, line, tally):
        if not score.strip():
            tally.skip("the score is blank", path, line)
            continue
        try:
            number = float(score)
        except ValueError:
            number = math.nan
        if not math.isfinite(number):
            raise DataError(
                f"the score must be a number, but is {printable(score)[:40]!r}; if it is another column: --set data.score=NAME", path, line
            )
        yield Record({**record.fields, "score": score}, path, line)


SCORED = Wanted(
    scored_columns, scored_record, tuple(NAMES), numbers=("score",), known=frozenset(name for known in NAMES.values() for name in known)
)
