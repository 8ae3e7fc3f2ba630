"""The answers of a model beside the rows that they answer, in one table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain, tee
from pathlib import Path
from typing import NamedTuple

from seqloom.data.encoding.encode_texts import TOO_LONG
from seqloom.data.formats.read_report import ReadReport
from seqloom.data.readers.input_rows import FORMS, InputRow, read_input_rows
from seqloom.data.readers.records import read_texts, refuse_pipe
from seqloom.errors import UsageError
from seqloom.json_values import as_whole_number
from seqloom.long_work import log_progress
from seqloom.protocols import Answer, InputTable, LoadedModel, Request
from seqloom.runs.output_files import new_file
from seqloom.runs.table_files import TABLES, new_table, require_writer

SKIPPED = "skipped"
"""The column that says why a row has no answer."""
NO_TEXT = "there is no text"


class WrittenAnswers(NamedTuple):
    """How many rows a table of answers has."""

    rows: int
    skipped: int


def new_answer_file(output: str) -> Path:
    """The place of a table of answers, to be asked for before a model is opened. Raises UsageError if
    there is one already, or its form cannot be written."""
    place = new_file(output, TABLES)
    require_writer(place)
    return place


def write_answers(
    model: LoadedModel, paths: Sequence[str], request: Request, place: Path
) -> WrittenAnswers:
    """Writes each row of a file with its columns and the answer to it; a row that is skipped has the reason
    in place of an answer. Raises UsageError for standard input, which can be read only once."""
    for path in paths or ("-",):
        if path == "-":
            raise UsageError(
                "--output writes the columns of a file beside its answers, so the inputs must be a file, but"
                " are standard input; save it first"
            )
    left_out: dict[int, str] = {}
    request = replace(request, left_out=left_out)
    table = model.input_table(paths, request)
    answers = iter(model.answers(paths, request))
    if table is None or table.form not in FORMS:
        return _write(place, [], ((_NO_ROW, answer) for answer in answers), left_out)
    refuse_pipe(table.path)
    numbered = _with_lines(table, answers, left_out)
    first = next(numbered, None)
    if first is not None:
        numbered = chain([first], numbered)

    def inputs() -> Iterator[InputRow]:
        assert table is not None
        line = 0 if first is None else first[0]
        return read_input_rows(table.path, table.form, table.data, line)

    columns = dict.fromkeys(name for row in inputs() for name in row.values)
    return _write(place, list(columns), _joined(inputs(), numbered), left_out)


def _with_lines(
    table: InputTable, answers: Iterator[Answer], left_out: dict[int, str]
) -> Iterator[tuple[int, Answer]]:
    """The answers with the lines of their inputs: their own, or those of the texts that are each answered."""
    texts = read_texts(table.path, table.data, ReadReport(), every_line=True)
    for answer in answers:
        line, reason = as_whole_number(answer.content.get("line")), NO_TEXT
        if line is None:
            text = next(texts)
            line = text.line
            reason = TOO_LONG if text.fields["text"].strip() else NO_TEXT
        if not any(value or value == 0 for value in answer.row().values()):
            left_out.setdefault(line, reason)
        yield line, answer


def _joined(
    inputs: Iterator[InputRow], numbered: Iterator[tuple[int, Answer]]
) -> Iterator[tuple[InputRow, Answer | None]]:
    """Each row with its answer, if it has one. Both are in the order of their lines."""
    for line, answer in numbered:
        for row in inputs:
            if row.line == line:
                yield row, answer
                break
            yield row, None
    for row in inputs:
        yield row, None


_NO_ROW = InputRow(0, {})
"""Of a file whose parts are no rows, such as sentences with a word a line."""


def _write(
    place: Path,
    columns: Sequence[str],
    joined: Iterator[tuple[InputRow, Answer | None]],
    left_out: dict[int, str],
) -> WrittenAnswers:
    """The first answer shows the columns of answers; one whose name the rows have is predicted_NAME."""
    joined, first_rows = tee(joined)
    first = next((answer for _, answer in first_rows if answer is not None), None)
    del first_rows
    names: dict[str, str] = {}
    for name in () if first is None else first.row():
        names[name] = f"predicted_{name}" if name in columns else name
    count = skipped = 0
    with new_table(place, [*columns, *names.values(), SKIPPED]) as write:
        for row, answer in log_progress(joined, "rows answered"):
            cells = {} if answer is None else dict(answer.row())
            reason = row.reason or left_out.pop(row.line, "")
            count, skipped = count + 1, skipped + bool(reason)
            found = {names.get(name, name): value for name, value in cells.items()}
            write({**row.values, **found, SKIPPED: reason or None})
    return WrittenAnswers(count, skipped)
