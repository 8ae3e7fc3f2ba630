"""A tokenizer.json of others neither runs without end nor fills a screen."""

from __future__ import annotations

import json
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models

from seqloom.errors import FolderError
from seqloom.text.hub.tokenizer import read_hub_tokenizer

CONFIG = {"model_type": "gpt2", "vocab_size": 2, "bos_token_id": 0, "eos_token_id": 0}
DOUBLED = {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}


def folder_with(folder: Path, **parts: Any) -> Path:
    model = models.WordLevel({"</s>": 0, "a": 1}, unk_token="</s>")
    content = json.loads(Tokenizer(model).to_str()) | parts
    (folder / "tokenizer.json").write_text(json.dumps(content))
    return folder


def sequence(key: str, *parts: dict[str, Any]) -> dict[str, Any]:
    return {"type": "Sequence", key: list(parts)}


def charsmap(replacement: bytes) -> dict[str, str]:
    content = (4).to_bytes(4, "little") + bytes(4) + replacement + b"\0"
    return {"type": "Precompiled", "precompiled_charsmap": b64encode(content).decode()}


@pytest.mark.parametrize(
    "parts",
    [
        {"normalizer": sequence("normalizers", *[DOUBLED] * 60)},
        {"normalizer": sequence("normalizers", *[sequence("normalizers", *[DOUBLED] * 4)] * 2)},
        {"normalizer": DOUBLED | {"content": "a" * 101}},
        {"normalizer": DOUBLED | {"pattern": {"Regex": "a?"}, "content": "b" * 101}},
        {"normalizer": DOUBLED | {"pattern": {"String": ""}, "content": "b" * 101}},
        {"normalizer": charsmap(b"x" * 101)},
        {"normalizer": sequence("normalizers", *[DOUBLED] * 5000)},
        {"decoder": sequence("decoders", *[DOUBLED] * 60)},
    ],
)
def test_text_that_would_grow_without_end_is_refused(parts: Any, tmp_path: Path) -> None:
    folder = folder_with(tmp_path, **parts)
    with pytest.raises(FolderError, match=r"may make a text at most 100 times longer") as caught:
        read_hub_tokenizer(folder, CONFIG)
    assert str(caught.value).startswith(f"{folder}/tokenizer.json: ")


@pytest.mark.parametrize(
    "parts",
    [
        {"normalizer": sequence("normalizers", *[DOUBLED] * 6)},
        {"normalizer": DOUBLED | {"pattern": {"String": "a" * 9}, "content": "b" * 900}},
        {"normalizer": sequence("normalizers", {"type": "NFKC"}, *[{"type": "Lowercase"}] * 99)},
    ],
)
def test_text_that_grows_little_is_read(parts: Any, tmp_path: Path) -> None:
    assert read_hub_tokenizer(folder_with(tmp_path, **parts), CONFIG).encode(["b"]) == [[0]]


@pytest.mark.parametrize("charsmap", ["AAAA////", "", "////", "AAAAAA=="])
def test_a_panic_of_the_library_is_one_line_that_names_the_file(
    charsmap: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    broken = {"type": "Precompiled", "precompiled_charsmap": charsmap}
    folder = folder_with(tmp_path, normalizer=broken)
    with pytest.raises(FolderError) as caught:
        read_hub_tokenizer(folder, CONFIG)
    assert str(caught.value).startswith(f"{folder}/tokenizer.json: its tokenizer cannot be read")
    assert "\n" not in str(caught.value)
    # Rust would have printed it, with a backtrace
    assert capfd.readouterr().err == ""


def test_a_panic_in_use_is_not_printed_either(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    backtracking = {"type": "Replace", "pattern": {"Regex": "(c+)+d"}, "content": "x"}
    tokenizer = read_hub_tokenizer(folder_with(tmp_path, normalizer=backtracking), CONFIG)
    with pytest.raises(Exception, match=r"could not encode \(Onig.*retry-limit"):
        tokenizer.encode(["c" * 40])
    assert capfd.readouterr().err == ""
