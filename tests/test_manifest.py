"""A manifest vouches for the files of a folder, and for what it says itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from seqloom import files, manifest
from seqloom.errors import FolderError


@pytest.fixture
def vouched(tmp_path: Path) -> Path:
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "a.bin").write_bytes(bytes(range(200)))
    (folder / "b.bin").write_bytes(b"")
    manifest.write_manifest(folder)
    return folder


def test_a_whole_folder_has_no_problem(vouched: Path) -> None:
    assert manifest.manifest_problem(vouched) is None
    assert set(files.read_json(vouched / manifest.MANIFEST)["files"]) == {"a.bin", "b.bin"}


def test_every_flipped_bit_is_seen(vouched: Path) -> None:
    whole = (vouched / "a.bin").read_bytes()
    for at in range(0, len(whole), 13):
        (vouched / "a.bin").write_bytes(
            whole[:at] + bytes([whole[at] ^ 1 << at % 8]) + whole[at + 1 :]
        )
        assert (
            manifest.manifest_problem(vouched)
            == "a.bin is damaged (its SHA-256 is not the one in the manifest)"
        )


def test_other_damage_is_named(vouched: Path) -> None:
    (vouched / "a.bin").write_bytes(b"123")
    assert manifest.manifest_problem(vouched) == "a.bin must have 200 bytes, but has 3"
    (vouched / "a.bin").unlink()
    assert manifest.manifest_problem(vouched) == "a.bin is missing"
    (vouched / "a.bin").symlink_to("/etc/hostname")
    assert manifest.manifest_problem(vouched) == "a.bin is missing"
    (vouched / manifest.MANIFEST).write_bytes(b"")
    assert "is not JSON" in str(manifest.manifest_problem(vouched))
    (vouched / manifest.MANIFEST).unlink()
    assert "cannot be read" in str(manifest.manifest_problem(vouched))


@pytest.mark.parametrize("name", ["../secret", "/etc/hostname", "..", ".", "", "sub/a"])
def test_a_manifest_cannot_point_elsewhere(vouched: Path, name: str) -> None:
    for place in (vouched.parent / "secret", vouched / "sub" / "a"):
        place.parent.mkdir(exist_ok=True)
        place.write_bytes(b"x")
    expected = {"bytes": 1, "sha256": files.sha256(vouched.parent / "secret")}
    files.write_json(vouched / manifest.MANIFEST, {"files": {name: expected}})
    assert manifest.manifest_problem(vouched) == f"{name} is missing"


@pytest.mark.parametrize(
    "content",
    [
        [],
        {},
        {"files": 3},
        {"files": {"a.bin": 3}},
        {"files": {"a.bin": {}}},
        {"files": {"a\0": {}}},
    ],
)
def test_a_manifest_that_is_none(vouched: Path, content: Any) -> None:
    files.write_json(vouched / manifest.MANIFEST, content)
    assert manifest.manifest_problem(vouched) is not None


def test_what_a_list_says_beside_its_files_is_checked(tmp_path: Path) -> None:
    path = tmp_path / "list.json"
    manifest.write_list(path, {}, best="checkpoint-2", log=None)
    assert manifest.read_list(path) == {"files": {}, "best": "checkpoint-2", "log": None}
    path.write_text(path.read_text().replace("checkpoint-2", "checkpoint-3"))
    with pytest.raises(FolderError, match=r"list\.json: is damaged"):
        manifest.read_list(path)
    files.write_json(path, {"files": {}, "best": "as older versions wrote it"})
    assert manifest.read_list(path)["best"] == "as older versions wrote it"


def test_files_are_listed_one_after_the_other(tmp_path: Path) -> None:
    manifest.begin(tmp_path, {"seed": 1})
    for name in ("a", "b"):
        (tmp_path / name).write_text(name)
        manifest.add(tmp_path, name)
    content = manifest.read_list(tmp_path / manifest.UNFINISHED)
    assert list(content["files"]) == ["a", "b"]
    assert content["settings"] == {"seed": 1}
    assert manifest.problem(tmp_path, content["files"]) is None
    (tmp_path / "c").write_text("c")
    assert manifest.problem(tmp_path, content["files"], ["a", "c"]) is not None
