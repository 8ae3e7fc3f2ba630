"""Every perplexity stands beside the vocabulary and the share of unknown tokens that it depends on."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

import seqloom
from seqloom.data.readers.documents import DocumentPiece
from seqloom.tasks.language_modeling.documents import log_spelled_unknown

RUNS = Path(__file__).parents[1] / "fixtures" / "runs"
pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize(
    ("run", "perplexity"),
    [
        ("text-ngram", "perplexity"),
        ("text-gpt", "perplexity"),
        ("masks-bert", "pseudo_perplexity"),
        ("translation-seq2seq", "perplexity"),
    ],
)
def test_a_perplexity_is_reported_with_its_vocabulary(
    run: str, perplexity: str, tmp_path: Path
) -> None:
    path = tmp_path / ("pairs.tsv" if run.startswith("translation") else "texts.txt")
    path.write_text("the dog sees it .\tder hund sieht es .\n" * 3)
    model = seqloom.load(RUNS / run)
    found = model.evaluate([str(path)]).metrics
    assert found[perplexity] > 1
    assert found["vocabulary"] == model.run.tokenizer.vocabulary_size
    assert 0 <= found["unknown_percent"] <= 100


@pytest.mark.parametrize(("kind", "said"), [("bpe", True), ("words", False), ("whitespace", False)])
def test_unk_that_is_read_as_characters_is_said(
    kind: str, said: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    pieces = [DocumentPiece(text, "x", 1, True) for text in ("a <unk> b <unk>", "a")]
    assert list(log_spelled_unknown(pieces, kind)) == pieces
    assert ("2 <unk> in the texts are read as characters" in caplog.text) == said
