"""Questions about a context, answered by a part of it: SQuAD's JSON (Rajpurkar et al. 2016, 2018), or a
question a row.

    {"data": [{"title", "paragraphs": [{"context", "qas": [
        {"id", "question", "answers": [{"text", "answer_start"}], "is_impossible"}]}]}]}
    {"id", "title", "question", "context", "answers": {"text": [...], "answer_start": [...]}}
                                                                                    a line of .jsonl, or a row

Offsets count code points from 0. An answer must be at its offset.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain
from typing import NamedTuple, final

from seqloom.config import DataConfig
from seqloom.data.formats.columns import (
    Header,
    Row,
    TableSchema,
    Wanted,
    choose_columns,
    folded,
    full_record,
)
from seqloom.data.formats.data_file import DataFile
from seqloom.data.formats.forms import form_or, read_rows
from seqloom.data.formats.json_documents import read_document, rows_of_document
from seqloom.data.formats.jsonl import json_value
from seqloom.data.formats.read_report import ReadReport
from seqloom.data.readers.examples import GoldAnswer, Question
from seqloom.errors import DataError, printable
from seqloom.json_values import (
    as_list,
    as_object,
    as_text,
    field_of,
    full_text,
    kind_of,
)

_QUESTIONS, _CONTEXTS = (
    ("question", "query"),
    ("context", "passage", "paragraph", "document", "text"),
)
_ABOUT, _ANSWERS = ("id", "title"), ("answers", "answer", "answer_start", "is_impossible")
"""Names of columns that are recognised."""
_IMPOSSIBLE = {"": None, "true": True, "1": True, "false": False, "0": False}
"""What `is_impossible` may be, as a text too; None if nothing is said."""


def read_questions(
    paths: Sequence[str], options: DataConfig, report: ReadReport, *, answers: bool = True
) -> Iterator[Question]:
    """The questions of all files, one after the other; with `answers` false none need exist, and those that
    do are not read.

    Raises DataError with the question's id where a question or its context is blank, or an answer is not at
    its offset; with `data.on_bad_line=skip` such questions are counted and left out. Raises DataError if a
    file has no question.
    """
    reason = "question or answer that is not as it must be"
    for path in paths:
        file = DataFile(path, options, report)
        questions = chain.from_iterable(
            file.usable(partial(raw.checked, answers), reason, raw.row.line)
            for raw in _raw_questions(file, answers)
        )
        nothing = "there is no question in it that can be used"
        yield from report.counted(filter(None, questions), [path], nothing)


def _raw_questions(file: DataFile, answers: bool) -> Iterator[_RawQuestion]:
    form = form_or("json", file.path, file.options)
    if form == "json":
        content = read_document(file)
        articles = as_list(field_of(content, "data"))
        if articles is not None and any(
            as_list(field_of(article, "paragraphs")) for article in articles
        ):
            yield from _of_articles(articles, file)
            return
        rows = rows_of_document(content, file, _schema(answers))
    else:
        rows = read_rows(file, form, _schema(answers))
    for row in rows:
        yield _RawQuestion(row, row.line)


def _of_articles(articles: list[object], file: DataFile) -> Iterator[_RawQuestion]:
    number = 0
    for i, article in enumerate(articles, 1):
        group = full_text(field_of(article, "title")) or f"{file.path}#{i}"
        for j, paragraph in enumerate(_list(article, "paragraphs", f"article {i}", file), 1):
            for question in _list(paragraph, "qas", f"article {i}, paragraph {j}", file):
                number += 1
                values = {
                    **(as_object(question) or {}),
                    "text": field_of(question, "question"),
                    "second": field_of(paragraph, "context"),
                    "title": group,
                }
                yield _RawQuestion(Row(values, {}, file, number), None)


def _list(content: object, key: str, where: str, file: DataFile) -> list[object]:
    found = as_list(field_of(content, key))
    if found is None:
        raise file.error(f"{where} must be an object with a list {key!r}, as SQuAD's JSON has it")
    return found


@final
class _RawQuestion(NamedTuple):
    """A question as it was read, whatever its values are."""

    row: Row
    line: int | None
    """None in the JSON of SQuAD."""

    @property
    def name(self) -> str:
        return str(self.row.values.get("id", self.row.line))

    def error(self, problem: str) -> DataError:
        name = printable(json.dumps(self.name, ensure_ascii=False))
        return self.row.file.error(f"question {name}: {problem}", self.line)

    def checked(self, answers: bool) -> Question | None:
        """None if it is left out."""
        file = self.row.file
        question, context = self._text("question", "text"), self._text("context", "second")
        texts = file.clean([question, context], self.row.line)
        if texts is None:
            return None
        given = self.given_answers() if answers else []
        gold = tuple(_answer(answer, context, self) for answer in given)
        group = full_text(self.row.values.get("title")) or context
        return Question(self.name, texts[0], texts[1], gold, group, file.path, self.line)

    def _text(self, what: str, role: str) -> str:
        value = self.row.values[role]
        if isinstance(value, tuple | list):
            value = self.row.text(role)
        text = full_text(value)
        if text is None:
            shown = "blank" if as_text(value) is not None else kind_of(value)
            raise self.error(f"the {what} must be a text, but is {shown}")
        return text

    def given_answers(self) -> list[object]:
        """Objects `{text, answer_start}`."""
        answers = as_list(self._listed()) or []
        written = self.row.values.get("is_impossible")
        impossible = "" if written is None else folded(str(written))
        if impossible not in _IMPOSSIBLE:
            raise self.error(
                "is_impossible must be true, false, 1, 0 or empty, but is"
                f" {printable(impossible[:40])!r}"
            )
        if _IMPOSSIBLE[impossible] is True and answers:
            raise self.error("is_impossible is true, but there is an answer")
        if _IMPOSSIBLE[impossible] is False and not answers:
            raise self.error("there is no answer, but is_impossible is false")
        return answers

    def _listed(self) -> object:
        """The answers as SQuAD has them; in a cell of a table they are JSON, or one stands in columns."""
        values = self.row.values
        answers, one, start = (values.get(name) for name in ("answers", "answer", "answer_start"))
        written = as_text(answers)
        if written is not None and self.line is not None:
            answers = json_value(written, self.row.file, self.line) if written.strip() else None
        lists = as_object(answers)
        if lists is not None:
            texts, starts = as_list(lists.get("text")), as_list(lists.get("answer_start"))
            if texts is None or starts is None or len(texts) != len(starts):
                raise self.error(
                    "answers must have the lists `text` and `answer_start`, of one length"
                )
            pairs = zip(texts, starts, strict=True)
            return [{"text": text, "answer_start": first} for text, first in pairs]
        if answers is None and one not in (None, ""):
            digits = as_text(start)
            if digits is not None and digits.isascii() and digits.strip().isdigit():
                start = int(digits)
            return [{"text": one, "answer_start": start}]
        if answers is not None and as_list(answers) is None:
            raise self.error(f"its answers must be a list, but are {kind_of(answers)}")
        return answers


def _schema(answers: bool) -> TableSchema:
    def choose(header: Header) -> dict[str, str]:
        if answers and header.names[:1] == ["1"]:
            raise header.error(
                "answers stand in columns that are known by name (answers, or answer and answer_start), so"
                " there must be a header, but there is none; put one above the first row, and leave out"
                " data.header=false"
            )
        wanted = [Wanted("text", "question", _QUESTIONS), Wanted("second", "context", _CONTEXTS)]
        return choose_columns(header, wanted)

    return TableSchema(
        choose=choose,
        record=full_record,
        settings=("text", "second"),
        known=frozenset((*_QUESTIONS, *_CONTEXTS, *_ABOUT, *_ANSWERS)),
        headerless=(),
        optional=_ABOUT + (_ANSWERS if answers else ()),
    )


def _answer(answer: object, context: str, raw: _RawQuestion) -> GoldAnswer:
    text, start = full_text(field_of(answer, "text")), field_of(answer, "answer_start")
    if text is None or type(start) is not int:
        raise raw.error(
            "an answer must have a `text`, not blank, and a whole number `answer_start`"
        )
    if start >= 0 and context.startswith(text, start):
        return GoldAnswer(start, text)
    end = start + len(text)
    if start < 0 or end > len(context):
        found = f"it would stand at {start} to {end}, but the context has the code points 0 to {len(context)}"
    else:
        there = printable(context[start : min(end, start + 40)])
        found = f"at code point {start} stands {there!r}"
    raise raw.error(
        f"the answer {printable(text[:40])!r} does not stand where it should:"
        f" {found}{_offset_hint(text, start, context)}"
    )


def _offset_hint(text: str, start: int, context: str) -> str:
    """What the offset may count, or where the answer stands."""
    for unit, codec, size in (("bytes", "utf-8", 1), ("UTF-16 units", "utf-16-le", 2)):
        rest = context.encode(codec, "replace")[start * size :]
        if start >= 0 and rest.startswith(text.encode(codec, "replace")):
            return f"; the offset counts {unit}, but must count code points"
    elsewhere = context.find(text)
    return f"; it stands at {elsewhere}" if elsewhere >= 0 else "; it stands nowhere in the context"
