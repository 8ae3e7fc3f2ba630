"""Files are whole or not there, whatever happens while they are written."""

from __future__ import annotations

import gzip
import io
import json
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from seqloom import files, tensor_files
from seqloom.errors import DataError, FolderError, UsageError


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# Writing


@pytest.mark.parametrize("content", [b"new", "new", lambda file: file.write(b"new")])
def test_a_file_is_replaced(
    tmp_path: Path, content: bytes | str | Callable[[BinaryIO], Any]
) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"old")
    files.write_atomic(path, content)
    assert path.read_bytes() == b"new"
    assert names(tmp_path) == ["a.txt"]


def test_a_writer_that_fails_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"old")

    def write(file: BinaryIO) -> None:
        file.write(b"half of it")
        file.flush()
        assert path.read_bytes() == b"old"
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        files.write_atomic(path, write)
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["a.txt"]


@pytest.mark.parametrize("event", ["fsync", "replace"])
def test_a_system_that_fails_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, event: str
) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"old")

    def fail(*_: Any) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, event, fail)
        with pytest.raises(
            FolderError,
            match=r"a\.txt: cannot be written \(Input/output error\); what was there before is whole",
        ):
            files.write_atomic(path, b"new")
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["a.txt"]


def test_bytes_reach_the_disk_before_the_name_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    monkeypatch.setattr(
        os,
        "fsync",
        lambda handle: events.append(
            "folder" if os.path.isdir(f"/proc/self/fd/{handle}") else "file"
        ),
    )
    replace = os.replace

    def renamed(*paths: Path) -> None:
        events.append("rename")
        replace(*paths)

    monkeypatch.setattr(os, "replace", renamed)
    files.write_atomic(tmp_path / "a.txt", b"new")
    assert events == ["file", "rename", "folder"]


def test_where_nothing_can_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for folder, reason in (("no", "there is no such folder"), ("file", "Not a directory")):
        path = tmp_path / folder / "a.txt"
        with pytest.raises(FolderError) as caught:
            files.write_atomic(path, b"new")
        # where nothing was before, nothing is said to be whole
        assert str(caught.value) == f"{path}: cannot be written ({reason})"


def test_a_link_is_another_name(tmp_path: Path) -> None:
    source, path = tmp_path / "source", tmp_path / "path"
    source.write_bytes(b"1")
    path.write_bytes(b"0")
    files.link_atomic(source, path)
    assert path.samefile(source)
    assert names(tmp_path) == ["path", "source"]


def test_a_copy_where_there_are_no_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, path = tmp_path / "source", tmp_path / "path"
    source.write_bytes(b"1")

    def fail(*_: Any) -> None:
        raise OSError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", fail)
    files.link_atomic(source, path)
    assert path.read_bytes() == b"1"
    assert not path.samefile(source)
    with pytest.raises(FolderError, match="cannot be written"):
        files.link_atomic(tmp_path / "missing", path)
    assert path.read_bytes() == b"1"
    assert names(tmp_path) == ["path", "source"]


# Reading JSON


