"""Columns of a word a line: every form of them, and every row that is wrong in some way."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.data.tagged_files import read, refusal, write

from seqloom.config import DataConfig
from seqloom.data.formats.read_report import ReadReport
from seqloom.data.readers.examples import TaggedWords
from seqloom.data.readers.tagged import read_tagged
from seqloom.errors import DataError


def test_tabs_part_columns_and_words_may_hold_any_other_blank(tmp_path: Path) -> None:
    path = write(
        tmp_path, "a.conll", "New York\tB-LOC\n\u200b\tI-LOC\n\u00a0x\tO\n#tag\tO\n# \tO\n\nIt\tO\n"
    )
    assert read(path) == [
        TaggedWords(
            ("New York", "\u200b", "\u00a0x", "#tag", "# "),
            ("B-LOC", "I-LOC", "O", "O", "O"),
            path,
            1,
        ),
        TaggedWords(("It",), ("O",), path, 7),
    ]


def test_runs_of_spaces_separate_columns_where_there_is_no_tab(tmp_path: Path) -> None:
    path, report = (
        write(tmp_path, "a.txt", "-DOCSTART- -X- O O\n\nEU  NNP B-NP\u00a0x B-ORG\n# NN I-NP O\n"),
        ReadReport(),
    )
    assert read(path, report=report) == [TaggedWords(("EU", "#"), ("B-ORG", "O"), path, 3)]
    assert "1 line skipped: -DOCSTART- line" in " ".join(report.notices())
    assert "columns 1 and 4 are taken" in report.notes[0]


def test_columns_as_told(tmp_path: Path) -> None:
    path, report = write(tmp_path, "a.conll.gz", "1\ta\tX\tB-P\n2\tb\tY\tI-P\n"), ReadReport()
    assert read(path, report=report, columns=(2, 3))[0].tags == ("X", "Y")
    assert not report.notices()


def test_files_with_annotators_and_comments(tmp_path: Path) -> None:
    text = (
        "# newdoc\n# sent_id = 1\n1\tTampa\tB-LOC\t-\tx\n2\tBay\tI-LOC\t-\tx\n\n# only = this\n\n# sent_id ="
        " 2\n1\t# hm\tO\t-\t-\n"
    )
    path, report = write(tmp_path, "a.iob2", text), ReadReport()
    assert read(path, report=report) == [
        TaggedWords(("Tampa", "Bay"), ("B-LOC", "I-LOC"), path, 3),
        TaggedWords(("# hm",), ("O",), path, 9),
    ]
    assert report.skips.keys() == {"comments without words"}
    spaces = write(tmp_path, "b.conll", "# sent_id = 1\na O\n# O\n")
    assert read(spaces)[0].words == ("a", "#")


def test_sentences_end_at_blank_lines_of_any_kind_which_are_counted(tmp_path: Path) -> None:
    path, report = (
        write(tmp_path, "a.conll", b"\r\na\tO\r\n\t\r\n\r\nb\tO\r\n  \nc\tO"),
        ReadReport(),
    )
    assert [one.words for one in read(path, report=report)] == [("a",), ("b",), ("c",)]
    assert [one.line for one in read(path)] == [2, 5, 7]
    said = " ".join(report.notices())
    assert f"2 x a line of spaces or tabs ends a sentence (first: {path}:3)" in said
    assert f"2 x a blank line more than one between sentences (first: {path}:1)" in said


def test_several_files_are_read_one_after_the_other(tmp_path: Path) -> None:
    paths = [write(tmp_path, "a.conll", "a\tX\n"), write(tmp_path, "b.txt", "b Y\n")]
    assert [one.path for one in read(*paths)] == paths


def test_without_answers_one_column_or_plain_text_will_do(tmp_path: Path) -> None:
    column, text, report = (
        write(tmp_path, "a.conll", "a\nb\n\nc\n"),
        write(tmp_path, "b.txt", "a  b\tc\n\nd \n"),
        ReadReport(),
    )
    assert [one.words for one in read(column, answers=False)] == [("a", "b"), ("c",)]
    found = read(text, answers=False, report=report)
    assert [(one.words, one.line) for one in found] == [(("a", "b", "c"), 1), ((), 2), (("d",), 3)]
    assert "a line is taken as a sentence" in report.notes[0]
    assert [one.words for one in read(text, answers=False, format="conll", on_bad_line="skip")] == [
        ("a  b",)
    ]
    wrong = write(tmp_path, "c.conll", "a\tI-X\n")
    assert read(wrong, answers=False)[0].words == ("a",)  # tags are not looked at


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "a\tO\nb O\n",
            (
                r"a\.conll:2: there must be 2 columns, separated by tabs as in line 1, but there are 1;"
                r" a space"
                r" stands"
            ),
        ),
        (
            "a O\nb\tx O\n",
            (
                r"a\.conll:2: there must be 2 columns, separated by spaces .* 3; a tab stands in it,"
                r" but not in"
                r" the first line"
            ),
        ),
        ("a\tO\nb\tO\tO\n", "a.conll:2: there must be 2 columns"),
        ("a\tO\n\u00a0\nb\tO\n", "a.conll:2: there must be 2 columns"),
        ("a\tO\n \tO\n", r"a\.conll:2: the word \(column 1\) is empty"),
        ("a\tO\nb\t\n", r"a\.conll:2: the tag \(column 2\) is empty"),
        ("a\tO\nb\tO \n", r"a\.conll:2: the tag \(column 2\) has spaces at an end: 'O '"),
        (
            "a\nb\n",
            r"a\.conll:1: there must be a word and a tag, in columns 1 and 2, but the line has 1",
        ),
        ("\n \n", r"a\.conll: there is no sentence in it"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(tmp_path: Path, text: str, said: str) -> None:
    path = write(tmp_path, "a.conll", text)
    assert re.search(said, refusal(path))


def test_wrong_sentences_may_be_left_out(tmp_path: Path) -> None:
    path, report = (
        write(tmp_path, "a.conll", b"a\tO\n\nb\tO\nc O\n\nd\tI-X\n\ne\xff\tO\n\nf\tB-X\n"),
        ReadReport(),
    )
    assert [one.words for one in read(path, report=report, on_bad_line="skip")] == [("a",), ("f",)]
    assert {reason: count.number for reason, count in report.skips.items()} == {
        "sentence whose columns or tags are wrong": 2,
        "sentence with bad UTF-8": 1,
    }


def test_a_sentence_without_end_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("seqloom.data.readers.conll.MOST_LINES", 3)
    assert "is there a blank line after each sentence?" in refusal(
        write(tmp_path, "a.conll", "a\tO\n" * 4)
    )
    assert len(read(write(tmp_path, "b.conll", "a\tO\n" * 3 + "\n" + "a\tO\n" * 3))) == 2


WORDS = st.text(
    st.characters(exclude_characters="\t\n\r\0", exclude_categories=["Cs"]), min_size=1
).filter(
    lambda one: (
        one.strip(" ") and not one.startswith(("-DOCSTART-", "#begin document", "#end document"))
    )
)
TAGS = st.sampled_from(["NOUN", "B-", "PUNCT", "O", "I", "$", "-LRB-"])


@given(st.lists(st.lists(st.tuples(WORDS, TAGS), min_size=1, max_size=5), min_size=1, max_size=5))
def test_what_is_written_is_read(
    tmp_path_factory: pytest.TempPathFactory, sentences: list[list[tuple[str, str]]]
) -> None:
    text = "\n".join(
        "".join(f"{word}\t{tag}\n" for word, tag in sentence) for sentence in sentences
    )
    path = write(tmp_path_factory.mktemp("law"), "a.conll", text)
    # a byte order mark at the begin of a file is none of its text
    first = sentences[0][0][0].startswith("\ufeff")
    if first and not sentences[0][0][0].removeprefix("\ufeff").strip(" "):
        return
    found = [[*zip(one.words, one.tags, strict=True)] for one in read(path)]
    if first:
        sentences[0][0] = (sentences[0][0][0].removeprefix("\ufeff"), sentences[0][0][1])
    assert found == sentences


BYTES = st.binary(max_size=60) | st.text(st.sampled_from("aB-I#O\t\n \u00a0_1.=")).map(str.encode)


@given(BYTES, st.sampled_from(["conll", "conllu", "tagged", "json", "jsonl"]))
def test_whatever_a_file_holds_the_end_is_a_sentence_or_an_error(
    tmp_path_factory: pytest.TempPathFactory, raw: bytes, form: str
) -> None:
    path = write(tmp_path_factory.mktemp("fuzz"), "a.txt", raw)
    found: list[TaggedWords] = []
    with suppress(DataError):
        found.extend(read_tagged([path], DataConfig(format=form), ReadReport()))  # type: ignore[arg-type]
    assert all(len(one.words) == len(one.tags) > 0 for one in found)


@pytest.mark.parametrize(
    "mark",
    [
        *("-DOCSTART-", "-DOCSTART- O", "-DOCSTART- -X- -X- O", "-DOCSTART-\tO"),
        *("#begin document (bc/cctv/00/cctv_0001); part 000", "#end document"),
    ],
)
@pytest.mark.parametrize(
    "between", ["{mark}\n\n{a}\n{b}", "{mark}\n{a}\n{b}", "{a}{mark}\n{b}", "{a}\n{mark}\n\n{b}"]
)
def test_a_mark_of_a_document_may_have_any_columns(tmp_path: Path, mark: str, between: str) -> None:
    """It ends a sentence, is none, and is counted; with blank lines around it or not."""
    a, b = "Ada NNP B-NP B-PER\nran VBD B-VP O\n", "It PRP B-NP O\n"
    path = write(tmp_path, "a.conll", between.format(mark=mark, a=a, b=b))
    report = ReadReport()
    assert [one.words for one in read(path, report=report)] == [("Ada", "ran"), ("It",)]
    (reason,) = report.skips
    assert reason in ("-DOCSTART- line", "#begin document line", "#end document line")
    assert report.skipped == 1
