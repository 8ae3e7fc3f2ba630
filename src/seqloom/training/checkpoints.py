"""Checkpoints that are whole or not there.

    checkpoint-STEP/   model.safetensors, optimizer.safetensors, trainer_state.json, manifest.json
                       carried.safetensors: the stream states, where training has them
                       lora.safetensors: with LoRA, the weights before its updates, and these

The manifest also says what the run's own files were, and metrics.jsonl, when it was written (`run`, `log`).
A checkpoint is written to `checkpoint-STEP.tmp`, each file flushed, the manifest with sizes and SHA-256 last;
then it is renamed and its parent flushed. `last` is the newest one that its manifest confirms, `best` is a
name in trainer_state.json; neither is a copy. Two are kept: the last and the best.
"""

from __future__ import annotations

import math
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple, final

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from seqloom import files, manifest
from seqloom.errors import FolderError, TrainingError, listed, printable
from seqloom.json_values import as_object
from seqloom.stored_weight import SCALES, StoredWeight
from seqloom.tensor_files import read_header
from seqloom.training.metrics_log import METRICS

CHECKPOINT = re.compile("checkpoint-(0|[1-9][0-9]*)", re.ASCII)
WEIGHTS, OPTIMIZER, STATE = "model.safetensors", "optimizer.safetensors", "trainer_state.json"
STREAM_STATES = "carried.safetensors"
LOW_RANK = "lora.safetensors"

RETRY = (
    "the last checkpoint is good: lower train.learning_rate or train.clip_norm in the folder's run.yaml and"
    " resume, or train from scratch"
)
"""What to do where training reached numbers that are not finite."""


@final
@dataclass
class TrainerState:
    """The progress of training: all that a resumed run needs beside weights, optimizer and stream states."""

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
    """Why training is over: max_steps, target, patience or the name of a signal; None before."""
    threads: int = 0
    kernels: str = ""
    """What else the last bits of the numbers depend on; empty if an older version wrote it."""
    settings: dict[str, object] = field(default_factory=dict)
    """Settings that a resumed run must keep."""

    def is_over(self) -> bool:
        return self.stopped is not None


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
    stream_states: Sequence[Tensor] = (),
    low_rank: Mapping[str, Tensor] = MappingProxyType({}),
) -> Path:
    """Writes `checkpoint-STEP`; a model that was not trained by steps has no optimizer. `low_rank`: what LoRA
    keeps beside the merged model (`layers/low_rank.py`).

    Raises FolderError if there is no room, TrainingError if a value is not finite; then nothing
    half-written is left.
    """
    weights = model_tensors(model)
    optimizer_state = {} if optimizer is None else optimizer_tensors(optimizer)
    streams = {str(number): tensor.contiguous() for number, tensor in enumerate(stream_states)}
    if broken := not_finite({**weights, **optimizer_state, **streams, **low_rank}):
        raise TrainingError(
            f"step {state.step}: what a checkpoint holds must be finite, but {listed(broken)} is not; {RETRY}"
        )
    path = checkpoint_path(folder, state.step)
    temporary = path.with_name(path.name + ".tmp")
    with files.writing(path):
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        try:
            write_tensors(temporary / WEIGHTS, weights)
            write_tensors(temporary / OPTIMIZER, optimizer_state)
            if streams:
                write_tensors(temporary / STREAM_STATES, streams)
            if low_rank:
                write_tensors(temporary / LOW_RANK, dict(low_rank))
            files.write_json(temporary / STATE, asdict(state))
            log = folder / METRICS
            manifest.write_manifest(
                temporary,
                run=_listed_files(folder) or {},
                log=manifest.entry(log) if files.is_there(log) else None,
            )
            files.flush_folder(temporary)
            if path.exists():
                # a checkpoint of the same step, left by a run that was resumed from an older one
                shutil.rmtree(path)
            os.rename(temporary, path)
            files.flush_folder(folder)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    return path


def not_finite(tensors: Mapping[str, Tensor]) -> list[str]:
    """The names of the tensors that hold a value that is not finite."""
    return [name for name, tensor in tensors.items() if not is_finite(tensor)]


def is_finite(tensor: Tensor) -> bool:
    """Whether all of its values are numbers. Of what is not, NaN is both the smallest and the largest: so one
    pass over the memory is enough, where `torch.isfinite` needs several."""
    if not tensor.numel() or not tensor.is_floating_point():
        return True
    return all(math.isfinite(float(end)) for end in torch.aminmax(tensor))


def write_tensors(path: Path, tensors: dict[str, Tensor]) -> None:
    """A safetensors file, flushed to the disk. Raises OSError as any write does."""
    path.touch()
    mode = path.stat().st_mode
    try:
        save_file(tensors, path, metadata={"format": "pt"})
    except SafetensorError as error:  # it wraps the error of the system
        match = re.search(r"os error (\d+)", str(error))
        if match is None:
            raise OSError(0, str(error)) from None
        raise OSError(int(match[1]), os.strerror(int(match[1]))) from None
    # safetensors lets only the owner read; a run folder is as readable as the umask says
    path.chmod(mode)
    files.flush_file(path)


def model_tensors(model: nn.Module) -> dict[str, Tensor]:
    """The state of a model by name, as a file holds it; a tensor that has two names is kept under the first.
    A weight in fewer bits is two tensors: NAME and NAME_scales."""
    first: dict[int, str] = {}
    tensors: dict[str, Tensor] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        if first.setdefault(id(tensor), name) != name:
            continue
        if isinstance(tensor, StoredWeight):
            tensors[name], scales = tensor.stored
            if scales is not None:
                tensors[name + SCALES] = scales
        else:
            tensors[name] = tensor.detach().contiguous()
    return tensors


