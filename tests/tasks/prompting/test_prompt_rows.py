"""Rows of every form of file, as templates read them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from seqloom.config import DataConfig
from seqloom.data.formats.read_report import ReadReport
from seqloom.errors import DataError
from seqloom.tasks.prompting.prompt_rows import read_prompt_rows

SQUAD = {
    "data": [
        {
            "title": "Rain",
            "paragraphs": [
                {
                    "context": "It rains today.",
                    "qas": [
                        {
                            "id": "q1",
                            "question": "When?",
                            "answers": [{"text": "today", "answer_start": 9}],
                        }
                    ],
                }
            ],
        }
    ]
}
CASES: list[tuple[dict[str, str], dict[str, Any], str | None, list[dict[str, Any]]]] = [
    (
        {"a.csv": "text,label,score\ngood,1,5.00\nbad,0,x\n"},
        {},
        None,
        [
            {"text": "good", "label": 1, "score": "5.00"},
            {"text": "bad", "label": 0, "score": "x"},
        ],
    ),
    (
        {"a.tsv": "good\t2\nbad\t1\n"},
        {"header": False},
        None,
        [{"1": "good", "2": 2}, {"1": "bad", "2": 1}],
    ),
    # only all cells of a column together are numbers
    (
        {"a.csv": "text,year\na,1999\nb,unknown\n"},
        {},
        None,
        [{"text": "a", "year": "1999"}, {"text": "b", "year": "unknown"}],
    ),
    ({"a.csv": "label,a\n2.50,007\n"}, {}, None, [{"label": 2.5, "a": "007"}]),
    (
        {"a.jsonl": '{"goal": "x", "n": [1, {"b": null}]}\n'},
        {},
        None,
        [{"goal": "x", "n": [1, {"b": None}]}],
    ),
    ({"a.json": '[{"goal": "x"}]'}, {}, None, [{"goal": "x"}]),
    (
        {"a.jsonl": '{"goal": "x"}\n{"goal": "y"}\n', "a.lst": "0\n1\n"},
        {},
        None,
        [{"goal": "x", "label": 0}, {"goal": "y", "label": 1}],
    ),
    (
        {"a.txt": "DESC:def What is it ?\n"},
        {"format": "label_first"},
        None,
        [{"text": "What is it ?", "label": "DESC:def"}],
    ),
    ({"a.txt": "good\n", "b.txt": "1\n"}, {}, None, [{"text": "good", "label": "1"}]),
    (
        {"squad.json": json.dumps(SQUAD)},
        {},
        None,
        [
            {
                "id": "q1",
                "title": "Rain",
                "context": "It rains today.",
                "question": "When?",
                "answers": {"text": ["today"], "answer_start": [9]},
            }
        ],
    ),
    (
        {"a.csv": "premise,hypothesis,label\nIt rains.,Wet.,1\nIt rains.,Dry.,0\n"},
        {},
        "multiple-choice",
        [{"text": "It rains.", "options": ["Wet.", "Dry."], "label": 0}],
    ),
]


@pytest.mark.parametrize(("content", "options", "task", "expected"), CASES)
def test_rows_are_those_of_the_file(
    tmp_path: Path,
    content: dict[str, str],
    options: dict[str, Any],
    task: str | None,
    expected: list[dict[str, Any]],
) -> None:
    for name, text in content.items():
        (tmp_path / name).write_text(text)
    paths = [str(tmp_path / name) for name in content]
    rows = read_prompt_rows(paths, DataConfig(**options), ReadReport(), task)
    assert [row.fields for row in rows] == expected
    assert {row.path for row in rows} == {paths[0]}


def test_there_must_be_a_label_for_each_row(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"a": 1}\n{"a": 2}\n')
    (tmp_path / "a.lst").write_text("0\n")
    paths = [str(tmp_path / "a.jsonl"), str(tmp_path / "a.lst")]
    with pytest.raises(DataError, match=r"a.lst:1: must have a label for each of the 2 rows"):
        read_prompt_rows(paths, DataConfig(), ReadReport())
