"""A comparison is fair, goes on to the leaderboard that it would have had, and reads the test when all is
chosen."""

from __future__ import annotations

import json
import logging
import math
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from seqloom import files
from seqloom.errors import FolderError, SeqloomError, TrainingError, UsageError
from seqloom.evaluation.significance import mean_interval
from seqloom.models import model_family
from seqloom.training import metrics_log
from seqloom.training.checkpoints import read_state
from seqloom.training.loop import Progress
from seqloom.workflows.compare import cells as cells_module
from seqloom.workflows.compare import leaderboard as leaderboard_module
from seqloom.workflows.compare import run as workflow
from seqloom.workflows.compare.cells import CellResult, CellRun, scaled_widths, solve_width
from seqloom.workflows.compare.leaderboard import CellScore, holm, leaderboard
from seqloom.workflows.compare.plan import (
    CompareConfig,
    ComparisonPlan,
    ModelEntry,
    TrainingChoice,
    learning_rates,
    read_entries,
    set_value,
    settings_of,
)
from seqloom.workflows.compare.run import Comparison, RemainingRuns, run_compare
from seqloom.workflows.evaluate import evaluate

pytestmark = pytest.mark.usefixtures("one_thread")

TASK = "text-classification"
MODELS = "bag_of_words,recurrent:tiny+cell=gru,convolution"
BEST_RATE = {"bag_of_words": 1e-2, "recurrent:tiny+cell=gru": 3e-3, "convolution": 3.33e-4}
RIGHT = {"bag_of_words": 0.6, "recurrent:tiny+cell=gru": 0.8, "convolution": 0.79}
PACE = {"bag_of_words": 0.01, "recurrent:tiny+cell=gru": 0.04, "convolution": 0.02}


def known(name: str) -> str:
    """The model of a name, or of a folder."""
    return next(one for one in RIGHT if name.startswith(one[:6]))


class Toy:
    """Trains nothing: what comes out is a function of model, rate and seed; the settings are recorded."""

    def __init__(
        self,
        stop_at: int | None = None,
        diverges: float = math.inf,
        planned: int = 40,
        breaks: str = "-",
    ) -> None:
        self.stop_at, self.diverges, self.planned, self.breaks = stop_at, diverges, planned, breaks
        self.events: list[tuple[str, str]] = []
        self.settings: dict[str, dict[str, Any]] = {}

    def train(
        self,
        folder: Path,
        entry: ModelEntry,
        settings: list[str],
        plan: ComparisonPlan,
        progress: Callable[[Progress], None],
    ) -> CellRun:
        values = self.settings[folder.name] = {
            one.partition("=")[0]: one.partition("=")[2] for one in settings
        }
        rate, seed = float(values.get("train.learning_rate", 0)), int(values["train.seed"])
        steps = int(values.get("train.max_steps", self.planned))
        log = folder / "run"
        if log.is_file():
            return CellRun(
                "finished",
                steps,
                steps,
                json.loads(log.read_text()),
                steps * PACE[known(entry.name)],
                32 * steps,
            )
        self.events.append(("train", folder.name))
        if rate > self.diverges or folder.name.startswith(self.breaks):
            raise TrainingError("step 1: the gradient must be finite, but is not")
        if len(self.events) == self.stop_at:
            return CellRun("SIGINT", 1, steps, {}, 0.1, 32)
        logging.getLogger("seqloom.tests").info("the data are read")
        progress(Progress(steps, steps, 0.5, 1000.0))
        name = known(entry.name)
        score = RIGHT[name] - 0.05 * abs(math.log(max(rate, 1e-9) / BEST_RATE[name])) - 0.001 * seed
        metrics = {"accuracy": score, "loss": 1 - score}
        folder.mkdir(parents=True)
        log.write_text(json.dumps(metrics))
        return CellRun(
            "max_steps", steps, steps, metrics, steps * PACE[known(entry.name)], 32 * steps
        )

    def measure(self, folder: Path, plan: ComparisonPlan) -> CellResult:
        self.events.append(("measure", folder.name))
        name = known(folder.name)
        seed = int(folder.name[-1])
        # the same items are hard for all models
        hard = np.random.default_rng(0).random(400) + 0.05 * np.random.default_rng(seed + 1).random(
            400
        )
        right = (hard < RIGHT[name]).astype(float)
        return CellResult(
            {"accuracy": float(right.mean()), "loss": 0.1}, right.tolist(), 1000, 8.0, "t"
        )

    def latency(self, folder: Path, plan: ComparisonPlan) -> float:
        return 0.002

    def parameters(
        self, entry: ModelEntry, settings: list[str], like: Path, plan: ComparisonPlan
    ) -> Callable[[dict[str, int]], int | None]:
        own = set_value(settings, "model.width") or 100
        return lambda fields: 5000 + 1000 * fields.get("width", fields.get("embedding_width", own))


