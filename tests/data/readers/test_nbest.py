"""N-best lists: JSONL and tables say the same, what is wrong is named with its line."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqloom.config import DataConfig
from seqloom.data.formats.read_report import ReadReport
from seqloom.data.readers.nbest import NBest, json_list, number_in, read_nbest, table, written
from seqloom.errors import DataError, UsageError

LINES = [
    {
        "id": "a",
        "ref": "x y",
        "nbest": [{"text": "x", "score": 0.0, "lm": -3}, {"text": "", "score": -1.5, "lm": -4}],
    },
    {"id": "b", "nbest": [{"text": "z z", "score": 2, "lm": -1}]},
]


def put(path: Path, *lines: Any) -> str:
    path.write_text(
        "".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines)
    )
    return str(path)


def read(path: str, score: str | None = None, **options: Any) -> list[NBest]:
    return list(read_nbest(path, DataConfig(**options), ReadReport(), score))


def test_json_and_tables_of_the_same_lists_are_the_same(tmp_path: Path) -> None:
    lists = read(put(tmp_path / "a.jsonl", *LINES))
    assert [one.texts for one in lists] == [("x", ""), ("z z",)]
    assert [one.scores for one in lists] == [(0, -1.5), (2,)]
    assert [one.reference for one in lists] == ["x y", None]
    (tmp_path / "a.tsv").write_text(written(lists, ".tsv"))
    again = read(str(tmp_path / "a.tsv"))
    assert [replace(one, path="", lines=()) for one in again] == [
        replace(one, path="", lines=()) for one in lists
    ]
    assert [one.line for one in again] == [2, 4]
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(written(lists, ".jsonl").encode()))
    assert [json_list(one) for one in read(str(tmp_path / "a.jsonl.gz"))] == [
        json_list(one) for one in lists
    ]


def test_what_else_is_given_is_kept(tmp_path: Path) -> None:
    line = {
        "id": 7,
        "voice": {"name": "f1"},
        "nbest": [{"text": "x", "am": -3, "words": ["x"]}],
        "reference": "x",
    }
    (one,) = read(put(tmp_path / "a.jsonl", line), score="am")
    assert (one.id, one.reference, one.scores, one.others) == (
        7,
        "x",
        (-3,),
        {"voice": {"name": "f1"}},
    )
    assert json.loads(json_list(one)) == {
        "id": 7,
        "ref": "x",
        "voice": {"name": "f1"},
        "nbest": line["nbest"],
    }
    assert list(table([one])) == [
        "id\ttext\tam\twords\tvoice\tref",
        '7\tx\t-3\t["x"]\t{"name": "f1"}\tx',
    ]


@pytest.mark.parametrize("form", [".jsonl", ".tsv"])
def test_texts_are_written_under_the_name_they_were_read_from(form: Any, tmp_path: Path) -> None:
    line = {
        "id": "1",
        "ref": "a cat",
        "nbest": [
            {"sentence": "a hat", "text": "RAW1", "score": -3.1},
            {"sentence": "a", "text": "RAW2", "score": 4},
        ],
    }
    lists = read(put(tmp_path / "a.jsonl", line), text="sentence")
    assert json.loads(json_list(lists[0])) == line
    (tmp_path / f"b{form}").write_text(written(lists, form))
    (again,) = read(str(tmp_path / f"b{form}"), text="sentence")
    assert json.loads(json_list(again)) == line


def test_cells_of_a_table_stay_as_they_are_but_the_score(tmp_path: Path) -> None:
    content = "id\ttext\tscore\tcode\n" + "".join(
        f"a\tx\t{number}\t{cell}\n" for number, cell in enumerate([*NOT_AS_WRITTEN, "-3", "1.5"])
    )
    (tmp_path / "a.tsv").write_text(content)
    assert written(read(str(tmp_path / "a.tsv")), ".tsv") == content
    (tmp_path / "b.tsv").write_text("id\ttext\tam\nx\ta\t-1.10\nx\tb\t1e5\n")
    (one,) = read(str(tmp_path / "b.tsv"), score="am")
    assert one.scores == (-1.1, 1e5)
    assert read(put(tmp_path / "b.jsonl", json_list(one)), score="am")[0].scores == one.scores


def test_a_list_without_a_reference_has_none_after_a_table(tmp_path: Path) -> None:
    lists = read(put(tmp_path / "a.jsonl", *LINES))
    (tmp_path / "a.tsv").write_text(written(lists, ".tsv"))
    again = read(str(tmp_path / "a.tsv"))
    assert [one.reference for one in again] == ["x y", None]
    assert written(again, ".tsv") == written(lists, ".tsv")


def test_in_a_table_a_field_of_the_hypothesis_goes_before_one_of_its_list(tmp_path: Path) -> None:
    lists = read(
        put(
            tmp_path / "a.jsonl",
            {
                "id": 1,
                "total": 99,
                "nbest": [{"text": "x", "total": 1}, {"text": "y", "total": 2}, {"text": "z"}],
            },
        )
    )
    assert list(table(lists)) == ["id\ttext\ttotal", "1\tx\t1", "1\ty\t2", "1\tz\t99"]


def test_lists_need_neither_id_nor_score_nor_reference(tmp_path: Path) -> None:
    (one,) = read(put(tmp_path / "a.jsonl", "", {"nbest": [{"text": "x"}]}))
    assert (one.id, one.scores, one.reference) == (2, None, None)


def test_a_report_counts_what_was_read(tmp_path: Path) -> None:
    report = ReadReport()
    path = put(tmp_path / "a.jsonl", LINES[0], "", {"nbest": [{"text": "\ud800"}]}, LINES[1])
    assert len(list(read_nbest(path, DataConfig(on_bad_line="skip"), report))) == 2
    assert (report.read, report.used, report.skipped) == (4, 2, 2)


WRONG = [
    ({"id": "a", "nbest": []}, "'nbest' must be a list of hypotheses, but is empty"),
    ({"id": "a", "nbest": {}}, "'nbest' must be a list of hypotheses, but is an object"),
    (
        {"id": "a", "hyps": []},
        "'nbest' must be a list of hypotheses, but is null (found: 'id', 'hyps')",
    ),
    ({"id": [], "nbest": [{"text": "x"}]}, "'id' must be a text or a whole number, but is a list"),
    (
        {"nbest": [{"text": "x", "score": 1}, {"score": 1}]},
        "hypothesis 2 must be an object with a text under 'text', but is {\"score\": 1}",
    ),
    ({"nbest": [{"text": None, "score": 1}]}, "with a text under 'text', but is {\"text\": null"),
    ({"nbest": ["x"]}, "hypothesis 1 must be an object with a text under 'text', but is \"x\""),
    (
        {"nbest": [{"text": "x", "score": "1"}]},
        "'score' of hypothesis 1 of list 2 must be a finite number of size 1e+100 at most, but is '1'",
    ),
    ({"nbest": [{"text": "x", "score": True}]}, "at most, but is True"),
    (
        {"nbest": [{"text": "x", "score": -1e308}]},
        "must be a finite number of size 1e+100 at most, but is -1e+308",
    ),
    (
        {"nbest": [{"text": "x"}]},
        "'score' of hypothesis 1 of list 2 must be a finite number of size 1e+100 at most, but is missing",
    ),
    (
        {"ref": 3, "nbest": [{"text": "x", "score": 1}]},
        "'ref' must be a text, but is 3",
    ),
    ('{"nbest": [{"text": "x", "score": NaN}]}', "NaN is no number in JSON"),
    ('{"nbest": [{"text": "x", "score": 1e999}]}', "too large"),
    ('{"nbest": [', "is not JSON"),
    ({"nbest": [{"text": "\ud800", "score": 1}]}, "surrogate"),
]


@pytest.mark.parametrize(("line", "message"), WRONG)
def test_wrong_json_is_named_with_its_line(line: Any, message: str, tmp_path: Path) -> None:
    path = put(tmp_path / "a.jsonl", LINES[0], line)
    with pytest.raises(DataError) as error:
        read(path)
    assert str(error.value).startswith(f"{path}:2: ")
    assert message in str(error.value)
    assert "\n" not in str(error.value)


WRONG_TABLES = [
    ("id\tscore\na\t1\n", 1, "lacks 'text'"),
    ("id\ttext\ttext\na\tx\ty\n", 1, "'text' stands twice"),
    ("id\ttext\tscore\na\tx\t1\na\tx\n", 3, "must have 3 cells like the first, but has 2"),
    (
        "id\ttext\tscore\na\tx\t-1e308\n",
        2,
        "must be a finite number of size 1e+100 at most, but is -1e+308",
    ),
    ("id\ttext\tscore\na\tx\t" + "9" * 400 + "\n", 2, "at most, but is '999"),
    ("id\ttext\tscore\na\tx\tnan\n", 2, "at most, but is 'nan'"),
    ("id\ttext\tscore\na\tx\t1\na\tx\t\n", 3, "at most, but is ''"),
    ("id\ttext\na\tx\nb\tx\na\ty\n", 4, "must stand together, but 'a' began in line 2"),
    ("id\ttext\tref\na\tx\ty\na\tx\tz\n", 3, "another than in line 2"),
]


@pytest.mark.parametrize(("content", "line", "message"), WRONG_TABLES)
def test_a_wrong_table_is_named_with_its_line(
    content: str, line: int, message: str, tmp_path: Path
) -> None:
    (tmp_path / "a.tsv").write_text(content)
    with pytest.raises(DataError) as error:
        read(str(tmp_path / "a.tsv"))
    assert str(error.value).startswith(f"{tmp_path / 'a.tsv'}:{line}: ")
    assert message in str(error.value)


def test_files_that_hold_no_lists(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("id\ttext\n")
    with pytest.raises(
        DataError,
        match="no lists of hypotheses in it; each row below the header must be one hypothesis",
    ):
        read(str(tmp_path / "a.tsv"))
    with pytest.raises(DataError, match="one line of JSON must be one list"):
        read(put(tmp_path / "empty.jsonl", ""))
    (tmp_path / "a.txt").write_text("x\n")
    with pytest.raises(
        UsageError, match=r"must be \.jsonl, \.tsv or \.nbest, but the form is unknown"
    ):
        read(str(tmp_path / "a.txt"))
    with pytest.raises(UsageError, match=r"the form is text"):
        read(str(tmp_path / "a.txt"), format="text")
    with pytest.raises(DataError, match=r"'lmm' of hypothesis 1 of list 'a' must be .* is missing"):
        read(put(tmp_path / "a.jsonl", LINES[0]), score="lmm")


def test_what_a_table_cannot_hold(tmp_path: Path) -> None:
    for line, message in (
        ({"nbest": [{"text": "a\tb"}]}, "a tab or a line break"),
        ({"nbest": [{"text": "a", "id": 1}]}, "'id'"),
    ):
        lists = read(put(tmp_path / "a.jsonl", line))
        with pytest.raises(DataError, match=message):
            written(lists, ".tsv")


@given(st.one_of(st.integers(), st.floats(allow_nan=False, allow_infinity=False)))
def test_numbers_of_cells(number: float) -> None:
    assert number_in(str(number)) == number


NOT_AS_WRITTEN = ["0012", "1.10", "1e5", "-0", "+1", " 1", "\u0661\u0662"]
"""Cells that read as numbers which are written in another way."""


@pytest.mark.parametrize(
    "cell", ["", "nan", "inf", "1_000", "a", "1e999", "9" * 400, "9" * 5000, *NOT_AS_WRITTEN]
)
def test_cells_that_are_no_number(cell: str) -> None:
    assert number_in(cell) == cell


MOSES = (
    "0 ||| a cat ||| LM0= -1.5 WordPenalty0= -2 ||| -3.25\n"
    "0 ||| the cat ||| LM0= -2 WordPenalty0= -2 ||| -4\n"
    "1 ||| ||| LM0= 0 ||| 1e-3\n"
)


@pytest.mark.parametrize("name", ["a.nbest", "a.txt", "n-best.100", "moses.gz"])
def test_lists_of_moses(tmp_path: Path, name: str) -> None:
    content = MOSES.encode()
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    lists = read(str(tmp_path / name))
    assert [one.id for one in lists] == ["0", "1"]
    assert [one.texts for one in lists] == [("a cat", "the cat"), ("",)]
    assert [one.scores for one in lists] == [(-3.25, -4.0), (0.001,)]
    assert lists[0].fields[0]["features"] == "LM0= -1.5 WordPenalty0= -2"
    assert [one.lines for one in lists] == [(1, 2), (3,)]


def test_lists_of_moses_are_written_as_they_are_read(tmp_path: Path) -> None:
    (tmp_path / "a.nbest").write_text(MOSES.replace("1e-3", "0.001"))
    lists = read(str(tmp_path / "a.nbest"))
    again = written(lists, ".nbest")
    assert again.replace("|||  |||", "||| |||") == MOSES.replace("1e-3", "0.001")
    fields = tuple({**one, "total": 1.5, "log_probability_lm": -7.5} for one in lists[0].fields)
    (tmp_path / "b.nbest").write_text(written([replace(lists[0], fields=fields)], ".nbest"))
    (rescored,) = read(str(tmp_path / "b.nbest"))
    assert rescored.scores == (1.5, 1.5)
    assert rescored.fields[0]["features"] == (
        "LM0= -1.5 WordPenalty0= -2 score= -3.25 log_probability_lm= -7.5"
    )
    for line in ({"ref": "x", "nbest": [{"text": "x"}]}, {"nbest": [{"text": "a ||| b"}]}):
        with pytest.raises(DataError, match=r"a \.nbest cannot hold"):
            written(read(put(tmp_path / "a.jsonl", line)), ".nbest")


BAD_LISTS = {
    "a.jsonl": '{"nbest": [{"text": "x", "score": 1}]}\n{bad}\n{"nbest": [{"text": "y", "score": 2}]}\n',
    "a.tsv": "id\ttext\tscore\n1\tx\t1\n{bad}\n2\ty\t2\n",
    "a.nbest": "1 ||| x ||| f= 1 ||| 1\n{bad}\n2 ||| y ||| f= 1 ||| 2\n",
}


@pytest.mark.parametrize(
    ("name", "bad"),
    [
        ("a.jsonl", "{"),
        ("a.jsonl", "[1]"),
        ("a.jsonl", '{"nbest": []}'),
        ("a.jsonl", '{"nbest": [{"text": 3, "score": 1}]}'),
        ("a.jsonl", '{"nbest": [{"text": "x", "score": "high"}]}'),
        ("a.jsonl", '{"nbest": [{"text": "x"}]}'),
        ("a.tsv", "bad\tx"),
        ("a.tsv", "bad\tx\thigh"),
        ("a.tsv", "1\tx\t3\nbad\tx\thigh"),
        ("a.nbest", "no hypothesis"),
        ("a.nbest", "bad ||| x ||| f= 1 ||| high"),
    ],
)
def test_a_bad_list_does_not_lose_the_good_ones(tmp_path: Path, name: str, bad: str) -> None:
    (tmp_path / name).write_text(BAD_LISTS[name].replace("{bad}", bad))
    report = ReadReport()
    lists = list(read_nbest(str(tmp_path / name), DataConfig(on_bad_line="skip"), report))
    assert [one.texts[0] for one in lists] == ["x", "y"]
    assert report.skipped == 1
    with pytest.raises(DataError, match=rf"{name}:[234]: "):
        read(str(tmp_path / name))
