"""Questions and answers: every form of them, and every answer that is not where it should be (row 63 of the
catalogue)."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.data.tagged_files import write

from seqloom.config import DataConfig
from seqloom.data.formats.read_report import ReadReport
from seqloom.data.readers.examples import GoldAnswer, Question
from seqloom.data.readers.squad import read_questions
from seqloom.errors import DataError, UsageError


def read(
    *paths: str, report: ReadReport | None = None, answers: bool = True, **options: Any
) -> list[Question]:
    report = report or ReadReport()
    found = list(read_questions(paths, DataConfig(**options), report, answers=answers))
    assert report.used == len(found)
    assert all(
        one.context[answer.start :].startswith(answer.text)
        for one in found
        for answer in one.answers
    )
    return found


def squad(
    *questions: dict[str, Any], context: str = "Ein 🦊 in กำแพง.", title: str | None = "Foxes"
) -> str:
    article: dict[str, Any] = {"paragraphs": [{"context": context, "qas": list(questions)}]}
    return json.dumps(
        {"version": "1.1", "data": [article if title is None else {"title": title, **article}]}
    )


def question(text: str = "กำแพง", start: Any = 9, **more: Any) -> dict[str, Any]:
    return {
        "id": "q7",
        "question": "Where?",
        "answers": [{"text": text, "answer_start": start}],
        **more,
    }


def test_squad(tmp_path: Path) -> None:
    none = {
        "id": 8,
        "question": "Who?",
        "answers": [],
        "plausible_answers": [{"text": "x", "answer_start": 99}],
        "is_impossible": True,
    }
    path, untitled = (
        write(tmp_path, "a.json.gz", squad(question(), none)),
        write(tmp_path, "b.json", squad(question(), title=" ")),
    )
    context = "Ein 🦊 in กำแพง."
    assert read(path) == [
        Question("q7", "Where?", context, (GoldAnswer(9, "กำแพง"),), "Foxes", path, None),
        Question("8", "Who?", context, (), "Foxes", path, None),
    ]
    assert read(untitled)[0].group == f"{untitled}#1"
    assert read(path, answers=False)[0].answers == ()
    assert len(read(path, untitled)) == 3


WRONG = {
    "elsewhere": (
        question(start=8),
        "does not stand where it should: at code point 8 stands ' กำแพ'; it stands at 9",
    ),
    "bytes": (question(start=12), "; the offset counts bytes, but must count code points"),
    "UTF-16": (question(start=10), "; the offset counts UTF-16 units, but must count code points"),
    "nowhere": (question("x"), "; it stands nowhere in the context"),
    "before": (
        question(start=-6),
        "it would stand at -6 to -1, but the context has the code points 0 to 15",
    ),
    "over the end": (question("กำแพง. ", 9), "it would stand at 9 to 16, but the context"),
    "no number": (
        question(start="9"),
        "must have a `text`, not blank, and a whole number `answer_start`",
    ),
    "true": (question(start=True), "a whole number"),
    "a fraction": (question(start=9.0), "a whole number"),
    "blank": (question(" ", 3), "must have a `text`, not blank"),
    "answer is a text": (
        {"id": "q7", "question": "a", "answers": ["b"]},
        "an answer must have a `text`",
    ),
    "answers are a text": (
        {"id": "q7", "question": "a", "answers": "b"},
        "its answers must be a list, but are a text",
    ),
    "impossible": (question(is_impossible=True), "is_impossible is true, but there is an answer"),
    "possible": (
        {"id": "q7", "question": "a", "answers": [], "is_impossible": False},
        "there is no answer, but is_impossible is false",
    ),
    "perhaps": (
        question(is_impossible=["x"]),
        "is_impossible must be true, false, 1, 0 or empty, but is \"['x']\"",
    ),
    "no question": ({"id": "q7", "answers": []}, "the question must be a text, but is null"),
    "blank question": (
        {"id": "q7", "question": "\n", "answers": []},
        "the question must be a text, but is blank",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_said_with_the_id_of_the_question(tmp_path: Path, name: str) -> None:
    wrong, said = WRONG[name]
    path = write(tmp_path, "a.json", squad(wrong, question()))
    with pytest.raises(DataError) as caught:
        read(path)
    assert f'{path}: question "q7": ' in str(caught.value)
    assert said in str(caught.value)
    report = ReadReport()
    assert len(read(path, report=report, on_bad_line="skip")) == 1
    assert report.skipped == 1
    if "question" not in name:
        assert len(read(path, answers=False)) == 2


@pytest.mark.parametrize(
    "content",
    [
        [],
        {"data": 3},
        {"data": [3]},
        {"data": [{"paragraphs": [{}]}]},
        {"data": []},
        {"data": [{"paragraphs": [{"qas": [3]}]}]},
    ],
)
def test_json_of_another_form(tmp_path: Path, content: object) -> None:
    with pytest.raises(DataError, match=r"^[^\n]*a\.json(:1)?: [^\n]*$"):
        read(write(tmp_path, "a.json", json.dumps(content)))


def test_a_question_a_line(tmp_path: Path) -> None:
    rows = [
        {
            "id": "a",
            "title": "T",
            "question": "q",
            "context": "x ab",
            "answers": {"text": ["ab", "x"], "answer_start": [2, 0]},
        },
        {"question": "q", "context": "c", "answers": {"text": [], "answer_start": []}},
        {"question": "q", "context": "c", "answers": [{"text": "c", "answer_start": 0}]},
        {"question": "q", "context": "c"},
    ]
    path, report = (
        write(tmp_path, "a.jsonl", "\n".join(map(json.dumps, rows)) + "\n\n"),
        ReadReport(),
    )
    found = read(path, report=report)
    assert found[0] == Question(
        "a", "q", "x ab", (GoldAnswer(2, "ab"), GoldAnswer(0, "x")), "T", path, 1
    )
    assert [(one.name, one.answers, one.group, one.line) for one in found[1:]] == [
        ("2", (), "c", 2),
        ("3", (GoldAnswer(0, "c"),), "c", 3),
        ("4", (), "c", 4),
    ]
    assert report.skipped == 1
    for wrong, said in (
        (
            {"question": "q", "context": "x ab", "answers": {"text": ["ab"], "answer_start": [1]}},
            r'a\.jsonl:1: question "1": the answer',
        ),
        (
            {"question": "q", "context": "x", "answers": {"text": ["ab"], "answer_start": []}},
            "of one length",
        ),
        (
            {"question": "q", "text2": "x"},
            r"a\.jsonl:1: the column of the context is not known by name \(found: 'question', 'text2'\)",
        ),
        (
            {"q": "a"},
            (
                "the columns of the question and the context are not .*; say which with --set data.text=NAME"
                " --set data.second=NAME"
            ),
        ),
    ):
        with pytest.raises(DataError, match=said):
            read(write(tmp_path, "a.jsonl", json.dumps(wrong)))


def test_tables(tmp_path: Path) -> None:
    rows = [
        ["Question", "context", "answers", "answer", "answer_start"],
        ["q", 'a "b"\nc', json.dumps({"text": ["c"], "answer_start": [6]}), "", ""],
        ["q", "a b", "", "b", "2"],
        ["q", "a b", "", "", ""],
    ]
    text = io.StringIO()
    csv.writer(text).writerows(rows)
    path = write(tmp_path, "a.csv", text.getvalue())
    assert [one.answers for one in read(path)] == [(GoldAnswer(6, "c"),), (GoldAnswer(2, "b"),), ()]
    assert [one.line for one in read(path)] == [2, 4, 5]
    tsv = write(tmp_path, "a.tsv", 'question\tcontext\n"q\t"c\n\nq\n')
    assert [one.context for one in read(tsv, on_bad_line="skip")] == ['"c']
    with pytest.raises(DataError, match=r"a\.tsv:4: the row must have 2 cells"):
        read(tsv)


def rows_file(folder: Path, form: str, *rows: dict[str, str]) -> str:
    """The rows as a file of this form."""
    if form == "jsonl":
        return write(folder, "a.jsonl", "\n".join(map(json.dumps, rows)))
    between = "," if form == "csv" else "\t"
    return write(
        folder,
        f"a.{form}",
        "\n".join(between.join(cells) for cells in (rows[0], *(row.values() for row in rows))),
    )


FORMS = pytest.mark.parametrize("form", ["csv", "tsv", "jsonl"])
TOLD = {"text": "Frage", "second": "question"}


@FORMS
@pytest.mark.parametrize(
    ("names", "options", "remark"),
    [
        (["question", "context"], {}, None),
        (["Question", "question", "context"], {}, None),
        (["Frage", "question"], TOLD, None),
        (
            ["question", "text"],
            {},
            "'text' is taken as context; to take others: --set data.second=NAME",
        ),
        (
            ["Query", "context"],
            {},
            "'Query' is taken as question; to take others: --set data.text=NAME",
        ),
        (
            ["text", "document"],
            {"text": "text"},
            "'document' is taken as context; to take others: --set data.second=NAME",
        ),
        (
            ["query", "context", "text"],
            {"second": "text"},
            "'query' is taken as question; to take others: --set data.text=NAME",
        ),
    ],
)
def test_columns_are_told_or_guessed_and_said_once(
    tmp_path: Path, form: str, names: list[str], options: dict[str, Any], remark: str | None
) -> None:
    path, report = (
        rows_file(tmp_path, form, *[{name: f"{name} {at}" for name in names} for at in (1, 2)]),
        ReadReport(),
    )
    question = options.get("text") or ("question" if "question" in names else names[0])
    context = options.get("second") or ("context" if "context" in names else names[1])
    assert [(one.question, one.context) for one in read(path, report=report, **options)] == [
        (f"{question} {at}", f"{context} {at}") for at in (1, 2)
    ]
    assert report.notes == ([] if remark is None else [f"{path}: {remark}"])


@FORMS
@pytest.mark.parametrize(
    ("names", "options", "said"),
    [
        (
            ["question", "context"],
            {"text": "Question"},
            "there is no column 'Question' for data.text (found: 'question', 'context'; nearest:",
        ),
        (
            ["question", "context"],
            {"second": "x"},
            "there is no column 'x' for data.second (found: 'question', 'context')",
        ),
        (
            ["question", "context"],
            {"text": "context"},
            "the column of the context is not known by name",
        ),
        (
            ["Question", "QUESTION", "context"],
            {},
            "but 'Question' and 'QUESTION' are one where case is ignored; rename one",
        ),
        (
            ["question", "context", "Answer", "ANSWER"],
            {},
            "but 'Answer' and 'ANSWER' are one where case is ignored; rename one",
        ),
    ],
)
def test_columns_that_are_not_there_or_there_twice(
    tmp_path: Path, form: str, names: list[str], options: dict[str, Any], said: str
) -> None:
    path = rows_file(tmp_path, form, dict.fromkeys(names, "x"))
    with pytest.raises(DataError) as caught:
        read(path, **options)
    assert str(caught.value).startswith(f"{path}:1: ")
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    if "Answer" in names:
        assert len(read(path, answers=False)) == 1


def test_a_later_object_without_the_column(tmp_path: Path) -> None:
    path = write(
        tmp_path, "a.jsonl", '{"question": "q", "context": "c"}\n{"query": "q", "context": "c"}\n'
    )
    with pytest.raises(
        DataError,
        match=r"a\.jsonl:2: there is no 'question' in this object \(found: 'query', 'context'\)$",
    ):
        read(path)


def test_a_header_with_one_name_twice(tmp_path: Path) -> None:
    with pytest.raises(
        DataError,
        match=r"a\.csv:1: each column must have a name of its own, but 'question' stands twice; rename one$",
    ):
        read(write(tmp_path, "a.csv", "question,question,context\nx,y,z\n"))


@pytest.mark.parametrize("header", [False, "auto"])
def test_a_table_without_a_header(tmp_path: Path, header: Any) -> None:
    path, report = write(tmp_path, "a.tsv", "7\tc d\tq\n8\te\tr\n"), ReadReport()
    options = {"header": header, "text": "3", "second": "2"}
    found = read(path, report=report, answers=False, **options)
    assert [(one.name, one.question, one.context, one.line) for one in found] == [
        ("1", "q", "c d", 1),
        ("2", "r", "e", 2),
    ]
    assert len(report.notes) == (header == "auto")
    with pytest.raises(
        DataError,
        match=(
            r"a\.tsv:1: answers stand in columns that are known by name .* so there must be a header[^\n]*$"
        ),
    ):
        read(path, **options)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {},
            "where there is no header, by number, such as --set data.text=1 --set data.second=2",
        ),
        ({"text": "1"}, "the column of the context is not known by name (found: '1', '2')"),
        (
            {"text": "1", "second": "context"},
            "data.second names a column, so there must be a header",
        ),
        (
            {"text": "1", "second": "4"},
            "a.csv:1: there is no column '4' for data.second (found: '1', '2'",
        ),
    ],
)
def test_columns_without_a_header_are_told_by_number(
    tmp_path: Path, options: dict[str, Any], said: str
) -> None:
    with pytest.raises((DataError, UsageError)) as caught:
        read(write(tmp_path, "a.csv", "q,c\n"), answers=False, header=False, **options)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@FORMS
@pytest.mark.parametrize(
    ("cell", "answer", "said"),
    [
        ("True", "", None),
        ("1", "", None),
        ("FALSE", "c", None),
        ("0", "c", None),
        ("", "", None),
        (" ", "c", None),
        ("true", "c", "is_impossible is true, but there is an answer"),
        ("1", "c", "is_impossible is true, but there is an answer"),
        ("False", "", "there is no answer, but is_impossible is false"),
        ("0", "", "there is no answer, but is_impossible is false"),
        ("no", "", "is_impossible must be true, false, 1, 0 or empty, but is 'no'"),
    ],
)
def test_is_impossible_as_a_text(
    tmp_path: Path, form: str, cell: str, answer: str, said: str | None
) -> None:
    start = "0" if answer else ""
    row = {
        "question": "q",
        "context": "c",
        "answer": answer,
        "answer_start": start,
        "is_impossible": cell,
    }
    path, line = rows_file(tmp_path, form, row), 1 if form == "jsonl" else 2
    assert len(read(path, answers=False)) == 1
    if said is None:
        assert len(read(path)[0].answers) == len(answer)
    else:
        with pytest.raises(DataError) as caught:
            read(path)
        assert str(caught.value) == f'{path}:{line}: question "{line}": {said}'


def test_half_characters_keep_their_place(tmp_path: Path) -> None:
    path = write(tmp_path, "a.json", squad(question("b", 3), context="a\ud800 b"))
    with pytest.raises(DataError, match="surrogate"):
        read(path)
    assert read(path, on_bad_line="replace")[0].context == "a\ufffd b"


def test_forms_that_are_none_of_ours() -> None:
    with pytest.raises(UsageError, match="one of the forms tsv, csv, jsonl, parquet, json"):
        list(read_questions(["a"], DataConfig(format="conll"), ReadReport()))


TEXT = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1
).filter(str.strip)


@given(TEXT, TEXT, st.integers(-3, 40))
def test_an_answer_is_taken_where_it_stands_and_nowhere_else(
    tmp_path_factory: pytest.TempPathFactory, context: str, text: str, start: int
) -> None:
    folder = tmp_path_factory.mktemp("law")
    path = write(folder, "a.json", squad(question(text, start), context=context))
    right = start >= 0 and context[start : start + len(text)] == text
    if right:
        assert read(path)[0].answers == (GoldAnswer(start, text),)
    else:
        with pytest.raises(DataError, match="does not stand where it should"):
            read(path)
