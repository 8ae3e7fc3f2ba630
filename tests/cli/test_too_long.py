"""A text that is longer than a model reads stops no file where it may be skipped: it is left out and counted,
whatever the task and the verb. Else it is an error that names its line, and nothing is cut without a word."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.cli.conftest import Command

LONG = "word " * 60
SKIP = ("--set", "data.on_bad_line=skip")


class Kind(NamedTuple):
    """A task, the rows of its files, where the long text is, and its model."""

    task: str
    rows: Sequence[dict[str, object]]
    long: dict[str, object]
    """The row that is too long."""
    model: str = "bert:tiny"
    settings: Sequence[str] = ("model.context=24",)


def choice(at: int, text: str = "which") -> dict[str, object]:
    return {
        "text": f"{text} {at}",
        "option_a": "this",
        "option_b": f"that {at}",
        "label": "AB"[at % 2],
    }


def question(text: str) -> dict[str, object]:
    return {"question": text, "context": "Ada ran home", "answer": "Ada", "answer_start": 0}


TEXTS: list[dict[str, object]] = [
    {"text": f"{word} film {at}", "label": word} for at in range(8) for word in ("good", "bad")
]
KINDS = {
    "text-classification": Kind("text-classification", TEXTS, {"text": LONG, "label": "bad"}),
    "pairs": Kind(
        "text-classification",
        [{"premise": f"p {at}", "hypothesis": f"h {at}", "label": f"l{at % 2}"} for at in range(12)],
        {"premise": "p", "hypothesis": LONG, "label": "l0"},
    ),
    "sentence-similarity": Kind(
        "sentence-similarity",
        [{"sentence1": f"p {at}", "sentence2": f"h {at}", "score": at} for at in range(12)],
        {"sentence1": LONG, "sentence2": "h", "score": 1},
    ),
    "multiple-choice": Kind(
        "multiple-choice", [choice(at) for at in range(12)], choice(1, LONG)
    ),
    "question-answering": Kind(
        "question-answering",
        [question(f"who {at}") for at in range(12)],
        question(LONG),
        settings=("model.context=24",),
    ),
    "translation": Kind(
        "translation",
        [{"source": f"a b {at}", "target": f"c d {at}"} for at in range(12)],
        {"source": LONG, "target": "c"},
        "transformer:tiny",
        ("model.positions=learned", "model.context=24"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", KINDS)
def test_a_text_that_is_too_long(name: str, command: Command, tmp_path: Path) -> None:
    kind = KINDS[name]
    rows = [*kind.rows[:3], kind.long, *kind.rows[3:]]
    data, short = tmp_path / "long.jsonl", tmp_path / "short.jsonl"
    for file, content in ((data, rows), (short, kind.rows)):
        file.write_text("".join(json.dumps(row) + "\n" for row in content))
    sizes = ["model.width=8", "model.heads=2", "train.max_steps=2", "train.batch_rows=4"]
    settings = [*kind.settings, *sizes, "data.tokenizer=whitespace"]
    options = ["--model", kind.model, *(f"--set={setting}" for setting in settings)]

    refused = command(
        "train", kind.task, data, "--validation", short, *options, "--output-dir", tmp_path / "no"
    )
    assert refused.code == 2
    assert f"{data}:4: a" in refused.err
    assert "data.on_bad_line=skip" in refused.err
    # pairs of train that are validated on are an error
    own = [] if kind.task == "translation" else ["--validation", data]
    checked = command("check", kind.task, data, *own, *options, *SKIP)
    assert checked.code == 0, checked.err
    assert "longer than the model reads" in checked.out.replace("_", " ")

    run = tmp_path / "run"
    trained = command(
        "train", kind.task, data, "--validation", data, *options, *SKIP, "--output-dir", run
    )
    assert trained.code == 0, trained.err
    assert "skipped: longer than the model reads" in trained.err
    assert f"first: {data}:4)" in trained.err
    measured = command("evaluate", run, data, *SKIP, "--json")
    assert measured.code == 0, measured.err
    assert "1 example is skipped: longer than the model reads" in measured.err
    without = command("evaluate", run, short, "--json")
    assert {**measured.json, "file": ""} == {**without.json, "file": ""}

    if kind.task == "translation":
        asked, alone = tmp_path / "asked.txt", tmp_path / "alone.txt"
        asked.write_text(f"a b 1\n{LONG}\nb 2\n")
        alone.write_text("a b 1\n\nb 2\n")
    else:
        asked, alone = data, short
    answers = command("predict", run, asked, *SKIP)
    assert answers.code == 0, answers.err
    assert "1 example is skipped: longer than the model reads" in answers.err
    assert answers.out == command("predict", run, alone).out
