"""Questions about a context, answered by a part of it: SQuAD's JSON (Rajpurkar et al. 2016, 2018), or a
question a row.

    {"data": [{"title", "paragraphs": [{"context", "qas": [{"id", "question", "answers": [{"text", "answer_start"}], "is_impossible"}]}]}]}
    {"id", "title", "question", "context", "answers": {"text": [...], "answer_start": [...]}}                  a line of .jsonl, or a row

Offsets count code points from 0. An answer must stand where it is said to stand.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, final

from seqloom.config import DataConfig
from seqloom.data.formats.columns import Record, Wanted, lines_of, listed, require, writable
from seqloom.data.formats.json_documents import read_document
from seqloom.data.formats.jsonl import json_object, kind_of
from seqloom.data.formats.read_report import ReadReport
from seqloom.data.formats.tables import read_table
from seqloom.data.readers.examples import GoldAnswer, Question
from seqloom.data.readers.label_columns import unknown_columns
from seqloom.data.readers.records import FORMS
from seqloom.errors import DataError, UsageError, place, printable

QUESTIONS, CONTEXTS = ("question", "query"), ("context", "passage", "paragraph", "document", "text")
_ABOUT, _ANSWERS = ("id", "title"), ("answers", "answer", "answer_start", "is_impossible")
"""Names of columns that are known without being told."""
_KNOWN = frozenset((*QUESTIONS, *CONTEXTS, *_ABOUT, *_ANSWERS))
_STANDARD = {"text": "question", "second": "context"}
"""The settings that tell columns, and the names that are no guess."""
_IMPOSSIBLE = {"": None, "true": True, "1": True, "false": False, "0": False}
"""What `is_impossible` may be, as a text too; None where nothing is said."""


def read_questions(
    paths: Sequence[str], options: DataConfig, report: ReadReport, *, answers: bool = True
) -> Iterator[Question]:
    """The questions of all files, one after the other; with `answers` false none need be there, and those
    that are are not looked at.

    Raises DataError with the question's id where a question or its context is blank, or an answer does not
    stand where it should; with `data.on_bad_line=skip` such questions are counted and left out. Raises
    DataError where a file has no question.
    """
    for path in paths:
        form = options.format if options.format != "auto" else _form(path)
        if form not in _RAW:
            raise UsageError(
                f"{place(path)}: questions must be in one of the forms {', '.join(_RAW)}, but the form is"
                f" {form}"
            )
        before = report.used
        try:
            for raw in _RAW[form](path, options, report, answers):
                if (question := _question(raw, path, options, report, answers)) is not None:
                    report.used += 1
                    yield question
        except DataError as error:
            report.rejected += error.line is not None
            raise
        if report.used == before:
            raise DataError("there is no question in it that can be used", path)


def _form(path: str) -> str:
    name = path.removesuffix(".gz").lower()
    return next((form for suffix, form in FORMS.items() if name.endswith(suffix)), "json")


@final
class _Raw(NamedTuple):
    """A question as it was found."""

    name: str
    question: Any
    context: Any
    answers: Any
    """A list of {text, answer_start}; None where there is none."""
    impossible: Any
    group: str
    line: int | None
    """None in JSON."""
    number: int
    """Of the question in its file, from 1."""


def _nested(path: str, options: DataConfig, report: ReadReport, answers: bool) -> Iterator[_Raw]:
    content = read_document(path, _whole(options), report)
    articles = _list(content, "data", "the file", path)
    number = 0
    for at, article in enumerate(articles, 1):
        for nth, paragraph in enumerate(_list(article, "paragraphs", f"article {at}", path), 1):
            for one in _list(paragraph, "qas", f"article {at}, paragraph {nth}", path):
                number += 1
                if not isinstance(one, dict):
                    raise DataError(f"question {number} must be an object, but is {kind_of(one)}", path)
                title = article.get("title")
                yield _Raw(
                    name=str(one.get("id", number)),
                    question=one.get("question"),
                    context=paragraph.get("context"),
                    answers=one.get("answers"),
                    impossible=one.get("is_impossible"),
                    group=title if isinstance(title, str) and title.strip() else f"{path}#{at}",
                    line=None,
                    number=number,
                )


def _whole(options: DataConfig) -> DataConfig:
    """Of one file that is one value no line can be left out."""
    return replace(options, on_bad_line="error") if options.on_bad_line == "skip" else options


def _list(content: Any, key: str, where: str, path: str) -> list[Any]:
    found = content.get(key) if isinstance(content, dict) else None
    if not isinstance(found, list):
        raise DataError(
            f"{where} must be an object with a list {key!r}, as SQuAD's JSON has it; a question a line is"
            " named .jsonl",
            path,
        )
    return found


def _json_lines(path: str, options: DataConfig, report: ReadReport, answers: bool) -> Iterator[_Raw]:
    columns: dict[str, str] | None = None
    for line in lines_of(path, options, report):
        if line.problem is not None or not line.text.strip():
            report.skip(line.problem or "blank", path, line.number)
            continue
        content = json_object(line.text, path, line.number)
        names = list(content)
        if columns is None:
            columns = _told_or_guessed(names, options, report, path, line.number)
        for name in columns.values():
            if name not in content:
                raise DataError(
                    f"there is no {name!r} in this object (found: {listed(names)})", path, line.number
                )
        chosen = {**_by_name(names, answers, path, line.number), **columns}
        yield _flat({role: content[name] for role, name in chosen.items()}, path, line.number)


def _table(path: str, options: DataConfig, report: ReadReport, answers: bool, form: str) -> Iterator[_Raw]:
    def choose(
        names: list[str], options: DataConfig, report: ReadReport, path: str, line: int | None
    ) -> dict[str, str]:
        if answers and names == [str(at) for at in range(1, len(names) + 1)]:
            raise DataError(_NAMELESS, path, line)
        return {
            **_by_name(names, answers, path, line),
            **_told_or_guessed(names, options, report, path, line),
        }

    wanted = Wanted(choose, _row, tuple(_STANDARD), known=_KNOWN, alone=())
    for record in read_table(path, form, _headed(options, path, answers), report, wanted):
        content: dict[str, Any] = dict(record.fields)
        if "answers" in content:
            content["answers"] = (
                json_object(content["answers"], path, record.line) if content["answers"].strip() else None
            )
        yield _flat(content, path, record.line)


def _headed(options: DataConfig, path: str, answers: bool) -> DataConfig:
    """The settings of a table: its first row is the header unless it is said that there is none, or columns
    are told by number."""
    asked = options.text, options.second
    if options.header is False and answers:
        raise DataError(_NAMELESS, path, 1)
    if options.header is False and None in asked:
        without = "data.text" if options.text is None else "data.second"
        raise UsageError(
            f"{place(path)}: in a table without a header the question and the context must be told by number,"
            f" but {without} is not given; give both, such as --set data.text=1 --set data.second=2"
        )
    numbered = all(name is not None and name.isdecimal() for name in asked)
    return replace(options, header=True) if options.header == "auto" and not numbered else options


_NAMELESS = (
    "answers stand in columns that are known by name (answers, or answer and answer_start), so there must be"
    " a header, but there is none; put one above the first row and leave out data.header=false"
)


def _row(fields: dict[str, str], path: str, line: int, report: ReadReport) -> Iterator[Record]:
    if any(cell.strip() for cell in fields.values()):
        yield Record(fields, path, line)
    else:
        report.skip("blank", path, line)


def _csv(path: str, options: DataConfig, report: ReadReport, answers: bool) -> Iterator[_Raw]:
    return _table(path, options, report, answers, "csv")


def _tsv(path: str, options: DataConfig, report: ReadReport, answers: bool) -> Iterator[_Raw]:
    return _table(path, options, report, answers, "tsv")


def _told_or_guessed(
    names: list[str], options: DataConfig, report: ReadReport, path: str, line: int | None
) -> dict[str, str]:
    """The columns of the question (`text`) and the context (`second`). Raises DataError where they are not
    known."""
    asked = {"text": options.text, "second": options.second}
    for role, name in asked.items():
        require(role, name, names, path, line, "column")
    chosen = {role: name for role, name in asked.items() if name is not None}
    unasked = [role for role in asked if role not in chosen]
    for role in unasked:
        free = [name for name in names if name not in chosen.values()]
        guesses = (_column(known, free, path, line) for known in (QUESTIONS if role == "text" else CONTEXTS))
        if (guess := next(filter(None, guesses), None)) is not None:
            chosen[role] = guess
    if missing := [role for role in asked if role not in chosen]:
        raise unknown_columns(
            " and the ".join(_STANDARD[role] for role in missing), missing, names, path, line
        )
    if any(chosen[role] != _STANDARD[role] for role in unasked):
        said = ", ".join(f"{printable(chosen[role])!r} is taken as {_STANDARD[role]}" for role in unasked)
        report.note(
            f"{place(path)}: {said}; to take others:"
            f" {' '.join(f'--set data.{role}=NAME' for role in unasked)}"
        )
    return chosen


def _by_name(names: list[str], answers: bool, path: str, line: int | None) -> dict[str, str]:
    """The columns that only their names tell, as far as they are there."""
    found = {name: _column(name, names, path, line) for name in (*_ABOUT, *(_ANSWERS if answers else ()))}
    return {name: column for name, column in found.items() if column is not None}


def _column(known: str, names: list[str], path: str, line: int | None) -> str | None:
    """The column of just this name, else the one of this name in other case. Raises DataError where there are
    two of those."""
    if known in names:
        return known
    same = [name for name in names if name.strip().casefold() == known]
    if len(same) > 1:
        raise DataError(
            f"each column must have a name of its own, but {same[0]!r} and {same[1]!r} are one where case is"
            " ignored; rename one",
            path,
            line,
        )
    return same[0] if same else None


def _flat(content: Mapping[str, Any], path: str, line: int) -> _Raw:
    """What stands in the columns of a row, by their roles."""
    answers = content.get("answers")
    if isinstance(answers, dict):
        answers = _listed_answers(answers, path, line)
    elif answers in (None, "") and content.get("answer") not in (None, ""):
        answers = [{"text": content["answer"], "answer_start": _number(content.get("answer_start"))}]
    title = content.get("title")
    return _Raw(
        name=str(content.get("id", line)),
        question=content["text"],
        context=content["second"],
        answers=answers or None,
        impossible=content.get("is_impossible"),
        group=title if isinstance(title, str) and title.strip() else str(content["second"]),
        line=line,
        number=line,
    )


def _listed_answers(answers: Mapping[str, Any], path: str, line: int) -> list[dict[str, Any]]:
    texts, starts = answers.get("text"), answers.get("answer_start")
    if not isinstance(texts, list) or not isinstance(starts, list) or len(texts) != len(starts):
        raise DataError("answers must have the lists `text` and `answer_start`, of one length", path, line)
    return [{"text": text, "answer_start": start} for text, start in zip(texts, starts, strict=True)]


def _number(value: Any) -> Any:
    return int(value) if isinstance(value, str) and value.isascii() and value.strip().isdigit() else value


_RAW = {"json": _nested, "jsonl": _json_lines, "csv": _csv, "tsv": _tsv}


def _question(
    raw: _Raw, path: str, options: DataConfig, report: ReadReport, answers: bool
) -> Question | None:
    """None where it is left out."""
    try:
        return _checked(raw, path, options, report, answers)
    except DataError as error:
        if options.on_bad_line != "skip":
            raise
        report.skip("question or answer that is not as it must be", path, error.line or raw.number)
        return None


def _checked(raw: _Raw, path: str, options: DataConfig, report: ReadReport, answers: bool) -> Question | None:
    where = f"question {printable(json.dumps(raw.name, ensure_ascii=False))}"
    for what, value in (("question", raw.question), ("context", raw.context)):
        if not isinstance(value, str) or not value.strip():
            shown = "is blank" if isinstance(value, str) else f"is {kind_of(value)}"
            raise DataError(f"{where}: the {what} must be a text, but {shown}", path, raw.line)
    texts = writable([raw.question, raw.context], options, report, path, raw.number)
    if texts is None:
        return None
    given: list[Any] = raw.answers if answers and isinstance(raw.answers, list) else []
    if answers:
        if not isinstance(raw.answers, list | None):
            raise DataError(
                f"{where}: its answers must be a list, but are {kind_of(raw.answers)}", path, raw.line
            )
        impossible = "" if raw.impossible is None else str(raw.impossible).strip().casefold()
        if impossible not in _IMPOSSIBLE:
            shown = printable(str(raw.impossible)[:40])
            raise DataError(
                f"{where}: is_impossible must be true, false, 1, 0 or empty, but is {shown!r}", path, raw.line
            )
        if _IMPOSSIBLE[impossible] is True and given:
            raise DataError(f"{where}: is_impossible is true, but there is an answer", path, raw.line)
        if _IMPOSSIBLE[impossible] is False and not given:
            raise DataError(f"{where}: there is no answer, but is_impossible is false", path, raw.line)
    found = tuple(_answer(one, raw.context, where, path, raw.line) for one in given)
    return Question(raw.name, texts[0], texts[1], found, raw.group, path, raw.line)


def _answer(answer: Any, context: str, where: str, path: str, line: int | None) -> GoldAnswer:
    text, start = (
        (answer.get("text"), answer.get("answer_start")) if isinstance(answer, dict) else (None, None)
    )
    if not isinstance(text, str) or not text.strip() or type(start) is not int:
        raise DataError(
            f"{where}: an answer must have a `text`, not blank, and a whole number `answer_start`", path, line
        )
    if start >= 0 and context.startswith(text, start):
        return GoldAnswer(start, text)
    shown, end = printable(text[:40]), start + len(text)
    if start < 0 or end > len(context):
        at = f"it would stand at {start} to {end}, but the context has the code points 0 to {len(context)}"
    else:
        at = f"at code point {start} stands {printable(context[start : start + min(len(text), 40)])!r}"
    raise DataError(
        f"{where}: the answer {shown!r} does not stand where it should: {at}{_hint(text, start, context)}",
        path,
        line,
    )


def _hint(text: str, start: int, context: str) -> str:
    """What the offset may count, or where the answer stands."""
    for unit, codec, size in (("bytes", "utf-8", 1), ("UTF-16 units", "utf-16-le", 2)):
        if start >= 0 and context.encode(codec, "replace")[start * size :].startswith(
            text.encode(codec, "replace")
        ):
            return f"; the offset counts {unit}, but must count code points"
    elsewhere = context.find(text)
    return f"; it stands at {elsewhere}" if elsewhere >= 0 else "; it stands nowhere in the context"