def load_model_tensors(model: nn.Module, path: Path) -> None:
    """Raises FolderError if names, shapes or kinds of numbers are not the model's, or a value is not
    finite."""
    check_weights(model, tensors_in(path), path)
    # names were checked; tied tensors are stored once
    model.load_state_dict(read_tensors(path), strict=False)


class TensorHeader(NamedTuple):
    """What the header of a file says of a tensor."""

    shape: tuple[int, ...]
    dtype: str
    """As the format names it: F32, I64, ..."""


def check_weights(model: nn.Module, stored: Mapping[str, TensorHeader], path: Path) -> None:
    """Raises FolderError if names, shapes or kinds of numbers are not those of the model (which may be on
    the meta device: nothing is allocated)."""
    expected = model_tensors(model)
    wrong = [f"{name} is missing" for name in expected.keys() - stored.keys()]
    for name, (shape, dtype) in stored.items():
        if name not in expected:
            wrong.append(f"{name} is unknown")
        elif (needed := tuple(expected[name].shape)) != shape:
            wrong.append(f"{name} must have shape {needed}, but has {shape}")
        elif (fractions := expected[name].is_floating_point()) != ("F" in dtype):
            kind = "floating-point numbers" if fractions else "integers"
            wrong.append(f"{name} must hold {kind}, but holds {dtype}")
    if wrong:
        raise FolderError(
            f"{printable(str(path))}: the weights must be this model's, but {'; '.join(sorted(wrong)[:5])}"
        )


def tensors_in(path: Path) -> dict[str, TensorHeader]:
    """What is in a safetensors file, from its header. Raises FolderError if it is no such file."""
    return {
        name: TensorHeader(tuple(entry["shape"]), entry["dtype"])
        for name, entry in read_header(path).entries.items()
    }


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a file by name. Raises FolderError if it is no such file, or a value is not finite."""
    tensors_in(path)
    tensors = load_file(files.regular(path))
    if broken := not_finite(tensors):
        raise not_finite_error(path, broken)
    return tensors


def not_finite_error(path: Path, broken: Sequence[str]) -> FolderError:
    """The error about tensors of a file that hold values which are not finite."""
    return FolderError(
        f"numbers must be finite, but {listed(broken)} has NaN or infinity; get the file again",
        path,
    )


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The optimizer's state as `INDEX.NAME`, parameters numbered in the order of its groups."""
    state = optimizer.state_dict()["state"]
    return {
        f"{index}.{name}": torch.as_tensor(value).contiguous()
        for index, values in state.items()
        for name, value in values.items()
    }


def load_optimizer_tensors(optimizer: torch.optim.Optimizer, path: Path) -> None:
    state: dict[int, dict[str, Tensor]] = {}
    for key, tensor in read_tensors(path).items():
        index, _, name = key.partition(".")
        state.setdefault(int(index), {})[name] = tensor
    optimizer.load_state_dict({**optimizer.state_dict(), "state": state})


def read_stream_states(checkpoint: Path) -> list[Tensor]:
    """The tensors of the stream states in a checkpoint, in order; none where training had no streams."""
    path = checkpoint / STREAM_STATES
    tensors = read_tensors(path) if path.exists() else {}
    return [tensors[name] for name in sorted(tensors, key=int)]


def checkpoints(folder: Path) -> list[Path]:
    """The checkpoints of a folder, newest step first (never by time)."""
    paths = [
        path
        for path in folder.glob("checkpoint-*")
        if CHECKPOINT.fullmatch(path.name) and path.is_dir()
    ]
    return sorted(paths, key=checkpoint_step, reverse=True)


def newest_checkpoint(folder: Path) -> tuple[Path | None, list[str]]:
    """The newest checkpoint that its manifest confirms, and what was skipped and why.

    Raises FolderError if there are checkpoints, but all are damaged.
    """
    skipped: list[str] = []
    for path in checkpoints(folder):
        problem = manifest.manifest_problem(path)
        if problem is None:
            return path, skipped
        skipped.append(f"{path.name}: {problem}")
    if skipped:
        raise FolderError(
            f"{printable(str(folder))}: every checkpoint is damaged, so nothing was started"
            f" ({'; '.join(skipped)})"
        )
    return None, []


def run_files(folder: Path) -> manifest.FileList | None:
    """What vouches for the files of a run beside its checkpoints: its manifest, or while it is unfinished its
    list, or where that is gone the newest checkpoint. None if nothing does: an older version left the run
    unfinished. Raises FolderError if the list is damaged."""
    if (listed := _listed_files(folder)) is not None:
        return listed
    newest, _ = newest_checkpoint(folder)
    if newest is None:
        return None
    return as_object(manifest.read_list(newest / manifest.MANIFEST).get("run")) or None


def _listed_files(folder: Path) -> manifest.FileList | None:
    for name in (manifest.MANIFEST, manifest.UNFINISHED):
        if files.is_there(folder / name):
            return dict(manifest.read_list(folder / name)["files"])
    return None


def read_state(checkpoint: Path) -> TrainerState:
    """Raises FolderError if the state is not one of this version's."""
    try:
        return TrainerState(**files.read_json(checkpoint / STATE))
    except TypeError as error:
        raise FolderError(
            f"{printable(str(checkpoint / STATE))}: must be a state that this version wrote, but is not"
            f" ({error})"
        ) from None


def prune_checkpoints(folder: Path, keep: set[int]) -> None:
    """Deletes all checkpoints but those of the given steps, and the remains of a killed save."""
    for path in checkpoints(folder):
        if checkpoint_step(path) not in keep:
            shutil.rmtree(path, ignore_errors=True)
    for path in folder.glob("checkpoint-*.tmp"):
        shutil.rmtree(path, ignore_errors=True)
