"""Users' files to texts and what may follow them: a row for each text with its options in columns, or a row
for each option."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain, compress, takewhile
from typing import Literal, NamedTuple

from seqloom.config import DataConfig
from seqloom.data.formats.columns import Header, Record, Row, TableSchema, folded
from seqloom.data.formats.data_file import DataFile
from seqloom.data.formats.forms import read_rows
from seqloom.data.formats.jsonl import json_value
from seqloom.data.formats.lines import read_lines
from seqloom.data.formats.read_report import ReadReport
from seqloom.data.readers.examples import ChoiceQuestion
from seqloom.data.readers.label_columns import KNOWN, labelled_record, note_guesses, text_columns
from seqloom.data.readers.labelled import form_of
from seqloom.errors import DataError, UsageError, place, printable, quoted
from seqloom.json_values import as_list, as_object, as_text, field_of

TEXTS = (
    "text", "goal", "premise", "context", "ctx", "question", "question_stem", "stem", "sentence",
    "startphrase", "prompt", "query",
)  # fmt: skip
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
WRONG = "choice that is not as it must be"
Base = Literal[0, 1]
"""What numbers of options count from."""


class _WrittenChoice(NamedTuple):
    """A choice, and its answer as it is written."""

    choice: ChoiceQuestion
    label: str | None
    """None if nothing is left to interpret."""
    file: DataFile

    def error(self, message: str) -> DataError:
        return self.file.error(message, self.choice.line)


_Table = list[_WrittenChoice]


def read_choices(
    paths: Sequence[str], options: DataConfig, report: ReadReport, *, answers: bool = True
) -> Iterator[ChoiceQuestion]:
    """The choices of tables, one after the other, or of one table and a file with the answer of each row in a
    line.

    Each option has a column (`data.options`), or one column holds a list of all. Where there are no such
    columns but two texts, rows with equal first text are one choice, whose right option is labelled
    entailment (1, true, yes). An answer is a number, a letter or the option itself. Numbers count from
    `data.answers_from`, else from 0 or from 1 as all files together show; where both could be, from 0; which
    it is is noted. `answers=False`: answers are not read and need not exist.

    Raises DataError for data that is wrong and UsageError for paths and options that do not go together; both
    when asked for the first choice.
    """
    nothing = "there are no usable choices in it (rows read: {rows}, all blank or skipped)"
    choices = _choices(_tables(paths, options, report, answers), options, report, answers)
    return report.counted(choices, paths, nothing, required=answers)


def counted_from(paths: Sequence[str], options: DataConfig) -> Base | None:
    """What the answers of these files count from; None if they are no numbers. Raises what `read_choices`
    raises."""
    if options.answers_from is not None:
        return options.answers_from
    bases = _bases(list(_tables(paths, options, ReadReport(), answers=True)), options, ReadReport())
    return next((base for base in bases if base is not None), None)


def _tables(
    paths: Sequence[str], options: DataConfig, report: ReadReport, answers: bool
) -> Iterator[_Table]:
    if len(paths) == 2 and paths[1].removesuffix(".gz").endswith(LABEL_ENDINGS):
        yield _table(DataFile(paths[0], options, report), paths[1], answers)
        return
    for path in paths:
        yield _table(DataFile(path, options, report), None, answers)


def _table(file: DataFile, labels: str | None, answers: bool) -> _Table:
    schema = _choice_schema(labelled=answers and labels is None)
    table: _Table = []
    apart: list[Record] = []
    for row in read_rows(file, form_of(file.path, file.options), schema):
        if "second" in row.values:
            apart += schema.records(row)
        else:
            table += filter(None, file.usable(partial(_written, row, schema), WRONG, row.line))
    if not apart:
        return _with_labels(table, labels, file) if labels is not None and answers else table
    if labels is not None:
        raise UsageError(
            "a file of answers goes with a table that has a row for each choice, but this one has a row for"
            " each option"
        )
    groups: dict[str, list[Record]] = {}
    for record in apart:
        groups.setdefault(record.fields["text"], []).append(record)
    for rows in groups.values():
        table += file.usable(partial(_of_rows, rows, file, answers), WRONG, rows[0].line)
    return table


def _choice_schema(*, labelled: bool) -> TableSchema:
    def choose(header: Header) -> dict[str, str]:
        options = _option_columns(header)
        rest = header.without(options)
        if options:
            chosen = text_columns(rest, pairs=False, any_pair=False, known=TEXTS)
            chosen |= {f"option {number}": name for number, name in enumerate(options, start=1)}
        else:
            try:
                chosen = text_columns(header, pairs=True, any_pair=False)
            except DataError:
                raise header.error(
                    f"the columns of the options are not known by name (found: {quoted(header.names)}); say"
                    " which with --set 'data.options=[NAME, NAME]'"
                ) from None
        if labelled:
            chosen["label"] = rest.find("label", "answer", ANSWERS)
        note_guesses(chosen, header.file)
        return chosen

    return TableSchema(
        choose=choose,
        record=labelled_record,
        settings=("text", "second", "options", *(("label",) if labelled else ())),
        known=KNOWN.union(TEXTS, LISTS),
        headerless=(),
        loose=("label", *(f"option {number}" for number in range(1, len(LETTERS) + 1))),
        inside="question",
    )


def _option_columns(header: Header) -> list[str]:
    """Columns of options, by setting or by guess: all whose names differ only in a number or letter at the
    end; none where there are no such."""
    named = list(header.file.options.options)
    for name in named:
        header.require("options", name)
    columns = named or _guessed_options(header)
    if len(columns) > len(LETTERS):
        raise header.error(
            f"a choice must have at most {len(LETTERS)} columns of options, but has {len(columns)}"
            f" ({columns[0]!r} to {columns[-1]!r}); say which with --set 'data.options=[NAME, NAME]', or put"
            " them into one as a list"
        )
    if columns and not named:
        header.file.note(
            f"{', '.join(map(printable, columns))} are taken as options; to take others: --set"
            " 'data.options=[NAME, NAME]'"
        )
    return columns


def _guessed_options(header: Header) -> list[str]:
    columns = {folded(name): name for name in header.names}
    series: dict[tuple[str, bool], list[tuple[str, str]]] = {}
    for name in columns:
        if match := OPTION.fullmatch(name):
            series.setdefault((match[1], match[2].isdecimal()), []).append(
                (match[2].zfill(2), name)
            )
    candidates = [list(takewhile(columns.__contains__, LETTERS))]
    for rows in series.values():
        candidates.append([name for _, name in sorted(rows)])
    guess = max(candidates, key=len)
    if len(guess) < 2:
        guess = [name for name in LISTS if name in columns][:1]
    return [columns[name] for name in guess]


def _written(row: Row, schema: TableSchema) -> _WrittenChoice | None:
    """The choice of a row; None if the row is left out. Raises DataError if there are fewer than two
    options, or a blank one before others."""
    options, keys = _options(row)
    rest = {role: value for role, value in row.values.items() if role in ("text", "label")}
    texts = row.file.clean(options, row.line)
    for record in schema.records(row._replace(values=rest)):
        label = record.fields.get("label", "")
        if texts is None or row.file.has_no_label(label, row.line):
            return None
        if len(texts) < 2 or not all(map(str.strip, texts)):
            what = f"has {len(texts)}" if len(texts) < 2 else "one of them is blank"
            raise row.file.error(
                f"a choice needs at least two options, none of them blank, but {what}", row.line
            )
        text = record.fields["text"]
        choice = ChoiceQuestion(text, tuple(texts), None, record.path, row.line)
        if label.strip() in keys:
            choice = choice._replace(answer=keys.index(label.strip()))
            return _WrittenChoice(choice, None, row.file)
        return _WrittenChoice(choice, label, row.file)
    return None


def _options(row: Row) -> tuple[list[str], list[str]]:
    """The texts of the options, and their keys where they have some. One column holds a list of texts, of
    objects `{text, label}`, an object of two lists as ARC has it, or one of a text for each key as MedQA has
    it; in a cell of a table it is JSON."""
    roles = [role for role in row.values if role.startswith("option ")]
    keys: list[object] = []
    if len(roles) == 1:
        value = row.values[roles[0]]
        if (text := as_text(value)) is not None:
            value = json_value(text, row.file, row.line) if text.strip() else []
        items = as_list(value)
        by_key = as_object(value) or {}
        if by_key and not by_key.keys() & {"text", "label"}:
            keys, texts = [*by_key], [*by_key.values()]
        elif items is None:
            texts = as_list(field_of(value, "text")) or []
            keys = as_list(field_of(value, "label")) or [None] * (
                "label" in (as_object(value) or ())
            )
        elif all(map(as_object, items)):
            texts = [field_of(item, "text") for item in items]
            keys = [field_of(item, "label") for item in items]
        else:
            texts = items
        columns = dict.fromkeys(map(str, range(len(texts))), row.columns[roles[0]])
        row = row._replace(values=dict(zip(columns, texts, strict=True)), columns=columns)
        roles = list(columns)
    options = [row.text(role, loose=True) for role in roles]
    names = [str(key).strip() for key in keys if key is not None]
    if len(names) < len(keys) or len(keys) not in (0, len(options)) or len({*names}) < len(names):
        raise row.file.error("each option must have a label of its own", row.line)
    # Some rows have fewer.
    while options and not options[-1].strip():
        options.pop()
    return options, names[: len(options)]


def _with_labels(table: _Table, labels: str, file: DataFile) -> _Table:
    options = DataConfig(encoding=file.options.encoding)
    lines = list(read_lines(labels, ReadReport(), options))
    if len(lines) != len(table):
        raise DataError(
            f"must have an answer for each of the {len(table)} choices, but has {len(lines)} lines",
            labels,
            len(lines),
        )
    known = zip(table, lines, strict=True)
    return [
        row._replace(label=text)
        for row, (number, text) in known
        if not file.has_no_label(text, number)
    ]


def _choices(
    tables: Iterator[_Table], options: DataConfig, report: ReadReport, answers: bool
) -> Iterator[ChoiceQuestion]:
    """The choices with the answers of all tables interpreted together."""
    if not answers:
        yield from (written.choice for table in tables for written in table)
        return
    known = list(tables)
    # All before the first, so that an error comes before any choice.
    choices: list[ChoiceQuestion] = []
    for table, base in zip(known, _bases(known, options, report), strict=True):
        for row in table:
            choices += row.file.usable(partial(_answered, row, base), WRONG, row.choice.line or 0)
    yield from choices


def _answered(written: _WrittenChoice, base: Base | None) -> ChoiceQuestion:
    if written.label is None:
        return written.choice
    if not written.label.strip():
        raise written.error(
            "the answer is empty; leave such rows out with --set data.on_bad_line=skip"
        )
    answer = _by_word(written) if base is None else _by_number(written, base)
    return written.choice._replace(answer=answer)


def _bases(tables: Sequence[_Table], options: DataConfig, report: ReadReport) -> list[Base | None]:
    """What the answers of each table count from; None if they are no numbers of options, or where all that
    are numbers are options themselves and `data.answers_from` says nothing."""
    unknown = []
    for table in tables:
        unknown.append([row for row in table if (row.label or "").strip()])
    numbered = [bool(table) and all(map(_is_number, table)) for table in unknown]
    written = list(chain.from_iterable(compress(unknown, numbered)))
    base = options.answers_from
    if base is None and not all(map(_matching, written)):
        base = _guessed_base(written, report)
    return [base if is_numbered else None for is_numbered in numbered]


def _is_number(written: _WrittenChoice) -> bool:
    return written.label is not None and written.label.strip().isdecimal()


def _guessed_base(written: _Table, report: ReadReport) -> Base:
    numbers = [int(choice.label or 0) for choice in written]
    zero = 0 in numbers
    past = any(
        number == len(choice.choice.options)
        for choice, number in zip(written, numbers, strict=True)
    )
    base: Base = 0 if zero or not past else 1
    sure = "" if zero or past else " (from 1 would fit too; if so: --set data.answers_from=1)"
    path = place(written[0].choice.path)
    report.note(f"{path}: answers are taken as numbers that count from {base}{sure}")
    return base


def _by_number(written: _WrittenChoice, base: int) -> int:
    number, count = int(written.label or 0), len(written.choice.options)
    if not 0 <= number - base < count:
        raise written.error(
            f"the answer must be a number from {base} to {base + count - 1}, for there are {count} options"
            f" and answers count from {base}, but is {number}; if they count from {1 - base}: --set"
            f" data.answers_from={1 - base}"
        )
    return number - base


def _matching(written: _WrittenChoice) -> list[int]:
    """The options that are written like the label."""
    label, options = written.label or "", written.choice.options
    exact = [index for index, option in enumerate(options) if option == label]
    return exact or [
        index for index, option in enumerate(options) if option.strip() == label.strip()
    ]


def _places(label: str) -> list[int]:
    """The options that a label may mean as a letter, or as a number from 0 or 1."""
    if label.isdecimal() and len(label) < 4:
        return [int(label), int(label) - 1]
    place = LETTERS.find(label.casefold()) if len(label) == 1 else -1
    return [place] if place >= 0 else []


def _by_word(written: _WrittenChoice) -> int:
    label, options, matching = (
        (written.label or "").strip(),
        written.choice.options,
        _matching(written),
    )
    if len(matching) > 1:
        raise written.error(
            f"the answer must tell one option, but {printable(label)[:40]!r} is spelled by {len(matching)}"
            " options; make them differ, or write all answers of the file as numbers, read with --set"
            " data.answers_from=0 (or 1)"
        )
    places = _places(label)
    answer = places[0] if places and not label.isdecimal() else -1
    if matching:
        answer = matching[0]
        if answer not in places and any(place in range(len(options)) for place in places):
            written.file.find(
                "an answer that is the text of one option and the letter or number of another, taken as the"
                " text (numbers throughout: --set data.answers_from=0)",
                written.choice.line or 0,
            )
    if not 0 <= answer < len(options):
        last = LETTERS[: len(options)][-1].upper()
        raise written.error(
            f"the answer must be a number (all of a file), a letter up to {last} or one of the options, but"
            f" is {printable(label)[:40]!r}"
        )
    return answer


def _of_rows(rows: Sequence[Record], file: DataFile, answers: bool) -> _WrittenChoice:
    """The choice of the rows with one first text."""
    line = rows[0].line
    if len(rows) < 2:
        raise file.error(
            "a choice needs at least two rows with the same first text, but this one stands alone",
            line,
        )
    right: list[int] = []
    if answers:
        right = [index for index, row in enumerate(rows) if folded(row.fields["label"]) in RIGHT]
        if len(right) != 1:
            lines = ", ".join(str(row.line) for row in rows[:8])
            raise file.error(
                f"one of the {len(rows)} rows with this first text must be labelled as right (one of"
                f" {', '.join(sorted(RIGHT))}), but {len(right)} are (lines {lines})",
                line,
            )
    options = tuple(row.fields["second"] for row in rows)
    answer = next(iter(right), None)
    choice = ChoiceQuestion(rows[0].fields["text"], options, answer, file.path, line)
    return _WrittenChoice(choice, None, file)
