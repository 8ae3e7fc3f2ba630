"""Writes n-gram models as ARPA text. `arpa.py` shows the format and reads it.

Numbers have enough digits to restore the same float32.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from seqloom.errors import UsageError, printable
from seqloom.models.ngrams.ngram import IMPOSSIBLE, Ngram

LN10 = math.log(10)
LINES = 2048
"""Lines that are written at once."""
BOS_LOG10 = -99.0
"""log10 p of <s>, which is never predicted, as SRILM writes it."""
UNKNOWN = ("<unk>", "<UNK>")
"""Spellings of the unknown word; others read both."""


def write_arpa(model: Ngram, words: Sequence[str], comment: str = "") -> Iterator[bytes]:
    """Chunks of the text, many lines each. `words[i]` is the word of id `first_word_id + i`. A `comment` is a
    line before everything else.

    Raises UsageError before the first chunk where such a text cannot hold a word, or `words` are not the
    model's.
    """
    c = model.config
    if len(words) != c.vocabulary_size - c.first_word_id:
        raise UsageError(
            f"the model has {c.vocabulary_size - c.first_word_id} words, but was given {len(words)} to write"
        )
    special = {c.bos_id: "<s>", c.eos_id: "</s>", c.unk_id: UNKNOWN[0]}
    word_of_id = [special.get(i, "") for i in range(c.first_word_id)] + list(words)
    taken = {*special.values(), *UNKNOWN}
    for word in words:
        if not word or re.search("[\\0\\t\\n\\v\\f\\r ]", word) or word in taken:
            raise UsageError(
                "a word of an ARPA text must be new and hold no white space, but there is"
                f" {printable(repr(word))}; use a model that was trained with data.tokenizer=whitespace or"
                " words"
            )
        taken.add(word)
    return _chunks(model, word_of_id, f"# {comment}\n\n" if comment else "")


def _chunks(model: Ngram, word_of_id: list[str], head: str) -> Iterator[bytes]:
    c = model.config
    unigrams = [c.unk_id, c.bos_id, c.eos_id, *range(c.first_word_id, c.vocabulary_size)]
    sizes = [len(unigrams), *(len(grams.keys) - 1 for grams in model.orders)]
    counts = "".join(f"ngram {n}={size}\n" for n, size in enumerate(sizes, 1))
    yield f"{head}\\data\\\n{counts}\n\\1-grams:\n".encode()
    log10_p = _log10(model.log_prob)
    log10_p[c.bos_id] = BOS_LOG10
    ids = torch.tensor(unigrams)
    weights = None if c.order == 1 else _log10(model.backoff)[ids]
    yield _lines([ids], log10_p[ids], weights, word_of_id)
    for n, grams in enumerate(model.orders, 2):
        yield f"\n\\{n}-grams:\n".encode()
        for first in range(1, len(grams.keys), LINES):
            numbers = torch.arange(
                first, min(first + LINES, len(grams.keys)), device=grams.keys.device
            )
            weights = None if n == c.order else _log10(grams.backoff[numbers])
            yield _lines(
                _words_of(model, n, numbers), _log10(grams.log_prob[numbers]), weights, word_of_id
            )
    yield b"\n\\end\\\n"


def _log10(nats: Tensor) -> Tensor:
    return (nats.double() / LN10).masked_fill(nats <= IMPOSSIBLE, -torch.inf).cpu()


def _words_of(model: Ngram, order: int, numbers: Tensor) -> list[Tensor]:
    """The first, second, ... word of n-grams that are given by their numbers."""
    words: list[Tensor] = []
    for grams in reversed(model.orders[: order - 1]):
        keys = grams.keys[numbers]
        words.insert(0, keys % model.config.vocabulary_size)
        numbers = keys // model.config.vocabulary_size
    return [numbers, *words]


def _lines(
    words: list[Tensor], log10_p: Tensor, weights: Tensor | None, word_of_id: list[str]
) -> bytes:
    columns = [map(word_of_id.__getitem__, column.tolist()) for column in words]
    texts = map(" ".join, zip(*columns, strict=True))
    lines = [f"{p:.9g}\t{text}" for p, text in zip(log10_p.tolist(), texts, strict=True)]
    if weights is not None:
        numbers = weights.tolist()
        lines = [f"{line}\t{number:.9g}" for line, number in zip(lines, numbers, strict=True)]
    return ("\n".join(lines) + "\n").encode()
