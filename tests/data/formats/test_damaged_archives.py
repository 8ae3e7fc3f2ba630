"""A zip archive or an .npz that is damaged is refused in one line that names it, wherever the damage is."""

from __future__ import annotations

import io
import random
import zipfile
from pathlib import Path

import numpy as np
import pytest

from seqloom.config import DataConfig
from seqloom.data.formats.data_file import DataFile
from seqloom.data.formats.read_report import ReadReport
from seqloom.data.images.image_files import read_pictures
from seqloom.data.readers.class_files import read_class_files
from seqloom.errors import SeqloomError


def archive() -> bytes:
    memory = io.BytesIO()
    with zipfile.ZipFile(memory, "w", zipfile.ZIP_DEFLATED) as file:
        for label in ("pos", "neg"):
            for number in range(3):
                file.writestr(f"texts/{label}/{number}.txt", f"{label} text {number} " * 5)
    return memory.getvalue()


def arrays() -> bytes:
    memory = io.BytesIO()
    np.savez_compressed(
        memory, images=np.arange(48, dtype=np.uint8).reshape(3, 4, 4), labels=np.arange(3)
    )
    return memory.getvalue()


def read(path: Path) -> int:
    """How many examples a file gives."""
    if path.suffix == ".npz":
        return len(list(read_pictures([str(path)])))
    file = DataFile(str(path), DataConfig(), ReadReport())
    return len(list(read_class_files([file])))


def damaged(content: bytes, seed: int) -> bytes:
    """A few bytes changed, the file cut, or a part put twice."""
    chosen = random.Random(seed)
    damage = bytearray(content)
    for _ in range(chosen.randint(1, 4)):
        at = chosen.randrange(len(damage))
        kind = chosen.randrange(4)
        if kind == 0:
            del damage[at:]
        elif kind == 1:
            damage[at:at] = damage[at : at + 30]
        else:
            damage[at] = chosen.choice([0, 255, damage[at] ^ 1 << chosen.randrange(8)])
        if not damage:
            break
    return bytes(damage)


@pytest.mark.parametrize(("name", "whole"), [("a.zip", archive()), ("a.npz", arrays())])
def test_damage_is_one_line_with_the_name_of_the_file(
    name: str, whole: bytes, tmp_path: Path
) -> None:
    path = tmp_path / name
    path.write_bytes(whole)
    assert read(path) in (3, 6)
    refused = 0
    for seed in range(400):
        path.write_bytes(damaged(whole, seed))
        try:
            read(path)
        except SeqloomError as error:
            refused += 1
            message = str(error)
        else:
            message = ""
        assert not message or message.startswith(str(path))
        assert "\n" not in message
    assert refused > 200
