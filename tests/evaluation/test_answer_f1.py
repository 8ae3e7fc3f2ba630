"""Exact match and F1 of answers: against the rules of SQuAD's script, and by hand where words have no blanks
between them."""

from __future__ import annotations

import collections
import re
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqloom.evaluation.answer_f1 import (
    answer_f1,
    answer_metrics,
    answer_scores,
    exact_match,
    normalised,
    tokens_of,
)


def official(text: str) -> str:
    """`normalize_answer` of the script of SQuAD 2.0."""
    text = "".join(ch for ch in text.lower() if ch not in set(string.punctuation))
    return " ".join(re.compile(r"\b(a|an|the)\b", re.UNICODE).sub(" ", text).split())


def official_f1(gold: str, given: str) -> float:
    """`compute_f1` of the same."""
    gold_tokens, given_tokens = (
        official(gold).split() if gold else [],
        official(given).split() if given else [],
    )
    same = sum((collections.Counter(gold_tokens) & collections.Counter(given_tokens)).values())
    if len(gold_tokens) == 0 or len(given_tokens) == 0:
        return int(gold_tokens == given_tokens)
    if same == 0:
        return 0
    precision, recall = same / len(given_tokens), same / len(gold_tokens)
    return (2 * precision * recall) / (precision + recall)


PARTS = [
    "a",
    "The",
    "an",
    "fox",
    "Foxes",
    "'s",
    "-",
    "“",
    "über",
    ".",
    "7,000",
    " ",
    "  ",
    "\u00a0",
    "फूल",
    "лиса",
    "\t",
]
SPACED = st.lists(st.sampled_from(PARTS), max_size=6).map("".join) | st.text(
    st.characters(max_codepoint=0x7FF), max_size=12
)


@given(SPACED, st.lists(SPACED, min_size=1, max_size=3))
def test_as_the_official_script_where_words_have_blanks_between_them(
    prediction: str, answers: list[str]
) -> None:
    assert normalised(prediction) == official(prediction)
    assert exact_match(prediction, answers) == max(
        official(prediction) == official(one) for one in answers
    )
    assert answer_f1(prediction, answers) == pytest.approx(
        max(official_f1(one, prediction) for one in answers)
    )


def test_by_hand() -> None:
    assert exact_match("The  Fox!", ["fox", "x"]) == 1
    assert answer_f1("the red fox", ["a fox", "dog"]) == pytest.approx(2 / 3)
    assert answer_f1("fox fox", ["fox"]) == pytest.approx(2 / 3)
    assert answer_f1("fox fox", ["fox fox x"]) == pytest.approx(4 / 5)
    assert (exact_match("", []), answer_f1("", [])) == (1, 1)
    assert (exact_match("x", []), answer_f1("x", [])) == (0, 0)
    assert (exact_match("", ["x"]), answer_f1("", ["x"])) == (0, 0)
    assert answer_f1("the", ["a"]) == 1  # nothing is left of either


def test_characters_are_tokens_where_words_have_no_blanks() -> None:
    assert tokens_of("กำแพง in 北京市 3km") == ["กำ", "แ", "พ", "ง", "in", "北", "京", "市", "3km"]
    assert tokens_of("น้ำ ใจ") == ["น้ำ", "ใ", "จ"]
    assert tokens_of("x北y") == ["x", "北", "y"]
    assert normalised("《北京》。") == "北京"
    assert normalised("“fox”") == "“fox”"
    assert answer_f1("北京市", ["北京"]) == pytest.approx(4 / 5)
    assert exact_match("北京。", ["北京"]) == 1


@given(st.text(st.sampled_from("a 北กำ้แ京か\u0301\u3000x"), max_size=10))
def test_tokens_are_the_text_without_blanks(text: str) -> None:
    found = tokens_of(text)
    assert "".join(found) == "".join(text.split())
    assert all(found)


def test_metrics_of_all_questions() -> None:
    predictions, answers = ["fox", "red fox", "", "x"], [["fox"], ["fox"], [], []]
    assert answer_scores(predictions, answers).tolist() == [
        [1, 1],
        [0, pytest.approx(2 / 3)],
        [1, 1],
        [0, 0],
    ]
    metrics = answer_metrics(predictions, answers)
    assert metrics["exact_match"] == 50
    assert metrics["f1"] == pytest.approx(100 * (1 + 2 / 3 + 1 + 0) / 4)
    assert metrics["exact_match_low"] < 50 < metrics["exact_match_high"]
    assert metrics["f1_low"] < metrics["f1"] < metrics["f1_high"]
    assert metrics["has_answer_f1"] == pytest.approx(100 * 5 / 6)
    assert metrics["no_answer_accuracy"] == 50
    assert metrics["questions"] == 4
    assert "has_answer_f1" not in answer_metrics(["fox"], [["fox"]])
