"""ROUGE: how much of a reference's words a text has, and the other way around (Lin 2004), by the package
rouge-score; and the baselines of summarization, which no model should be below."""

from __future__ import annotations

import importlib
import importlib.metadata
import re
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple, Protocol, final

import numpy as np

from seqloom.arrays import Floats
from seqloom.errors import MissingExtraError

NAMES = ("rouge1", "rouge2", "rougeL")
"""F1 of words, of pairs of words, and of the longest common subsequence of words, over the whole text."""
LEAD = 3
"""Sentences of the baseline that copies the beginning of the source."""
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|(?<=[。！？])\s*|\n+")
"""A full stop ends a sentence where a space follows: 3.5 is one number."""
_WORD = re.compile(r"\w+")
_IDEOGRAPHS = re.compile(r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff]")
"""Letters of scripts that put no spaces between words: Thai, Lao, Burmese, Khmer, Japanese, Chinese."""
_FOREIGN = re.compile(r"[^\W\d_a-zA-Z]")
"""A letter that the package itself would leave out."""


@final
class RougeScores(NamedTuple):
    """The scores of each text, and how they were computed."""

    values: Floats
    """`(texts, 3)`: F1, 0 to 100, in the order of NAMES."""
    signature: str


class _RougeScorer(Protocol):
    def score(self, target: str, prediction: str) -> dict[str, Any]: ...


@final
class _UnicodeWords:
    """Words of any script; each letter is a word where a script puts no spaces between words."""

    def tokenize(self, text: str) -> list[str]:
        spaced = _IDEOGRAPHS.sub(lambda match: f" {match.group()} ", text.lower())
        return _WORD.findall(spaced)


def rouge(outputs: Sequence[str], references: Sequence[str]) -> RougeScores:
    """The package's own words (a to z and digits, lower case, stemmed by Porter's rules) where the references
    have no other letters, and else the words of Unicode, not stemmed. Raises MissingExtraError."""
    latin = not any(_FOREIGN.search(text) for text in references)
    scorer, version = _scorer(latin)
    values = np.zeros((len(outputs), len(NAMES)))
    for row, (output, reference) in enumerate(zip(outputs, references, strict=True)):
        scores = scorer.score(reference, output)
        values[row] = [100 * scores[name].fmeasure for name in NAMES]
    words = "a-z0-9|stem:porter" if latin else "unicode|stem:no"
    return RougeScores(values, f"rouge-score|v:{version}|f1|words:{words}|rougeL:whole text")


@cache
def _scorer(latin: bool) -> tuple[_RougeScorer, str]:
    try:
        module = importlib.import_module("rouge_score.rouge_scorer")
    except ImportError:
        raise MissingExtraError("ROUGE", "rouge") from None
    tokenizer = None if latin else _UnicodeWords()
    scorer: _RougeScorer = module.RougeScorer(list(NAMES), use_stemmer=latin, tokenizer=tokenizer)
    return scorer, importlib.metadata.version("rouge-score")


def lead(text: str, sentences: int = LEAD) -> str:
    """The first sentences of a text."""
    parts = [part for part in _SENTENCE_END.split(text) if part.strip()]
    return " ".join(part.strip() for part in parts[:sentences])
