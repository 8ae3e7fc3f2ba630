"""Users' files to texts and what may follow them: a row for each text with its options in columns, or a row
for each option."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, NamedTuple

from seqloom.config import DataConfig
from seqloom.data.formats.columns import UNIT, Record, Wanted, listed, require
from seqloom.data.formats.lines import read_lines
from seqloom.data.formats.read_report import ReadReport
from seqloom.data.readers.examples import ChoiceQuestion
from seqloom.data.readers.label_columns import KNOWN, labelled_record, one_column, say_guesses, texts_of
from seqloom.data.readers.labelled import TABLES, form_of, read_rows_of
from seqloom.errors import DataError, UsageError, place, printable

TEXTS = (
    "text",
    "goal",
    "premise",
    "context",
    "ctx",
    "question",
    "stem",
    "sentence",
    "startphrase",
    "prompt",
    "query",
)
ANSWERS = ("label", "answer", "answerkey", "answer_key", "answer_idx", "correct", "gold")
LISTS = ("options", "choices", "endings", "candidates")
OPTION = re.compile(
    r"(sol|solution|choice|option|ending|answer|alternative|candidate)[ _]?([0-9]{1,2}|[a-j]|(?<=[ _])[k-z])"
)
"""Names of columns of options; `choices` is none, though s is a letter."""
LETTERS = "abcdefghijklmnopqrstuvwxyz"
RIGHT = frozenset({"entailment", "1", "true", "yes", "right", "correct"})
"""Labels of a row whose second text is the right option."""
LABEL_ENDINGS = (".lst", ".txt", ".labels", ".label")
"""How the name of a file ends that holds an answer in each line."""
Base = Literal[0, 1]
"""What numbers of options count from."""


class _Found(NamedTuple):
    """A choice, and its answer as it is written."""

    choice: ChoiceQuestion
    label: str | None
    """None where there is nothing left to understand."""


def read_choices(
    paths: Sequence[str], options: DataConfig, report: ReadReport, *, answers: bool = True
) -> Iterator[ChoiceQuestion]:
    """The choices of tables, one after the other, or of one table and a file with the answer of each row in a
    line.

    An option stands in a column (`data.options`), or all in one that holds a list. Where there are no such
    columns but two texts, rows with equal first text are one choice, whose right option is labelled
    entailment (1, true, yes). An answer is a number, a letter or the option itself. Numbers count from
    `data.answers_from`, else from 0 or from 1 as all files together show; where both could be, from 0; which
    it is is remarked. `answers=False`: answers are not read and need not be there.

    Raises DataError for data that is wrong and UsageError for paths and options that fit together in no way;
    both when asked for the first choice.
    """
    before, used = report.read, 0
    try:
        for choice in _choices(_tables(paths, options, report, answers), options, report, answers):
            used += 1
            report.used += 1
            yield choice
    except DataError as error:
        report.rejected += error.line is not None
        raise
    if answers and not used:
        raise DataError(
            f"there are no usable choices in it (rows read: {report.read - before}, all blank or skipped)",
            paths[0],
        )


def counted_from(paths: Sequence[str], options: DataConfig) -> Base | None:
    """What the answers of these files count from; None where they are no numbers. Raises what `read_choices`
    raises."""
    if options.answers_from is not None:
        return options.answers_from
    bases = _bases(list(_tables(paths, options, ReadReport(), answers=True)), options, ReadReport())
    return next((base for base in bases if base is not None), None)


def _tables(
    paths: Sequence[str], options: DataConfig, report: ReadReport, answers: bool
) -> Iterator[list[_Found]]:
    beside = paths[1] if len(paths) == 2 and paths[1].removesuffix(".gz").endswith(LABEL_ENDINGS) else None
    for path in paths[:1] if beside is not None else paths:
        yield _table(path, beside, options, report, answers)


def _table(
    path: str, beside: str | None, options: DataConfig, report: ReadReport, answers: bool
) -> list[_Found]:
    form = form_of(path, options)
    if form not in TABLES:
        raise UsageError(
            f"{printable(path)}: choices must be rows of a table (csv, tsv, jsonl, parquet, json), but the"
            f" form is {form}"
        )
    wanted = _choice_columns(labelled=answers and beside is None)
    records = list(read_rows_of(path, form, options, report, wanted))
    if any("second" in record.fields for record in records):
        if beside is not None:
            raise UsageError(
                "a file of answers goes with a table that has a row for each choice, but this one has a row"
                " for each option"
            )
        return [_Found(choice, None) for choice in _by_premise(records, answers)]
    found = [_found(record) for record in records]
    return _with_labels(found, beside, options) if beside is not None and answers else found


def _choice_columns(*, labelled: bool) -> Wanted:
    def choose(
        names: list[str], options: DataConfig, report: ReadReport, path: str, line: int | None
    ) -> dict[str, str]:
        among = _option_columns(names, options, report, path, line)
        rest = [name for name in names if name not in among]
        if among:
            chosen = texts_of(rest, options, path, line, pairs=False, last=False, known=TEXTS)
            chosen |= {f"option {number}": name for number, name in enumerate(among, start=1)}
        else:
            try:
                chosen = texts_of(names, options, path, line, pairs=True, last=False)
            except DataError:
                raise DataError(
                    f"the columns of the options are not known by name (found: {listed(names)}); say which"
                    " with --set 'data.options=[NAME, NAME]'",
                    path,
                    line,
                ) from None
        if labelled:
            chosen["label"] = one_column("label", "answer", ANSWERS, rest, options, path, line)
        say_guesses(chosen, options, report, path, {})
        return chosen

    loose = ("label", *(f"option {number}" for number in range(1, len(LETTERS) + 1)))
    roles = ("text", "second", "options", *(("label",) if labelled else ()))
    return Wanted(choose, labelled_record, roles, loose=loose, known=KNOWN | {*TEXTS, *LISTS}, alone=())


def _option_columns(
    names: list[str], options: DataConfig, report: ReadReport, path: str, line: int | None
) -> list[str]:
    """Columns of options, by setting or by guess: all whose names differ only in a number or letter at the
    end; none where there are no such."""
    if options.options:
        for name in options.options:
            require("options", name, names, path, line, "column")
        return _at_most(list(options.options), path, line)
    folded = {name.strip().casefold(): name for name in names}
    series: dict[tuple[str, bool], list[tuple[str, str]]] = {}
    for name in folded:
        if match := OPTION.fullmatch(name):
            series.setdefault((match[1], match[2].isdecimal()), []).append((match[2].zfill(2), name))
    guess = max(
        [*([name for _, name in sorted(one)] for one in series.values()), list(_while_in(LETTERS, folded))],
        key=len,
    )
    if len(guess) < 2:
        guess = [name for name in LISTS if name in folded][:1]
    found = _at_most([folded[name] for name in guess], path, line)
    if found:
        report.note(
            f"{place(path)}: {', '.join(map(printable, found))} are taken as options; to take others: --set"
            " 'data.options=[NAME, NAME]'"
        )
    return found


def _at_most(columns: list[str], path: str, line: int | None) -> list[str]:
    if len(columns) > len(LETTERS):
        raise DataError(
            f"a choice must have at most {len(LETTERS)} columns of options, but has {len(columns)}"
            f" ({columns[0]!r} to {columns[-1]!r}); say which with --set 'data.options=[NAME, NAME]', or put"
            " them into one as a list",
            path,
            line,
        )
    return columns


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
        raise DataError(
            f"a choice needs at least two options, none of them blank, but {what}", record.path, record.line
        )
    return _Found(
        ChoiceQuestion(record.fields["text"], tuple(cells), None, record.path, record.line),
        record.fields.get("label", ""),
    )


def _with_labels(found: list[_Found], beside: str, options: DataConfig) -> list[_Found]:
    lines = list(read_lines(beside, ReadReport(), encoding=options.encoding))
    if len(lines) != len(found):
        raise DataError(
            f"must have an answer for each of the {len(found)} choices, but has {len(lines)} lines",
            beside,
            len(lines),
        )
    return [one._replace(label=text) for one, (_, text) in zip(found, lines, strict=True)]


def _choices(
    tables: Iterable[list[_Found]], options: DataConfig, report: ReadReport, answers: bool
) -> Iterator[ChoiceQuestion]:
    """The choices, their answers understood: of all tables together."""
    if not answers:
        yield from (one.choice for table in tables for one in table)
        return
    known = list(tables)
    for one in (one for table in known for one in table):
        if one.label is not None and not one.label.strip():
            raise DataError("the answer is empty", one.choice.path, one.choice.line)
    yield from [
        (
            one.choice
            if one.label is None
            else one.choice._replace(answer=_worded(one) if base is None else _counted(one, base))
        )
        for table, base in zip(known, _bases(known, options, report), strict=True)
        for one in table
    ]


def _bases(tables: list[list[_Found]], options: DataConfig, report: ReadReport) -> list[Base | None]:
    """What the answers of each table count from; None where they are no numbers of options, or where all that
    are numbers are options themselves and `data.answers_from` says nothing."""
    numbered = [
        bool(table) and all(one.label is not None and one.label.strip().isdecimal() for one in table)
        for table in tables
    ]
    found = [one for table, are in zip(tables, numbered, strict=True) if are for one in table]
    base = options.answers_from
    if base is None and not all(map(_spelled, found)):
        base = _guessed(found, report)
    return [base if are else None for are in numbered]


def _guessed(found: list[_Found], report: ReadReport) -> Base:
    numbers = [int(one.label or 0) for one in found]
    zero = 0 in numbers
    past = any(number == len(one.choice.options) for one, number in zip(found, numbers, strict=True))
    base: Base = 0 if zero or not past else 1
    sure = "" if zero or past else " (from 1 would fit too; if so: --set data.answers_from=1)"
    report.note(f"{place(found[0].choice.path)}: answers are taken as numbers that count from {base}{sure}")
    return base


def _counted(one: _Found, base: int) -> int:
    number, count = int(one.label or 0), len(one.choice.options)
    if not 0 <= number - base < count:
        raise DataError(
            f"the answer must be a number from {base} to {base + count - 1}, for there are {count} options"
            f" and answers count from {base}, but is {number}; if they count from {1 - base}: --set"
            f" data.answers_from={1 - base}",
            one.choice.path,
            one.choice.line,
        )
    return number - base


def _spelled(one: _Found) -> list[int]:
    """The options that the label spells."""
    label, options = one.label or "", one.choice.options
    exact = [at for at, option in enumerate(options) if option == label]
    return exact or [at for at, option in enumerate(options) if option.strip() == label.strip()]


def _worded(one: _Found) -> int:
    label, options, spelled = (one.label or "").strip(), one.choice.options, _spelled(one)
    if len(spelled) > 1:
        raise DataError(
            f"the answer must tell one option, but {printable(label)[:40]!r} is spelled by {len(spelled)}"
            " options; make them differ, or write all answers of the file as numbers, read with --set"
            " data.answers_from=0 (or 1)",
            one.choice.path,
            one.choice.line,
        )
    answer = spelled[0] if spelled else LETTERS.find(label.casefold()) if len(label) == 1 else -1
    if not 0 <= answer < len(options):
        raise DataError(
            "the answer must be a number (all of a file), a letter up to"
            f" {LETTERS[: len(options)][-1].upper()} or one of the options, but is {printable(label)[:40]!r}",
            one.choice.path,
            one.choice.line,
        )
    return answer


def _by_premise(records: list[Record], answers: bool) -> Iterator[ChoiceQuestion]:
    """Rows with equal first text are one choice, in the order of the first of them."""
    groups: dict[str, list[Record]] = {}
    for record in records:
        groups.setdefault(record.fields["text"], []).append(record)
    for text, rows in groups.items():
        first = rows[0]
        if len(rows) < 2:
            raise DataError(
                "a choice needs at least two rows with the same first text, but this one stands alone",
                first.path,
                first.line,
            )
        right = [
            at for at in range(len(rows)) if answers and rows[at].fields["label"].strip().casefold() in RIGHT
        ]
        if answers and len(right) != 1:
            raise DataError(
                f"one of the {len(rows)} rows with this first text must be labelled as right (one of"
                f" {', '.join(sorted(RIGHT))}), but {len(right)} are (lines"
                f" {', '.join(str(row.line) for row in rows[:8])})",
                first.path,
                first.line,
            )
        yield ChoiceQuestion(
            text,
            tuple(row.fields["second"] for row in rows),
            right[0] if right else None,
            first.path,
            first.line,
        )
