"""Users' files to texts and what may follow them: a row for each text with its options in columns, or a row for each option."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from seqloom.config import DataConfig
from seqloom.data.columns import UNIT, Record, Wanted, listed, require
from seqloom.data.examples import Choice
from seqloom.data.label_columns import KNOWN, labelled_record, one_column, say_guesses, texts_of
from seqloom.data.labelled import TABLES, form_of, read_rows_of
from seqloom.data.lines import Tally, read_lines
from seqloom.errors import DataError, UsageError, place, printable

TEXTS = ("text", "goal", "premise", "context", "ctx", "question", "stem", "sentence", "startphrase", "prompt", "query")
ANSWERS = ("label", "answer", "answerkey", "answer_key", "answer_idx", "correct", "gold")
LISTS = ("options", "choices", "endings", "candidates")
OPTION = re.compile(r"(sol|solution|choice|option|ending|answer|alternative|candidate)[ _]?([0-9]|[a-j])")
LETTERS = "abcdefghijklmnopqrstuvwxyz"
RIGHT = frozenset({"entailment", "1", "true", "yes", "right", "correct"})
"""Labels of a row whose second text is the right option."""
LABEL_ENDINGS = (".lst", ".txt", ".labels", ".label")
"""How the name of a file ends that holds an answer in each line."""


class _Found(NamedTuple):
    """A choice whose label is not understood yet."""

    text: str
    options: tuple[str, ...]
    label: str
    path: str
    line: int


def read_choices(paths: Sequence[str], options: DataConfig, tally: Tally, *, answers: bool = True) -> Iterator[Choice]:
    """The choices of tables, one after the other, or of one table and a file with the answer of each row in a line.

    An option stands in a column (`data.options`), or all in one that holds a list. Where there are no such columns but two texts,
    rows with equal first text are one choice, whose right option is labelled entailment (1, true, yes). An answer is a number, a
    letter or the option itself. Numbers count from 0 or from 1, as the whole of a file shows; where
    both could be, from 0; which it is is remarked. `answers=False`: answers are not read and need not be there.

    Raises DataError for data that is wrong and UsageError for paths and options that fit together in no way; both when asked for
    the first choice.
    """
    beside = paths[1] if len(paths) == 2 and paths[1].removesuffix(".gz").endswith(LABEL_ENDINGS) else None
    before, used = tally.read, 0
    try:
        for path in paths[:1] if beside is not None else paths:
            for choice in _of_table(path, beside, options, tally, answers):
                used += 1
                tally.used += 1
                yield choice
    except DataError as error:
        tally.rejected += error.line is not None
        raise
    if answers and not used:
        raise DataError(f"there are no usable choices in it (rows read: {tally.read - before}, all blank or skipped)", paths[0])


def _of_table(path: str, beside: str | None, options: DataConfig, tally: Tally, answers: bool) -> Iterator[Choice]:
    form = form_of(path, options)
    if form not in TABLES:
        raise UsageError(f"{printable(path)}: choices must be rows of a table (csv, tsv, jsonl, parquet, json), but the form is {form}")
    wanted = _choice_columns(labelled=answers and beside is None)
    records = list(read_rows_of(path, form, options, tally, wanted))
    if any("second" in record.fields for record in records):
        if beside is not None:
            raise UsageError("a file of answers goes with a table that has a row for each choice, but this one has a row for each option")
        yield from _by_premise(records, answers)
        return
    found = [_found(record) for record in records]
    if beside is not None and answers:
        found = _with_labels(found, beside, options)
    numbers = _numbers(found, tally) if answers else [None] * len(found)
    for one, answer in zip(found, numbers, strict=True):
        yield Choice(one.text, one.options, answer, one.path, one.line)


def _choice_columns(*, labelled: bool) -> Wanted:
    def choose(names: list[str], options: DataConfig, tally: Tally, path: str, line: int | None) -> dict[str, str]:
        among = _option_columns(names, options, tally, path, line)
        rest = [name for name in names if name not in among]
        if among:
            chosen = texts_of(rest, options, path, line, pairs=False, last=False, known=TEXTS)
            chosen |= {f"option {number}": name for number, name in enumerate(among, start=1)}
        else:
            try:
                chosen = texts_of(names, options, path, line, pairs=True, last=False)
            except DataError:
                raise DataError(
                    f"the columns of the options are not known by name (found: {listed(names)}); say which with "
                    "--set 'data.options=[NAME, NAME]'",
                    path,
                    line,
                ) from None
        if labelled:
            chosen["label"] = one_column("label", "answer", ANSWERS, rest, options, path, line)
        say_guesses(chosen, options, tally, path, {})
        return chosen

    loose = ("label", *(f"option {number}" for number in range(1, len(LETTERS) + 1)))
    roles = ("text", "second", "options", *(("label",) if labelled else ()))
    return Wanted(choose, labelled_record, roles, loose=loose, known=KNOWN | {*TEXTS, *LISTS}, alone=())


def _option_columns(names: list[str], options: DataConfig, tally: Tally, path: str, line: int | None) -> list[str]:
    """Columns of options, by setting or by guess: all whose names differ only in a number or letter at the end; none where there are
    no such."""
    if options.options:
        for name in options.options:
            require("options", name, names, path, line, "column")
        return list(options.options)
    folded = {name.strip().casefold(): name for name in names}
    series: dict[str, list[str]] = {}
    for name in folded:
        if match := OPTION.fullmatch(name):
            series.setdefault(match[1], []).append(name)
    series["letters"] = list(_while_in(LETTERS, folded))
    guess = max(series.values(), key=len)
    if len(guess) < 2:
        guess = [name for name in LISTS if name in folded][:1]
    found = [folded[name] for name in sorted(guess)]
    if found:
        tally.remark(
            f"{place(path)}: {', '.join(map(printable, found))} are taken as options; to take others: --set 'data.options=[NAME, NAME]'"
        )
    return found


def _while_in(letters: str, known: dict[str, str]) -> Iterator[str]:
    for letter in letters:
        if letter not in known:
            return
        yield letter


def _found(record: Record) -> _Found:
    """Raises DataError where there are fewer than two options, or a blank one before others."""
    cells = [cell for role, cell in record.fields.items() if role.startswith("option ")]
    if len(cells) == 1:
        cells = cells[0].split(UNIT)[:-1]
    while cells and not cells[-1].strip():  # some rows have fewer
        cells.pop()
    if len(cells) < 2 or not all(cell.strip() for cell in cells):
        what = f"has {len(cells)}" if len(cells) < 2 else "one of them is blank"
        raise DataError(f"a choice needs at least two options, none of them blank, but {what}", record.path, record.line)
    return _Found(record.fields["text"], tuple(cells), record.fields.get("label", ""), record.path, record.line)


def _with_labels(found: list[_Found], beside: str, options: DataConfig) -> list[_Found]:
    lines = list(read_lines(beside, Tally(), encoding=options.encoding))
    if len(lines) != len(found):
        raise DataError(f"must have an answer for each of the {len(found)} choices, but has {len(lines)} lines", beside, len(lines))
    return [one._replace(label=text) for one, (_, text) in zip(found, lines, strict=True)]


def _numbers(found: list[_Found], tally: Tally) -> list[int]:
    """Which option each label means, from 0."""
    for one in found:
        if not one.label.strip():
            raise DataError("the answer is empty", one.path, one.line)
    labels = [one.label.strip() for one in found]
    if all(label.isdecimal() for label in labels) and not all(_as_text(one) is not None for one in found):
        return _counted(found, labels, tally)
    return [_worded(one) for one in found]


def _as_text(one: _Found) -> int | None:
    """The only option that the label spells."""
    return one.options.index(one.label) if one.options.count(one.label) == 1 else None


def _worded(one: _Found) -> int:
    answer = _as_text(one)
    letter = LETTERS.find(one.label.strip().casefold()) if len(one.label.strip()) == 1 else -1
    answer = letter if answer is None else answer
    if not 0 <= answer < len(one.options):
        raise DataError(
            f"the answer must be a number (all of a file), a letter up to {LETTERS[len(one.options) - 1].upper()} or one of the options, "
            f"but is {printable(one.label)[:40]!r}",
            one.path,
            one.line,
        )
    return answer


def _counted(found: list[_Found], labels: list[str], tally: Tally) -> list[int]:
    numbers = [int(label) for label in labels]
    zero = 0 in numbers
    past = any(number == len(one.options) for one, number in zip(found, numbers, strict=True))
    base = 0 if zero or not past else 1
    for one, number in zip(found, numbers, strict=True):
        if not 0 <= number - base < len(one.options):
            raise DataError(
                f"the answer must be a number from {base} to {base + len(one.options) - 1}, for there are {len(one.options)} options "
                f"and the others count from {base}, but is {number}",
                one.path,
                one.line,
            )
    sure = "" if zero or past else " (from 1 would fit too; then add a row that shows it)"
    if found:
        tally.remark(f"{place(found[0].path)}: answers are taken as numbers that count from {base}{sure}")
    return [number - base for number in numbers]


def _by_premise(records: list[Record], answers: bool) -> Iterator[Choice]:
    """Rows with equal first text are one choice, in the order of the first of them."""
    groups: dict[str, list[Record]] = {}
    for record in records:
        groups.setdefault(record.fields["text"], []).append(record)
    for text, rows in groups.items():
        first = rows[0]
        if len(rows) < 2:
            raise DataError("a choice needs at least two rows with the same first text, but this one stands alone", first.path, first.line)
        right = [at for at in range(len(rows)) if answers and rows[at].fields["label"].strip().casefold() in RIGHT]
        if answers and len(right) != 1:
            raise DataError(
                f"one of the {len(rows)} rows with this first text must be labelled as right (one of {', '.join(sorted(RIGHT))}), "
                f"but {len(right)} are (lines {', '.join(str(row.line) for row in rows[:8])})",
                first.path,
                first.line,
            )
        yield Choice(text, tuple(row.fields["second"] for row in rows), right[0] if right else None, first.path, first.line)