@pytest.fixture(autouse=True)
def no_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """A chart takes longer than the rest of a test."""
    monkeypatch.setattr(leaderboard_module, "draw", lambda *_: None)


@pytest.fixture
def data(tmp_path: Path) -> dict[str, list[str]]:
    for name in ("train", "dev", "test"):
        (tmp_path / f"{name}.tsv").write_text(f"text\tlabel\n{name} good\tpos\n{name} bad\tneg\n")
    return {
        name: [str(tmp_path / f"{file}.tsv")]
        for name, file in (("data", "train"), ("validation", "dev"), ("test", "test"))
    }


def compare_with(folder: Path, data: dict[str, list[str]], toy: Toy, **more: Any) -> Comparison:
    options: dict[str, Any] = {
        "models": MODELS,
        "seeds": 2,
        "settings": ["train.max_steps=30"],
        **data,
        **more,
    }
    config = CompareConfig(task=TASK, output_dir=folder, **options)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(workflow, "train_cell", toy.train)
        patch.setattr(workflow, "measure_cell", toy.measure)
        patch.setattr(workflow, "cell_latency", toy.latency)
        patch.setattr(workflow, "floor_of", lambda *_: None)
        patch.setattr(workflow, "parameter_count", toy.parameters)
        return run_compare(config)


def without_times(folder: Path) -> Any:
    return files.read_json(folder / "leaderboard.json")["rows"]


def test_every_model_has_the_same_budget_and_the_rate_that_suits_it(
    tmp_path: Path, data: dict[str, list[str]], notices: list[str]
) -> None:
    toy = Toy()
    compare_with(tmp_path / "c", data, toy)
    cells = {name: settings for name, settings in toy.settings.items() if name[-6:-1] == "-seed"}
    assert sorted(cells) == sorted(
        f"{name}-seed{s}"
        for name in ("bag_of_words", "recurrent-tiny-cell-gru", "convolution")
        for s in (0, 1)
    )
    for name, settings in cells.items():
        assert (settings["train.max_steps"], settings["train.seed"], settings["train.threads"]) == (
            "30",
            name[-1],
            "1",
        )
        assert settings["train.best"] == "accuracy"
        assert float(settings["train.learning_rate"]) == BEST_RATE[known(name)]
    tried = [settings for name, settings in toy.settings.items() if name not in cells]
    assert len(tried) == 9
    assert {settings["train.max_steps"] for settings in tried} == {"10"}
    assert {settings["train.seed"] for settings in tried} == {"0"}
    assert cells["recurrent-tiny-cell-gru-seed0"]["model.cell"] == "gru"
    assert "model.cell" not in cells["convolution-seed0"]
    assert notices.count("the data are read") == 1
    # of the recurrent one and the convolution
    assert sum("an end of its grid" in line for line in notices) == 2


def test_the_test_is_read_when_everything_is_trained_and_once(
    tmp_path: Path, data: dict[str, list[str]]
) -> None:
    toy = Toy()
    compare_with(tmp_path / "c", data, toy)
    kinds = [kind for kind, _ in toy.events]
    assert kinds == ["train"] * 15 + ["measure"] * 6
    assert len(set(toy.events)) == 21
    again = Toy()
    compare_with(tmp_path / "c", data, again)
    assert again.events == []


@pytest.mark.parametrize("stop_at", [1, 5, 9, 10, 13, 15])
def test_a_stopped_comparison_goes_on_to_the_same_leaderboard(
    tmp_path: Path, data: dict[str, list[str]], stop_at: int
) -> None:
    whole = Toy()
    compare_with(tmp_path / "whole", data, whole)
    first, second = Toy(stop_at=stop_at), Toy()
    stopped = compare_with(tmp_path / "c", data, first)
    assert (stopped.stopped, stopped.leaderboard) == ("SIGINT", None)
    assert compare_with(tmp_path / "c", data, second).stopped is None
    assert without_times(tmp_path / "c") == without_times(tmp_path / "whole")
    done = first.events[:-1] + second.events
    assert sorted(done) == sorted(whole.events)  # nothing twice, nothing left out
    assert not (tmp_path / "c" / "grid").exists()


