"""The tensors of a folder of others: `model.safetensors`, whole or in shards, read one tensor at a time.

A file is mapped into memory, and a tensor that stays as it is stays there: what nobody looks at is never read
from the disk, and nothing is copied. Whoever changes the file changes the model. What is joined or converted
is a copy, read from the file straight to its place, so that no page is held twice.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, final

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from seqloom import files
from seqloom.errors import FolderError, printable

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
NOT_READ = (".bin", ".pt", ".pth", ".ckpt", ".h5", ".msgpack", ".ot", ".pkl")
"""Endings of weights in other forms. Most are pickles, which run code when they are opened."""
DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
"""Types of numbers, as the format names them. A file with others (8-bit floats, packed integers) is
quantised."""


class Stored(NamedTuple):
    """What a file says of a tensor."""

    path: Path
    shape: tuple[int, ...]
    dtype: torch.dtype
    begin: int
    """Of its bytes in the file."""
    end: int


@final
class StoredWeights:
    """The tensors of a folder by name. Raises FolderError where there are none, or a file is missing or
    damaged."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.stored: dict[str, Stored] = {}
        for path in _weight_files(folder):
            for name, stored in _header(path).items():
                if name in self.stored:
                    raise FolderError(
                        f"{_shown(path)}: a tensor must stand in one file, but {printable(name)} is in two"
                    )
                self.stored[name] = stored

        self._mapped: dict[Path, Any] = {}

    def mapped(self, name: str) -> Tensor:
        """The tensor, in the file."""
        path = self.stored[name].path
        try:
            if path not in self._mapped:
                self._mapped[path] = safe_open(path, framework="pt")
            tensor: Tensor = self._mapped[path].get_tensor(name)
        except (OSError, SafetensorError) as error:
            raise _unreadable(path, name, error) from None
        return tensor

    def read(self, *names: str) -> Tensor:
        """A copy of a tensor; of several, all of one type, one above the other."""
        parts = [self.stored[name] for name in names]
        memory = torch.empty(sum(part.end - part.begin for part in parts), dtype=torch.uint8)
        at = 0
        for name, part in zip(names, parts, strict=True):
            room = memoryview(memory.numpy().data)[at : at + part.end - part.begin]
            at += len(room)
            try:
                with part.path.open("rb", buffering=0) as file:
                    file.seek(part.begin)
                    while room and (count := file.readinto(room)):
                        room = room[count:]
            except OSError as error:
                raise _unreadable(part.path, name, error) from None
            if room:
                raise _unreadable(part.path, name, EOFError("the file ends before it"))
        shape = (
            parts[0].shape if len(parts) == 1 else (sum(part.shape[0] for part in parts), *parts[0].shape[1:])
        )
        return memory.view(parts[0].dtype).view(shape)


def _unreadable(path: Path, name: str, error: Exception) -> FolderError:
    return FolderError(f"{_shown(path)}: {printable(name)} cannot be read ({printable(str(error))})")


def _shown(path: Path) -> str:
    return printable(str(path))


def _header(path: Path) -> dict[str, Stored]:
    try:
        with safe_open(path, framework="pt") as file:
            parts = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
            types = {name: str(part.get_dtype()) for name, part in parts.items()}
            shapes = {name: tuple(part.get_shape()) for name, part in parts.items()}
        places = _places(path)
    except (OSError, SafetensorError) as error:
        raise FolderError(
            f"{_shown(path)}: must be a safetensors file, but cannot be read ({printable(str(error))})"
        ) from None
    if strange := sorted(name for name, kind in types.items() if kind not in DTYPES):
        raise FolderError(
            f"{_shown(path)}: numbers must be of a type among {', '.join(DTYPES)}, but"
            f" {printable(strange[0])} is {types[strange[0]]}; take a checkpoint that is not quantised"
        )
    return {name: Stored(path, shapes[name], DTYPES[types[name]], *places[name]) for name in shapes}


