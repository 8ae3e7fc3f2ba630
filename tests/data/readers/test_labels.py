"""The order of labels is one for ever, and what is wrong or odd in them is said before anything is trained:
rows 52 to 57."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqloom.data.readers.examples import LabelledText, TaggedWords
from seqloom.data.readers.labels import (
    check_known,
    check_labels,
    check_leak,
    check_numbers,
    label_order,
    text_key,
)
from seqloom.errors import DataError


def examples(*rows: tuple[str, str], path: str = "t.csv") -> list[LabelledText]:
    return [
        LabelledText(text, None, (label,), None, path, line)
        for line, (text, label) in enumerate(rows, start=2)
    ]


def some(*labels: str, path: str = "t.csv") -> list[LabelledText]:
    """Examples with these labels and texts of their own."""
    return examples(*((f"{path} {at}", label) for at, label in enumerate(labels)), path=path)


def refusal(rows: Sequence[LabelledText]) -> str:
    with pytest.raises(DataError) as caught:
        check_labels(rows)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@given(
    st.lists(st.one_of(st.integers(-30, 30).map(str), st.text(max_size=3)), max_size=20),
    st.randoms(),
)
def test_one_order_whatever_the_data(labels: list[str], shuffler: random.Random) -> None:
    shuffled = labels * 2
    shuffler.shuffle(shuffled)
    assert label_order(shuffled) == label_order(labels)
    assert sorted(label_order(labels)) == sorted(set(labels))


def test_whole_numbers_go_by_size() -> None:
    assert label_order(["10", "9", "-1", "09"]) == ("-1", "09", "9", "10")
    assert label_order(["b", "10", "9"]) == ("10", "9", "b")
    assert label_order(["1.5", "10", "9"]) == ("1.5", "10", "9")
    assert label_order([]) == ()


def test_good_labels_are_nothing_to_speak_of() -> None:
    assert check_labels(some("a", "b", "a", "b")) == []


def test_numbers_that_do_not_differ_are_refused() -> None:
    check_numbers(some("1", "2"))
    with pytest.raises(DataError, match=r"must have different numbers, but all 3 have 1\.5"):
        check_numbers(some("1.5", "1.50", "1.5"))


def test_one_label_is_refused() -> None:  # row 53
    assert (
        refusal(some("a", "a"))
        == "t.csv: examples to train on must have at least two different labels, but all 2 have 'a'"
    )
    assert "there is none" in refusal([])
    some_have = [*some("a", "a"), LabelledText("c", None, (), None, "t.csv", 9)]
    assert check_labels(some_have) == []  # several may be: some have it, some have not


def test_a_label_with_one_example_is_said() -> None:  # row 53
    [said] = check_labels(some("a", "b", "a", "c", "b"))
    assert said == "1 label has only one example: 'c' (t.csv:5)"
    assert check_labels(some("a", "a", *"bcdefgh"))[0].startswith(
        "7 labels have only one example: 'b' (t.csv:4), 'c' (t.csv:5)"
    )


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("pos", "Pos"),
        ("pos", "pos "),
        ("not entailed", "Not  entailed"),
        ("1.0", "1"),
        ("1", "01"),
        ("1e0", "1.00"),
    ],
)
def test_labels_that_differ_only_in_how_they_are_written(
    one: str, other: str
) -> None:  # rows 54, 55
    message = refusal(some("x", one, "y", one, other))
    assert f"{one!r} (t.csv:3)" in message
    assert f"{other!r} (t.csv:6)" in message
    assert "write them alike" in message


def test_labels_that_only_look_alike_are_good() -> None:
    assert check_labels(some(*["1", "-1", "1.5", "a b", "ab", "nun", "non"] * 2)) == []


def test_very_unequal_labels_are_said() -> None:  # row 56
    assert check_labels(some(*["a"] * 200, "b", "b")) == []
    [said] = check_labels(some(*["a"] * 201, "b", "b", *["c"] * 5))
    assert said.startswith("the labels are very unequal: 201 examples of 'a', 2 of 'b'")


def test_texts_that_come_again_are_counted() -> None:
    said = check_labels(
        examples(
            ("One text", "a"),
            ("one  text", "a"),
            ("two", "b"),
            ("TWO ", "a"),
            ("one text", "a"),
            ("x", "b"),
        )
    )
    assert said == [
        "2 examples repeat an earlier text with the same labels (first: t.csv:3, before: t.csv:2)",
        "1 example repeats an earlier text with other labels (first: t.csv:5, before: t.csv:4)",
    ]


def test_a_pair_is_the_same_only_in_both_texts() -> None:
    def pair(one: str, two: str | None) -> str:
        return text_key(LabelledText(one, two, (), None, "t", 1))

    assert pair("a", "b") == pair(" A", "b\n")
    assert (
        len({pair("a", "b"), pair("b", "a"), pair("a b", None), pair("a", None), pair("a", "")})
        == 5
    )


def test_labels_that_training_has_not_got() -> None:  # row 52
    rows = some("a", "c", "b", "d", "c", path="dev.csv")
    with pytest.raises(DataError) as caught:
        check_known(rows, ("a", "b"))
    assert str(caught.value).startswith(
        "dev.csv:3: labels that the training has not got: 'c' (2), 'd' (1); known are 'a', 'b'; correct them"
    )
    [said] = check_known(rows, ("a", "b"), "ignore")
    assert said.endswith("'c' (2), 'd' (1) (first: dev.csv:3); every answer to it is wrong")
    assert check_known(rows, ("a", "b", "c", "d")) == []


def test_tags_are_checked_too() -> None:
    tagged = [
        TaggedWords(("w", "v"), ("O", "B-x"), "dev.conll", 1),
        TaggedWords(("u",), ("B-y",), "dev.conll", 4),
    ]
    with pytest.raises(DataError, match=r"dev.conll:4: labels that .* 'B-y' \(1\)"):
        check_known(tagged, ("B-x", "O"))
    assert check_known(tagged, ("B-x", "B-y", "O")) == []


def test_examples_of_the_training_among_others_are_counted() -> None:  # row 56
    training = examples(("one", "a"), ("two", "b"))
    test = examples(("One ", "a"), ("three", "a"), ("two", "a"), path="test.csv")
    assert check_leak(training, test) == [
        (
            "2 of 3 examples stand in the training too, 1 of them with other labels (first: test.csv:2,"
            " there: t.csv:2): they measure memory"
        )
    ]
    assert check_leak(training, test[1:2]) == []


@pytest.mark.parametrize(
    ("label", "others", "noted"),
    [
        ("-", ["yes", "no"], True),
        ("N/A", ["yes", "no"], True),
        ("none", ["1", "2"], True),
        ("-1", ["0", "1", "2"], True),
        ("-1", ["0", "1"], False),
        ("no", ["yes", "perhaps"], False),
    ],
)
def test_a_label_that_looks_like_none_is_named(label: str, others: list[str], noted: bool) -> None:
    examples = [
        LabelledText(f"{text} {at}", None, (text,), None, "a.csv", at)
        for at in (1, 2)
        for text in (label, *others)
    ]
    notices = [one for one in check_labels(examples) if "looks like no label" in one]
    assert bool(notices) == noted
    assert all(f"the label {label!r} (2 examples, first: a.csv:1)" in one for one in notices)
    assert all(f"data.no_label={label}" in one for one in notices)
