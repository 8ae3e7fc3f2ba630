"""Near words are counted as a naive count does, in whatever pieces the text is read."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from tests.data.batching.test_token_store import Codes

from seqloom.data.batching import cooccurrences
from seqloom.data.batching.cooccurrences import CellArray, build_cells
from seqloom.data.batching.corpus_store import CorpusStore, build_corpus
from seqloom.data.readers.documents import DocumentPiece
from seqloom.text.special_tokens import SPECIAL_TOKENS, UNK

VOCABULARY = 12 + len(SPECIAL_TOKENS)


def corpus(folder: Path) -> CorpusStore:
    """Sentences of other lengths, some of them empty, some words unknown."""
    random = np.random.default_rng(0)
    made = []
    for _ in range(40):
        words = random.zipf(1.5, random.integers(0, 15)) % 12 + len(SPECIAL_TOKENS)
        words[random.random(len(words)) < 0.1] = UNK
        made.append(words.astype(np.uint16))
    store = CorpusStore.of(made, 2)
    place = folder / ".seqloom-cache" / "corpus"
    return CorpusStore(store.tokens, store.offsets, store.lines, store.totals, place)


def naive(store: CorpusStore, window: int) -> dict[tuple[int, int], float]:
    counts: Counter[tuple[int, int]] = Counter()
    for number in range(len(store)):
        words = [word for word in store.document(number).tolist() if word >= len(SPECIAL_TOKENS)]
        for first, word in enumerate(words):
            for second in range(first + 1, min(first + window + 1, len(words))):
                counts[word, words[second]] += 1 / (second - first)  # type: ignore[assignment]
                counts[words[second], word] += 1 / (second - first)  # type: ignore[assignment]
    return dict(counts)


def as_dict(cells: CellArray) -> dict[tuple[int, int], float]:
    found = {(int(cell["row"]), int(cell["column"])): float(cell["count"]) for cell in cells}
    assert len(found) == len(cells)
    return found


@pytest.mark.parametrize("window", [1, 3, 10, 63])
@pytest.mark.parametrize("pairs", [1, 70, 2**23])
def test_counts_are_those_of_a_naive_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, window: int, pairs: int
) -> None:
    """In pieces of a word, of some words and of all, merged and shuffled in as many parts."""
    monkeypatch.setattr(cooccurrences, "PAIRS", max(pairs, window))
    store = corpus(tmp_path)
    found, wanted = as_dict(build_cells(store, VOCABULARY, window, print)), naive(store, window)
    assert found.keys() == wanted.keys()
    for place, count in wanted.items():
        assert found[place] == pytest.approx(count, rel=1e-7)


def test_they_are_counted_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = corpus(tmp_path)
    first = build_cells(store, VOCABULARY, 5, print)
    monkeypatch.setattr(cooccurrences, "_counted", None)
    assert np.array_equal(build_cells(store, VOCABULARY, 5, print), first)
    place = next(path for path in (tmp_path / ".seqloom-cache").iterdir() if path.is_dir())
    assert sorted(path.name for path in place.iterdir()) == ["cells.bin", "meta.json"]


def test_any_part_of_the_file_is_a_sample(tmp_path: Path) -> None:
    """Rows are in no order."""
    rows = build_cells(corpus(tmp_path), VOCABULARY, 10, print)["row"].astype(np.float64)
    assert abs(np.corrcoef(rows, np.arange(len(rows)))[0, 1]) < 0.3


def test_a_text_without_near_words_has_no_cells(tmp_path: Path) -> None:
    pieces = [DocumentPiece("a", "a.txt", 1, True), DocumentPiece("b", "a.txt", 2, True)]
    store = build_corpus(lambda: pieces, Codes(), {"text": "1"}, tmp_path)
    assert len(build_cells(store, 200, 5, print)) == 0
