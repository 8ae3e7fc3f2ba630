"""Long-memory tasks: the answer follows from the text alone, at exactly that distance, and nothing else gives
it away."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from seqloom.data.synthetic.long_memory import (
    CLAUSES,
    MEMORY_TASKS,
    NOUNS,
    PARTS,
    PLACES,
    Examples,
    Part,
    examples,
    spell,
    task_named,
)
from seqloom.errors import UsageError

WORDED = [name for name, task in MEMORY_TASKS.items() if task.words]
SENTENCES = ("agreement", "cloze")
ROWS = 2000
PLURALS = {f"{noun}s" for noun in NOUNS}
ANY_NOUN = {*NOUNS, *PLURALS, *PLACES}


def drawn(
    name: str, distance: int, part: Part = "train", number: int = 0, seed: int = 0, rows: int = ROWS
) -> Examples:
    return examples(MEMORY_TASKS[name], seed, part, number, rows, distance)


def texts(name: str, batch: Examples) -> list[list[str]]:
    return [spell(MEMORY_TASKS[name], row).split() for row in batch.inputs]


def answers(name: str, batch: Examples) -> list[list[str]]:
    return [[MEMORY_TASKS[name].classes[c] for c in row] for row in batch.targets]


@pytest.mark.parametrize("name", MEMORY_TASKS)
def test_examples_are_a_function_of_seed_part_number_and_distance(name: str) -> None:
    batches = [
        drawn(name, 12, part, number, seed, 8)
        for part in PARTS
        for number in (0, 1)
        for seed in (0, 1)
    ]
    again = drawn(name, 12, "train", 0, 0, 8)
    assert np.array_equal(again.inputs, batches[0].inputs)
    assert np.array_equal(again.targets, batches[0].targets)
    assert len({batch.inputs.tobytes() for batch in batches}) == len(batches)


@pytest.mark.parametrize("name", MEMORY_TASKS)
def test_a_distance_is_refused_below_the_shortest_and_drawn_from_there_on(name: str) -> None:
    task = MEMORY_TASKS[name]
    lengths = {
        drawn(name, distance, rows=50).inputs.shape[1] - distance
        for distance in range(task.shortest, task.shortest + 12)
    }
    assert len(lengths) == 1  # a step more of distance is a step more of text
    with pytest.raises(UsageError, match=f"at least {task.shortest} .*but is {task.shortest - 1}"):
        drawn(name, task.shortest - 1)


@pytest.mark.parametrize("name", WORDED)
@pytest.mark.parametrize("part", PARTS)
def test_each_answer_is_as_frequent_as_any_other(name: str, part: Part) -> None:
    batch, classes = drawn(name, 12, part), len(MEMORY_TASKS[name].classes)
    for place in range(batch.targets.shape[1]):
        counts = np.bincount(batch.targets[:, place], minlength=classes)
        assert np.abs(counts - ROWS / classes).max() < 5 * np.sqrt(ROWS / classes)
    assert MEMORY_TASKS[name].chance == 1 / classes


def test_adding_sums_the_two_marked_numbers_one_in_each_half() -> None:
    for length in (2, 3, 20):
        inputs, targets = drawn("adding", length)
        assert inputs.shape == (ROWS, length, 2)
        assert ((inputs[..., 0] >= 0) & (inputs[..., 0] < 1)).all()
        for row, target in zip(inputs[:200], targets[:200, 0], strict=True):
            first, second = (k for k in range(length) if row[k, 1] == 1)
            assert first < length // 2 <= second
            assert set(row[:, 1]) <= {0, 1}
            assert target == pytest.approx(row[first, 0] + row[second, 0], abs=1e-6)
    assert np.square(drawn("adding", 20, rows=20_000).targets - 1).mean() == pytest.approx(
        MEMORY_TASKS["adding"].chance, rel=0.05
    )
    assert {int(k) for row in drawn("adding", 6).inputs for k in np.flatnonzero(row[:, 1])} == set(
        range(6)
    )


def test_copy_repeats_the_symbols_after_the_lag() -> None:
    for lag in (0, 7):
        batch = drawn("copy", lag)
        for text, answer in zip(texts("copy", batch), answers("copy", batch), strict=True):
            assert text == [*answer, *["_"] * lag, *["?"] * 5]
            assert set(answer) <= set("abcdefgh")


def test_copy_strings_that_are_tested_are_not_trained_on() -> None:
    known = {
        tuple(row) for number in range(20) for row in drawn("copy", 1, "train", number).targets
    }
    tested = {tuple(row) for part in PARTS[1:] for row in drawn("copy", 1, part).targets}
    assert len(known) > 20_000  # of 28,672
    assert len(tested) > 2_000  # of 4,096
    assert not known & tested


def test_recall_asks_for_the_key_at_the_start() -> None:
    for distance in (1, 9):
        batch = drawn("recall", distance)
        for text, answer in zip(texts("recall", batch), answers("recall", batch), strict=True):
            assert [text[0]] == answer
            assert text[-1] == "?"
            assert text.index("?") - text.index(answer[0]) == distance
            assert not set(text[1:-1]) & set(MEMORY_TASKS["recall"].classes)


def test_agreement_goes_by_the_subject_at_that_distance() -> None:
    for distance in (1, 2, 3, 5, 17):
        batch = drawn("agreement", distance, rows=300)
        for text, answer in zip(
            texts("agreement", batch), answers("agreement", batch), strict=True
        ):
            subject = next(k for k, word in enumerate(text) if word in ANY_NOUN)
            assert len(text) - subject == distance  # the verb is the next word
            assert answer == ["were" if text[subject] in PLURALS else "was"]


def test_a_verb_inside_a_clause_agrees_with_its_own_noun() -> None:
    seen = Counter(
        (text[k - 1] in PLURALS, text[k])
        for text in texts("agreement", drawn("agreement", 20))
        for k in places_of_be(text)
    )
    assert set(seen) == {(False, "was"), (True, "were")}
    assert {text[k] for text in texts("cloze", drawn("cloze", 20)) for k in places_of_be(text)} == {
        "were"
    }


def places_of_be(text: list[str]) -> list[int]:
    return [k for k, word in enumerate(text) if word in ("was", "were")]


def test_cloze_ends_where_the_first_noun_belongs() -> None:
    for distance in (4, 6, 19):
        batch = drawn("cloze", distance, rows=300)
        for text, answer in zip(texts("cloze", batch), answers("cloze", batch), strict=True):
            first = next(k for k, word in enumerate(text) if word in ANY_NOUN)
            assert len(text) - first == distance
            assert text[-3:] == ["are", "in", "the"]
            assert answer == [PLACES[text[first]]]


@pytest.mark.parametrize("name", SENTENCES)
def test_sentences_are_clauses_and_at_most_two_adverbs(name: str) -> None:
    kinds = {"that": "that", "the": "the", "was": "be", "were": "be"} | dict.fromkeys(
        ANY_NOUN, "noun"
    )
    used = Counter[tuple[str, ...]]()
    for text in texts(name, drawn(name, 21, rows=300)):
        rest = text[2:] if name == "agreement" else text[2:-3]
        while rest and rest[0] not in ("here", "there", "today", "tonight"):
            clause = next(c for c in CLAUSES if fits(rest, c, kinds))
            used[clause] += 1
            rest = rest[len(clause) :]
        assert len(rest) <= 2
    assert set(used) == set(CLAUSES)


def fits(words: list[str], clause: tuple[str, ...], kinds: dict[str, str]) -> bool:
    open_kinds = {"preposition", "did", "doing"}
    return len(words) >= len(clause) and all(
        kinds.get(word) == kind or (kind in open_kinds and word not in kinds)
        for word, kind in zip(words, clause, strict=False)
    )


def test_pairs_of_first_and_last_noun_that_are_tested_are_not_trained_on() -> None:
    def pairs(part: Part) -> list[tuple[str, str]]:
        nouns = [
            [word for word in text if word in ANY_NOUN]
            for text in texts("agreement", drawn("agreement", 20, part))
        ]
        return [(singular(found[0]), singular(found[-1])) for found in nouns]

    def singular(noun: str) -> str:
        return noun[:-1] if noun in PLURALS else noun

    known = pairs("train")
    for part in PARTS[1:]:
        tested = pairs(part)
        assert not set(known) & set(tested)
        for side in (0, 1):  # and yet every noun is trained on, and tested, at both places
            assert {pair[side] for pair in known} == {pair[side] for pair in tested} == set(NOUNS)


@pytest.mark.parametrize("name", ["recall", *SENTENCES])
def test_what_is_tested_is_drawn_anew(name: str) -> None:
    parts = [{row.tobytes() for row in drawn(name, 20, part).inputs} for part in PARTS]
    assert not parts[0] & parts[1]
    assert not parts[0] & parts[2]
    assert not parts[1] & parts[2]


@pytest.mark.parametrize("name", SENTENCES)
@pytest.mark.parametrize("part", PARTS)
def test_going_by_the_last_noun_does_not_help(name: str, part: Part) -> None:
    task, batch = MEMORY_TASKS[name], drawn(name, 20, part)
    assert task.last_noun is not None
    guesses = task.last_noun(batch.inputs)
    last = [[word for word in text if word in ANY_NOUN][-1] for text in texts(name, batch)]
    expected = [
        ("were" if noun in PLURALS else "was") if name == "agreement" else PLACES[noun]
        for noun in last
    ]
    assert [task.classes[guess] for guess in guesses] == expected
    right = float((guesses == batch.targets[:, 0]).mean())
    assert right == pytest.approx(task.chance, abs=4 * np.sqrt(task.chance / ROWS))


def test_an_unknown_task_is_refused() -> None:
    with pytest.raises(
        UsageError,
        match=r"must be one of adding, copy, recall, agreement, cloze, but is 'nonsense'",
    ):
        task_named("nonsense")
