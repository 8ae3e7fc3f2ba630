"""The demo, small: everything it promises is there."""

from __future__ import annotations

from pathlib import Path

import pytest

from seqloom.data.synthetic import DatePair, date_phrases
from seqloom.workflows.demo import demo, free_folder, spread


@pytest.fixture
def few_phrases(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "seqloom.workflows.demo.date_phrases", lambda: date_phrases(0, 300, 40, locales=("en_US", "de_DE", "fr_FR", "es_ES"))
    )


@pytest.mark.usefixtures("few_phrases")
def test_the_demo_gives_scores_examples_and_pictures(tmp_path: Path) -> None:
    said: list[str] = []
    result = demo(str(tmp_path / "demo"), 4, said.append, lambda _: None)
    assert result.summary.keys() == {"exact_match", "exact_match_new_forms", "seconds", "heatmap", "output_dir"}
    assert Path(str(result.summary["heatmap"])).read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "demo" / "heatmap.svg").exists()
    assert len({written for written, _, _ in result.examples}) == len(result.examples) > 1
    assert any("left out" in line for line in said)
    again = demo(str(tmp_path / "demo"), 2, said.append, lambda _: None)
    assert again.summary["output_dir"] == str(tmp_path / "demo-2" / "model")
    assert any("holds something already" in line for line in said)


def test_a_folder_that_holds_something_is_never_taken(tmp_path: Path) -> None:
    assert free_folder(tmp_path / "a") == tmp_path / "a"
    (tmp_path / "a").mkdir()
    assert free_folder(tmp_path / "a") == tmp_path / "a"
    (tmp_path / "a" / "mine").touch()
    (tmp_path / "a-2").touch()
    assert free_folder(tmp_path / "a") == tmp_path / "a-3"


def test_examples_are_of_different_locales() -> None:
    pairs = [DatePair(f"{locale} {form}", "2000-01-01", locale, form) for locale in "abcd" for form in ("full", "short")]
    chosen = spread(pairs, 3)
    assert len({pair.locale for pair in chosen}) == 3
    assert len({pair.form for pair in chosen}) == 2
    assert len(spread(pairs, 9)) == 4
