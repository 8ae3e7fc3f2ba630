"""The probe: the same data and budget for all readers, and a result that is a function of the seed."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from seqloom.data.synthetic.long_memory import MEMORY_TASKS, examples
from seqloom.errors import UsageError
from seqloom.explaining.memory_probe import (
    CHECK_ROWS,
    READERS,
    MemoryReader,
    ProbeBudget,
    ProbeResult,
    measure,
    probe,
    reader_named,
    trained_distance,
)
from seqloom.training.loop import Progress

pytestmark = pytest.mark.usefixtures("one_thread")

SMALL = ProbeBudget(steps=300, width=24, rows=16, learning_rate=0.01, check_every=50)


def probed(
    task: str,
    reader: str,
    distance: int,
    budget: ProbeBudget = SMALL,
    seen: list[Progress] | None = None,
) -> ProbeResult:
    result = probe(
        MEMORY_TASKS[task],
        reader,
        distance,
        budget,
        (seen if seen is not None else []).append,
        lambda: 0,
    )
    assert result is not None
    return result


@pytest.mark.parametrize("reader", READERS)
def test_every_reader_learns_what_is_near(reader: str) -> None:
    budget = dataclasses.replace(SMALL, steps=1000)  # elman-sigmoid needs most of it
    result = probed("recall", reader, 2, budget)
    assert result.learned
    assert result.stopped == "learned"
    assert result.steps < budget.steps
    assert result.steps % SMALL.check_every == 0


@pytest.mark.parametrize(("task", "distance"), [("agreement", 1), ("cloze", 4), ("recall", 1)])
def test_tasks_in_words_are_learned_where_nothing_stands_between(task: str, distance: int) -> None:
    assert probed(task, "elman", distance).metrics["accuracy"] >= 0.99


def test_adding_and_copy_are_learned_where_they_are_short() -> None:
    adding = probed("adding", "gru", 2)
    assert adding.learned
    assert adding.metrics["mse"] < 0.01
    assert adding.metrics["within_0.04"] > 0.3
    assert (
        probed("copy", "attention", 0, dataclasses.replace(SMALL, steps=600)).metrics["accuracy"]
        > 0.9
    )


def test_nothing_is_learned_without_training() -> None:
    for task in ("recall", "cloze", "copy"):
        accuracy = probed(task, "gru", 6, dataclasses.replace(SMALL, steps=1)).metrics["accuracy"]
        assert accuracy < 2.5 * MEMORY_TASKS[task].chance


def test_a_result_is_a_function_of_the_seed() -> None:
    budget = dataclasses.replace(SMALL, steps=20, shorter=0.5)
    seen: list[list[Progress]] = [[], [], []]
    results = [
        probed("cloze", "lstm", 9, budget, seen[0]),
        probed("cloze", "lstm", 9, budget, seen[1]),
    ]
    assert results[0].metrics == results[1].metrics
    assert [now.loss for now in seen[0]] == [now.loss for now in seen[1]]
    probed("cloze", "lstm", 9, dataclasses.replace(budget, seed=1), seen[2])
    assert [now.loss for now in seen[2]] != [now.loss for now in seen[0]]


def test_the_first_weights_are_those_of_the_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    seeds: list[int] = []

    def seeded(*given: Any) -> MemoryReader:
        seeds.append(torch.initial_seed())
        return MemoryReader(*given)

    monkeypatch.setattr("seqloom.explaining.memory_probe.MemoryReader", seeded)
    for seed in (3, 5):
        probed("recall", "elman", 2, dataclasses.replace(SMALL, steps=1, seed=seed))
    assert seeds == [3, 5]


def test_all_readers_are_trained_on_the_same_sequences_and_tested_on_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    drawn: dict[str, list[bytes]] = {}
    parts: list[str] = []
    for reader in READERS:
        rows = drawn[reader] = []

        def note(*given: Any, rows: list[bytes] = rows) -> Any:
            batch = examples(*given)
            rows.append(batch.inputs.tobytes())
            parts.append(given[2])
            return batch

        monkeypatch.setattr("seqloom.explaining.memory_probe.examples", note)
        parts.clear()
        probed("recall", reader, 5, dataclasses.replace(SMALL, steps=4, shorter=0.5, check_every=2))
        assert parts == ["train", "train", "validation", "train", "train", "validation", "test"]
    assert all(rows == drawn["elman"] for rows in drawn.values())


def test_progress_counts_updates_to_the_end_of_the_budget() -> None:
    seen: list[Progress] = []
    result = probed("recall", "elman", 40, dataclasses.replace(SMALL, steps=7), seen)
    assert (result.steps, result.stopped, result.learned) == (7, "budget", False)
    assert [(now.step, now.total_steps) for now in seen] == [(step, 7) for step in range(1, 8)]
    assert all(now.tokens_per_second > 0 for now in seen)


def test_an_interrupted_probe_has_no_result() -> None:
    seen: list[Progress] = []
    assert (
        probe(
            MEMORY_TASKS["recall"],
            "elman",
            5,
            SMALL,
            seen.append,
            lambda: 2 if len(seen) == 3 else 0,
        )
        is None
    )
    assert len(seen) == 3


def test_a_gradient_that_is_not_finite_ends_the_training_before_the_update() -> None:
    model = dataclasses.replace(SMALL, learning_rate=1e30, steps=50)
    result = probed("adding", "elman-relu", 10, model)
    assert result.stopped == "not finite"
    assert not result.learned


def test_shorter_distances_come_as_often_as_asked() -> None:
    task = MEMORY_TASKS["cloze"]
    for share in (0.0, 0.3):
        distances = [
            trained_distance(task, 50, ProbeBudget(shorter=share), step) for step in range(2000)
        ]
        assert sum(distance < 50 for distance in distances) / 2000 == pytest.approx(share, abs=0.05)
        assert min(distances) == (task.shortest if share else 50)
        assert max(distances) == 50


@pytest.mark.parametrize("reader", READERS)
def test_readers_differ_in_the_cell_alone(reader: str) -> None:
    model = MemoryReader(reader, 5, 3, 8)
    assert model.recurrent.config.cell == reader_named(reader)
    assert (model.scores is not None) == (reader == "attention")
    assert model(torch.zeros(2, 6, dtype=torch.long), 4).shape == (2, 4, 3)


def test_attention_reaches_the_first_step_in_one() -> None:
    """With a cell that forgets everything at once, only attention still sees the first word."""
    torch.manual_seed(0)
    inputs = torch.zeros(2, 30, dtype=torch.long)
    inputs[1, 0] = 1
    for reader, sees in (("elman", False), ("attention", True)):
        model = MemoryReader(reader, 2, 3, 8)
        with torch.no_grad():
            model.recurrent.stack[0].weight_h.zero_()
            first, second = model(inputs, 1)
        assert bool((first != second).any()) == sees


def test_measuring_is_on_the_part_that_was_asked_for() -> None:
    model = MemoryReader("elman", len(MEMORY_TASKS["agreement"].words), 2, 8)
    parts = [
        measure(model, MEMORY_TASKS["agreement"], 0, part, CHECK_ROWS[0], 9)
        for part in ("validation", "test")
    ]
    assert parts[0] != parts[1]
    assert set(parts[0]) == {"accuracy", "last_noun"}


def test_the_error_of_a_constant_answer_is_known() -> None:
    model = MemoryReader("elman", 0, 0, 8)
    # 0.04 on either side of 1, under a triangle of height 1
    for answer, mse, within in (
        (1.0, 1 / 6, 0.078),
        (-5.0, 36 + 1 / 6, 0.0),
    ):
        with torch.no_grad():
            model.output.weight.zero_()
            model.output.bias.fill_(answer)
        metrics = measure(model, MEMORY_TASKS["adding"], 0, "test", 4096, 12)
        assert metrics["mse"] == pytest.approx(mse, rel=0.06)
        assert metrics["within_0.04"] == pytest.approx(within, abs=0.02)


def test_an_unknown_reader_is_refused() -> None:
    with pytest.raises(UsageError, match=r"must be one of elman, .*attention, but is 'nonsense'"):
        MemoryReader("nonsense", 2, 2, 8)