def test_the_steps_are_those_of_the_first_models_epochs(
    tmp_path: Path, data: dict[str, list[str]]
) -> None:
    toy = Toy(planned=40)
    compare_with(tmp_path / "c", data, toy, settings=["train.epochs=6"])
    tried = [
        one
        for one in toy.settings.values()
        if "train.epochs" in one and "train.max_steps" not in one
    ]
    assert len(tried) == 1
    assert float(tried[0]["train.epochs"]) == 2
    assert {one["train.max_steps"] for name, one in toy.settings.items() if "-seed" in name} == {
        "120"
    }


@pytest.mark.parametrize("seconds", [None, 0.6])
def test_the_same_seconds_for_all(
    tmp_path: Path, data: dict[str, list[str]], seconds: float | None
) -> None:
    toy = Toy()
    board = compare_with(tmp_path / "c", data, toy, match="time", seconds=seconds).leaderboard
    assert board is not None
    for row in board.rows:
        assert row.training_seconds == pytest.approx(
            seconds or 30 * PACE["bag_of_words"], abs=PACE[known(row.model)]
        )
    assert len({row.steps for row in board.rows}) == 3


@pytest.mark.parametrize("parameters", [None, 40_000])
def test_the_same_parameters_for_all(
    tmp_path: Path, data: dict[str, list[str]], parameters: int | None, notices: list[str]
) -> None:
    toy = Toy()
    compare_with(
        tmp_path / "c",
        data,
        toy,
        match="parameters",
        parameters=parameters,
        models=MODELS.replace("words", "words+width=60", 1),
    )
    wanted = parameters or 65_000
    for name, key in (
        ("recurrent-tiny-cell-gru", "model.width"),
        ("convolution", "model.embedding_width"),
    ):
        width = int(toy.settings[f"{name}-seed1"][key])
        assert 5000 + 1000 * width == pytest.approx(wanted, rel=0.05)
    first = toy.settings["bag_of_words-width-60-seed0"]
    assert first["model.width"] == ("60" if parameters is None else "35")
    assert any("parameters at width" in line for line in notices)


def test_a_rate_that_does_not_stay_finite_is_left_out(
    tmp_path: Path, data: dict[str, list[str]], notices: list[str]
) -> None:
    toy = Toy(diverges=4e-3)
    board = compare_with(tmp_path / "c", data, toy).leaderboard
    assert board is not None
    assert {row.model: row.learning_rate for row in board.rows} == {
        "bag_of_words": 3.33e-3,
        "recurrent:tiny+cell=gru": 3e-3,
        "convolution": 3.33e-4,
    }
    assert sum("is too high" in line for line in notices) == 2
    with pytest.raises(TrainingError, match="no model of the comparison could be trained"):
        compare_with(tmp_path / "d", data, Toy(diverges=1e-5))


@pytest.mark.parametrize("breaks", ["recurrent-tiny-cell-gru-seed1", "recurrent-tiny-cell-gru-"])
def test_a_model_that_cannot_be_trained_is_left_out_and_said(
    breaks: str, tmp_path: Path, data: dict[str, list[str]], notices: list[str]
) -> None:
    """In one of its cells, or at every learning rate."""
    toy = Toy(breaks=breaks)
    board = compare_with(tmp_path / "c", data, toy).leaderboard
    assert board is not None
    (missing,) = set(board.plan.names) - {row.model for row in board.rows}
    assert any(line.startswith(f"{missing} is left out: ") for line in notices)
    assert f"left out, as the loss did not stay finite: {missing}" in board.notes()
    again = compare_with(tmp_path / "c", data, toy).leaderboard
    assert again is not None
    assert again.notes() == board.notes()


def test_a_model_that_breaks_is_named_once_and_not_waited_for(
    tmp_path: Path, data: dict[str, list[str]], notices: list[str]
) -> None:
    compare_with(tmp_path / "c", data, Toy(breaks="recurrent-tiny-cell-gru-seed0"))
    (missing,) = [line for line in notices if "is left out" in line]
    assert (
        missing
        == "recurrent:tiny+cell=gru is left out: seed 0: step 1: the gradient must be finite, but is not"
    )
    assert [
        line.partition("; ")[2]
        for line in notices[notices.index(missing) :]
        if "seed" in line and "; " in line
    ] == [
        "2 runs to go, about 1 s",
        "1 run to go, about 1 s",
    ]


