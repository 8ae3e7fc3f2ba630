"""The comparison with KenLM through the command line, small."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.arpa import DIALECTS, GRAM, against_answers, compare, with_comments
from tests.tasks.language_modeling.test_arpa import ARPA

pytestmark = pytest.mark.usefixtures("one_thread")

TEXT = "red tape\n\n <unk> red tape\ntape zebra red \n"


def test_each_dialect_has_the_same_ngrams_in_another_form() -> None:
    texts = {name: rewritten(ARPA) for name, rewritten in DIALECTS.items()}
    assert len(set(texts.values())) == len(texts)
    counts = [len(GRAM.findall(text.replace("\r", ""))) for text in texts.values()]
    # one dialect has no <unk>; two write some numbers or words in another way
    assert counts[:2] == [11, 11]
    assert counts[-1] == 10


def test_a_dialect_is_scored_as_by_kenlm_through_the_command_line(tmp_path: Path) -> None:
    pytest.importorskip("kenlm")
    (tmp_path / "model.arpa").write_text(with_comments(ARPA))
    (tmp_path / "text.txt").write_text(TEXT)
    found = compare(tmp_path / "model.arpa", tmp_path / "text.txt", 3, tmp_path)
    assert found.words == 11
    assert found.difference < 1e-5
    assert found.perplexity == pytest.approx(found.theirs, rel=1e-6)


def test_answers_of_query_are_compared_word_by_word(tmp_path: Path) -> None:
    (tmp_path / "model.arpa").write_text(ARPA)
    (tmp_path / "text.txt").write_text("red tape\n\ntape red\n")
    answers = "red=3 2 -0.1\ttape=4 3 -0.01\t</s>=2 3 -0.02\t</s>=2 1 -0.8\ttape=4 1 -0.9\t"
    (tmp_path / "answers.txt").write_text(f"{answers}red=3 2 -0.25\t</s>=2 1 -0.5\t")
    words, difference = against_answers(
        tmp_path / "model.arpa", tmp_path / "text.txt", tmp_path / "answers.txt", tmp_path
    )
    assert words == 6
    assert difference == pytest.approx(0.2, abs=1e-5)
