"""Checkpoints are whole or not there, and a damaged one is named, skipped, and never loaded."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from itertools import repeat
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from seqloom import files, manifest
from seqloom.errors import FolderError, TrainingError
from seqloom.training import checkpoints as kept
from seqloom.training import metrics_log
from seqloom.training.checkpoints import TrainerState
from seqloom.training.loop import Trainer

Make = Callable[..., Any]  # see conftest.py

FILES = [kept.WEIGHTS, kept.OPTIMIZER, kept.STATE, manifest.MANIFEST]


@pytest.fixture
def trainer(bench: Make) -> Trainer:
    """A trainer whose optimizer has some state."""
    recorded = bench(repeat(1.0))
    recorded.trainer.run(TrainerState(total_steps=3))
    return recorded.trainer  # type: ignore[no-any-return]


def save(folder: Path, trainer: Trainer, step: int = 3) -> Path:
    return kept.save_checkpoint(
        folder,
        trainer.model,
        trainer.optimizer,
        TrainerState(step=step, window=[0.1, 2.0], best=1 / 3),
    )


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


# Saving and loading


def test_what_was_saved_is_loaded_to_the_bit(tmp_path: Path, trainer: Trainer, bench: Make) -> None:
    place = save(tmp_path, trainer)
    assert sorted(path.name for path in place.iterdir()) == sorted(FILES)
    assert kept.newest_checkpoint(tmp_path) == (place, [])
    other = bench().trainer
    kept.load_model_tensors(other.model, place / kept.WEIGHTS)
    kept.load_optimizer_tensors(other.optimizer, place / kept.OPTIMIZER)
    assert contents(save(tmp_path / "again", other)) == contents(place)
    for name, tensor in trainer.model.state_dict().items():
        assert torch.equal(tensor, other.model.state_dict()[name])
    assert kept.read_state(place) == TrainerState(step=3, window=[0.1, 2.0], best=1 / 3)


def test_files_are_flushed_and_the_manifest_is_last(
    tmp_path: Path, trainer: Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    fsync, rename = os.fsync, os.rename

    def flushed(handle: int) -> None:
        events.append(os.path.relpath(os.readlink(f"/proc/self/fd/{handle}"), tmp_path))
        fsync(handle)

    def renamed(source: Path, target: Path) -> None:
        events.append(f"{source.name} -> {target.name}")
        rename(source, target)

    monkeypatch.setattr(os, "fsync", flushed)
    monkeypatch.setattr(os, "rename", renamed)
    save(tmp_path, trainer)
    inside = [event for event in events if "/." not in event]
    temporary = "checkpoint-3.tmp"
    flushed_files = [f"{temporary}/{kept.WEIGHTS}", f"{temporary}/{kept.OPTIMIZER}"]
    assert inside[:2] == flushed_files
    assert inside[-3:] == [temporary, "checkpoint-3.tmp -> checkpoint-3", "."]
    hidden = [event.split("/.")[1].split(".")[0] for event in events if "/." in event]
    assert hidden == ["trainer_state", "manifest"]
    assert events.index(flushed_files[1]) < next(
        at for at, event in enumerate(events) if "manifest" in event
    )


def test_weights_are_as_readable_as_any_other_file(tmp_path: Path, trainer: Trainer) -> None:
    place = save(tmp_path, trainer)
    assert len({(place / name).stat().st_mode for name in FILES}) == 1


def test_tied_weights_stand_once(tmp_path: Path) -> None:
    embedding, output = nn.Embedding(4, 3), nn.Linear(3, 4, bias=False)
    output.weight = embedding.weight
    model = nn.Sequential(embedding, output)
    kept.write_tensors(tmp_path / "a.safetensors", kept.model_tensors(model))
    assert list(load_file(tmp_path / "a.safetensors")) == ["0.weight"]
    before = embedding.weight.detach().clone()
    nn.init.zeros_(embedding.weight)
    kept.load_model_tensors(model, tmp_path / "a.safetensors")
    assert torch.equal(output.weight, before)


@pytest.mark.parametrize("where", ["weights", "memory"])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_nothing_is_saved_that_is_not_finite(
    tmp_path: Path, trainer: Trainer, where: str, value: float
) -> None:
    save(tmp_path, trainer)
    before = contents(tmp_path)
    parameter = next(trainer.model.parameters())
    if where == "weights":
        parameter.data[0, 0] = value
    else:
        trainer.optimizer.state[parameter]["exp_avg_sq"][0, 0] = value
    with pytest.raises(
        TrainingError,
        match=(
            r"step 4: what a checkpoint holds must be finite, but (target_embedding\.weight|\d+\.exp_avg_sq)"
            r" is not"
        ),
    ):
        save(tmp_path, trainer, step=4)
    assert contents(tmp_path) == before


def test_weights_that_do_not_fit_are_named(tmp_path: Path, trainer: Trainer) -> None:
    tensors = kept.model_tensors(trainer.model)
    for change, problem in {
        "missing": "output.bias is missing",
        "unknown": "extra is unknown",
        "shape": r"output.bias must have shape \(30,\), but has \(29,\)",
        "finite": "numbers must be finite, but output.bias has NaN or infinity",
    }.items():
        changed = dict(tensors)
        if change == "missing":
            del changed["output.bias"]
        elif change == "unknown":
            changed["extra"] = torch.zeros(1)
        else:
            changed["output.bias"] = (
                torch.zeros(29) if change == "shape" else torch.full((30,), math.nan)
            )
        save_file(changed, tmp_path / "a.safetensors")
        with pytest.raises(FolderError, match=problem):
            kept.load_model_tensors(trainer.model, tmp_path / "a.safetensors")
    (tmp_path / "a.safetensors").write_bytes(b"x")
    with pytest.raises(FolderError, match="must be a safetensors file, but cannot be read"):
        kept.load_model_tensors(trainer.model, tmp_path / "a.safetensors")


def test_a_state_of_another_version_is_said(tmp_path: Path) -> None:
    files.write_json(tmp_path / kept.STATE, {"step": 3, "moon": "full"})
    with pytest.raises(
        FolderError,
        match=r"trainer_state\.json: must be a state that this version wrote, but is not \(.*moon",
    ):
        kept.read_state(tmp_path)


# Damage


def test_newest_is_by_step_and_never_by_time_or_name(tmp_path: Path, trainer: Trainer) -> None:
    for step in (10, 9, 2):
        save(tmp_path, trainer, step)
    (tmp_path / "checkpoint-99.tmp").mkdir()
    (tmp_path / "checkpoint-x").mkdir()
    (tmp_path / "checkpoint-77").touch()
    assert [path.name for path in kept.checkpoints(tmp_path)] == [
        "checkpoint-10",
        "checkpoint-9",
        "checkpoint-2",
    ]
    assert kept.newest_checkpoint(tmp_path)[0] == tmp_path / "checkpoint-10"
    assert kept.newest_checkpoint(tmp_path / "nowhere") == (None, [])


def torn(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flipped(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def emptied(path: Path) -> None:
    path.write_bytes(b"")


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", [torn, flipped, emptied, Path.unlink])
def test_a_damaged_checkpoint_is_named_and_skipped(
    tmp_path: Path, trainer: Trainer, name: str, damage: Callable[[Path], None]
) -> None:
    save(tmp_path, trainer, 5)
    save(tmp_path, trainer, 7)
    damage(tmp_path / "checkpoint-7" / name)
    newest, skipped = kept.newest_checkpoint(tmp_path)
    assert newest == tmp_path / "checkpoint-5"
    assert len(skipped) == 1
    assert skipped[0].startswith("checkpoint-7: ")
    assert name in skipped[0] or name == manifest.MANIFEST
    damage(tmp_path / "checkpoint-5" / name)
    with pytest.raises(
        FolderError,
        match=r"every checkpoint is damaged, so nothing was started \(checkpoint-7: .*; checkpoint-5: ",
    ):
        kept.newest_checkpoint(tmp_path)


def test_only_what_is_wanted_is_kept(tmp_path: Path, trainer: Trainer) -> None:
    for step in (1, 2, 3):
        save(tmp_path, trainer, step)
    (tmp_path / "checkpoint-4.tmp").mkdir()
    (tmp_path / "notes").mkdir()
    kept.prune_checkpoints(tmp_path, {1, 3})
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "checkpoint-1",
        "checkpoint-3",
        "notes",
    ]


def test_a_checkpoint_of_the_same_step_is_replaced(tmp_path: Path, trainer: Trainer) -> None:
    place = save(tmp_path, trainer)
    torn(place / kept.WEIGHTS)
    save(tmp_path, trainer)
    assert kept.newest_checkpoint(tmp_path) == (place, [])


# A full disk


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 kB."""
    place = tmp_path / "disk"
    place.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(place)],
        capture_output=True,
        check=False,
    ).returncode:
        pytest.skip("mounting a small file system is not permitted here")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def fill(disk: Path, left: int) -> None:
    (disk / "ballast").write_bytes(b"x" * (shutil.disk_usage(disk).free - left))