def test_what_is_ahead_goes_by_each_models_own_pace() -> None:
    remaining = RemainingRuns(["fast", "slow"], rates=3, seeds=2)
    assert remaining.count == 10
    # a whole run: 3 s; what is left of it: 2 short and 2 whole ones
    remaining.finish("fast", short=True, seconds=1.0)
    assert str(remaining) == "; 9 runs to go, about 17 s, if the other models take as long"
    for seconds in (1.0, None):
        remaining.finish("fast", short=True, seconds=seconds)
    remaining.finish("slow", short=True, seconds=100.0)
    assert str(remaining) == "; 6 runs to go, about 13 min"  # 2 x 3 s, and 2 2/3 x 300 s
    remaining.choose("slow", 600.0)
    assert str(remaining) == "; 4 runs to go, about 20 min"
    remaining.drop("slow")
    remaining.finish("fast", short=False, seconds=5.0)
    assert (str(remaining), remaining.finished) == ("; 1 run to go, about 5 s", 5)
    remaining.finish("fast", short=False, seconds=5.0)
    assert not str(remaining)


def test_without_a_grid_and_without_files_for_validation(
    tmp_path: Path, data: dict[str, list[str]], notices: list[str]
) -> None:
    toy = Toy()
    board = compare_with(tmp_path / "c", {"data": data["data"]}, toy, grid=1).leaderboard
    assert [kind for kind, _ in toy.events] == ["train"] * 6 + ["measure"] * 6
    assert {settings["data.split_seed"] for settings in toy.settings.values()} == {"0"}
    assert board is not None
    assert "also chose" in board.notes()[0]
    assert "measured by accuracy on the validation part" in notices[0]
    assert all("data.split_seed" not in one for one in _settings(tmp_path / "d", data))


def _settings(folder: Path, data: dict[str, list[str]]) -> list[dict[str, Any]]:
    toy = Toy()
    compare_with(folder, data, toy, grid=1)
    return list(toy.settings.values())


def test_another_plan_in_the_folder_is_refused(tmp_path: Path, data: dict[str, list[str]]) -> None:
    compare_with(tmp_path / "c", data, Toy())
    for more, message in (
        ({"seeds": 3}, "seeds was 2 and is 3"),
        ({"models": "bag_of_words,convolution"}, "models was"),
        ({"settings": ["train.max_steps=31"]}, "settings was"),
        ({"settings": ["train.max_steps=30", "train.threads=2"]}, "threads was 1 and is 2"),
        ({"match": "time"}, "match was 'steps' and is 'time'"),
    ):
        with pytest.raises(UsageError, match=message):
            compare_with(tmp_path / "c", data, Toy(), **more)
    Path(data["data"][0]).write_text("text\tlabel\nother\tpos\n")
    with pytest.raises(UsageError, match="the data have changed"):
        compare_with(tmp_path / "c", data, Toy())
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "mine.txt").write_text("mine")
    with pytest.raises(UsageError, match="holds something else"):
        compare_with(tmp_path / "other", data, Toy())


def test_a_model_may_have_a_short_name(tmp_path: Path, data: dict[str, list[str]]) -> None:
    models = "bag_of_words,recurrent-9=gru:tiny+width=9"
    comparison = compare_with(tmp_path / "c", data, Toy(), models=models)
    assert comparison.leaderboard is not None
    assert {row.model for row in comparison.leaderboard.rows} == {"bag_of_words", "recurrent-9"}
    assert (tmp_path / "c" / "recurrent-9-seed0").is_dir()
    entry = read_entries(models, TASK)[1]
    assert entry.model == "recurrent:tiny"
    assert entry.settings == ("model.width=9", "model.cell=gru")


def test_another_test_is_measured_without_training(
    tmp_path: Path, data: dict[str, list[str]]
) -> None:
    compare_with(tmp_path / "c", data, Toy())
    Path(data["test"][0]).write_text("text\tlabel\nmended\tpos\n")
    toy = Toy()
    compare_with(tmp_path / "c", data, toy)
    assert [kind for kind, _ in toy.events] == ["measure"] * 6