def test_json_round_trip(tmp_path: Path) -> None:
    content = {"a": [1, 0.1, None, "ä\u2028"], "b": {}}
    files.write_json(tmp_path / "a.json", content)
    assert files.read_json(tmp_path / "a.json") == content
    with pytest.raises(ValueError):
        files.write_json(tmp_path / "a.json", float("nan"))
    assert files.read_json(tmp_path / "a.json") == content


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{"a": 1, "a": 2}', "the key 'a' stands twice"),
        ('{"b": {"a": 1, "a": 1}}', "the key 'a' stands twice"),
        ('{"a": 1', "is not JSON"),
        ("", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ("\xff", "is not JSON"),
    ],
)
def test_json_that_is_none(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(FolderError, match=problem) as caught:
        files.read_json(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)


def test_json_that_is_missing_or_too_large(tmp_path: Path) -> None:
    with pytest.raises(FolderError, match="cannot be read"):
        files.read_json(tmp_path / "a.json")
    (tmp_path / "a.json").write_text("[1, 2, 3]")
    with pytest.raises(FolderError, match="must be at most 8 bytes, but has 9"):
        files.read_json(tmp_path / "a.json", limit=8)
    assert files.read_json(tmp_path / "a.json", limit=9) == [1, 2, 3]


# Manifests


@pytest.mark.parametrize("number", ["NaN", "-Infinity", "1e999"])
def test_a_number_that_is_not_finite_is_not_json(tmp_path: Path, number: str) -> None:
    (tmp_path / "a.json").write_text(f"[1.5, -0.25e1, {number}]")
    with pytest.raises(FolderError, match=f"a number must be finite, but one is {number}"):
        files.read_json(tmp_path / "a.json")
    (tmp_path / "a.json").write_text("[1.5, -0.25e1]")
    assert files.read_json(tmp_path / "a.json") == [1.5, -2.5]


# New folders and locks


def test_a_new_folder_is_made_where_nothing_is(tmp_path: Path) -> None:
    files.new_folder(tmp_path / "a" / "b", "a new run")
    assert (tmp_path / "a" / "b").is_dir()
    (tmp_path / "a" / "b" / files.LOCK).touch()
    (tmp_path / "a" / "b" / ".run.yaml.123.tmp").touch()  # of a run that was killed before it began
    files.new_folder(tmp_path / "a" / "b", "a new run")
    (tmp_path / "file").touch()
    (tmp_path / "a" / "b" / "c").touch()
    for place in ("file", "a/b"):
        with pytest.raises(
            UsageError, match=r"must be new or empty, but it holds something; name another folder$"
        ):
            files.new_folder(tmp_path / place, "a new run")
    with pytest.raises(UsageError, match=r"it holds something; go on$"):
        files.new_folder(tmp_path / "a", "a new run", "go on")
    with pytest.raises(FolderError, match="cannot be written"):
        files.new_folder(tmp_path / "file" / "c", "a new run")


def test_leftovers_are_those_of_killed_writes(tmp_path: Path) -> None:
    for name in (".a.json.12.tmp", "a.tmp", ".lock", "checkpoint-3.tmp"):
        (tmp_path / name).touch()
    assert [path.name for path in files.leftovers(tmp_path)] == [".a.json.12.tmp"]


HOLD = (
    "import sys, pathlib, seqloom.files as f\nwith f.locked(pathlib.Path(sys.argv[1])) as held: print(held,"
    " flush=True); sys.stdin.read()"
)


def test_a_lock_is_held_by_one_process_until_it_ends(tmp_path: Path) -> None:
    path = tmp_path / files.LOCK
    with files.locked(path) as held, files.locked(path) as again:
        assert (held, again) == (True, False)
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"True\n"
        with files.locked(path) as held:
            assert not held
        other.kill()
    with files.locked(path, wait=True) as held:
        assert held
    with (
        pytest.raises(FolderError, match="cannot be written"),
        files.locked(tmp_path / "no" / files.LOCK),
    ):
        pass


# Opening what a user named


def test_plain_packed_and_standard_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, packed = tmp_path / "a.txt", tmp_path / "a.txt.gz"
    plain.write_bytes(b"text\n")
    packed.write_bytes(gzip.compress(b"text\n"))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"text\n")))
    for path in (str(plain), str(packed), "-"):
        with files.open_binary(path) as file:
            assert file.read() == b"text\n"


def test_a_packed_file_is_opened_once_and_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "a.txt.gz")
    Path(path).write_bytes(gzip.compress(b"text\n"))
    opened: list[BinaryIO] = []
    system_open = open

    def counted(*given: Any, **named: Any) -> Any:
        opened.append(system_open(*given, **named))
        return opened[-1]

    monkeypatch.setattr("builtins.open", counted)
    with files.open_binary(path) as file:
        assert file.read() == b"text\n"
    assert len(opened) == 1  # a pipe gives its bytes only once
    assert opened[0].closed