def test_a_full_disk_leaves_the_last_checkpoint_and_nothing_half_written(
    disk: Path, trainer: Trainer
) -> None:
    place = save(disk, trainer)
    whole = contents(place)
    size = sum(map(len, whole.values()))
    refused: list[str] = []
    for left in range(0, size + 2**12, 2**12):
        fill(disk, left)
        try:
            save(disk, trainer, 4)
        except FolderError as error:
            refused.append(str(error))
        shutil.rmtree(disk / "checkpoint-4", ignore_errors=True)
        (disk / "ballast").unlink()
        assert sorted(path.name for path in disk.iterdir()) == ["checkpoint-3"]
        assert contents(place) == whole
    assert len(refused) >= size // 2**12
    for message in refused:
        assert message.startswith(str(disk / "checkpoint-4"))
        assert re.search(
            r": cannot be written \(No space left on device; 0\.\d MiB are free\); what was there before is"
            r" whole; free",
            message,
        )
    save(disk, trainer, 4)
    assert kept.newest_checkpoint(disk) == (disk / "checkpoint-4", [])


def test_a_full_disk_leaves_whole_lines_of_metrics(disk: Path) -> None:
    record = {"step": 1, "text": "x" * 3000}
    metrics_log.append(disk, record)
    fill(disk, 0)
    with pytest.raises(
        FolderError,
        match=r"metrics\.jsonl: cannot be written \(No space left on device; 0\.0 MiB are free\)",
    ):
        metrics_log.append(disk, record)  # part of it fits into the page that is there
    assert metrics_log.read(disk) == [record]
    (disk / "ballast").unlink()
    metrics_log.append(disk, {"step": 2, "loss": math.nan})
    assert (disk / metrics_log.METRICS).read_text().splitlines()[1] == json.dumps(
        {"step": 2, "loss": None}
    )