def test_two_at_a_time_are_refused(tmp_path: Path, data: dict[str, list[str]]) -> None:
    compare_with(tmp_path / "c", data, Toy())
    with (
        files.locked(tmp_path / "c" / files.LOCK),
        pytest.raises(FolderError, match="another process"),
    ):
        compare_with(tmp_path / "c", data, Toy())


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"models": "bag_of_words"}, "at least two models"),
        ({"models": "bag_of_words,nonsense:tiny"}, "families that can do"),
        ({"models": "bag_of_words,convolution,bag-of-words,bag_of_words"}, "families that can do"),
        ({"models": "convolution+maps=8,convolution+maps-8"}, "key=value"),
        ({"models": "recurrent+cell=gru,recurrent+cell==gru"}, "one folder"),
        ({"models": "bag_of_words,convolution+nonsense=3"}, "model.nonsense"),
        ({"models": "bag_of_words,convolution+train.max_steps=3"}, "cannot be set for one model"),
        ({"models": "bag_of_words,convolution+train.best=loss"}, "the same for all models"),
        ({"models": "bag_of_words,mini lm=folder"}, "NAME=FOLDER"),
        ({"models": "bag_of_words,mine=gru+cell=lstm,mine=gru"}, "one folder"),
        ({"models": "bag_of_words,minilm=no-such-folder"}, "no-such-folder"),
        ({"match": "size"}, "must be one of steps, time, parameters"),
        ({"parameters": 3000}, "--parameters must go with --match parameters"),
        ({"match": "time", "seconds": -1}, "--seconds must be above 0"),
        ({"seeds": 0}, "at least 1"),
        ({"grid": 2}, "odd number"),
        ({"grid": 1, "settings": []}, "train.max_steps"),
        ({"settings": ["train.seed=3"]}, "--seeds"),
        ({"test": ["no-such-file.tsv"]}, "no-such-file.tsv"),
        ({"test": ["-"]}, "standard input"),
    ],
)
def test_a_mistake_is_said_before_the_work(
    tmp_path: Path, data: dict[str, list[str]], more: dict[str, Any], message: str
) -> None:
    toy = Toy()
    with pytest.raises(SeqloomError, match=message) as refused:
        compare_with(tmp_path / "c", data, toy, **more)
    assert "\n" not in str(refused.value)
    assert toy.events == []
    assert not (tmp_path / "c").exists()


def test_compare_is_for_tasks_whose_models_have_a_score(tmp_path: Path) -> None:
    with pytest.raises(
        UsageError, match="compare is for translation, summarization, text2text-gen"
    ):
        run_compare(
            CompareConfig(
                task="fill-mask",
                data=["a.tsv"],
                models="bert,electra",
                output_dir=tmp_path / "c",
            )
        )


def test_models_in_one_word() -> None:
    words = (
        "bag_of_words,recurrent:tiny+cell=gru+head.pooling=last,"
        " convolution+windows=[2,3],mini.lm-1=a/b=c+train.layer_decay=0.9"
    )
    assert read_entries(words, TASK) == [
        ModelEntry(name="bag_of_words", model="bag_of_words", checkpoint=None),
        ModelEntry(
            name="recurrent:tiny+cell=gru+head.pooling=last",
            model="recurrent:tiny",
            checkpoint=None,
            settings=("model.cell=gru", "head.pooling=last"),
        ),
        ModelEntry(
            name="convolution+windows=[2,3]",
            model="convolution",
            checkpoint=None,
            settings=("model.windows=[2,3]",),
        ),
        ModelEntry(
            name="mini.lm-1", model=None, checkpoint="a/b=c", settings=("train.layer_decay=0.9",)
        ),
    ]


def test_learning_rates_stand_around_what_is_set_or_usual() -> None:
    scratch, bert, tuned, own = read_entries(
        "recurrent,bert,minilm=f,recurrent+train.learning_rate=0.9", TASK
    )
    assert learning_rates(scratch, TASK, [], 3) == [3.33e-4, 1e-3, 3e-3]
    assert learning_rates(bert, TASK, [], 1) == [3e-4]
    assert learning_rates(tuned, TASK, [], 3) == [1.67e-5, 5e-5, 1.5e-4]
    assert learning_rates(tuned, TASK, ["train.learning_rate=0.1"], 1) == [0.1]
    assert learning_rates(own, TASK, ["train.learning_rate=0.1"], 5) == [0.1, 0.3, 0.9, 2.7, 8.1]


