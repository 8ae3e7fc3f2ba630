"""What a user named becomes documents: every form, whole or in pieces, and nothing changes between."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import seqloom.data.readers.documents
from seqloom.config import DataConfig
from seqloom.data.formats.read_report import ReadReport
from seqloom.data.readers.documents import corpus_files, cut, read_documents
from seqloom.errors import DataError, UsageError
from seqloom.text.tokenizers import KINDS, TextTokenizer, train_tokenizer

Document = tuple[str, int]


def write(folder: Path, name: str, content: str | bytes) -> str:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(path)


def documents(*files: str, report: ReadReport | None = None, **options: Any) -> list[Document]:
    """(text, line) of every document."""
    found, held, line = [], "", 0
    report = report or ReadReport()
    for piece in read_documents(files, DataConfig(**options), report):
        line = line or piece.line
        held += piece.text
        if piece.last:
            found.append((held, line))
            held, line = "", 0
    assert held == ""
    assert report.used == len(found)
    assert report.read == report.used + report.skipped
    return found


def refusal(call: Callable[[], object], kind: type[Exception] = DataError) -> str:
    with pytest.raises(kind) as caught:
        call()
    assert "\n" not in str(caught.value)
    return str(caught.value)


# What is a document


def test_a_line_a_paragraph_or_a_file(tmp_path: Path) -> None:
    path = write(tmp_path, "a.txt", "\n one\r\ntwo \n \n\n<s> three\n")
    assert documents(path) == [(" one", 2), ("two ", 3), ("<s> three", 6)]
    assert documents(path, document="paragraph") == [(" one\ntwo ", 2), ("<s> three", 6)]
    assert documents(path, document="file") == [("\n one\ntwo \n \n\n<s> three", 1)]


@pytest.mark.parametrize("document", ["line", "paragraph", "file"])
def test_the_last_line_end_is_none_of_the_text(tmp_path: Path, document: str) -> None:
    paths = write(tmp_path, "a.txt", "one"), write(tmp_path, "b.txt", "one\n")
    assert documents(*paths, document=document) == [("one", 1), ("one", 1)]


def test_blank_documents_are_skipped_and_counted(tmp_path: Path) -> None:
    paths = [
        write(tmp_path, name, content)
        for name, content in (("a.txt", ""), ("b.txt", " \n\t\n"), ("c.txt", "x\n\n\ny"))
    ]
    report = ReadReport()
    assert documents(*paths, report=report, document="file") == [("x\n\n\ny", 1)]
    assert [(count.number, count.first) for count in report.skips.values()] == [
        (1, f"{paths[1]}:1")
    ]
    report = ReadReport()
    assert len(documents(*paths, report=report)) == 2
    assert report.skips["blank"].number == 4
    report = ReadReport()
    assert len(documents(*paths, report=report, document="paragraph")) == 2
    assert not report.skips


@pytest.mark.parametrize("content", ["", "\n", " \n\n"])
@pytest.mark.parametrize("document", ["line", "paragraph", "file"])
def test_no_document_at_all_is_an_error(tmp_path: Path, content: str, document: str) -> None:
    path = write(tmp_path, "a.txt", content)
    assert refusal(lambda: documents(path, document=document)).startswith(
        f"{path}: there are no documents in it"
    )


def test_bad_lines_as_the_policy_has_it(tmp_path: Path) -> None:
    path = write(tmp_path, "a.txt", b"one\nb\xff\n two\n")
    assert refusal(lambda: documents(path, document="file")).startswith(f"{path}:2: is not UTF-8")
    report = ReadReport()
    assert documents(path, report=report, document="paragraph", on_bad_line="skip") == [
        ("one\n two", 1)
    ]
    assert report.skips["bad UTF-8"].number == 1
    assert documents(path, document="file", on_bad_line="replace") == [("one\nb\ufffd\n two", 1)]
    assert documents(write(tmp_path, "b.txt", "ä\n".encode("utf-16")), encoding="utf-16") == [
        ("ä", 1)
    ]


def test_rows_of_tables(tmp_path: Path) -> None:
    rows = ["one\ntwo", " ", "three, four"]
    jsonl = write(
        tmp_path, "a.jsonl", "".join(json.dumps({"id": 1, "content": row}) + "\n" for row in rows)
    )
    csv = write(
        tmp_path, "b.csv.gz", gzip.compress(b'id,Text\n1,"one\ntwo"\n2, \n3,"three, four"\n')
    )
    tsv = write(tmp_path, "c.tsv", "one\nthree, four\n")
    report = ReadReport()
    assert documents(jsonl, csv, tsv, report=report) == [
        ("one\ntwo", 1),
        ("three, four", 3),
        ("one\ntwo", 2),
        ("three, four", 5),
        ("one", 1),
        ("three, four", 2),
    ]
    assert report.skips["blank"].number == 2
    assert [remark.split(": ", 1)[1][:27] for remark in report.notes] == [
        "'content' is taken as text;",
        "no header; the first row is",
    ]
    assert documents(csv, text="id") == [("1", 2), ("2", 4), ("3", 5)]


def test_columns_that_are_not_there(tmp_path: Path) -> None:
    jsonl, csv = (
        write(tmp_path, "a.jsonl", '{"a": "x", "b": "y"}\n'),
        write(tmp_path, "a.csv", "a,b\nx,y\n"),
    )
    assert "say which with --set data.text=NAME" in refusal(lambda: documents(jsonl))
    assert "there is no column 'c' for data.text (found: 'a', 'b'" in refusal(
        lambda: documents(jsonl, text="c")
    )
    assert "must have 1 column, but has 2" in refusal(lambda: documents(csv))
    assert documents(csv, text="b") == [("y", 2)]
    assert "there must be a header" in refusal(
        lambda: documents(csv, text="b", header=False), UsageError
    )


# Pieces


BLANKS = [
    " ",
    "\n",
    "\t",
    "\r",
    "\x0b",
    "\x1c",
    "\x1f",
    "\x85",
    "\xa0",
    "\u1680",
    "\u2000",
    "\u2001",
    "\u2009",
    "\u200b",
    "\u2028",
    "\u3000",
]
CHARACTERS = st.one_of(
    st.sampled_from(
        [
            *BLANKS,
            " ",
            "\n",
            "'s",
            "'",
            "a",
            "A",
            "é",
            "e",
            "\u0301",
            "\u0308",
            "\u093c",
            "1",
            "²",
            ".",
            "<s>",
            "</s>",
            "漢",
            "💡",
            "가",
        ]
    ),
    st.characters(exclude_categories=["Cs"]),
)
TEXTS = st.lists(CHARACTERS, max_size=60).map("".join)


@pytest.fixture(scope="module")
def tokenizers() -> list[TextTokenizer]:
    text = [
        "the cat's  1st \n\n é漢 \u3000 it's the catalogue of the cats\n" * 3,
        "e\u0301 a\u0308 \u2000 cats  cats\t\tcats",
    ]
    kinds = [kind for kind in KINDS if kind != "unigram"]  # it puts a blank before each piece
    return [train_tokenizer(text, kind, 330, form) for kind in kinds for form in ("none", "nfc")]


@settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(text=TEXTS, size=st.integers(1, 8))
def test_the_ids_of_the_pieces_are_the_ids_of_the_document(
    text: str, size: int, tokenizers: list[TextTokenizer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(seqloom.data.readers.documents, "PIECE", size)
    pieces = [piece.text for piece in cut(text, "a", 1)]
    assert "".join(pieces) == text
    for tokenizer in tokenizers:
        assert [i for ids in tokenizer.encode(pieces) for i in ids] == tokenizer.encode([text])[0]


@settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    lines=st.lists(
        TEXTS.map(lambda text: text.replace("\n", "").rstrip("\r").replace("\ufeff", "")),
        min_size=1,
        max_size=8,
    ),
    size=st.integers(1, 30),
)
def test_documents_in_pieces_are_the_same_documents(
    tmp_path: Path, lines: list[str], size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(
        tmp_path, "a.txt", "".join(line.replace("\0", "") + "\n" for line in [*lines, "end"])
    )
    for document in ("line", "paragraph", "file"):
        monkeypatch.undo()
        whole = documents(path, document=document)
        monkeypatch.setattr(seqloom.data.readers.documents, "PIECE", size)
        assert documents(path, document=document) == whole


def test_a_piece_knows_its_line_and_is_not_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(seqloom.data.readers.documents, "PIECE", 100)
    # each ends in a blank, as those of WikiText do
    lines = [f"line {number} of them " for number in range(1, 200)]
    pieces = list(
        read_documents(
            [write(tmp_path, "a.txt", "\n".join(lines))], DataConfig(document="file"), ReadReport()
        )
    )
    assert "".join(piece.text for piece in pieces) == "\n".join(lines)
    assert max(len(piece.text) for piece in pieces) < 130
    assert [piece.last for piece in pieces] == [False] * (len(pieces) - 1) + [True]
    seen = ""
    for piece in pieces:
        assert piece.line == 1 + seen.count("\n")
        seen += piece.text


def test_white_space_without_end_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(seqloom.data.readers.documents, "PIECE", 10)
    monkeypatch.setattr(seqloom.data.readers.documents, "MOST_SPACE", 1000)
    assert len(documents(write(tmp_path, "a.txt", "x" + "\n" * 900 + "y"), document="file")) == 1
    assert "white space must be shorter than 1,000 characters" in refusal(
        lambda: documents(write(tmp_path, "b.txt", "x" + "\n" * 5000 + "y"), document="file")
    )


# Files


def test_folders_patterns_and_files(tmp_path: Path) -> None:
    for name in (
        "b.txt",
        "a/z.txt.gz",
        "a/b/c.JSONL",
        "d.parquet",
        ".hidden.txt",
        ".seqloom-cache/x.txt",
        "notes.pdf",
        "e.md",
        "f.parquet.gz",
    ):
        write(tmp_path, name, "x")
    said: list[str] = []
    files = corpus_files([str(tmp_path)], DataConfig(), said.append)
    assert [os.path.relpath(file, tmp_path) for file in files] == [
        "a/b/c.JSONL",
        "a/z.txt.gz",
        "b.txt",
        "d.parquet",
    ]
    assert len(said) == 1
    assert "4 files are read; left out: e.md, f.parquet.gz, notes.pdf; a pattern such as" in said[0]
    assert len(corpus_files([str(tmp_path)], DataConfig(format="text"))) == 7
    assert [
        os.path.relpath(file, tmp_path)
        for file in corpus_files([f"{tmp_path}/**/*.txt*"], DataConfig())
    ] == ["a/z.txt.gz", "b.txt"]
    assert corpus_files([f"{tmp_path}/e.md"], DataConfig()) == [f"{tmp_path}/e.md"]
    said.clear()
    assert corpus_files([f"{tmp_path}/b.txt", f"{tmp_path}/*.txt"], DataConfig(), said.append) == [
        f"{tmp_path}/b.txt"
    ]
    assert said == [f"{tmp_path}/b.txt is named twice, and read once"]
    write(tmp_path, "[1].txt", "x")
    assert corpus_files([f"{tmp_path}/[1].txt"], DataConfig()) == [f"{tmp_path}/[1].txt"]


def test_what_cannot_be_a_corpus(tmp_path: Path) -> None:
    write(tmp_path, "empty/notes.pdf", "x")
    os.mkfifo(tmp_path / "pipe")

    def named(path: str) -> Callable[[], object]:
        return lambda: corpus_files([path], DataConfig())

    assert "nothing matches this pattern" in refusal(named(f"{tmp_path}/*.txt"))
    assert "there is no such file" in refusal(named(f"{tmp_path}/a.txt"))
    assert "holds no text that can be read (notes.pdf); known are .txt, .text, .tsv" in refusal(
        named(f"{tmp_path}/empty")
    )
    assert "is read several times" in refusal(named(f"{tmp_path}/pipe"))
    assert "is read several times" in refusal(named("-"))
    assert "data.format is parallel" in refusal(
        lambda: corpus_files(["x"], DataConfig(format="parallel")), UsageError
    )
