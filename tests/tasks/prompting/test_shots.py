"""Shots are drawn by seed, and an item is never among its own."""

from __future__ import annotations

import pytest

from seqloom.errors import UsageError
from seqloom.tasks.prompting.options import PromptOptions
from seqloom.tasks.prompting.prompt_rows import PromptRow
from seqloom.tasks.prompting.shots import ShotPool, joined, label_counts
from seqloom.tasks.prompting.template import RenderedRow


def item(text: str, label: str, path: str = "train.csv", line: int = 1) -> RenderedRow:
    row = PromptRow({"text": text, "label": label}, path, line)
    return RenderedRow(
        prompt=f"Text: {text}\nTopic:",
        targets=(label,),
        choices=("a", "b", "c"),
        content_free=None,
        label=label,
        row=row,
    )


POOL = [item(f"text {number}", "aaaaaabbbc"[number % 10], line=number) for number in range(40)]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("balanced", [False, True])
def test_no_item_is_among_its_own_shots(seed: int, balanced: bool) -> None:
    pool = ShotPool(POOL, 6, balanced=balanced)
    drawn = pool.draw(seed)
    for one in POOL:
        # the same content in another file, with other white space and another label
        elsewhere = item(one.row.fields["text"] + " ", "c", "test.csv")
        for order in range(3):
            shots = pool.of(elsewhere, drawn, seed, order)
            assert len(shots) == 6
            assert one not in shots
    untouched = pool.of(item("another", "a"), drawn, seed, 0)
    assert untouched == drawn[:6]


def test_a_repeated_example_is_one_shot() -> None:
    pool = ShotPool([*POOL[:3], *POOL[:3]], 2, balanced=False)
    for seed in range(5):
        shots = pool.of(POOL[0], pool.draw(seed), seed, 0)
        assert {shot.prompt for shot in shots} == {POOL[1].prompt, POOL[2].prompt}


def test_balanced_shots_have_each_label_equally_often() -> None:
    for seed in range(4):
        drawn = ShotPool(POOL, 9, balanced=True).draw(seed)
        labels = [one.label for one in drawn[:9]]
        assert {label: labels.count(label) for label in "abc"} == {"a": 3, "b": 3, "c": 3}


def test_repeated_examples_leave_shots_balanced_and_counted_as_they_are() -> None:
    """The counts that are shown are those of the first draws."""
    some = [one for one in POOL if one.label == "a"][:4]
    repeated = some * 10 + [one for one in POOL if one.label != "a"]
    pool = ShotPool(repeated, 9, balanced=True)
    for seed in range(6):
        drawn = pool.draw(seed)
        shots = pool.of(item("another", "a"), drawn, seed, 0)
        assert label_counts(drawn[:9]) == label_counts(shots) == {"a": 3, "b": 3, "c": 3}


def test_an_order_is_a_permutation_that_the_seed_fixes() -> None:
    pool = ShotPool(POOL, 6, balanced=False)
    drawn = pool.draw(1)
    orders = [pool.of(item("new", "a"), drawn, 1, order) for order in range(10)]
    assert len({tuple(shot.prompt for shot in shots) for shots in orders}) > 5
    for shots in orders:
        assert sorted(shot.prompt for shot in shots) == sorted(one.prompt for one in drawn[:6])
    assert pool.of(item("new", "a"), pool.draw(1), 1, 7) == orders[7]
    assert pool.draw(2) != drawn


def test_orders_differ() -> None:
    pool = ShotPool(POOL, 3, balanced=False)
    drawn = pool.draw(0)
    orders = [pool.of(item("new", "a"), drawn, 0, order) for order in range(6)]
    assert len({tuple(one.prompt for one in shots) for shots in orders}) == 6
    assert [one.prompt for one in orders[0]] == [one.prompt for one in drawn[:3]]
    with pytest.raises(UsageError, match="3 shots can have 6 orders, so --orders must not be 7"):
        PromptOptions(template="topic", shots=3, examples=("a.csv",), orders=7).check()


def test_there_must_be_more_examples_than_shots() -> None:
    with pytest.raises(UsageError, match="must hold more than 3 examples that differ"):
        ShotPool([*POOL[:3], POOL[0]], 3, balanced=False)


def test_shots_stand_before_the_prompt_with_their_answers() -> None:
    text = joined(POOL[:2], "Text: new\nTopic:", " ", "\n##\n")
    assert text == "Text: text 0\nTopic: a\n##\nText: text 1\nTopic: a\n##\nText: new\nTopic:"
