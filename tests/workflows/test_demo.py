"""The demo, small: everything it promises is there."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import seqloom.workflows.demo as module
from seqloom.config import DecodeConfig
from seqloom.data.synthetic.pairs import DatePair, DatePhrases, date_phrases
from seqloom.protocols import Evaluation
from seqloom.tasks.translation.evaluate_pairs import evaluate_pairs
from seqloom.tasks.translation.translator import Translator
from seqloom.training.loop import Progress
from seqloom.workflows.demo import REPORTED, VALIDATED, demo, free_folder, spread


def few(held_out: int) -> DatePhrases:
    return date_phrases(0, 300, held_out, locales=("en_US", "de_DE", "fr_FR", "es_ES"))


@pytest.fixture
def few_phrases(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REPORTED", 30)
    monkeypatch.setattr(module, "VALIDATED", 10)
    monkeypatch.setattr(module, "date_phrases", few)


@pytest.mark.usefixtures("few_phrases")
def test_the_demo_gives_scores_examples_and_pictures(tmp_path: Path, notices: list[str]) -> None:
    result = demo(str(tmp_path / "demo"), 4, lambda _: None)
    assert result.summary.keys() == {
        "exact_match",
        "exact_match_new_forms",
        "seconds",
        "heatmap",
        "output_dir",
    }
    assert Path(str(result.summary["heatmap"])).read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "demo" / "heatmap.svg").exists()
    assert len({written for written, _, _ in result.examples}) == len(result.examples) > 1
    assert any("left out" in line for line in notices)
    again = demo(str(tmp_path / "demo"), 2, lambda _: None)
    assert again.summary["output_dir"] == str(tmp_path / "demo-2" / "model")
    assert any("holds something already" in line for line in notices)


@pytest.mark.usefixtures("few_phrases")
def test_what_chooses_the_checkpoint_is_not_reported_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: list[list[tuple[str, str]]] = []
    drawn: list[str] = []

    def watched(
        model: Any, tokenizer: Any, pairs: Sequence[tuple[str, str]], decode: DecodeConfig | None
    ) -> Evaluation:
        measured.append([(source, target) for source, target in pairs])
        return evaluate_pairs(model, tokenizer, pairs, decode)

    class Undrawn(NamedTuple):
        def save(self, _: Path) -> None: ...

    def recorded(_: Translator, text: str) -> Undrawn:
        drawn.append(text)
        return Undrawn()

    monkeypatch.setattr(module, "evaluate_pairs", watched)
    monkeypatch.setattr(Translator, "explain", recorded)
    result = demo(str(tmp_path / "demo"), 1, lambda _: None)
    chosen_by = [
        json.loads(line)["source"]
        for line in (tmp_path / "demo" / "data" / "validation.jsonl")
        .read_text("utf-8")
        .splitlines()
    ]
    phrases = few(40)
    assert chosen_by == [pair.phrase for pair in phrases.held_out_years[30:]]
    assert measured == [
        [pair[:2] for pair in pairs[:30]]
        for pairs in (phrases.held_out_years, phrases.held_out_forms)
    ]
    assert drawn
    assert not set(chosen_by) & {*drawn, *(written for written, _, _ in result.examples)}
    assert (REPORTED, VALIDATED) == (1_000, 200)


@pytest.mark.usefixtures("few_phrases")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_demo_that_is_stopped_gives_no_score(number: signal.Signals, tmp_path: Path) -> None:
    def stop(now: Progress) -> None:
        if now.step == 2:
            os.kill(os.getpid(), number)

    result = demo(str(tmp_path / "demo"), 50, stop)
    assert result.stopped == number.name
    assert result.summary == {
        "stopped": number.name,
        "output_dir": str(tmp_path / "demo" / "model"),
    }
    assert result.examples == []
    assert not (tmp_path / "demo" / "heatmap.png").exists()


def test_a_folder_that_holds_something_is_never_taken(tmp_path: Path) -> None:
    assert free_folder(tmp_path / "a") == tmp_path / "a"
    (tmp_path / "a").mkdir()
    assert free_folder(tmp_path / "a") == tmp_path / "a"
    (tmp_path / "a" / "mine").touch()
    (tmp_path / "a-2").touch()
    assert free_folder(tmp_path / "a") == tmp_path / "a-3"


def test_examples_are_of_different_locales() -> None:
    pairs = [
        DatePair(f"{locale} {form}", "2000-01-01", locale, form)
        for locale in "abcd"
        for form in ("full", "short")
    ]
    chosen = spread(pairs, 3)
    assert len({pair.locale for pair in chosen}) == 3
    assert len({pair.form for pair in chosen}) == 2
    assert len(spread(pairs, 9)) == 4
