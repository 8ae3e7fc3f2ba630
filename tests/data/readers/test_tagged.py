"""Forms other than columns: `word_TAG`, archives, spans in JSON."""

from __future__ import annotations

import json
import re
import zipfile
from pathlib import Path

import pytest
from tests.data.tagged_files import read, refusal, write

from seqloom.config import DataConfig
from seqloom.data.formats.read_report import ReadReport
from seqloom.data.readers.examples import TaggedWords
from seqloom.data.readers.tagged import read_tagged
from seqloom.errors import DataError, UsageError


def test_words_with_their_tag_after_the_last_mark(tmp_path: Path) -> None:
    path, report = (
        write(tmp_path, "a.txt", " The_DT a_b_NN ._. \n\n__SYM no _UH\nnone\n"),
        ReadReport(),
    )
    assert read(path, report=report, format="tagged") == [
        TaggedWords(("The", "a_b", "."), ("DT", "NN", "."), path, 1),
        TaggedWords(("_", "_"), ("SYM", "UH"), path, 3),
    ]
    said = " ".join(report.notices())
    assert f"2 x a word without a tag, which is left out (first: {path}:3)" in said
    assert f"1 x a tag without a word, which is taken to be the word _ (first: {path}:3)" in said
    assert "1 line skipped: no word has a tag" in said
    assert read(path, format="tagged", answers=False)[0] == TaggedWords(
        ("The", "a_b", "."), (), path, 1
    )


def test_archives_of_texts(tmp_path: Path) -> None:
    path, report = str(tmp_path / "texts.zip"), ReadReport()
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in {
            "c/b.txt": "b_B\n",
            "c/a.txt": "\na_A\n",
            "c/list.txt": "a_file genre x\n",
            "c/README": "r_R",
        }.items():
            archive.writestr(name, text)
    assert read(path, report=report) == [
        TaggedWords(("a",), ("A",), f"{path}/c/a.txt", 2),
        TaggedWords(("b",), ("B",), f"{path}/c/b.txt", 1),
    ]
    assert "list.txt" in report.notes[0]
    raw = bytearray(Path(path).read_bytes())
    raw[raw.index(b"b_B")] ^= 1  # stored as it is, so its checksum is wrong now
    assert "the archive is damaged" in refusal(write(tmp_path, "damaged.zip", bytes(raw)))


def test_spans_in_json(tmp_path: Path) -> None:
    sentence = [
        {"text": " play "},
        {"text": "Sky  Blue", "entity": "track"},
        {"text": "'s"},
        {"text": " "},
        {"text": "x", "entity": "y"},
    ]
    content = {
        "Play": [{"data": sentence}, {"data": [{"text": "\n"}]}],
        "Stop": [{"data": [{"text": "stop"}]}],
    }
    path, report = write(tmp_path, "a.json.gz", json.dumps(content)), ReadReport()
    assert read(path, report=report) == [
        TaggedWords(
            ("play", "Sky", "Blue", "'s", "x"), ("O", "B-track", "I-track", "O", "B-y"), path, 1
        ),
        TaggedWords(("stop",), ("O",), path, 3),
    ]
    assert (
        f"1 x a span that begins or ends inside a word, which is cut there (first: {path}:1)"
        in report.notices()
    )
    assert read(path, answers=False)[0].tags == ()


@pytest.mark.parametrize(
    "content",
    [
        3,
        {"a": 3},
        [3],
        [{"data": []}],
        [{"data": [{"text": 1}]}],
        [{"data": [{"text": "a", "entity": ""}]}],
        [[1]],
        [],
    ],
)
def test_json_of_another_form(tmp_path: Path, content: object) -> None:
    refusal(write(tmp_path, "a.json", json.dumps(content)))


def test_lists_in_jsonl(tmp_path: Path) -> None:
    rows = [
        {"tokens": ["I", "New York"], "ner_tags": ["O", "B-LOC"]},
        {"tokens": ["x"], "ner_tags": ["I-LOC"]},
    ]
    path, report = (
        write(tmp_path, "a.jsonl", "\n".join(map(json.dumps, rows)) + "\n\n"),
        ReadReport(),
    )
    assert [one.words for one in read(path, answers=False)] == [("I", "New York"), ("x",)]
    assert f"{path}:2: the tag 'I-LOC' goes on" in refusal(path)
    assert read(path, report=report, repair_tags=True)[1] == TaggedWords(
        ("x",), ("B-LOC",), path, 2
    )
    assert report.skipped == 1
    for wrong in (
        {"tokens": ["a"], "tags": ["X", "Y"]},
        {"tokens": ["a"], "tags": [3]},
        {"tokens": [" "], "tags": ["X"]},
        {"tags": ["X"]},
    ):
        assert re.search(
            ":1: (there must be|the column of the tokens)",
            refusal(write(tmp_path, "b.jsonl", json.dumps(wrong))),
        )


def test_lists_in_jsonl_are_told_by_name(tmp_path: Path) -> None:
    row = {"tokens": ["I"], "spoken": ["i"], "ner_tags": ["O"], "pos_tags": ["PRON"], "mine": ["X"]}
    path, report = write(tmp_path, "a.jsonl", json.dumps(row)), ReadReport()
    assert read(path, report=report) == [TaggedWords(("I",), ("O",), path, 1)]
    assert report.notes == [
        f"{path}: 'ner_tags' is taken as tags; to take others: --set data.label=NAME"
    ]
    for name, tag in (("pos_tags", "PRON"), ("mine", "X")):
        assert read(path, label=name, text="spoken") == [TaggedWords(("i",), (tag,), path, 1)]
    assert ":1: there is no column 'theirs' for data.label" in refusal(path, label="theirs")


def test_forms_that_are_none_of_ours() -> None:
    with pytest.raises(
        UsageError,
        match=r"one of the forms conll, conllu, tagged, json, jsonl, parquet, text, but data.format is csv",
    ):
        list(read_tagged(["a"], DataConfig(format="csv"), ReadReport()))
    with pytest.raises(UsageError, match="plain text has no tags"):
        list(read_tagged(["a"], DataConfig(format="text"), ReadReport()))
    with pytest.raises(DataError, match="no such file"):
        list(read_tagged(["/nowhere/a.conll"], DataConfig(), ReadReport()))