def test_what_cannot_be_opened(tmp_path: Path) -> None:
    (tmp_path / "train.en").touch()
    (tmp_path / "loop").symlink_to("loop")
    for name, problem in {
        "trian.en": "there is no such file; near it: train.en",
        "xyz": "there is no such file",
        "no/xyz": "there is no such file, nor its folder",
        "train.en/xyz": "there is no such file",
        ".": "must be a file, but is a folder",
        "loop": "is a loop of symbolic links",
        "n" * 300: "cannot be opened (File name too long)",
    }.items():
        path = os.path.join(tmp_path, name)
        with pytest.raises(DataError) as caught:
            files.open_binary(path)
        assert str(caught.value).startswith(f"{path}: {problem}")
        assert caught.value.path == path
        assert caught.value.exit_code == 2
    with pytest.raises(DataError, match="must be a regular file, but is a device"):
        files.open_binary("/dev/null")


def test_a_file_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(tmp_path / "a.txt")
    Path(path).touch()

    def refuse(*_: Any) -> None:  # the superuser may read everything, so the system is played
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("builtins.open", refuse)
    with pytest.raises(DataError, match="may not be read"):
        files.open_binary(path)


def test_names_are_shown_without_their_tricks(tmp_path: Path) -> None:
    (tmp_path / "ab\x1b[31m.txt").touch()
    with pytest.raises(DataError) as caught:
        files.open_binary(str(tmp_path / "ab\x1b[31.txt"))
    assert "\x1b" not in str(caught.value)
    assert json.dumps(str(caught.value)).count("x1b") == 2


# Only regular files


def put_pipe(path: Path) -> None:
    os.mkfifo(path)


def put_device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def put_folder(path: Path) -> None:
    path.mkdir()


def put_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(os.path.relpath(path))


def put_link_to_nothing(path: Path) -> None:
    path.symlink_to("nowhere")


def put_link_to_itself(path: Path) -> None:
    path.symlink_to(path.name)


NO_FILES: dict[str, Callable[[Path], None]] = {
    "must be a regular file, but is a named pipe": put_pipe,
    "must be a regular file, but is a device": put_device,
    "must be a regular file, but is a folder": put_folder,
    "must be a regular file, but is a socket": put_socket,
    r"cannot be read \(there is no such file: it is a link to nowhere\)": put_link_to_nothing,
    r"cannot be read \(is a loop of symbolic links\)": put_link_to_itself,
    r"cannot be read \(there is no such file\)": lambda path: None,
}
READERS: dict[str, Callable[[Path], object]] = {
    "bytes": files.read_bytes,
    "text": files.read_text,
    "json": files.read_json,
    "sha256": files.sha256,
    "safetensors": tensor_files.read_header,
    "open": files.open_regular,
    "by a link": lambda path: files.read_bytes(linked(path)),
}


def linked(path: Path) -> Path:
    link = path.with_name("link")
    link.symlink_to(path)
    return link


@pytest.mark.parametrize("problem", NO_FILES)
@pytest.mark.parametrize("reader", READERS)
def test_what_is_no_regular_file_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, problem: str, reader: str
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "abc.json"
    NO_FILES[problem](path)
    if reader == "by a link":
        # a link to nothing is named as what it leads to
        problem = problem.partition(":")[0].removesuffix(r"\)")
    with pytest.raises(FolderError, match=problem) as caught:
        READERS[reader](path)
    assert str(caught.value).startswith(str(tmp_path))


def test_a_file_is_read_by_a_link_and_within_its_bound(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"a\r\nb\r\xc3\xa4")
    (tmp_path / "link").symlink_to("a.txt")
    assert files.read_text(tmp_path / "link", limit=7) == "a\nb\nä"
    with pytest.raises(FolderError, match="must be at most 6 bytes, but has 7"):
        files.read_text(tmp_path / "link", limit=6)
    (tmp_path / "a.txt").write_bytes(b"a\xff")
    with pytest.raises(FolderError, match="must be UTF-8, but byte 1 is not"):
        files.read_text(tmp_path / "link")
    # a file that is empty but for its size takes no time
    os.truncate(tmp_path / "a.txt", 2**40)
    with pytest.raises(FolderError, match=f"must be at most {2**26} bytes, but has {2**40}"):
        files.read_json(tmp_path / "link")


