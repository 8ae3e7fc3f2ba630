"""What is held out and what is trained are all there is, and nothing is in both."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqloom.data.batching.splits import (
    HeldOut,
    group_ids,
    held_out,
    hold_out,
    select_pieces,
    split_labelled,
    stratified_split,
)
from seqloom.data.readers.documents import DocumentPiece
from seqloom.data.readers.examples import LabelledText
from seqloom.errors import UsageError

BOOK = [
    DocumentPiece("one\ntwo", "b", 1, False),
    DocumentPiece("\nthree\nfour", "b", 2, False),
    DocumentPiece("\nfive", "b", 4, True),
]


def test_a_share_by_seed() -> None:
    assert [len(held_out(count, 0)) for count in (2, 49, 100, 1000, 50_000, 10**7)] == [
        1,
        1,
        2,
        20,
        1000,
        1000,
    ]
    assert held_out(1000, 0) == held_out(1000, 0) != held_out(1000, 1)
    assert max(held_out(1000, 0)) < 1000


@given(sizes=st.lists(st.integers(1, 3), min_size=2, max_size=80), seed=st.integers(0, 5))
def test_every_document_is_on_one_side(sizes: list[int], seed: int) -> None:
    pieces = [
        DocumentPiece(f"{number}.{at}", "a", 1, at == size - 1)
        for number, size in enumerate(sizes)
        for at in range(size)
    ]
    held = hold_out(pieces, seed)
    assert held.documents == held_out(len(sizes), seed)
    trained, tried = (
        list(select_pieces(pieces, held, False)),
        list(select_pieces(pieces, held, True)),
    )
    assert sorted(trained + tried) == sorted(pieces)
    assert {int(piece.text.split(".")[0]) for piece in tried} == held.documents
    assert [piece for piece in pieces if piece in trained] == trained
    assert list(select_pieces(pieces, HeldOut(), False)) == pieces


@given(sizes=st.lists(st.integers(1, 9), min_size=1, max_size=9))
def test_the_end_of_the_only_document(sizes: list[int]) -> None:
    pieces = [
        DocumentPiece("x" * size, "b", 1, at == len(sizes) - 1) for at, size in enumerate(sizes)
    ]
    if sum(sizes) < 2:
        return
    held = hold_out(pieces, 0)
    assert held.after == int(0.9 * sum(sizes))
    for validation, length in ((False, held.after), (True, sum(sizes) - held.after)):
        part = list(select_pieces(pieces, held, validation))
        assert sum(len(piece.text) for piece in part) == length
        assert [piece.last for piece in part] == [False] * (len(part) - 1) + [True]
        assert all(piece.text for piece in part)


def test_a_book_is_cut_as_it_is_read() -> None:
    held = HeldOut(after=12)
    assert list(select_pieces(BOOK, held, False)) == [
        BOOK[0],
        DocumentPiece("\nthre", "b", 2, True),
    ]
    assert list(select_pieces(BOOK, held, True)) == [
        DocumentPiece("e\nfour", "b", 3, False),
        BOOK[2],
    ]
    assert str(hold_out(BOOK, 0)) == "the last tenth of the only document (from character 20 on)"
    assert str(HeldOut(documents=frozenset(range(2000)))) == "2,000 documents"


def test_too_little_to_hold_out() -> None:
    with pytest.raises(
        UsageError, match="validation needs text of its own, but there are only 1 characters"
    ):
        hold_out([DocumentPiece("x", "b", 1, True)], 0)


@given(st.lists(st.integers(0, 3), min_size=2, max_size=300), st.integers(0, 99))
def test_each_label_gives_its_share(labels: list[int], seed: int) -> None:
    """A tenth in all, of each label its part to within one, and never the only one that it has."""
    given_labels = np.array(labels)
    sizes = np.bincount(given_labels)
    if sizes.max() == 1:
        with pytest.raises(UsageError, match="may be parted"):
            stratified_split(given_labels, seed)
        return
    held = stratified_split(given_labels, seed)
    assert (
        len(set(held.tolist()))
        == len(held)
        == min(max(round(len(labels) / 10), 1), int((sizes - 1).clip(0).sum()))
    )
    assert held.tolist() == sorted(held.tolist()) == stratified_split(given_labels, seed).tolist()
    taken = np.bincount(given_labels[held], minlength=len(sizes))
    assert bool((taken < np.maximum(sizes, 1)).all())
    assert float(np.abs(taken - len(held) * sizes / len(labels)).max()) <= 1


def test_each_label_gives_others_by_another_seed() -> None:
    labels = np.arange(3000) % 10
    one, other = stratified_split(labels, 0), stratified_split(labels, 1)
    assert np.bincount(labels[one]).tolist() == [30] * 10
    assert len(set(one.tolist()) & set(other.tolist())) < 60


ROWS = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 12), st.one_of(st.none(), st.integers(0, 6))),
    min_size=2,
    max_size=60,
)


@given(ROWS, st.integers(0, 99), st.booleans())
def test_what_is_alike_or_of_one_group_stays_together(
    rows: list[tuple[int, int, int | None]], seed: int, stratified: bool
) -> None:
    examples = [
        LabelledText(
            f"Text {text}" if at % 2 else f"text  {text} ",
            None,
            (str(label),),
            None if group is None else str(group),
            "t",
            at,
        )
        for at, (label, text, group) in enumerate(rows)
    ]
    try:
        held = split_labelled(examples, seed, stratified=stratified)
    except UsageError:
        return
    sides = set(held.tolist()), set(range(len(rows))) - set(held.tolist())
    assert sides[0]
    assert sides[1]
    for column in (1, 2):
        assert not {rows[at][column] for at in sides[0]} & {rows[at][column] for at in sides[1]} - {
            None
        }
    if stratified:
        assert {rows[at][0] for at in sides[0]} <= {rows[at][0] for at in sides[1]}
    assert (
        held.tolist()
        == sorted(held.tolist())
        == split_labelled(examples, seed, stratified=stratified).tolist()
    )


@given(st.lists(st.tuples(st.integers(0, 9), st.one_of(st.none(), st.integers(0, 4))), max_size=30))
def test_units_are_what_keys_and_groups_join(rows: list[tuple[int, int | None]]) -> None:
    """Against the closure of being alike, step by step."""
    units = group_ids(
        [str(key) for key, _ in rows], [None if group is None else str(group) for _, group in rows]
    )
    reached = np.array(
        [[a == b or (c == d and c is not None) for b, d in rows] for a, c in rows], bool
    ).reshape(len(rows), len(rows))
    for _ in rows:
        reached = reached @ reached
    assert (units[:, None] == units).tolist() == reached.tolist()
    assert sorted(set(units.tolist())) == list(range(len(set(units.tolist()))))


@given(st.lists(st.integers(0, 40), min_size=30, max_size=400), st.integers(0, 9))
def test_groups_meet_the_share_to_half_of_one(groups: list[int], seed: int) -> None:
    examples = [
        LabelledText(str(at), None, ("x",), f"g{group}", "t", at) for at, group in enumerate(groups)
    ]
    if len(set(groups)) < 2:
        return
    held = split_labelled(examples, seed)
    sizes, share = sorted(groups.count(group) for group in set(groups)), round(len(groups) / 10)
    # the largest that may be taken
    most = max((size for size in sizes if size < 2 * share), default=0)
    assert len(held) <= share + most / 2 or len(held) in sizes[:2]
    assert len(held) + most / 2 >= share or len({groups[at] for at in held}) + 1 >= sum(
        size < 2 * share for size in sizes
    )


def test_a_label_never_goes_with_a_group_of_others() -> None:
    """Two groups, one of them alone with a label: the other one goes, whatever the seed."""
    rows = [("a", "one")] * 9 + [("b", "one")] + [("a", "two")] * 5
    examples = [
        LabelledText(str(at), None, (label,), group, "t", at)
        for at, (label, group) in enumerate(rows)
    ]
    for seed in range(20):
        assert {rows[at][1] for at in split_labelled(examples, seed)} == {"two"}
    with pytest.raises(UsageError, match="may be parted from the others"):
        split_labelled([example._replace(group="one") for example in examples], 0)


def test_of_groups_with_the_last_rows_of_a_label_one_is_put_back() -> None:
    """b and c are in two groups, which may both go but for that; the third group of their label is small,
    that of a too large."""
    rows = (
        [(label, group) for group in ("one", "two") for label in "dbc"]
        + [("d", "three")]
        + [("a", "four")] * 53
    )
    examples = [
        LabelledText(str(at), None, (label,), group, "t", at)
        for at, (label, group) in enumerate(rows)
    ]
    for seed in range(20):
        held = set(split_labelled(examples, seed).tolist())
        assert held
        assert {rows[at][0] for at in range(len(rows)) if at not in held} == set("abcd")
