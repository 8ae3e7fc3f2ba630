"""Questions and answers: every form of them, and every answer that is not where it should be (row 63 of the catalogue)."""

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
from seqloom.data.examples import Answer, Question
from seqloom.data.lines import Tally
from seqloom.data.squad import read_questions
from seqloom.errors import DataError, UsageError


def read(*paths: str, tally: Tally | None = None, answers: bool = True, **options: Any) -> list[Question]:
    tally = tally or Tally()
    found = list(read_questions(paths, DataConfig(**options), tally, answers=answers))
    assert tally.used == len(found)
    assert all(one.context[answer.start :].startswith(answer.text) for one in found for answer in one.answers)
    return found


def squad(*questions: dict[str, Any], context: str = "Ein 🦊 in กำแพง.", title: str | None = "Foxes") -> str:
    article: dict[str, Any] = {"paragraphs": [{"context": context, "qas": list(questions)}]}
    return json.dumps({"version": "1.1", "data": [article if title is None else {"title": title, **article}]})


def question(text: str = "กำแพง", start: Any = 9, **more: Any) -> dict[str, Any]:
    return {"id": "q7", "question": "Where?", "answers": [{"text": text, "answer_start": start}], **more}


def test_squad(tmp_path: Path) -> None:
    none = {"id": 8, "question": "Who?", "answers": [], "plausible_answers": [{"text": "x", "answer_start": 99}], "is_impossible": True}
    path, untitled = write(tmp_path, "a.json.gz", squad(question(), none)), write(tmp_path, "b.json", squad(question(), title=" "))
    context = "Ein 🦊 in กำแพง."
    assert read(path) == [
        Question("q7", "Where?", context, (Answer(9, "กำแพง"),), "Foxes", path, None),
        Question("8", "Who?", context, (), "Foxes", path, None),
    ]
    assert read(untitled)[0].group == f"{untitled}#1"
    assert read(path, answers=False)[0].answers == ()
    assert len(read(path, untitled)) == 3


