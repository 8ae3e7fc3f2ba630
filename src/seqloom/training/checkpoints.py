"""Checkpoints that are whole or not there.

    checkpoint-STEP/   model.safetensors, optimizer.safetensors, trainer_state.json, manifest.json
                       carried.safetensors: the state of each stream, where a model carries one on

A checkpoint is written to `checkpoint-STEP.tmp`, each file flushed, the manifest with sizes and SHA-256 last;
then it is renamed and its parent flushed. `last` is the newest one that its manifest confirms, `best` is a
name in trainer_state.json; neither is a copy. Two are kept: the last and the best.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, final

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from seqloom import files
from seqloom.errors import FolderError, TrainingError, printable

WEIGHTS, OPTIMIZER, STATE = "model.safetensors", "optimizer.safetensors", "trainer_state.json"
CARRIED = "carried.safetensors"

RETRY = (
    "the last checkpoint is good: lower train.learning_rate or train.clip_norm in the folder's run.yaml and"
    " resume, or train anew"
)
"""What to do where training came to numbers that are not finite."""


@final
@dataclass
class TrainerState:
    """Where training is: all that a resumed run needs beside weights and optimizer."""

    step: int = 0
    epoch: int = 0
    batch: int = 0
    """Global batches of this epoch that are done."""
    total_steps: int = 0
    tokens: int = 0
    """Trained tokens so far."""
    window: list[float] = field(default_factory=lambda: [0.0, 0.0])
    """Loss and tokens since the last line of metrics."""
    best: float | None = None
    """The best validation value, signed so that smaller is better."""
    best_step: int | None = None
    without_better: int = 0
    """Validations since the best one."""
    stopped: str | None = None
    """Why training is over, where it is."""
    threads: int = 0
    kernels: str = ""
    """What else the last bits of its numbers depend on; nothing where an older version wrote it."""
    settings: dict[str, Any] = field(default_factory=dict)
    """What the run was begun with and must keep."""


def checkpoint_path(folder: Path, step: int) -> Path:
    return folder / f"checkpoint-{step}"


def checkpoint_step(checkpoint: Path) -> int:
    """The inverse: the step that a checkpoint is named after."""
    return int(checkpoint.name.removeprefix("checkpoint-"))


def save_checkpoint(
    folder: Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None,
    state: TrainerState,
    carried: Sequence[Tensor] = (),
) -> Path:
    """Writes `checkpoint-STEP`; a model that was not trained by steps has no optimizer.

    Raises FolderError where there is no room, TrainingError where a value is not finite; then nothing
    half-written is left.
    """
    weights, memory = model_tensors(model), optimizer_tensors(optimizer) if optimizer is not None else {}
    streams = {str(number): tensor.contiguous() for number, tensor in enumerate(carried)}
    broken = [
        name
        for name, tensor in (weights | memory | streams).items()
        if not bool(torch.isfinite(tensor).all())
    ]
    if broken:
        raise TrainingError(
            f"step {state.step}: what a checkpoint holds must be finite, but {', '.join(broken[:5])} is not;"
            f" {RETRY}"
        )
    place = checkpoint_path(folder, state.step)
    temporary = place.with_name(place.name + ".tmp")
    with files.writing(place):
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        try:
            write_tensors(temporary / WEIGHTS, weights)
            write_tensors(temporary / OPTIMIZER, memory)
            if streams:
                write_tensors(temporary / CARRIED, streams)
            files.write_json(temporary / STATE, asdict(state))
            files.write_manifest(temporary)
            files.flush_folder(temporary)
            if place.exists():
                shutil.rmtree(place)  # of the same step: left by a run that was resumed from an older one
            os.rename(temporary, place)
            files.flush_folder(folder)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    return place


def write_tensors(path: Path, tensors: dict[str, Tensor]) -> None:
    """A safetensors file, flushed to the disk. Raises OSError as any write does."""
    path.touch()
    mode = path.stat().st_mode
    try:
        save_file(tensors, path, metadata={"format": "pt"})
    except SafetensorError as error:  # it wraps what the system said
        code = re.search(r"os error (\d+)", str(error))
        raise OSError(
            int(code[1]) if code else 0, os.strerror(int(code[1])) if code else str(error)
        ) from None
    path.chmod(
        mode
    )  # safetensors lets nobody but the owner read; a run folder is as readable as the umask says
    files.flush_file(path)


def model_tensors(model: nn.Module) -> dict[str, Tensor]:
    """The state of a model by name; a tensor that has two names is kept under the first."""
    first: dict[int, str] = {}
    named = model.state_dict(keep_vars=True)
    return {
        name: tensor.detach().contiguous()
        for name, tensor in named.items()
        if first.setdefault(id(tensor), name) == name
    }


def load_model_tensors(model: nn.Module, path: Path) -> None:
    """Raises FolderError where names or shapes are not the model's, or a value is not finite."""
    tensors = finite_tensors(path)
    check_weights(model, {name: tuple(tensor.shape) for name, tensor in tensors.items()}, path)
    model.load_state_dict(tensors, strict=False)  # names were checked; tied ones stand once