@pytest.mark.parametrize(
    ("place", "problem"),
    [
        ("runs/abd", "there is no such folder; near it: abc"),
        ("no/abc", "there is no such folder, nor its folder"),
        ("runs/file", "is no folder"),
        ("runs/abc", "holds no config.json; make one"),
        ("runs/link", "there is no such folder: it is a link to nowhere"),
        ("runs/a\0", "no folder can have this name"),
    ],
)
def test_a_folder_that_is_none_says_why(tmp_path: Path, place: str, problem: str) -> None:
    (tmp_path / "runs" / "abc").mkdir(parents=True)
    (tmp_path / "runs" / "file").touch()
    (tmp_path / "runs" / "link").symlink_to("nowhere")
    with pytest.raises(FolderError) as caught:
        files.require_folder(tmp_path / place, "a run folder", "config.json", "; make one")
    assert f"must be a run folder, but {problem}" in str(caught.value)


def test_standard_input_that_is_closed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(DataError, match="standard input must be open, but is closed"):
        files.open_binary("-")


def test_a_pipe_is_data_only_where_it_was_named(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(DataError, match="must be a regular file, but is a named pipe"):
        files.open_binary(str(tmp_path / "pipe"), pipe=False)


def test_a_tensor_that_occurs_twice_is_refused(tmp_path: Path) -> None:
    entry = '{"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}'
    header = f'{{"a": {entry}, "a": {entry}}}'.encode()
    path = tmp_path / "a.safetensors"
    path.write_bytes(struct.pack("<Q", len(header)) + header + bytes(4))
    with pytest.raises(FolderError, match="the key 'a' stands twice"):
        tensor_files.open_safetensors(path)
    path.write_bytes(struct.pack("<Q", 2**25 + 1) + bytes(4))
    with pytest.raises(FolderError, match="a header of at most"):
        tensor_files.open_safetensors(path)


def test_a_folder_is_seen_whole_or_not_at_all(tmp_path: Path) -> None:
    place = tmp_path / "a" / "model"
    with files.atomic_folder(place, "a model") as temporary:
        (temporary / "part").mkdir()
        (temporary / "part" / "weights").write_text("1")
        assert not place.exists()
    assert [path.name for path in place.iterdir()] == ["part"]
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["model"]
    with (
        pytest.raises(UsageError, match="must be new or empty, but it holds something"),
        files.atomic_folder(place, "a model"),
    ):
        raise AssertionError
    with pytest.raises(KeyError), files.atomic_folder(tmp_path / "b", "a model"):
        raise KeyError
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_a_folder_takes_the_place_of_an_empty_one_and_of_what_was_left(tmp_path: Path) -> None:
    place, left = tmp_path / "model", tmp_path / ".model.tmp"
    place.mkdir()
    (place / files.LOCK).touch()
    (place / ".config.json.1.tmp").touch()
    (left / "half").mkdir(parents=True)
    (left / "weights").write_text("half")
    with files.atomic_folder(place, "a model") as temporary:
        (temporary / "weights").write_text("1")
    assert {path.name for path in place.iterdir()} == {"weights"}
    assert not left.exists()


def test_one_process_writes_a_folder(tmp_path: Path) -> None:
    with (
        files.atomic_folder(tmp_path / "a", "a model"),
        pytest.raises(FolderError, match="another process is writing this folder"),
        files.atomic_folder(tmp_path / "a", "a model"),
    ):
        raise AssertionError
    assert (tmp_path / "a").is_dir()


def test_the_current_folder_is_not_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for place in (Path(), Path("/proc/")):
        with pytest.raises(UsageError), files.atomic_folder(place, "a model"):
            raise AssertionError
