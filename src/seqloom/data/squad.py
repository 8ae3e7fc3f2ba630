"""Questions about a context, answered by a part of it: SQuAD's JSON (Rajpurkar et al. 2016, 2018), or a question a row.

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
from seqloom.data.columns import lines_of, listed, writable
from seqloom.data.examples import Answer, Question
from seqloom.data.json_documents import read_document
from seqloom.data.jsonl import json_object, kind_of
from seqloom.data.lines import Tally
from seqloom.data.records import FORMS
from seqloom.data.tables import read_rows
from seqloom.errors import DataError, UsageError, place, printable

QUESTIONS, CONTEXTS = ("question", "query"), ("context", "passage", "paragraph", "document", "text")
"""Names of columns that are known without being told."""


def read_questions(paths: Sequence[str], options: DataConfig, tally: Tally, *, answers: bool = True) -> Iterator[Question]:
    """The questions of all files, one after the other; with `answers` false none need be there, and those that are are not looked at.

    Raises DataError with the question's id where a question or its context is blank, or an answer does not stand where it should; with
    `data.on_bad_line=skip` such questions are counted and left out. Raises DataError where a file has no question.
    """
    for path in paths:
        form = options.format if options.format != "auto" else _form(path)
        if form not in _RAW:
            raise UsageError(f"{place(path)}: questions must be in one of the forms {', '.join(_RAW)}, but the form is {form}")
        before = tally.used
        try:
            for raw in _RAW[form](path, options, tally):
                if (question := _question(raw, path, options, tally, answers)) is not None:
                    tally.used += 1
                    yield question
        except DataError as error:
            tally.rejected += error.line is not None
            raise
        if tally.used == before:
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


def _nested(path: str, options: DataConfig, tally: Tally) -> Iterator[_Raw]:
    content = read_document(path, _whole(options), tally)
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
        raise DataError(f"{where} must be an object with a list {key!r}, as SQuAD's JSON has it; a question a line is named .jsonl", path)
    return found


def _json_lines(path: str, options: DataConfig, tally: Tally) -> Iterator[_Raw]:
    for line in lines_of(path, options, tally):
        if line.problem is not None or not line.text.strip():
            tally.skip(line.problem or "blank", path, line.number)
            continue
        yield _flat(json_object(line.text, path, line.number), path, line.number)


def _table(path: str, options: DataConfig, tally: Tally, form: str) -> Iterator[_Raw]:
    delimiter = (options.delimiter or ("," if form == "csv" else "\t")).replace("\\t", "\t")
    quoting = form == "csv" if options.quoting is None else options.quoting
    names: list[str] | None = None
    for row in read_rows(lines_of(path, options, tally), path, delimiter, quoting, options.max_line_bytes):
        if row.problem is not None or not any(cell.strip() for cell in row.cells):
            tally.skip(row.problem or "blank", path, row.line)
        elif names is None:
            names = row.cells
        elif len(row.cells) != len(names):
            if options.on_bad_line != "skip":
                raise DataError(f"the row must have {len(names)} cells like the first, but has {len(row.cells)}", path, row.line)
            tally.skip("wrong number of cells", path, row.line)
        else:
            content: dict[str, Any] = dict(zip(names, row.cells, strict=True))
            if content.get("answers", "").strip():
                content["answers"] = json_object(content["answers"], path, row.line)
            yield _flat(content, path, row.line)


def _csv(path: str, options: DataConfig, tally: Tally) -> Iterator[_Raw]:
    return _table(path, options, tally, "csv")


def _tsv(path: str, options: DataConfig, tally: Tally) -> Iterator[_Raw]:
    return _table(path, options, tally, "tsv")


def _flat(content: Mapping[str, Any], path: str, line: int) -> _Raw:
    known = {name.strip().casefold(): name for name in content}
    lower = {name: content[written] for name, written in known.items()}
    question = next((known[name] for name in QUESTIONS if name in known), None)
    context = next((known[name] for name in CONTEXTS if name in known), None)
    if question is None or context is None:
        raise DataError(f"there must be a question and a context (found: {listed(list(content))}); rename the columns", path, line)
    answers = lower.get("answers")
    if isinstance(answers, dict):
        answers = _listed_answers(answers, path, line)
    elif answers in (None, "") and lower.get("answer") not in (None, ""):
        answers = [{"text": lower["answer"], "answer_start": _number(lower.get("answer_start"))}]
    title = lower.get("title")
    return _Raw(
        name=str(lower.get("id", line)),
        question=content[question],
        context=content[context],
        answers=answers or None,
        impossible=lower.get("is_impossible"),
        group=title if isinstance(title, str) and title.strip() else str(content[context]),
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


def _question(raw: _Raw, path: str, options: DataConfig, tally: Tally, answers: bool) -> Question | None:
    """None where it is left out."""
    try:
        return _checked(raw, path, options, tally, answers)
    except DataError as error:
        if options.on_bad_line != "skip":
            raise
        tally.skip("question or answer that is not as it must be", path, error.line or raw.number)
        return None


def _checked(raw: _Raw, path: str, options: DataConfig, tally: Tally, answers: bool) -> Question | None:
    where = f"question {printable(json.dumps(raw.name, ensure_ascii=False))}"
    for what, value in (("question", raw.question), ("context", raw.context)):
        if not isinstance(value, str) or not value.strip():
            shown = "is blank" if isinstance(value, str) else f"is {kind_of(value)}"
            raise DataError(f"{where}: the {what} must be a text, but {shown}", path, raw.line)
    texts = writable([raw.question, raw.context], options, tally, path, raw.number)
    if texts is None:
        return None
    given: list[Any] = raw.answers if answers and isinstance(raw.answers, list) else []
    if answers:
        if not isinstance(raw.answers, list | None):
            raise DataError(f"{where}: its answers must be a list, but are {kind_of(raw.answers)}", path, raw.line)
        if raw.impossible is True and given:
            raise DataError(f"{where}: is_impossible is true, but there is an answer", path, raw.line)
        if raw.impossible is False and not given:
            raise DataError(f"{where}: there is no answer, but is_impossible is false", path, raw.line)
    found = tuple(_answer(one, raw.context, where, path, raw.line) for one in given)
    return Question(raw.name, texts[0], texts[1], found, raw.group, path, raw.line)


def _answer(answer: Any, context: str, where: str, path: str, line: int | None) -> Answer:
    text, start = (answer.get("text"), answer.get("answer_start")) if isinstance(answer, dict) else (None, None)
    if not isinstance(text, str) or not text.strip() or type(start) is not int:
        raise DataError(f"{where}: an answer must have a `text`, not blank, and a whole number `answer_start`", path, line)
    if start >= 0 and context.startswith(text, start):
        return Answer(start, text)
    shown, end = printable(text[:40]), start + len(text)
    if start < 0 or end > len(context):
        at = f"it would stand at {start} to {end}, but the context has the code points 0 to {len(context)}"
    else:
        at = f"at code point {start} stands {printable(context[start : start + min(len(text), 40)])!r}"
    raise DataError(f"{where}: the answer {shown!r} does not stand where it should: {at}{_hint(text, start, context)}", path, line)


def _hint(text: str, start: int, context: str) -> str:
    """What the offset may count, or where the answer stands."""
    for unit, codec, size in (("bytes", "utf-8", 1), ("UTF-16 units", "utf-16-le", 2)):
        if start >= 0 and context.encode(codec, "replace")[start * size :].startswith(text.encode(codec, "replace")):
            return f"; the offset counts {unit}, but must count code points"
    elsewhere = context.find(text)
    return f"; it stands at {elsewhere}" if elsewhere >= 0 else "; it stands nowhere in the context"