WRONG = {
    "elsewhere": (question(start=8), "does not stand where it should: at code point 8 stands ' กำแพ'; it stands at 9"),
    "bytes": (question(start=12), "; the offset counts bytes, but must count code points"),
    "UTF-16": (question(start=10), "; the offset counts UTF-16 units, but must count code points"),
    "nowhere": (question("x"), "; it stands nowhere in the context"),
    "before": (question(start=-6), "it would stand at -6 to -1, but the context has the code points 0 to 15"),
    "over the end": (question("กำแพง. ", 9), "it would stand at 9 to 16, but the context"),
    "no number": (question(start="9"), "must have a `text`, not blank, and a whole number `answer_start`"),
    "true": (question(start=True), "a whole number"),
    "a fraction": (question(start=9.0), "a whole number"),
    "blank": (question(" ", 3), "must have a `text`, not blank"),
    "answer is a text": ({"id": "q7", "question": "a", "answers": ["b"]}, "an answer must have a `text`"),
    "answers are a text": ({"id": "q7", "question": "a", "answers": "b"}, "its answers must be a list, but are a text"),
    "impossible": (question(is_impossible=True), "is_impossible is true, but there is an answer"),
    "possible": ({"id": "q7", "question": "a", "answers": [], "is_impossible": False}, "there is no answer, but is_impossible is false"),
    "no question": ({"id": "q7", "answers": []}, "the question must be a text, but is null"),
    "blank question": ({"id": "q7", "question": "\n", "answers": []}, "the question must be a text, but is blank"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_said_with_the_id_of_the_question(tmp_path: Path, name: str) -> None:
    wrong, said = WRONG[name]
    path = write(tmp_path, "a.json", squad(wrong, question()))
    with pytest.raises(DataError) as caught:
        read(path)
    assert f'{path}: question "q7": ' in str(caught.value)
    assert said in str(caught.value)
    tally = Tally()
    assert len(read(path, tally=tally, on_bad_line="skip")) == 1
    assert tally.skipped == 1
    if "question" not in name:
        assert len(read(path, answers=False)) == 2


@pytest.mark.parametrize(
    "content", [[], {"data": 3}, {"data": [3]}, {"data": [{"paragraphs": [{}]}]}, {"data": []}, {"data": [{"paragraphs": [{"qas": [3]}]}]}]
)
def test_json_of_another_form(tmp_path: Path, content: object) -> None:
    with pytest.raises(DataError, match=r"^[^\n]*a\.json: [^\n]*$"):
        read(write(tmp_path, "a.json", json.dumps(content)))


def test_a_question_a_line(tmp_path: Path) -> None:
    rows = [
        {"id": "a", "title": "T", "question": "q", "context": "x ab", "answers": {"text": ["ab", "x"], "answer_start": [2, 0]}},
        {"question": "q", "context": "c", "answers": {"text": [], "answer_start": []}},
        {"question": "q", "context": "c", "answers": [{"text": "c", "answer_start": 0}]},
        {"question": "q", "context": "c"},
    ]
    path, tally = write(tmp_path, "a.jsonl", "\n".join(map(json.dumps, rows)) + "\n\n"), Tally()
    found = read(path, tally=tally)
    assert found[0] == Question("a", "q", "x ab", (Answer(2, "ab"), Answer(0, "x")), "T", path, 1)
    assert [(one.name, one.answers, one.group, one.line) for one in found[1:]] == [
        ("2", (), "c", 2),
        ("3", (Answer(0, "c"),), "c", 3),
        ("4", (), "c", 4),
    ]
    assert tally.skipped == 1
    for wrong, said in (
        ({"question": "q", "context": "x ab", "answers": {"text": ["ab"], "answer_start": [1]}}, r'a\.jsonl:1: question "1": the answer'),
        ({"question": "q", "context": "x", "answers": {"text": ["ab"], "answer_start": []}}, "of one length"),
        ({"question": "q", "text2": "x"}, r"a\.jsonl:1: there must be a question and a context \(found: 'question', 'text2'\)"),
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
    assert [one.answers for one in read(path)] == [(Answer(6, "c"),), (Answer(2, "b"),), ()]
    assert [one.line for one in read(path)] == [2, 4, 5]
    tsv = write(tmp_path, "a.tsv", 'question\tcontext\n"q\t"c\n\nq\n')
    assert [one.context for one in read(tsv, on_bad_line="skip")] == ['"c']
    with pytest.raises(DataError, match=r"a\.tsv:4: the row must have 2 cells"):
        read(tsv)


def test_half_characters_keep_their_place(tmp_path: Path) -> None:
    path = write(tmp_path, "a.json", squad(question("b", 3), context="a\ud800 b"))
    with pytest.raises(DataError, match="surrogate"):
        read(path)
    assert read(path, on_bad_line="replace")[0].context == "a\ufffd b"


def test_forms_that_are_none_of_ours() -> None:
    with pytest.raises(UsageError, match="one of the forms json, jsonl, csv, tsv"):
        list(read_questions(["a"], DataConfig(format="conll"), Tally()))
    with pytest.raises(UsageError, match=r"a\.parquet: questions must be .* the form is parquet"):
        list(read_questions(["a.parquet"], DataConfig(), Tally()))


TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1).filter(str.strip)


@given(TEXT, TEXT, st.integers(-3, 40))
def test_an_answer_is_taken_where_it_stands_and_nowhere_else(
    tmp_path_factory: pytest.TempPathFactory, context: str, text: str, start: int
) -> None:
    folder = tmp_path_factory.mktemp("law")
    path = write(folder, "a.json", squad(question(text, start), context=context))
    right = start >= 0 and context[start : start + len(text)] == text
    if right:
        assert read(path)[0].answers == (Answer(start, text),)
    else:
        with pytest.raises(DataError, match="does not stand where it should"):
            read(path)
