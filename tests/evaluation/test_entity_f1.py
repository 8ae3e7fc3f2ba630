"""Entities from tags, by the strict rules; their scores against counting by hand."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqloom.data.readers.tag_scheme import Scheme
from seqloom.evaluation.entity_f1 import EntitySpan, SpanCounts, entities, f1

BIO = st.lists(st.sampled_from(["O", "B-X", "I-X", "B-Y", "I-Y"]), max_size=9)
BIOES = st.lists(
    st.sampled_from(["O", "B-X", "I-X", "E-X", "S-X", "B-Y", "E-Y", "L-X", "U-Y"]), max_size=9
)


@pytest.mark.parametrize(
    ("tags", "found"),
    [
        ("O B-X I-X O", {("X", 1, 3)}),
        ("B-X B-X I-X", {("X", 0, 1), ("X", 1, 3)}),
        ("O I-X I-X", set()),  # conlleval: ("X", 1, 3)
        ("B-X I-Y I-Y", {("X", 0, 1)}),  # conlleval: also ("Y", 1, 3)
        ("B-X O I-X", {("X", 0, 1)}),
        ("I-X B-X", {("X", 1, 2)}),
        ("B-X I-X", {("X", 0, 2)}),
        ("B-X-Y I-X-Y", {("X-Y", 0, 2)}),
        ("B I O B", {("", 0, 2), ("", 3, 4)}),
        ("", set()),
    ],
)
def test_bio_by_hand(tags: str, found: set[tuple[str, int, int]]) -> None:
    assert entities(tags.split()) == {EntitySpan(*one) for one in found}


@pytest.mark.parametrize(
    ("tags", "found"),
    [
        ("B-X I-X E-X S-X", {("X", 0, 3), ("X", 3, 4)}),
        ("B-X L-X U-Y", {("X", 0, 2), ("Y", 2, 3)}),
        ("B-X I-X O", set()),
        ("B-X E-Y", set()),
        ("B-X B-X E-X", {("X", 1, 3)}),
        ("E-X I-X S-X", {("X", 2, 3)}),
        ("B-X I-Y E-X", set()),
    ],
)
def test_bioes_by_hand(tags: str, found: set[tuple[str, int, int]]) -> None:
    assert entities(tags.split(), "BIOES") == {EntitySpan(*one) for one in found}


def by_pattern(tags: list[str], scheme: Scheme) -> set[EntitySpan]:
    """The same by a regular expression over the prefixes of each type, what is of another type written as
    `.`."""
    found = set()
    for kind in "XY":
        row = "".join(tag[0] if tag[1:] == f"-{kind}" else "." for tag in tags)
        pattern = "BI*" if scheme == "BIO" else "BI*[EL]|[SU]"
        found |= {EntitySpan(kind, *match.span()) for match in re.finditer(pattern, row)}
    return found


@given(BIO)
def test_bio_as_a_pattern(tags: list[str]) -> None:
    assert entities(tags) == by_pattern(tags, "BIO")


@given(BIOES)
def test_bioes_as_a_pattern(tags: list[str]) -> None:
    assert entities(tags, "BIOES") == by_pattern(tags, "BIOES")


def test_scores_by_hand() -> None:
    true = [["B-X", "I-X", "O", "B-Y"], ["O", "B-X"], ["O"]]
    predicted = [["B-X", "I-X", "O", "B-X"], ["O", "B-X"], ["B-Z"]]
    scores = SpanCounts(true, predicted)
    assert scores.counts.tolist() == [[1, 2, 2], [1, 1, 1], [0, 1, 0]]
    metrics = scores.metrics()
    assert metrics["precision"] == pytest.approx(2 / 4)
    assert metrics["recall"] == pytest.approx(2 / 3)
    assert metrics["f1"] == pytest.approx(4 / 7)
    assert 0 <= metrics["f1_low"] <= metrics["f1"] <= metrics["f1_high"] <= 1
    table = scores.by_kind()
    assert table["X"] == {
        "precision": 2 / 3,
        "recall": 1,
        "f1": pytest.approx(0.8),
        "support": 2,
        "predicted": 3,
    }
    assert table["Y"] == {"precision": 0, "recall": 0, "f1": 0, "support": 1, "predicted": 0}
    assert table["Z"] == {"precision": 0, "recall": 0, "f1": 0, "support": 0, "predicted": 1}


def test_where_there_is_no_span() -> None:
    assert SpanCounts([["O"]], [["O"]]).metrics()["f1"] == 0
    assert SpanCounts([["NOUN", "S-X"]], [["B-X", "O"]]).counts.tolist() == [[0, 0, 0]]
    with pytest.raises(ValueError, match="sentence 0 has 1 words, but 2 tags"):
        SpanCounts([["O"]], [["O", "O"]])


def test_the_scheme_is_that_of_both_sides() -> None:
    assert SpanCounts([["B-X", "O"]], [["S-X", "O"]]).counts.tolist() == [[0, 1, 0]]


@given(st.lists(BIO, min_size=1, max_size=6), st.integers(0, 2**16))
def test_sums_of_sentences_and_swapped_sides(sentences: list[list[str]], seed: int) -> None:
    generator = np.random.default_rng(seed)
    true = [["B-X", *tags] for tags in sentences]
    predicted = [[tag if generator.random() < 0.7 else "O" for tag in row] for row in true]
    one, other = SpanCounts(true, predicted), SpanCounts(predicted, true)
    assert one.counts.tolist() == [
        row
        for a, b in zip(true, predicted, strict=True)
        for row in SpanCounts([a], [b]).counts.tolist()
    ]
    assert one.counts.tolist() == other.counts[:, [0, 2, 1]].tolist()
    assert float(f1(one.counts.sum(axis=0))) == float(f1(other.counts.sum(axis=0)))
    perfect = SpanCounts(true, true).metrics()
    assert (
        perfect["precision"]
        == perfect["recall"]
        == perfect["f1"]
        == perfect["f1_low"]
        == perfect["f1_high"]
        == 1
    )
    assert sum(row["support"] for row in one.by_kind().values()) == one.counts[:, 2].sum()