def finite_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a file by name. Raises FolderError where a value is not finite."""
    tensors = read_tensors(path)
    broken = [name for name, tensor in tensors.items() if not bool(torch.isfinite(tensor).all())]
    if broken:
        raise FolderError(
            f"{printable(str(path))}: weights must be finite, but those of {', '.join(broken[:5])} are not"
        )
    return tensors


def check_weights(model: nn.Module, shapes: dict[str, tuple[int, ...]], path: Path) -> None:
    """Raises FolderError where names or shapes are not the model's (which may be on the meta device: nothing
    is allocated)."""
    expected = {name: tuple(tensor.shape) for name, tensor in model_tensors(model).items()}
    wrong = [f"{name} is missing" for name in expected.keys() - shapes.keys()]
    wrong += [f"{name} is unknown" for name in shapes.keys() - expected.keys()]
    wrong += [
        f"{name} must have shape {expected[name]}, but has {shape}"
        for name, shape in shapes.items()
        if name in expected and expected[name] != shape
    ]
    if wrong:
        raise FolderError(
            f"{printable(str(path))}: the weights must be this model's, but {'; '.join(sorted(wrong)[:5])}"
        )


def shapes_in(path: Path) -> dict[str, tuple[int, ...]]:
    """Names and shapes in a safetensors file, from its header. Raises FolderError where it is none."""
    try:
        with safe_open(path, framework="pt") as file:
            return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise FolderError(
            f"{printable(str(path))}: must be a safetensors file, but cannot be read"
            f" ({printable(str(error))})"
        ) from None


def read_tensors(path: Path) -> dict[str, Tensor]:
    shapes_in(path)
    return load_file(path)


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The optimizer's memory as `INDEX.NAME`, parameters numbered in the order of its groups."""
    state = optimizer.state_dict()["state"]
    return {
        f"{at}.{name}": torch.as_tensor(value).contiguous()
        for at, memory in state.items()
        for name, value in memory.items()
    }


def load_optimizer_tensors(optimizer: torch.optim.Optimizer, path: Path) -> None:
    memory: dict[int, dict[str, Tensor]] = {}
    for key, tensor in read_tensors(path).items():
        at, _, name = key.partition(".")
        memory.setdefault(int(at), {})[name] = tensor
    optimizer.load_state_dict({**optimizer.state_dict(), "state": memory})


def read_carried(checkpoint: Path) -> list[Tensor]:
    """The state of each stream that a checkpoint holds, in order; none where nothing was carried."""
    path = checkpoint / CARRIED
    tensors = read_tensors(path) if path.exists() else {}
    return [tensors[name] for name in sorted(tensors, key=int)]


def checkpoints(folder: Path) -> list[Path]:
    """The checkpoints of a folder, newest step first (never by time)."""
    found = [
        path
        for path in folder.glob("checkpoint-*")
        if path.is_dir() and path.name.removeprefix("checkpoint-").isdigit()
    ]
    return sorted(found, key=checkpoint_step, reverse=True)


def newest_checkpoint(folder: Path) -> tuple[Path | None, list[str]]:
    """The newest checkpoint that its manifest confirms, and what was skipped and why.

    Raises FolderError where there are checkpoints, but all are damaged.
    """
    skipped: list[str] = []
    for path in checkpoints(folder):
        problem = files.manifest_problem(path)
        if problem is None:
            return path, skipped
        skipped.append(f"{path.name}: {problem}")
    if skipped:
        raise FolderError(
            f"{printable(str(folder))}: every checkpoint is damaged, so nothing was started"
            f" ({'; '.join(skipped)})"
        )
    return None, []


def read_state(checkpoint: Path) -> TrainerState:
    """Raises FolderError where the state is not one of this version's."""
    content: dict[str, Any] = files.read_json(checkpoint / STATE)
    try:
        return TrainerState(**content)
    except TypeError as error:
        raise FolderError(
            f"{printable(str(checkpoint / STATE))}: must be a state that this version wrote, but is not"
            f" ({error})"
        ) from None


def prune_checkpoints(folder: Path, keep: set[int]) -> None:
    """Deletes all checkpoints but those of the given steps, and what a killed save left."""
    for path in checkpoints(folder):
        if checkpoint_step(path) not in keep:
            shutil.rmtree(path, ignore_errors=True)
    for path in folder.glob("checkpoint-*.tmp"):
        shutil.rmtree(path, ignore_errors=True)
