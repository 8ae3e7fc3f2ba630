"""The n-gram benchmark compares models that say the same."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from benchmarks.ngram import (
    BOS,
    EOS,
    FIRST,
    UNK,
    Corpus,
    fit,
    log_probs,
    part,
    scoring,
    size,
    sources,
)

pytestmark = pytest.mark.usefixtures("one_thread")


def test_a_corpus_is_numbered_by_its_training_text() -> None:
    corpus = Corpus.of([["b", "a"], [], ["b"]], [["a", "c"]])
    assert corpus.stream(corpus.train).tolist() == [FIRST, FIRST + 1, EOS, EOS, FIRST, EOS]
    assert corpus.stream(corpus.test).tolist() == [FIRST + 1, UNK, EOS]
    assert size(corpus.train) == 6
    assert part(corpus.train, 1) == [["b", "a"]]


def test_every_document_begins_anew() -> None:
    corpus = Corpus.of([["a", "b"], ["b", "a"]] * 3, [])
    model = fit(corpus.stream(corpus.train), corpus.vocabulary_size, 3)
    alone = log_probs(model, corpus.stream([["a", "b"]]))
    assert log_probs(model, corpus.stream([["b"], ["a", "b"]]))[2:].tolist() == alone.tolist()
    assert BOS < FIRST


def test_perplexities_agree_with_the_peer(tmp_path: Path) -> None:
    pytest.importorskip("kenlm")
    lines = list(itertools.islice(sources(0.02), 300))
    corpus = Corpus.of(lines[:250], lines[250:255])
    _, perplexities = scoring(corpus, 3, 1, tmp_path / "model.arpa", slow=False)
    ours, peer = perplexities.values()
    assert ours == pytest.approx(peer, rel=1e-5)
