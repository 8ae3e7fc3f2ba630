"""Lists of the files of a folder, with sizes and SHA-256: what is read is compared with what was written.

    manifest.json      the last file of a folder that is finished: a run, or a checkpoint of one
    unfinished.json    the first file of a run: what it has written so far, and its settings

What such a list says beside `files` carries a checksum of its own, so a list that is damaged is seen too.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Collection
from pathlib import Path
from typing import Any

from seqloom import files
from seqloom.errors import FolderError
from seqloom.json_values import JsonObject, as_object

MANIFEST, UNFINISHED = "manifest.json", "unfinished.json"
ADAPTER = "adapter"
"""The one folder within a run whose files are listed too."""
FileList = dict[str, Any]
"""Name of a file -> its `entry`."""


def entry(path: Path) -> dict[str, object]:
    """Size and SHA-256 of a file."""
    return {"bytes": files.regular(path).stat().st_size, "sha256": files.sha256(path)}


def write_checked(path: Path, content: JsonObject, unchecked: str = "") -> None:
    """JSON with the checksum of all that it says, but for one key. A number that is not finite is null."""
    stored = json.loads(files.json_line(content))
    files.write_json(path, {**stored, "check": checksum(stored, unchecked)})


def read_checked(path: Path, unchecked: str = "", *, needed: bool = True) -> dict[str, Any]:
    """What `write_checked` wrote. Raises FolderError if it is damaged, or has no checksum though it is
    `needed` (older versions wrote none)."""
    content = files.read_json_object(path)
    check = content.pop("check", None)
    if check is None:
        if needed:
            raise FolderError("has no checksum of its own, as those of older versions", path)
        return content
    if check != checksum(content, unchecked):
        raise FolderError("is damaged (its content is not what its own checksum says)", path)
    return content


def checksum(content: JsonObject, unchecked: str = "") -> str:
    """SHA-256 of what JSON says, but for one key."""
    checked = {key: value for key, value in content.items() if key != unchecked}
    return hashlib.sha256(json.dumps(checked, sort_keys=True).encode()).hexdigest()


def write_list(path: Path, listed: FileList, **beside: object) -> None:
    """A list of files, and other facts in the same JSON object."""
    write_checked(path, {"files": listed, **beside}, "files")


def read_list(path: Path) -> dict[str, Any]:
    """What `write_list` wrote. Raises FolderError if it is damaged."""
    content = read_checked(path, "files", needed=False)
    if as_object(content.get("files")) is None:
        raise FolderError("is damaged (it must list files, but does not)", path)
    return content


def write_manifest(folder: Path, **beside: object) -> None:
    """The last file of a finished folder: it lists every other file in it."""
    names = sorted(path.name for path in folder.iterdir() if path.name != MANIFEST)
    write_list(folder / MANIFEST, {name: entry(folder / name) for name in names}, **beside)


def manifest_problem(folder: Path) -> str | None:
    """What is wrong with a folder that has a manifest; None if every file is as it was written."""
    try:
        return problem(folder, read_list(folder / MANIFEST)["files"])
    except FolderError as error:
        return str(error)


def problem(folder: Path, listed: FileList, names: Collection[str] | None = None) -> str | None:
    """The first of these files (all that are listed, without `names`) that is not as it was written, and why;
    None if there is none."""
    for name in listed if names is None else names:
        path, expected = folder / name, listed.get(name)
        if expected is None:
            if files.is_there(path):
                return f"{name} is not one of the files that were written"
            continue
        if not _is_inside(folder, name) or path.is_symlink() or not path.is_file():
            return f"{name} is missing"
        size = path.stat().st_size
        if not {"bytes", "sha256"} <= (as_object(expected) or {}).keys():
            return f"{MANIFEST} is damaged (it must have size and SHA-256 of {name}, but has not)"
        if size != expected["bytes"]:
            return f"{name} must have {expected['bytes']} bytes, but has {size}"
        if files.sha256(path) != expected["sha256"]:
            return f"{name} is damaged (its SHA-256 is not the one in the manifest)"
    return None


def _is_inside(folder: Path, name: str) -> bool:
    """Whether it is the name of a file in a folder, or in its folder of the adapter."""
    inner = name.removeprefix(f"{ADAPTER}/")
    is_linked = inner != name and (folder / ADAPTER).is_symlink()
    return os.path.basename(inner) == inner and not is_linked


def begin(folder: Path, settings: JsonObject) -> None:
    """Makes a folder that of a run that has written nothing yet."""
    write_list(folder / UNFINISHED, {}, settings=settings)


def add(folder: Path, *names: str) -> None:
    """Vouches for files of an unfinished run that were just written: a file that is not listed is as good as
    not there."""
    path = folder / UNFINISHED
    content = read_list(path) if files.is_there(path) else {"files": {}}
    listed = {**content.pop("files"), **{name: entry(folder / name) for name in names}}
    write_list(path, listed, **content)
