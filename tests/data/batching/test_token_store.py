"""The token store holds what the tokenizer says, is made once, and is never seen half-written."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import seqloom.data.batching.token_store
from seqloom.data.batching.token_store import (
    TokenStore,
    build_store,
    cache_folder,
    chunked,
    fingerprint,
    open_store,
)
from seqloom.data.formats.columns import Record
from seqloom.errors import DataError, FolderError
from seqloom.text.special_tokens import SPECIAL_IDS

TEXTS = [("ab", "c"), ("", "xyz"), ("äöü", "💡"), ("a" * 50, ""), ("q", "q")]


class Codes:
    """A tokenizer whose ids are code points, and which counts its calls."""

    token_bytes: Sequence[bytes] = ()
    text_separator = b""
    space_prefix = b""
    space_suffix = b""
    special_ids = SPECIAL_IDS

    def __init__(self, vocabulary_size: int = 2**17) -> None:
        self.vocabulary_size = vocabulary_size
        self.calls = 0

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        self.calls += 1
        return [[ord(c) % self.vocabulary_size for c in text] for text in texts]

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(map(chr, ids))

    def pieces(self, ids: Sequence[int]) -> list[str]:
        return [chr(i) for i in ids]


def records() -> Iterator[Record]:
    for at, (source, target) in enumerate(TEXTS):
        yield Record({"source": source, "target": target}, "t.tsv", 2 * at + 1)


IDENTITY = {"text": "1", "tokenizer": "2"}


def build(
    folder: Path, tokenizer: Codes | None = None, identity: dict[str, Any] = IDENTITY
) -> TokenStore:
    return build_store(
        records, dict.fromkeys(("source", "target"), tokenizer or Codes()), identity, folder
    )


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seqloom.data.batching.token_store, "CHUNK", 2)


def test_it_holds_what_the_tokenizer_says(tmp_path: Path) -> None:
    store = build(tmp_path)
    assert len(store) == 5
    for row, pair in enumerate(TEXTS):
        for column, text in enumerate(pair):
            assert store.sequence(row, column).tolist() == [ord(c) for c in text]
    assert store.lengths(np.array([3, 0]), 0).tolist() == [50, 2]
    assert store.lengths(np.arange(5), 1).tolist() == [1, 3, 1, 0, 1]
    assert store.lines.tolist() == [1, 3, 5, 7, 9]


@pytest.mark.parametrize(("size", "dtype"), [(2**16, np.uint16), (2**16 + 1, np.uint32)])
def test_ids_are_as_wide_as_the_vocabulary_needs(tmp_path: Path, size: int, dtype: type) -> None:
    store = build(tmp_path, Codes(size))
    assert store.tokens.dtype == dtype
    assert int(store.tokens.max()) == (
        ord("💡") % size
        if size > 2**16
        else max(ord(c) % size for p in TEXTS for t in p for c in t)
    )


def test_it_is_made_once(tmp_path: Path) -> None:
    first, second = Codes(), Codes()
    one = build(tmp_path, first)
    assert first.calls == 6  # chunks, each with two columns
    other = build(tmp_path, second)
    assert second.calls == 0
    assert other.tokens.tolist() == one.tokens.tolist()


@pytest.mark.parametrize(
    "change", [{"text": "other"}, {"tokenizer": "other"}, {"read": {"encoding": "latin-1"}}]
)
def test_it_is_made_anew_where_anything_changed(tmp_path: Path, change: dict[str, Any]) -> None:
    build(tmp_path)
    tokenizer = Codes()
    build(tmp_path, tokenizer, IDENTITY | change)
    assert tokenizer.calls


def test_it_is_made_anew_for_another_format(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build(tmp_path)
    monkeypatch.setattr(seqloom.data.batching.token_store, "FORMAT", 10**6)
    tokenizer = Codes()
    build(tmp_path, tokenizer)
    assert tokenizer.calls


def place_of(folder: Path) -> Path:
    (place,) = (path for path in folder.iterdir() if path.is_dir())
    return place


@pytest.mark.parametrize("name", ["tokens.bin.uint32", "offsets.npy", "lines.npy", "meta.json"])
@pytest.mark.parametrize("damage", ["cut", "empty", "missing"])
def test_a_damaged_store_is_made_anew(tmp_path: Path, name: str, damage: str) -> None:
    build(tmp_path)
    path = place_of(tmp_path) / name
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-8] if damage == "cut" else b"")
    assert open_store(place_of(tmp_path)) is None
    tokenizer = Codes()
    assert build(tmp_path, tokenizer).sequence(4, 1).tolist() == [ord("q")]
    assert tokenizer.calls


def test_what_a_killed_builder_left_is_not_opened_and_goes(tmp_path: Path) -> None:
    build(tmp_path)
    half = place_of(tmp_path).rename(place_of(tmp_path).with_suffix(".tmp"))
    (half / "tokens.bin.uint32").write_bytes(b"")
    tokenizer = Codes()
    assert build(tmp_path, tokenizer).sequence(0, 0).tolist() == [97, 98]
    assert tokenizer.calls
    assert not half.exists()


def test_a_failure_leaves_nothing(tmp_path: Path) -> None:
    def failing() -> Iterator[Record]:
        yield from records()
        raise DataError("is bad", "t.tsv", 11)

    with pytest.raises(DataError, match=r"t\.tsv:11: is bad"):
        build_store(failing, dict.fromkeys(("source", "target"), Codes()), {}, tmp_path)
    with pytest.raises(DataError, match="at least one usable example"):
        build_store(lambda: iter(()), dict.fromkeys(("source", "target"), Codes()), {}, tmp_path)
    assert not [path for path in tmp_path.iterdir() if path.is_dir()]


def test_builders_at_the_same_time_agree(tmp_path: Path) -> None:
    """The lock is taken per open file, so threads wait for each other as processes do."""
    tokenizers = [Codes() for _ in range(6)]
    stores: list[list[int]] = []
    threads = [
        threading.Thread(target=lambda t=t: stores.append(build(tmp_path, t).tokens.tolist()))
        for t in tokenizers
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(stores) == 6
    assert all(one == stores[0] for one in stores)
    assert sorted(tokenizer.calls for tokenizer in tokenizers) == [0, 0, 0, 0, 0, 6]


def test_memory_does_not_hold_the_text() -> None:
    source = records()
    chunks = chunked(source, 2)
    assert [record.line for record in next(chunks)] == [1, 3]
    assert next(source).line == 5  # was not read before it was asked for
    assert [[record.line for record in chunk] for chunk in chunks] == [[7, 9]]


def test_it_stands_beside_the_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "data").mkdir()
    assert cache_folder(tmp_path / "data" / "train.en") == tmp_path / "data" / ".seqloom-cache"
    assert cache_folder(tmp_path / "data" / "train.en") == tmp_path / "data" / ".seqloom-cache"
    assert [path.name for path in (tmp_path / "data" / ".seqloom-cache").iterdir()] == []
    (tmp_path / "file").touch()
    assert cache_folder(tmp_path / "file" / "train.en") == tmp_path / "cache" / "seqloom"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache_folder(tmp_path / "file" / "train.en") == tmp_path / "home" / ".cache" / "seqloom"


def test_a_folder_that_cannot_be_written_falls_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file system that is mounted read-only, where even the superuser cannot write."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    data = tmp_path / "data"
    data.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "ro,size=100k", "tmpfs", str(data)],
        capture_output=True,
        check=False,
    )
    if mounted.returncode:
        if os.geteuid() == 0:
            pytest.skip(
                "mounting is not permitted here, and the superuser may write everywhere else"
            )
        data.chmod(0o555)
    try:
        assert cache_folder(data / "train.en") == tmp_path / "cache" / "seqloom"
    finally:
        if mounted.returncode == 0:
            subprocess.run(["umount", str(data)], check=True)
    build(tmp_path / "cache" / "seqloom")
    assert place_of(tmp_path / "cache" / "seqloom").is_dir()


def test_a_full_disk_is_said_and_leaves_nothing(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=32k", "tmpfs", str(disk)],
        capture_output=True,
        check=False,
    ).returncode:
        pytest.skip("mounting a small file system is not permitted here")
    try:
        many = [
            Record({"source": "abc" * 100, "target": "d"}, "t.tsv", line) for line in range(1000)
        ]
        with pytest.raises(
            FolderError, match=r"cannot be written \(No space left on device; 0\.\d MiB are free\)"
        ):
            build_store(lambda: many, dict.fromkeys(("source", "target"), Codes()), {}, disk)
        assert not [path for path in disk.iterdir() if path.is_dir()]
        assert shutil.disk_usage(disk).free > 20_000
        assert len(build(disk)) == 5
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


def test_a_fingerprint_tells_versions_apart(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"abc")
    one = fingerprint(str(path))
    path.write_bytes(b"abd")
    other = fingerprint(str(path))
    assert one["bytes"] == other["bytes"] == 3
    assert one["sha256"] == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert other["sha256"] != one["sha256"]
