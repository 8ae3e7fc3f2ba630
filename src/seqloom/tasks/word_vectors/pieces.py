"""The rows of v that make up a word: its own, and those of the n-grams of its characters (fastText)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from seqloom.layers.word2vec import WordPieces
from seqloom.models.word_vectors.word2vec import Word2VecConfig
from seqloom.text.vectors.fasttext_model import FastTextSettings, ngram_rows


def word_pieces(words: Sequence[bytes], config: Word2VecConfig) -> WordPieces | None:
    """Those of a vocabulary, whose special ids are empty; None if words have no n-grams."""
    if not config.buckets:
        return None
    rows: list[int] = []
    firsts = [0]
    for number, word in enumerate(words):
        rows.append(number)
        rows += ngrams_of(word.decode(), config) if word else []
        firsts.append(len(rows))
    return WordPieces(np.array(firsts, np.int64), np.array(rows, np.int32))


def ngrams_of(word: str, config: Word2VecConfig) -> list[int]:
    settings = FastTextSettings(
        config.width, config.buckets, config.shortest_ngram, config.longest_ngram
    )
    return [config.vocabulary_size + row for row in ngram_rows(word, settings)]
