"""What can happen to a file on a disk: each kind of damage as a function of the file and of chance."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

Damage = Callable[[Path, random.Random], None]


def removed(path: Path, _: random.Random) -> None:
    path.unlink()


def cut(path: Path, rng: random.Random) -> None:
    """The end is missing, or all of it."""
    os.truncate(path, rng.choice([0, rng.randrange(max(path.stat().st_size, 1))]))


def flipped(path: Path, rng: random.Random) -> None:
    """One bit is another."""
    content = bytearray(path.read_bytes())
    if not content:
        path.write_bytes(b"\x01")
        return
    content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    path.write_bytes(content)


def zeroed(path: Path, rng: random.Random) -> None:
    """A stretch of zeros, as a file system leaves it after a power cut."""
    content = bytearray(path.read_bytes())
    begin = rng.randrange(max(len(content) - 1, 1))
    end = min(begin + rng.choice([8, 512, 4096]), len(content))
    content[begin:end] = bytes(end - begin)
    path.write_bytes(content)


def longer(path: Path, rng: random.Random) -> None:
    with open(path, "ab") as file:
        file.write(rng.randbytes(16))


def folder(path: Path, _: random.Random) -> None:
    path.unlink()
    path.mkdir()


def pipe(path: Path, _: random.Random) -> None:
    path.unlink()
    os.mkfifo(path)


def device(path: Path, _: random.Random) -> None:
    """A link to a device that never ends."""
    path.unlink()
    path.symlink_to("/dev/zero")


def odd_json(path: Path, rng: random.Random) -> None:
    """JSON of another shape: an empty object, a list, a number; or a key that is missing or of another
    type."""
    try:
        content = json.loads(path.read_bytes())
    except ValueError:
        content = None
    if isinstance(content, dict) and content and rng.random() < 0.6:
        key = rng.choice(sorted(content))
        if rng.random() < 0.5:
            del content[key]
        else:
            content[key] = rng.choice([None, [], {}, "x", -1, 1e300, [[]]])
        path.write_text(json.dumps(content), encoding="utf-8")
    else:
        path.write_text(rng.choice(["{}", "[1]", "null", "7", '"x"']), encoding="utf-8")


DAMAGES: dict[str, Damage] = {
    "removed": removed,
    "cut": cut,
    "flipped": flipped,
    "zeroed": zeroed,
    "longer": longer,
    "a folder": folder,
    "a pipe": pipe,
    "a device": device,
    "odd JSON": odd_json,
}


def fits(name: str, path: Path) -> bool:
    """Whether this kind of damage can happen to this file and changes it."""
    return name != "odd JSON" or path.suffix == ".json"


def copied(source: Path, target: Path) -> Path:
    """A fresh copy of a folder, in place of an earlier one."""
    shutil.rmtree(target, ignore_errors=True)
    return Path(shutil.copytree(source, target))


def unvouched(folder: Path) -> None:
    """A run folder as an older version left it unfinished: nothing vouches for its files but its
    checkpoints for their own."""
    (folder / "manifest.json").unlink()
    for path in folder.glob("checkpoint-*/manifest.json"):
        path.write_text(json.dumps({"files": json.loads(path.read_bytes())["files"]}))
