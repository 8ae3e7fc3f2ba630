"""What stands in a run folder is what was written there, before training is over and after."""

from __future__ import annotations

import logging
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.campaigns.damage import DAMAGES, fits, unvouched

from seqloom import files, manifest
from seqloom.errors import FolderError, UsageError
from seqloom.runs import run_folder
from seqloom.runs.run_folder import load_run, pretrained_from
from seqloom.runs.settings import data_config
from seqloom.training.checkpoints import checkpoints
from seqloom.training.loop import Progress
from seqloom.workflows.train import TrainResult, train

SETTINGS = [
    "data.tokenizer=characters",
    "data.document=line",
    "train.batch_tokens=64",
    "train.threads=1",
    "train.max_steps=4",
    "train.evaluate_every=1",
    "train.log_every=1",
    "model.width=8",
    "model.layers=1",
    "model.heads=1",
    "model.context=16",
]


class Interrupted(Exception):
    """Ends a training as a kill does, once it has checkpoints."""


def start(place: Path, *settings: str, stop_at: int = 0) -> TrainResult:
    def progress(now: Progress) -> None:
        if now.step == stop_at:
            raise Interrupted

    return train(
        "text-generation",
        [str(place / "text.txt")],
        output_dir=place / "run",
        model="gpt:tiny",
        validation=[str(place / "text.txt")],
        settings=[*SETTINGS, *settings],
        progress=progress,
    )


def write_text(place: Path) -> None:
    lines = [f"the {a} sees {b}" for a in "abcd" for b in "efgh"]
    (place / "text.txt").write_text("\n".join(lines) + "\n")


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Runs that are finished, stopped after two checkpoints, and stopped before the first."""
    found = {}
    for name, stop_at in (("finished", 0), ("unfinished", 3), ("begun", 1)):
        place = tmp_path_factory.mktemp(name)
        write_text(place)
        if stop_at:
            with pytest.raises(Interrupted):
                start(place, stop_at=stop_at)
        else:
            start(place)
        found[name] = place
    return found


@pytest.fixture
def place(places: dict[str, Path], request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A copy of one of them, at the place of the original: a run names its data by their paths."""
    original = places[request.param]
    shutil.copytree(original / "run", tmp_path / "run")
    return tmp_path


def listed_in(folder: Path) -> dict[str, Any]:
    finished = (folder / manifest.MANIFEST).exists()
    name = manifest.MANIFEST if finished else manifest.UNFINISHED
    return dict(files.read_json(folder / name)["files"])


@pytest.mark.parametrize("place", ["finished", "unfinished", "begun"], indirect=True)
def test_every_file_that_is_read_is_listed(place: Path) -> None:
    folder = place / "run"
    logs = {"metrics.jsonl", "README.md", files.LOCK, manifest.MANIFEST, manifest.UNFINISHED}
    there = {path.name for path in folder.iterdir() if path.is_file()}
    assert there - logs == set(listed_in(folder))
    assert manifest.problem(folder, listed_in(folder)) is None


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("place", ["finished", "unfinished"], indirect=True)
def test_damage_is_named_by_whatever_opens_the_folder_and_never_sealed(
    place: Path, damage: str
) -> None:
    folder, rng = place / "run", random.Random(3)
    for name in listed_in(folder):
        if not fits(damage, folder / name):
            continue
        whole = (folder / name).read_bytes()
        DAMAGES[damage](folder / name, rng)
        if (folder / name).is_file() and (folder / name).read_bytes() == whole:
            continue
        verbs: list[Callable[[], object]] = [
            lambda: load_run(folder, "cpu"),
            lambda: pretrained_from(folder),
            lambda: train(resume=folder),
        ]
        if name == "run.yaml":
            verbs = [lambda: data_config(folder, {})]
        for verb in verbs:
            with pytest.raises((FolderError, UsageError), match=name):
                verb()
        files.remove(folder / name)
        (folder / name).write_bytes(whole)
    load_run(folder, "cpu")