def test_a_checkpoint_brings_its_own_model_and_tokenizer() -> None:
    scratch, tuned = read_entries("recurrent,minilm=f+head.dropout=0", TASK)
    common = ["data.vocabulary=500", "model.dropout=0.2", "train.max_steps=3"]
    assert settings_of(scratch, common) == common
    assert settings_of(tuned, common) == ["train.max_steps=3", "head.dropout=0"]


@given(st.integers(1, 12), st.integers(0, 5000), st.integers(1, 900), st.integers(1, 2_000_000))
def test_a_solved_width_is_the_nearest_that_there_is(
    heads: int, fixed: int, each: int, wanted: int
) -> None:
    def count(width: int) -> int | None:
        return None if width % heads else fixed + each * width + width * width

    best = min(abs(size - wanted) for width in range(1, 4000) if (size := count(width)) is not None)
    if best > 0.05 * wanted:
        with pytest.raises(UsageError, match="the nearest is"):
            solve_width("m", count, wanted)
    else:
        solved = solve_width("m", count, wanted)
        assert abs(solved.parameters - wanted) == best
        assert count(solved.width) == solved.parameters


def test_widths_grow_together_but_for_those_that_are_fixed() -> None:
    config = model_family("recurrent")[0](vocabulary_size=100, width=200, embedding_width=100)
    assert scaled_widths(config, (), 50) == {"width": 50, "embedding_width": 25}
    assert scaled_widths(config, ("embedding_width",), 50) == {"width": 50}
    kim = model_family("convolution")[0](vocabulary_size=100)
    assert scaled_widths(kim, (), 30) == {"embedding_width": 30, "maps": 10}


# the table


def cell(model: str, seed: int, right: list[float], **more: Any) -> CellScore:
    fields: dict[str, Any] = {
        "metrics": {"accuracy": float(np.mean(right)), "loss": 0.5},
        "parameters": 10,
        "training_seconds": 2.0,
    }
    fields |= {
        "trained_tokens": 100,
        "steps": 5,
        "latency_seconds": 0.002,
        "choice": TrainingChoice(5, 0.1, {}, 0.4),
        "tokenizer": "t",
        "folder": f"{model}-seed{seed}",
    }
    return CellScore(model=model, by_item=right, **fields | more)


def plan_of(**more: Any) -> ComparisonPlan:
    fields: dict[str, Any] = {
        "task": TASK,
        "data": (),
        "validation": (),
        "test": ("t",),
        "models": ("a", "b", "c"),
        "settings": (),
    }
    fields |= {
        "seeds": 2,
        "match": "steps",
        "parameters": None,
        "seconds": None,
        "grid": 3,
        "steps": None,
        "metric": "accuracy",
        "threads": 1,
        "files": (),
    }
    return ComparisonPlan(**fields | more)


def test_a_row_says_mean_interval_and_what_it_costs() -> None:
    scores = [[1.0, 1.0, 0.0, 1.0], [1.0, 0.0, 0.0, 1.0]]
    board = leaderboard(plan_of(), [cell("a", seed, right) for seed, right in enumerate(scores)])
    (row,) = board.rows
    assert (row.scores, row.mean) == ((0.75, 0.5), 0.625)
    assert (row.mean, row.low, row.high) == mean_interval([0.75, 0.5])
    assert (row.tokens_per_second, row.latency_ms, row.item_difference, row.p) == (
        50.0,
        2.0,
        None,
        None,
    )
    alone = leaderboard(plan_of(seeds=1), [cell("a", 0, scores[0])]).rows[0]
    assert (alone.low, alone.high) == (None, None)


def test_the_best_comes_first_and_the_others_are_tested_against_it() -> None:
    rng = np.random.default_rng(0)
    hard = rng.random(500)
    right = {"a": hard < 0.5, "b": hard < 0.8, "c": hard < 0.8}
    cells = [
        cell(model, seed, right[model].astype(float).tolist(), parameters=20 - 10 * (model == "c"))
        for model in right
        for seed in (0, 1)
    ]
    board = leaderboard(plan_of(), cells)
    assert [row.model for row in board.rows] == ["c", "b", "a"]  # of equal ones the smaller
    best, same, worse = board.rows
    assert best.p is None
    assert same.p == 1.0
    assert worse.p is not None
    assert worse.p < 0.001
    assert worse.item_difference is not None
    assert worse.item_difference.low < worse.mean - best.mean < worse.item_difference.high < 0
    assert any(
        "not told apart from the best" in note and note.endswith(": b") for note in board.notes()
    )
    by_loss = [
        cell(model, 0, [1.0], metrics={"loss": loss})
        for model, loss in (("a", 0.1), ("b", 0.3), ("c", 0.2))
    ]
    assert [row.model for row in leaderboard(plan_of(metric="loss", seeds=1), by_loss).rows] == [
        "a",
        "c",
        "b",
    ]


