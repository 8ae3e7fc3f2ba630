"""Which tags mark spans, and what is wrong with them (row 62 of the catalogue of wrong data)."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.data.tagged_files import read, refusal, write

from seqloom.config import DataConfig
from seqloom.data.formats.data_file import DataFile
from seqloom.data.formats.read_report import ReadReport
from seqloom.data.readers.tag_scheme import TagCheck, scheme_of


@pytest.mark.parametrize(
    ("tags", "scheme"),
    [
        ({"O", "B-PER", "I-PER"}, "BIO"),
        ({"O", "I-PER"}, "BIO"),
        ({"B-a b-c", "I-a b-c"}, "BIO"),
        ({"O", "B", "I"}, "BIO"),
        ({"O", "B-X", "I-X", "E-X", "S-X"}, "BIOES"),
        ({"O", "B-X", "I-X", "L-X", "U-X"}, "BIOES"),
        ({"O"}, "plain"),
        (set(), "plain"),
        ({"NOUN", "VERB"}, "plain"),
        ({"NOUN", "B-X"}, "plain"),
        ({"S", "U"}, "plain"),
        ({"B", "I"}, "plain"),
        ({"O", "B", "I-X"}, "plain"),
        ({"-LRB-", "B-"}, "plain"),
    ],
)
def test_scheme(tags: set[str], scheme: str) -> None:
    assert scheme_of(tags) == scheme


@pytest.mark.parametrize(
    ("tags", "at"),
    [
        ("O I-X", 1),
        ("I-X", 0),
        ("B-X I-Y", 1),
        ("B-X O I-X", 2),
        ("S-X I-X B-Y", 1),
        ("E-X B-X", 0),
        ("B-X E-X I-X", 2),
    ],
)
def test_what_goes_on_with_no_span_is_an_error_or_repaired(
    tmp_path: Path, tags: str, at: int
) -> None:
    path, report = (
        write(tmp_path, "a.conll", "".join(f"w\t{tag}\n" for tag in tags.split())),
        ReadReport(),
    )
    message = refusal(path)
    assert message.startswith(
        f"{path}:{at + 1}: the tag '{tags.split()[at]}' goes on with a span that nothing before it begins"
    )
    assert "data.repair_tags=true" in message
    (found,) = read(path, report=report, repair_tags=True)
    assert [tag for one, tag in enumerate(found.tags) if one != at] == [
        tag for one, tag in enumerate(tags.split()) if one != at
    ]
    assert found.tags[at][0] in "BS"
    assert "1 x a tag" in " ".join(report.notices())


def test_a_span_does_not_go_on_in_the_next_sentence(tmp_path: Path) -> None:
    assert ":3:" in refusal(write(tmp_path, "a.conll", "w\tB-X\n\nw\tI-X\n"))


@pytest.mark.parametrize(
    ("text", "line", "other"),
    [
        ("w\tB-X\nw\tX\n", 2, "X"),
        ("w\tX\nw\tO\n\nw\tB-X\n", 4, "X"),
        ("w\tB-X\nw\to\n", 2, "o"),
        ("w\tB-X\nw\tZ-X\n", 2, "Z-X"),
    ],
)
def test_unknown_prefix(tmp_path: Path, text: str, line: int, other: str) -> None:
    path = write(tmp_path, "a.conll", text)
    message = refusal(path)
    assert message.startswith(f"{path}:{line}: the tag '{other}' (line ")
    assert "must be O or begin with B- or I-, as 'B-X' (line" in message


def test_tags_that_are_no_spans_may_look_as_they_like(tmp_path: Path) -> None:
    tags = ("NOUN", "-LRB-", "S-x", "I", "B", "L-", "$")
    assert read(write(tmp_path, "a.conll", "".join(f"w\t{tag}\n" for tag in tags)))[0].tags == tags


BIO = st.lists(st.sampled_from(["O", "B-X", "I-X", "B-Y", "I-Y", "E-X", "S-X", "E-Y"]), max_size=8)


@given(BIO)
def test_a_repair_changes_prefixes_alone_and_leaves_nothing_to_repair(tags: list[str]) -> None:
    lines = range(1, len(tags) + 1)
    report = ReadReport()
    file = DataFile("a", DataConfig(repair_tags=True), report)
    found = TagCheck(file).checked(tags, lines)
    assert TagCheck(DataFile("a", DataConfig(), ReadReport())).checked(found, lines) == found
    assert [tag[1:] for tag in found] == [tag[1:] for tag in tags]
    changed = sum(one != other for one, other in zip(found, tags, strict=True))
    assert sum(int(remark.split()[0]) for remark in report.notices()) == changed