def _places(path: Path) -> dict[str, tuple[int, int]]:
    """Where the bytes of each tensor begin and end, of a file that the library has found to be in order: its
    header is the length of some JSON, and that."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(length))
    begin = 8 + length
    offsets = {name: entry["data_offsets"] for name, entry in header.items() if name != "__metadata__"}
    return {name: (begin + first, begin + last) for name, (first, last) in offsets.items()}


def _weight_files(folder: Path) -> list[Path]:
    """The one file, or the shards that an index lists."""
    if (folder / WEIGHTS).is_file():
        return [folder / WEIGHTS]
    if (folder / INDEX).is_file():
        return _shards(folder)
    others = sorted(path.name for path in folder.iterdir() if path.suffix in NOT_READ)
    if others:
        raise FolderError(
            f"{_shown(folder)}: weights must be in {WEIGHTS}, but there is only {printable(others[0])}, which"
            " may run code when it is opened and is not read here; convert it, if you trust it: open the"
            " folder once with transformers (AutoModel.from_pretrained(FOLDER), of the class that"
            " config.json names) and model.save_pretrained(NEW)"
        )
    raise FolderError(f"{_shown(folder)}: must hold {WEIGHTS} or {INDEX}, but holds neither")


def _shards(folder: Path) -> list[Path]:
    path = folder / INDEX
    content = files.read_json(path)
    table = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(table, dict) or not table or not all(isinstance(name, str) for name in table.values()):
        raise FolderError(f"{_shown(path)}: weight_map must say in which file each tensor is, but does not")
    names = sorted(set(table.values()))
    for name in names:
        if os.path.basename(name) != name or name in ("", ".", ".."):
            raise FolderError(
                f"{_shown(path)}: a shard must be a file in the folder itself, but one is {printable(name)}"
            )
        if not (folder / name).is_file():
            raise FolderError(
                f"{_shown(folder)}: {printable(name)} is missing, one of {len(names)} files that {INDEX}"
                " lists; fetch it too"
            )
        if not name.endswith(".safetensors"):
            raise FolderError(
                f"{_shown(path)}: a shard must be a .safetensors file, but one is {printable(name)}"
            )
    held = {name: _header(folder / name) for name in names}
    for tensor, name in table.items():
        if tensor not in held[name]:
            raise FolderError(
                f"{_shown(folder / name)}: must hold {printable(tensor)}, as {INDEX} says, but does not"
            )
    return [folder / name for name in names]


def write_weights(folder: Path, tensors: Mapping[str, Tensor], shard_bytes: int | None = None) -> list[str]:
    """Writes `model.safetensors`, or shards of at most `shard_bytes` (one tensor at least) and their index;
    returns the names of the files.

    Raises FolderError where there is no room.
    """
    parts: list[dict[str, Tensor]] = [{}]
    room = shard_bytes
    for name, tensor in tensors.items():
        if shard_bytes is not None and room is not None:
            if parts[-1] and tensor.nbytes > room:
                parts.append({})
                room = shard_bytes
            room -= tensor.nbytes
        parts[-1][name] = tensor
    if len(parts) == 1:
        _write(folder / WEIGHTS, parts[0])
        return [WEIGHTS]
    names = [f"model-{at:05}-of-{len(parts):05}.safetensors" for at in range(1, len(parts) + 1)]
    for name, part in zip(names, parts, strict=True):
        _write(folder / name, part)
    index = {
        "metadata": {"total_size": sum(tensor.nbytes for tensor in tensors.values())},
        "weight_map": {tensor: name for name, part in zip(names, parts, strict=True) for tensor in part},
    }
    files.write_json(folder / INDEX, index)
    return [*names, INDEX]


def _write(path: Path, tensors: dict[str, Tensor]) -> None:
    with files.writing(path):
        path.touch()
        mode = path.stat().st_mode
        try:
            save_file(
                {name: tensor.contiguous() for name, tensor in tensors.items()},
                path,
                metadata={"format": "pt"},
            )
        except SafetensorError as error:  # it wraps what the system said
            raise OSError(0, str(error)) from None
        path.chmod(mode)  # safetensors lets nobody but the owner read
        files.flush_file(path)