def test_without_single_answers_there_is_no_test() -> None:
    cells = [cell("a", 0, [1.0, 1.0]), cell("b", 0, [1.0, 0.0])._replace(by_item=[])]
    board = leaderboard(plan_of(seeds=1), cells)
    assert board.rows[1].p is None
    assert any("no test against the best" in note for note in board.notes())


def test_models_of_another_size_than_asked_for_are_named() -> None:
    cells = [cell("a", 0, [1.0]), cell("b", 0, [0.0], parameters=11)]
    assert "b (11)" in leaderboard(plan_of(match="parameters", seeds=1), cells).notes()[-1]


@given(st.lists(st.floats(0, 1), max_size=8))
def test_holms_correction(values: list[float]) -> None:
    adjusted = holm(values)
    assert all(p <= q <= 1 for p, q in zip(values, adjusted, strict=True))
    # as Holm states it: go up from the smallest until one is not small enough
    for level in (
        0.01,
        0.05,
        0.2,
    ):
        rejected, order = set(), sorted(range(len(values)), key=values.__getitem__)
        for rank, at in enumerate(order):
            if values[at] > level / (len(values) - rank):
                break
            rejected.add(at)
        near = any(
            abs(values[at] * (len(values) - rank) - level) < 1e-12 for rank, at in enumerate(order)
        )
        assert near or rejected == {at for at, q in enumerate(adjusted) if q <= level}


def test_what_is_written_can_be_read(tmp_path: Path, data: dict[str, list[str]]) -> None:
    board = compare_with(tmp_path / "c", data, Toy()).leaderboard
    assert board is not None
    lines = (tmp_path / "c" / "leaderboard.csv").read_text().splitlines()
    assert lines[0].startswith("model,mean,low,high,p,")
    assert lines[0].endswith("seed0,seed1")
    assert [line.split(",")[0] for line in lines[1:]] == [row.model for row in board.rows]
    content = files.read_json(tmp_path / "c" / "leaderboard.json")
    assert content["plan"]["models"] == MODELS.split(",")
    assert content["rows"][0]["scores"] == list(board.rows[0].scores)
    header, rows = board.table()
    assert all(len(row) == len(header) for row in rows)
    damaged = tmp_path / "c" / "convolution-seed0"
    (damaged / "predictions.jsonl").write_text("nonsense\n")
    with pytest.raises(
        FolderError, match=r"predictions.jsonl must have .*; delete score.json there"
    ):
        compare_with(tmp_path / "c", data, Toy())


# the real work

GOOD, BAD = ["good", "great", "fine"], ["bad", "poor", "awful"]
REST = ["the", "film", "was", "a", "plot", "with", "music"]
REAL = "bag_of_words:tiny,recurrent:tiny+cell=gru+layers=2+head.pooling=attention"
SMALL = [
    "train.max_steps=9",
    "train.evaluate_every=9",
    "train.batch_rows=16",
    "data.tokenizer=words",
]


def texts(folder: Path) -> dict[str, list[str]]:
    """Files of texts that one word gives away."""
    rng = np.random.default_rng(0)
    for name, count in (("train", 120), ("dev", 30), ("test", 40)):
        lines = ["text\tlabel"]
        for at in range(count):
            label = int(rng.integers(2))
            words = [*rng.choice(REST, 4), str(rng.choice((BAD, GOOD)[label])), f"{name}{at}"]
            lines.append(f"{' '.join(rng.permutation(words))}\t{('neg', 'pos')[label]}")
        (folder / f"{name}.tsv").write_text("\n".join(lines) + "\n")
    return {
        name: [str(folder / f"{file}.tsv")]
        for name, file in (("data", "train"), ("validation", "dev"), ("test", "test"))
    }


