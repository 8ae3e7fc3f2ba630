"""A choice is its text, its options in order, and which of them is right: however that was written."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seqloom.config import DataConfig
from seqloom.data.formats.read_report import ReadReport
from seqloom.data.readers.examples import ChoiceQuestion
from seqloom.data.readers.multiple_choice import counted_from, read_choices
from seqloom.errors import SeqloomError, UsageError


def write(folder: Path, name: str, content: str) -> str:
    (folder / name).write_text(content)
    return str(folder / name)


def read(
    *paths: str, report: ReadReport | None = None, answers: bool = True, **options: Any
) -> list[ChoiceQuestion]:
    return list(
        read_choices(
            paths,
            DataConfig(**options),
            report if report is not None else ReadReport(),
            answers=answers,
        )
    )


def found(*paths: str, **options: Any) -> list[tuple[str, tuple[str, ...], int | None]]:
    return [(one.text, one.options, one.answer) for one in read(*paths, **options)]


def refusal(*paths: str, **options: Any) -> str:
    with pytest.raises(SeqloomError) as caught:
        read(*paths, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


CHOICES = st.lists(
    st.integers(2, 4).flatmap(
        lambda number: st.tuples(st.just(number), st.integers(0, number - 1))
    ),
    min_size=1,
    max_size=8,
)


@settings(deadline=None, max_examples=30)
@given(choices=CHOICES)
def test_every_form_gives_the_same_choices(
    tmp_path_factory: pytest.TempPathFactory, choices: list[tuple[int, int]]
) -> None:
    """Options in columns or in a list; answers as letters, texts or numbers, in the table or beside it; a row
    for each option."""
    folder = tmp_path_factory.mktemp("forms")
    rows = [
        (f"t{at}", tuple(f"o{at}{option}" for option in range(number)), right)
        for at, (number, right) in enumerate(choices)
    ]
    cells = [",".join([*options, *[""] * (4 - len(options))]) for _, options, _ in rows]
    letters = "".join(
        f"{text},{row},{'ABCD'[right]}\n" for (text, _, right), row in zip(rows, cells, strict=True)
    )
    table = write(folder, "a.csv", "question,A,B,C,D,answer\n" + letters)
    texts = "".join(
        f"{text},{row},{options[right]}\n"
        for (text, options, right), row in zip(rows, cells, strict=True)
    )
    spelled = write(folder, "b.csv", "premise,choice1,choice2,choice3,choice4,label\n" + texts)
    # shows that numbers count from 0
    first = {
        "ctx": "first",
        "endings": ["one", "two"],
        "label": 0,
    }
    lists = [{"ctx": text, "endings": options, "label": right} for text, options, right in rows]
    numbered = write(folder, "c.jsonl", "".join(json.dumps(one) + "\n" for one in [first, *lists]))
    bare = write(
        folder,
        "d.jsonl",
        "".join(json.dumps({"text": text, "options": options}) + "\n" for text, options, _ in rows),
    )
    beside = write(folder, "d-labels.lst", "\n".join("ABCD"[right] for _, _, right in rows))
    pairs = [
        (text, option, at == right)
        for text, options, right in rows
        for at, option in enumerate(options)
    ]
    apart = write(
        folder,
        "e.csv",
        "premise,hypothesis,label\n"
        + "".join(f"{a},{b},{'not_' * (not c)}entailment\n" for a, b, c in pairs),
    )
    for paths in ([table], [spelled], [bare, beside], [apart]):
        report = ReadReport()
        assert found(*paths, report=report) == rows, paths
        assert report.used == len(rows)
    assert found(numbered)[1:] == rows
    assert [
        (text, options) for text, options, answer in found(bare, answers=False) if answer is None
    ] == [row[:2] for row in rows]


@pytest.mark.parametrize(
    ("labels", "answers", "remark"),
    [
        ("0 2 1", [0, 2, 1], "count from 0"),
        ("1 3 2", [0, 2, 1], "count from 1"),
        ("1 2 2", [1, 2, 2], "count from 0 (from 1 would fit too"),
        ("b C a", [1, 2, 0], ""),
        ("z x x", [2, 0, 0], ""),
    ],
)
def test_how_answers_are_written(
    tmp_path: Path, labels: str, answers: list[int], remark: str
) -> None:
    path = write(
        tmp_path,
        "t.tsv",
        "text\toption_a\toption_b\toption_c\tlabel\n"
        + "".join(f"t\tx\ty\tz\t{one}\n" for one in labels.split()),
    )
    report = ReadReport()
    assert [answer for _, _, answer in found(path, report=report)] == answers
    assert (remark in report.notes[-1]) if remark else len(report.notes) == 1


def test_numbers_that_are_options_are_those_options(tmp_path: Path) -> None:
    path = write(tmp_path, "t.csv", "question,A,B,label\n2+2,3,4,4\n1+1,2,1,2\n")
    assert [answer for _, _, answer in found(path)] == [1, 0]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (
            "t,x,y,0\nt,x,y,2\n",
            "t.csv:3: the answer must be a number from 0 to 1, for there are 2 options",
        ),  # row 57
        ("t,x,y,1\nt,x,y,3\n", "t.csv:3: the answer must be a number from 0 to 1"),
        ("t,x,y,2\nt,x,y,3\n", "t.csv:3: the answer must be a number from 1 to 2"),
        (
            "t,x,y,-1\n",
            (
                "t.csv:2: the answer must be a number (all of a file), a letter up to B or one of the"
                " options, but is '-1'"
            ),
        ),
        ("t,x,y,c\n", "a letter up to B"),
        (
            "t,x,x,x\n",
            "t.csv:2: the answer must tell one option, but 'x' is spelled by 2 options; make them differ",
        ),
        ("t,b,b,b\n", "'b' is spelled by 2 options"),  # and is no letter
        ("t,b,b, b\n", "'b' is spelled by 2 options"),
        (
            "t,1,2,1\nt,1,1,1\n",
            "t.csv:3: the answer must tell one option, but '1' is spelled by 2 options",
        ),
        ("t,x,y,\n", "t.csv:2: the answer is empty"),
        ("t,x,,0\n", "t.csv:2: a choice needs at least two options, none of them blank, but has 1"),
        ("t,,y,0\n", "but one of them is blank"),
        (" ,x,y,0\n", "there are no usable choices in it (rows read: 1"),
    ],
)
def test_answers_and_options_that_are_wrong(tmp_path: Path, rows: str, message: str) -> None:
    assert message in refusal(write(tmp_path, "t.csv", "text,sol1,sol2,label\n" + rows))


@pytest.mark.parametrize(
    ("files", "base", "answers"),
    [
        (["1 2 1", "2 3"], 1, [0, 1, 0, 1, 2]),
        (["1 2 1", "0 2"], 0, [1, 2, 1, 0, 2]),
        (["1 2", "2"], 0, [1, 2, 2]),
        (["1 2", "b c", "3"], 1, [0, 1, 1, 2, 2]),
        (["a", "x"], None, [0, 0]),
    ],
)
def test_all_files_together_show_what_numbers_count_from(
    tmp_path: Path, files: list[str], base: int | None, answers: list[int]
) -> None:
    head = "text,option_a,option_b,option_c,label\n"
    paths = [
        write(tmp_path, f"{at}.csv", head + "".join(f"t,x,y,z,{one}\n" for one in file.split()))
        for at, file in enumerate(files, start=1)
    ]
    report = ReadReport()
    assert [answer for _, _, answer in found(*paths, report=report)] == answers
    assert sum("count from" in remark for remark in report.notes) == (base is not None)
    assert counted_from(paths, DataConfig()) == base
    assert counted_from(paths, DataConfig(answers_from=1)) == 1


@pytest.mark.parametrize(
    ("base", "labels", "answers"),
    [
        (0, "1 1", [1, 1]),
        (1, "1 1", [0, 0]),
        (1, "B a", [1, 0]),
        (
            1,
            "3 1",
            (
                "the answer must be a number from 1 to 2, for there are 2 options and answers count from 1,"
                " but is 3; "
            ),
        ),
        (1, "0 1", "but is 0; if they count from 0: --set data.answers_from=0"),
        (0, "2 1", "but is 2; if they count from 1: --set data.answers_from=1"),
    ],
)
def test_it_may_be_told_what_numbers_count_from(
    tmp_path: Path, base: int, labels: str, answers: list[int] | str
) -> None:
    path = write(
        tmp_path, "t.csv", "text,A,B,label\n" + "".join(f"t,1,2,{one}\n" for one in labels.split())
    )
    if isinstance(answers, str):
        assert answers in refusal(path, answers_from=base)
        return
    report = ReadReport()
    assert [answer for _, _, answer in found(path, report=report, answers_from=base)] == answers
    assert not any("count from" in remark for remark in report.notes)


@pytest.mark.parametrize(
    ("names", "order"),
    [
        ([f"option{number}" for number in range(1, 13)], range(12)),
        ([f"choice_{number}" for number in (10, 9, 1, 0)], (3, 2, 1, 0)),
        ([f"ending {letter}" for letter in "bakz"], (1, 0, 2, 3)),
        (["choice1", "choice2", "choices"], (0, 1)),
        ([f"sol{number:02}" for number in range(26)], range(26)),
        (list("abcdefghijklmnopqrstuvwxyz"), range(26)),
    ],
)
def test_columns_of_options_are_in_the_order_of_their_numbers(
    tmp_path: Path, names: list[str], order: Sequence[int]
) -> None:
    path = write(
        tmp_path,
        "t.csv",
        f"question,{','.join(names)},label\nt,{','.join(f'o{at}' for at in range(len(names)))},o1\n",
    )
    assert found(path) == [("t", tuple(f"o{at}" for at in order), list(order).index(1))]


@pytest.mark.parametrize("named", [False, True])
def test_a_choice_has_at_most_26_columns_of_options(tmp_path: Path, named: bool) -> None:
    names = [f"option{number}" for number in range(27)]
    path = write(tmp_path, "t.csv", f"text,{','.join(names)},label\nt,{','.join(names)},0\n")
    message = (
        "t.csv:1: a choice must have at most 26 columns of options,"
        " but has 27 ('option0' to 'option26')"
    )
    assert message in refusal(path, options=tuple(names) if named else ())
    listed = write(
        tmp_path, "l.jsonl", json.dumps({"text": "t", "options": names, "label": "none"}) + "\n"
    )
    assert "a letter up to Z or one of the options" in refusal(listed)


def test_columns_of_options_are_named_or_guessed(tmp_path: Path) -> None:
    path, report = (
        write(tmp_path, "t.csv", "goal,right,wrong,label\ng,a,b,0\nh,c,d,1\n"),
        ReadReport(),
    )
    assert (
        "the columns of the options are not known by name (found: 'goal', 'right', 'wrong', 'label')"
        in refusal(path)
    )
    assert found(path, report=report, options=("wrong", "right")) == [
        ("g", ("b", "a"), 0),
        ("h", ("d", "c"), 1),
    ]
    assert (
        report.notes[0] == f"{path}: 'goal' is taken as text; to take others: --set data.text=NAME"
    )
    assert "there is no column 'third' for data.options" in refusal(
        path, options=("right", "third")
    )
    bare = write(tmp_path, "n.csv", "g,a,b,0\nh,c,d,1\n")
    assert found(bare, text="1", options=("2", "3"), label="4") == [
        ("g", ("a", "b"), 0),
        ("h", ("c", "d"), 1),
    ]
    write(tmp_path, "s.csv", "ending0,ending1,premise,question,label\na,b,p,q,0\n")
    assert found(str(tmp_path / "s.csv"), text="premise,question") == [("p q", ("a", "b"), 0)]


def test_a_file_of_answers_has_one_for_each_choice(tmp_path: Path) -> None:
    path, labels = (
        write(tmp_path, "t.jsonl", '{"goal": "g", "sol1": "a", "sol2": "b"}\n'),
        write(tmp_path, "l.lst", "1\n0\n"),
    )
    assert f"{labels}:2: must have an answer for each of the 1 choices, but has 2 lines" in refusal(
        path, labels
    )
    assert found(path, labels, answers=False) == [("g", ("a", "b"), None)]
    assert len(found(path, path, answers=False)) == 2
    pairs = write(tmp_path, "p.csv", "premise,hypothesis\na,b\na,c\n")
    with pytest.raises(UsageError, match="a row for each choice"):
        read(pairs, labels)


def test_rows_of_one_premise_are_one_choice(tmp_path: Path) -> None:
    head = "premise,hypothesis,label\n"
    mixed = write(tmp_path, "m.csv", head + "p,a,0\nq,c,1\np,b,1\nq,d,0\n")
    assert [(one.text, one.options, one.answer, one.line) for one in read(mixed)] == [
        ("p", ("a", "b"), 1, 2),
        ("q", ("c", "d"), 0, 3),
    ]
    none = write(tmp_path, "n.csv", head + "p,a,0\nq,c,1\np,b,0\nq,d,0\n")
    assert "n.csv:2: one of the 2 rows with this first text must be labelled as right" in refusal(
        none
    )
    assert "but 0 are (lines 2, 4)" in refusal(none)
    assert "but 2 are" in refusal(write(tmp_path, "t.csv", head + "p,a,1\np,b,1\n"))
    assert "t.csv:2: a choice needs at least two rows" in refusal(
        write(tmp_path, "t.csv", head + "p,a,1\nq,b,1\n")
    )


def test_choices_are_rows_of_tables(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="a table must be in one of the forms"):
        read(write(tmp_path, "t.txt", "a\n"))


def arc(form: str, texts: Sequence[str], keys: Sequence[str], question: str, answer: str) -> Any:
    """A row in one of the forms in which ARC and its kin come."""
    pairs = [{"text": text, "label": key} for text, key in zip(texts, keys, strict=True)]
    if form == "lists":
        return {
            "question": question,
            "choices": {"text": texts, "label": list(keys)},
            "answerKey": answer,
        }
    if form == "objects":
        return {"question": question, "choices": pairs, "answerKey": answer}
    if form == "by key":
        choices = dict(zip(keys, texts, strict=True))
        return {"question": question, "choices": choices, "answerKey": answer}
    return {"question": {"stem": question, "choices": pairs}, "answerKey": answer}


@pytest.mark.parametrize("ending", ["jsonl", "json", "csv", "parquet"])
@pytest.mark.parametrize("form", ["lists", "objects", "by key", "nested"])
def test_options_with_keys(tmp_path: Path, form: str, ending: str) -> None:
    """The answer is a key, wherever that stands, or the text of an option."""
    texts = ["stone", "pear", "chair"]
    rows = [
        arc(form, texts, "ABC", "a fruit?", "B"),
        arc(form, texts, "123", "a seat?", "3"),
        arc(form, texts, "CAB", "hard?", "C"),
        arc(form, texts, "ABC", "eaten?", "pear"),
    ]
    path = tmp_path / f"arc.{ending}"
    if ending == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif ending == "json":
        path.write_text(json.dumps(rows))
    elif ending == "parquet":
        if form == "by key":  # a column has the same keys in all rows there
            rows = rows[:1] + rows[3:]
        arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        parquet.write_table(arrow.Table.from_pylist(rows), path)
    elif form == "nested":
        return
    else:
        with path.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["question", "choices", "answerKey"])
            for row in rows:
                writer.writerow([row["question"], json.dumps(row["choices"]), row["answerKey"]])
    answers = {"a fruit?": 1, "a seat?": 2, "hard?": 0, "eaten?": 1}
    assert found(str(path)) == [
        (question, tuple(texts), answer)
        for question, answer in answers.items()
        if len(rows) == len(answers) or question in ("a fruit?", "eaten?")
    ]


def test_choices_that_are_wrong_are_left_out_where_that_is_asked(tmp_path: Path) -> None:
    good = {"text": "t", "options": ["a", "b"], "label": "B"}
    wrong = [
        {**good, "label": "-"},
        {**good, "label": None},
        {**good, "options": ["a"]},
        {**good, "options": None},
        {**good, "options": {"text": ["a", "b"], "label": ["X", "X"]}},
        {**good, "label": "C"},
        {**good, "text": ""},
    ]
    rows = [row for one in wrong for row in (one, good)]
    path = write(tmp_path, "t.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    report = ReadReport()
    choices = found(path, report=report, on_bad_line="skip", no_label="-")
    assert choices == [("t", ("a", "b"), 1)] * len(wrong)
    assert (report.used, report.skipped) == (len(wrong), len(wrong))


@pytest.mark.parametrize(
    ("options", "label", "answer", "said"),
    [
        (("4", "2", "0"), 0, 2, True),
        (("B", "A"), "A", 1, True),
        (("A", "B"), "A", 0, False),
        (("1", "2", "3"), "2", 1, False),
        (("15", "20", "7"), "7", 2, False),
    ],
)
def test_an_answer_that_may_mean_two_options_is_said(
    tmp_path: Path, options: Sequence[str], label: int | str, answer: int, said: bool
) -> None:
    row = json.dumps({"text": "q", "options": options, "label": label}) + "\n"
    report = ReadReport()
    path = write(tmp_path, "t.jsonl", row)
    assert [one.answer for one in read_choices([path], DataConfig(), report)] == [answer]
    found = any("and the letter or number of another" in notice for notice in report.notices())
    assert found == said
