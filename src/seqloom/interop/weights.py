"""The tensors of a checkpoint: `model.safetensors`, whole or in shards, read one tensor at a time.

A file is mapped into memory, and a tensor that is used as it is stays there: what is not used is never read
from the disk, and nothing is copied. A change of the file changes the model. What is joined or converted is a
copy, read from the file straight to its place, so that no page is held twice.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple, final

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from seqloom import files
from seqloom.errors import FolderError, printable
from seqloom.json_values import as_object, as_text, field_of
from seqloom.tensor_files import open_safetensors, read_header

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".h5", ".msgpack", ".ot", ".pkl")
"""Endings of weights that are not read. Most are pickles, which run code when they are opened."""
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


class StoredTensor(NamedTuple):
    """What the header of a file says of a tensor."""

    path: Path
    shape: tuple[int, ...]
    dtype: torch.dtype
    begin: int
    """Of its bytes in the file."""
    end: int


@final
class StoredWeights:
    """The tensors of a folder by name. Raises FolderError if there are none, or a file is missing or
    damaged."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.stored: dict[str, StoredTensor] = {}
        for path in weight_files(folder):
            for name, stored in _header(path).items():
                if name in self.stored:
                    raise FolderError(
                        f"a tensor must be in one file, but {printable(name)} is in two", path
                    )
                self.stored[name] = stored
        self._open = cache(open_safetensors)

    def mapped(self, name: str) -> Tensor:
        """The tensor, in the memory of the file."""
        path = self.stored[name].path
        try:
            file = self._open(path)
            tensor: Tensor = file.get_tensor(name)  # type: ignore[no-untyped-call]
        except (OSError, SafetensorError) as error:
            raise _unreadable(path, name, error) from None
        return tensor

    def read(self, *names: str) -> Tensor:
        """A copy of a tensor; several tensors of one type are stacked along their first dimension."""
        parts = [self.stored[name] for name in names]
        memory = torch.empty(sum(part.end - part.begin for part in parts), dtype=torch.uint8)
        position = 0
        for name, part in zip(names, parts, strict=True):
            room = memoryview(memory.numpy().data)[position : position + part.end - part.begin]
            position += len(room)
            try:
                with files.open_regular(part.path) as file:
                    file.seek(part.begin)
                    while room and (count := file.readinto(room)):
                        room = room[count:]
            except OSError as error:
                raise _unreadable(part.path, name, error) from None
            if room:
                raise _unreadable(part.path, name, EOFError("the file ends before it"))
        shape = parts[0].shape
        if len(parts) > 1:
            shape = (sum(part.shape[0] for part in parts), *shape[1:])
        return memory.view(parts[0].dtype).view(shape)


def _unreadable(path: Path, name: str, error: Exception) -> FolderError:
    return FolderError(f"{printable(name)} cannot be read ({printable(str(error))})", path)


def _header(path: Path) -> dict[str, StoredTensor]:
    """The tensors of a file."""
    entries, start = read_header(path)
    stored = {}
    for name, entry in sorted(entries.items()):
        if entry["dtype"] not in DTYPES:
            raise FolderError(
                f"numbers must be of a type among {', '.join(DTYPES)}, but {printable(name)} is"
                f" {entry['dtype']}; take a checkpoint that is not quantised",
                path,
            )
        begin, end = entry["data_offsets"]
        stored[name] = StoredTensor(
            path, tuple(entry["shape"]), DTYPES[entry["dtype"]], start + begin, start + end
        )
    return stored


def weight_files(folder: Path) -> list[Path]:
    """The one file, or the shards that an index lists."""
    if files.is_there(folder / WEIGHTS):
        return [folder / WEIGHTS]
    if files.is_there(folder / INDEX):
        return _shards(folder)
    others = sorted(path.name for path in folder.iterdir() if path.suffix in PICKLES)
    if others:
        raise FolderError(
            f"weights must be in {WEIGHTS}, but there is only {printable(others[0])}, which may run code when"
            " it is opened and is not read here; convert it, if you trust it: open the folder once with"
            " transformers (AutoModel.from_pretrained(FOLDER), of the class that config.json names) and"
            " model.save_pretrained(NEW)",
            folder,
        )
    raise FolderError(f"must hold {WEIGHTS} or {INDEX}, but holds neither", folder)


def _shards(folder: Path) -> list[Path]:
    path = folder / INDEX
    content = files.read_json(path)
    table = as_object(field_of(content, "weight_map")) or {}
    shards = {
        tensor: name for tensor, value in table.items() if (name := as_text(value)) is not None
    }
    if not shards or len(shards) < len(table):
        raise FolderError("weight_map must say in which file each tensor is, but does not", path)
    names = sorted(set(shards.values()))
    for name in names:
        if os.path.basename(name) != name or name in ("", ".", ".."):
            raise FolderError(
                f"a shard must be a file in the folder itself, but one is {printable(name)}", path
            )
        if not files.is_there(folder / name):
            raise FolderError(
                f"{printable(name)} is missing, one of {len(names)} files that {INDEX} lists; fetch it too",
                folder,
            )
        if not name.endswith(".safetensors"):
            raise FolderError(
                f"a shard must be a .safetensors file, but one is {printable(name)}", path
            )
    held = {name: _header(folder / name) for name in names}
    for tensor, name in shards.items():
        if tensor not in held[name]:
            raise FolderError(
                f"must hold {printable(tensor)}, as {INDEX} says, but does not", folder / name
            )
    return [folder / name for name in names]


def write_weights(
    folder: Path, tensors: Mapping[str, Tensor], shard_bytes: int | None = None
) -> list[str]:
    """Writes `model.safetensors`, or shards of at most `shard_bytes` (one tensor at least) and their index;
    returns the names of the files.

    Raises FolderError if there is no room.
    """
    parts: list[dict[str, Tensor]] = [{}]
    used = 0
    for name, tensor in tensors.items():
        used += tensor.nbytes
        if shard_bytes is not None and parts[-1] and used > shard_bytes:
            parts.append({})
            used = tensor.nbytes
        parts[-1][name] = tensor
    if len(parts) == 1:
        _write(folder / WEIGHTS, parts[0])
        return [WEIGHTS]
    names: list[str] = []
    weight_map: dict[str, str] = {}
    for number, part in enumerate(parts, start=1):
        name = f"model-{number:05}-of-{len(parts):05}.safetensors"
        _write(folder / name, part)
        names.append(name)
        weight_map |= dict.fromkeys(part, name)
    total_size = sum(tensor.nbytes for tensor in tensors.values())
    files.write_json(
        folder / INDEX, {"metadata": {"total_size": total_size}, "weight_map": weight_map}
    )
    return [*names, INDEX]


def _write(path: Path, tensors: dict[str, Tensor]) -> None:
    with files.writing(path):
        path.touch()
        mode = path.stat().st_mode
        try:
            contiguous = {name: tensor.contiguous() for name, tensor in tensors.items()}
            save_file(contiguous, path, metadata={"format": "pt"})
        except SafetensorError as error:  # it wraps an error of the system
            raise OSError(0, str(error)) from None
        path.chmod(mode)  # safetensors lets only the owner read
        files.flush_file(path)
