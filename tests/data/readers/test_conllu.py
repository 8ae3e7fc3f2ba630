"""CoNLL-U: rows 58 to 61 of the catalogue of wrong data, each with its line and its sentence."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.data.tagged_files import read, refusal, write

from seqloom.data.formats.read_report import ReadReport
from seqloom.data.readers.examples import TaggedWords

REST = "\t_" * 8
"""Columns 3 to 10 of what is no word."""


def row(
    i: object, form: str, upos: str = "X", head: object = 0, deprel: str = "dep", feats: str = "_"
) -> str:
    return f"{i}\t{form}\t_\t{upos}\tXP\t{feats}\t{head}\t{deprel}\t_\t_"


GOOD = "\n".join(
    [
        "# newdoc id = d",
        "# sent_id = s-1",
        f"1-2\tdon't{REST}",
        row(1, "do", "AUX", 3, "aux", "Tense=Pres"),
        row(2, "n't", "PART", 3),
        row(3, "see me", "VERB", 0, "root"),
        f"3.1\tgone{REST}",
        f"3.2\tgone{REST}",
        row(4, ".", "PUNCT", 3),
    ]
)


def test_ranges_and_empty_nodes_are_no_words_and_counted(tmp_path: Path) -> None:
    path, report = write(tmp_path, "a.conllu.gz", f"{GOOD}\n\n\n{row(1, 'x')}\n"), ReadReport()
    assert read(path, report=report) == [
        TaggedWords(("do", "n't", "see me", "."), ("AUX", "PART", "VERB", "PUNCT"), path, 4),
        TaggedWords(("x",), ("X",), path, 12),
    ]
    said = " ".join(report.notices())
    assert f"1 x a range of several words (such as 3-4), itself no word (first: {path}:3)" in said
    assert f"2 x an empty node (such as 8.1), no word (first: {path}:7)" in said
    assert "1 x a blank line more than one" in said


@pytest.mark.parametrize(
    ("tags", "first"), [("upos", "AUX"), ("xpos", "XP"), ("deprel", "aux"), ("feats", "Tense=Pres")]
)
def test_which_tags(tmp_path: Path, tags: str, first: str) -> None:
    assert read(write(tmp_path, "a.conllu", GOOD), tags=tags)[0].tags[0] == first


def test_without_answers_tags_need_not_be_there(tmp_path: Path) -> None:
    path = write(tmp_path, "a.conllu", f"{row(1, 'a', '_', '_')}\n{row(2, 'b', '_', '_')}\n")
    assert read(path, answers=False)[0].words == ("a", "b")
    assert "has no UPOS" in refusal(write(tmp_path, "b.conllu", row(1, "a", "_")))
    assert read(write(tmp_path, "c.conllu", row(1, "a")), tags="feats")[0].tags == ("_",)


WRONG = {
    "spaces": (
        row(1, "a").replace("\t", "  "),
        1,
        "10 columns, separated by tabs, but there are 1; a space where a tab is needed?",
    ),
    "9 columns": (row(1, "a").replace("a\t_", "a _"), 1, "but there are 9; a space"),
    "11 columns": (row(1, "a") + "\t_", 1, "but there are 11 "),
    "range of one": (f"73-73\ta{REST}", 1, "from a word to a later one, but is 73-73"),
    "range backwards": (f"3-2\ta{REST}", 1, "but is 3-2"),
    "range elsewhere": (
        f"{row(1, 'a')}\n4-5\ta{REST}",
        2,
        "the range 4-5 must stand right before word 4",
    ),
    "ranges that overlap": (
        f"1-3\ta{REST}\n{row(1, 'a')}\n2-3\ta{REST}\n{row(2, 'b', head=1)}",
        3,
        "no two may overlap",
    ),
    "range over the end": (
        f"1-3\ta{REST}\n{row(1, 'a')}\n{row(2, 'b', head=1)}",
        3,
        "up to word 3, but there are only 2",
    ),
    "empty node elsewhere": (
        f"{row(1, 'a')}\n2.1\ta{REST}",
        2,
        "the empty node 2.1 must be 1.1 here",
    ),
    "empty node twice": (f"{row(1, 'a')}\n1.1\ta{REST}\n1.1\ta{REST}", 3, "must be 1.2 here"),
    "comment inside": (f"{row(1, 'a')}\n# text = a", 2, "a comment stands inside of the sentence"),
    "numbers": (
        f"{row(1, 'a')}\n{row(3, 'b', head=1)}",
        2,
        "the ID must be 2, for words are numbered from 1, but is '3'",
    ),
    "number zero": (row("01", "a"), 1, "the ID must be 1"),
    "no word": (f"0.1\ta{REST}", 1, "there is no word in it"),
    "empty word": (row(1, " "), 1, "the word (FORM) is empty"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_said_with_line_and_sentence(tmp_path: Path, name: str) -> None:
    text, line, said = WRONG[name]
    message = refusal(
        write(tmp_path, "a.conllu", f"{row(1, 'first')}\n\n# sent_id = weird \t 7\n{text}\n")
    )
    assert f"a.conllu:{line + 3}: sentence weird \\t 7: " in message
    assert said in message


def test_a_sentence_without_an_id_has_a_number(tmp_path: Path) -> None:
    assert re.search(
        r"a\.conllu:3: sentence number 2: ",
        refusal(write(tmp_path, "a.conllu", f"{row(1, 'a')}\n\n{row(2, 'b')}")),
    )


@pytest.mark.parametrize("name", WRONG)
def test_wrong_sentences_may_be_left_out(tmp_path: Path, name: str) -> None:
    report = ReadReport()
    path = write(tmp_path, "a.conllu", f"{WRONG[name][0]}\n\n{row(1, 'x')}\n")
    assert [one.words for one in read(path, report=report, on_bad_line="skip")] == [("x",)]
    assert report.skipped == 1


@pytest.mark.parametrize(
    "heads",
    [
        ("0", "3"),
        ("0", "-1"),
        ("0", "9" * 5000),
        ("0", "\u0660"),
        ("0", "_"),
        ("0", "0"),
        ("2", "1"),
        ("1", "0"),
    ],
)
def test_trees_are_not_read(tmp_path: Path, heads: tuple[str, str]) -> None:
    path = write(
        tmp_path, "a.conllu", f"{row(1, 'a', head=heads[0])}\n{row(2, 'b', head=heads[1])}\n"
    )
    assert read(path) == [TaggedWords(("a", "b"), ("X", "X"), path, 1)]