def compare_for_real(folder: Path, data: dict[str, list[str]], **more: Any) -> Comparison:
    options: dict[str, Any] = {
        "models": REAL,
        "seeds": 1,
        "settings": SMALL,
        "match": "parameters",
        **data,
        **more,
    }
    progress = options.pop("progress", lambda _: None)
    return run_compare(CompareConfig(task=TASK, output_dir=folder, **options), progress=progress)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, list[str]]]:
    """A folder in which `c` is a comparison, and its data."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("whole")
    data = texts(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(leaderboard_module, "draw", lambda *_: None)
        patch.setattr(cells_module, "TIMED", 3)
        compare_for_real(folder / "c", data)
    torch.set_num_threads(before)
    return folder, data


def test_a_cell_is_a_run_folder_and_its_numbers_are_those_of_evaluate(
    whole: tuple[Path, dict[str, list[str]]],
) -> None:
    folder, data = whole
    rows = files.read_json(folder / "c" / "leaderboard.json")["rows"]
    assert {row["model"] for row in rows} == set(REAL.split(","))
    for row in rows:
        (name,) = row["folders"]
        report = evaluate(folder / "c" / name, data["test"], {}, {})
        assert report.by_example is not None
        assert row["scores"] == [report.metrics["accuracy"]]
        lines = (folder / "c" / name / "predictions.jsonl").read_text().splitlines()
        assert [json.loads(line)["score"] for line in lines] == report.by_example.tolist()
        assert row["steps"] == 9
        assert row["training_seconds"] > 0
        assert row["latency_ms"] > 0
    first = next(row for row in rows if row["model"] == REAL.split(",")[0])
    assert all(
        abs(row["parameters"] - first["parameters"]) <= 0.05 * first["parameters"] for row in rows
    )


def test_parameters_are_counted_without_the_model(whole: tuple[Path, dict[str, list[str]]]) -> None:
    folder, data = whole
    plan = plan_of(data=tuple(data["data"]), validation=tuple(data["validation"]))
    like = folder / "c" / "bag_of_words-tiny-seed0"
    for row in files.read_json(folder / "c" / "leaderboard.json")["rows"]:
        (entry,) = (one for one in read_entries(REAL, TASK) if one.name == row["model"])
        count = cells_module.parameter_count(entry, list(entry.settings), like, plan)
        assert count(row["fields"]) == row["parameters"]
    bert = ModelEntry(name="bert", model="bert:tiny", checkpoint=None)
    # its heads do not divide it
    assert cells_module.parameter_count(bert, [], like, plan)({"width": 33}) is None


def test_on_the_validation_part_the_score_is_that_of_the_training(
    whole: tuple[Path, dict[str, list[str]]],
) -> None:
    folder, data = whole
    cell_folder = folder / "c" / "bag_of_words-tiny-seed0"
    plan = plan_of(data=tuple(data["data"]), validation=tuple(data["validation"]), test=())
    result = cells_module.measure_cell(cell_folder, plan)
    best = metrics_log.validation(
        cell_folder, read_state(next(cell_folder.glob("checkpoint-9"))).best_step or 9
    )
    assert result.metrics["accuracy"] == best["accuracy"] == np.mean(result.by_item)
    assert result.metrics["loss"] == pytest.approx(best["loss"], abs=1e-6)
    assert len(result.by_item) == 30
    assert result.tokens_per_target > 5  # six words of each example


@pytest.mark.parametrize("stop_at", [2, 23])  # in the first short run; in the first cell
def test_a_half_trained_run_goes_on(
    whole: tuple[Path, dict[str, list[str]]],
    tmp_path: Path,
    stop_at: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder, data = whole
    monkeypatch.setattr(cells_module, "TIMED", 3)
    steps: list[int] = []

    def stop(now: Progress) -> None:
        steps.append(now.step)
        if len(steps) == stop_at:
            os.kill(os.getpid(), signal.SIGINT)

    assert compare_for_real(tmp_path / "c", data, progress=stop).stopped == "SIGINT"
    assert len(steps) == stop_at
    assert compare_for_real(tmp_path / "c", data).stopped is None
    same = ("model", "scores", "parameters", "learning_rate", "fields", "metrics", "tokenizer")
    ours, theirs = (
        [
            {name: row[name] for name in same}
            for row in files.read_json(where / "c" / "leaderboard.json")["rows"]
        ]
        for where in (tmp_path, folder)
    )
    assert ours == theirs
