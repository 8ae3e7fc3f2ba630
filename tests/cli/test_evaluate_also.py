"""`evaluate --also`: how much each metric differs with another setting of decoding."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cli.conftest import Command

from seqloom.native.library import library
from seqloom.tasks.translation.translator import Translator
from seqloom.workflows.train import train

compiled = pytest.mark.skipif(
    library() is None, reason="the compiled step needs a C++ compiler when the project is installed"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a small GPT, and its text."""
    place = tmp_path_factory.mktemp("also")
    (place / "text.txt").write_text("".join(f"{n * n * n} words of {n}\n" for n in range(99)))
    train(
        "text-generation",
        [str(place / "text.txt")],
        output_dir=place / "run",
        model="gpt:tiny",
        settings=["data.tokenizer=bytes", "train.max_steps=2"],
    )
    return place


@compiled
def test_one_command_measures_before_and_after(folder: Path, command: Command) -> None:
    evaluate = ("evaluate", folder / "run", folder / "text.txt")
    settings = [f"decode.weights={weights}" for weights in ("float32", "int8")]
    also = [word for setting in settings for word in ("--also", setting)]
    found = command(*evaluate, *also, "--json").json
    alike, stored = found["also"]
    assert [alike["setting"], stored["setting"]] == settings
    after = command(*evaluate, "--set", settings[1], "--json").json
    for name in ("loss", "perplexity", "bits_per_byte"):
        assert stored["metrics"][name] == after[name]
        nothing, difference = alike["differences"][name], stored["differences"][name]
        assert nothing == {"value": 0, "low": 0, "high": 0, "p": 1}
        assert difference["value"] == pytest.approx(after[name] - found[name], rel=1e-6)
        # pairs differ far less than the blocks of the text do
        width = found[f"{name}_high"] - found[f"{name}_low"]
        assert 0 < difference["high"] - difference["low"] < width / 4
    assert "With decode.weights=int8" in command(*evaluate, *also).out


def test_a_beam_and_a_wider_one(trained: Path, pairs: Path, command: Command) -> None:
    table, settings = pairs / "val.jsonl", ("--set", "decode.beam=1", "--also", "decode.beam=3")
    found = command("evaluate", trained, table, *settings, "--json").json
    (wider,) = found["also"]
    for name in ("bleu", "chrf"):
        difference = wider["differences"][name]
        assert difference["value"] == pytest.approx(wider["metrics"][name] - found[name])
        assert difference["low"] <= difference["value"] <= difference["high"]
    assert wider["differences"]["exact_match"].keys() == {"value"}


def test_all_settings_are_checked_before_anything_is_measured(
    trained: Path, pairs: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Translator, "evaluate", lambda *_: pytest.fail("it was measured"))
    for bad in ("decode.beam=0", "decode.strategy=none", "decode.top_k=3"):
        also = ("--also", "decode.beam=3", "--also", bad)
        ran = command("evaluate", trained, pairs / "val.jsonl", *also)
        assert ran.code == 2
        assert bad.partition("=")[0] in ran.err


@pytest.mark.parametrize(
    ("setting", "data", "reason"),
    [
        ("data.text=a", "text.txt", "--also can change decode.* here, but not data.*"),
        ("decode.beam=2", "text.txt", "decode.beam changes nothing in evaluate"),
        ("decode.weights=int8", "-", "--also reads the data again, so each must be a file"),
    ],
)
def test_a_second_measurement_that_cannot_be_is_refused(
    folder: Path, command: Command, setting: str, data: str, reason: str
) -> None:
    place = data if data == "-" else folder / data
    ran = command("evaluate", folder / "run", place, "--also", setting)
    assert ran.code == 2
    assert reason in ran.err