@pytest.mark.parametrize("place", ["finished"], indirect=True)
def test_the_newest_checkpoint_vouches_where_the_manifest_is_gone(place: Path) -> None:
    folder = place / "run"
    (folder / manifest.MANIFEST).unlink()
    load_run(folder, "cpu")
    (folder / "generation_config.json").write_text("{}")
    for verb in (lambda: load_run(folder, "cpu"), lambda: train(resume=folder)):
        with pytest.raises(FolderError, match=r"generation_config\.json must have"):
            verb()


@pytest.mark.parametrize("place", ["finished"], indirect=True)
def test_where_nothing_vouches_it_is_said(place: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    unvouched(place / "run")
    load_run(place / "run", "cpu")
    assert "nothing vouches for its files" in caplog.text


@pytest.mark.parametrize("place", ["unfinished"], indirect=True)
def test_the_settings_of_a_run_are_kept_or_their_change_is_said(
    place: Path, places: dict[str, Path], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    path = place / "run" / run_folder.RUN
    whole = path.read_text()
    for before, after, said in (
        ("seed: 0", "seed: 7", "train.seed was 0 and is 7"),
        ("freeze:", "fbeeze:", "run.yaml: there is no setting train.fbeeze"),
    ):
        path.write_text(whole.replace(before, after))
        with pytest.raises(FolderError, match=said):
            train(resume=place / "run")
    path.write_text(whole.replace("log_every: 1", "log_every: 2"))
    train(resume=place / "run")
    assert "was edited: train.log_every was 1 and is 2" in caplog.text
    assert manifest.manifest_problem(place / "run") is None


@pytest.mark.parametrize("place", ["unfinished"], indirect=True)
def test_which_checkpoint_answers_is_said(place: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    (older,) = checkpoints(place / "run")
    newest = place / "run" / "checkpoint-3"
    shutil.copytree(older, newest)
    load_run(place / "run", "cpu")
    assert not caplog.text
    os.truncate(newest / "model.safetensors", 10)
    assert load_run(place / "run", "cpu").weights.parent == older
    assert f"{older.name} answers, for {newest.name}: model.safetensors must have" in caplog.text


@pytest.mark.parametrize("place", ["finished"], indirect=True)
def test_a_manifest_says_nothing_that_it_did_not(place: Path) -> None:
    path = place / "run" / manifest.MANIFEST
    whole = path.read_text()
    for changed in (whole.replace('"checkpoint-', '"checkpoint-1'), "{}", "[]", '{"files": {}}'):
        path.write_text(changed)
        with pytest.raises(FolderError, match=r"manifest\.json"):
            train(resume=place / "run")


@pytest.mark.parametrize("damage", ["cut", "flipped"])
@pytest.mark.parametrize("place", ["finished", "unfinished"], indirect=True)
def test_the_numbers_of_the_log_are_those_of_the_training(place: Path, damage: str) -> None:
    log = place / "run" / "metrics.jsonl"
    content = log.read_bytes()
    log.write_bytes(content[:-9] if damage == "cut" else content.replace(b"loss", b"lo5s", 1))
    if damage == "cut" and not (place / "run" / manifest.MANIFEST).exists():
        # a kill cuts its last line, which is of no checkpoint yet
        log.write_bytes(content[:60])
    with pytest.raises(FolderError, match=r"metrics\.jsonl .* delete it to go on"):
        train(resume=place / "run")
    log.unlink()
    train(resume=place / "run")


def test_the_same_command_goes_on_with_a_run_and_another_is_refused(tmp_path: Path) -> None:
    write_text(tmp_path)
    with pytest.raises(Interrupted):
        start(tmp_path, stop_at=3)
    with pytest.raises(UsageError, match="must be new or empty, but it holds something"):
        start(tmp_path, "train.seed=5")
    assert start(tmp_path).stopped == "max_steps"
    with pytest.raises(UsageError, match="must be new or empty, but it holds something"):
        start(tmp_path)


def test_checkpoints_are_those_with_a_number(tmp_path: Path) -> None:
    for name in ("checkpoint-²", "checkpoint-٣", "checkpoint-03", "checkpoint-x", "checkpoint-12"):
        (tmp_path / name).mkdir()
    assert [path.name for path in checkpoints(tmp_path)] == ["checkpoint-12"]
