"""The verb complete as a user gives it."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.decoding.toys import Remembering

import seqloom.tasks.language_modeling.complete as workflow
from seqloom.text.tokenizers import train_tokenizer

TOKENIZER = train_tokenizer(["the quick brown fox"] * 3, "bpe", 300)


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any folder is from now on that of a tiny model that prefers the words of the tokenizer."""
    model = Remembering(TOKENIZER.vocabulary_size)
    model.table[:, [i for i, piece in enumerate(TOKENIZER.token_bytes) if len(piece) > 1]] += 8
    bundle = type(
        "B",
        (),
        {
            "task": "text-generation",
            "folder": Path("runs/x"),
            "model": model,
            "tokenizer": TOKENIZER,
            "decode_settings": lambda *_: None,
            "decoder": lambda *_: model,
        },
    )()
    monkeypatch.setattr(workflow, "load_run", lambda *_: bundle)
    torch.manual_seed(0)


def test_a_table_and_json_say_the_same(command: Any, opened: None) -> None:
    shown, one = (
        command("complete", "runs/x", "the qu", "--n=3"),
        command("complete", "runs/x", "the qu", "--n=3", "--json").json,
    )
    assert (shown.code, shown.err) == (0, "")
    assert "completion" in shown.out
    assert one["prefix"] == "the qu"
    assert len(one["completions"]) == 3
    for found in one["completions"]:
        assert list(found) == ["word", "text", "probability", "ended"]
        assert found["word"] == "qu" + found["text"]
        assert f"{found['probability']:.4f}" in shown.out
    assert one["completions"][0]["word"].startswith("quick")
    assert (
        len(
            command("complete", "runs/x", "the qu", "--words=2", "--json")
            .json["completions"][0]["word"]
            .split()
        )
        >= 2
    )


def test_without_a_text_each_line_is_one(
    command: Any, opened: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"the qu\nthe \n\nf\r\n")))
    ran = command("complete", "runs/x", "--json")
    alone = [
        command("complete", "runs/x", text, "--json").json for text in ("the qu", "the ", "", "f")
    ]
    assert [json.loads(line) for line in ran.out.splitlines()] == alone


def test_errors_are_one_line(
    command: Any, opened: None, monkeypatch: pytest.MonkeyPatch, trained: Path
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"the\n\xff\n")))
    ran = command("complete", "runs/x", "--json")
    assert (ran.code, ran.err.count("\n")) == (2, 1)
    assert "standard input:2: a line must be UTF-8" in ran.err
    assert (
        command("complete", "runs/x", "a", "--n=0").err
        == "seqloom: the numbers of completions and of words must be at least 1, but are 0 and 1\n"
    )
    monkeypatch.undo()
    ran = command("complete", trained, "a")
    assert (ran.code, ran.err.count("\n")) == (2, 1)
    assert "a model of translation cannot complete; use: seqloom predict" in ran.err
