"""How well answers agree with those that people gave: exact match and token F1 of SQuAD (Rajpurkar et al.
2016), on a scale of 100.

Both compare normalised texts: in lower case, without punctuation and the articles a, an, the, with one blank
between words. Of several right answers the best counts. Where there is none (SQuAD 2.0) the empty answer is
right, and any other is wrong.

Chinese, Japanese, Thai, Lao, Khmer and Burmese have no blanks between words. There each character, with its
marks, is a token of the F1, and all punctuation of Unicode is left out: for Chinese the rule of MLQA's script
(Lewis et al. 2020), here the same for all six. The rule goes by the characters, not by the language, so a
text in another script has the very numbers of the official script. XQuAD's published numbers (Artetxe et al.
2020) split at blanks alone, in all languages: there our F1 of Chinese and Thai is not comparable, the exact
match is but for punctuation.
"""

from __future__ import annotations

import re
import string
import unicodedata
from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from seqloom.evaluation.intervals import RESAMPLES, with_intervals

Floats = NDArray[np.float64]

_UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
"""Characters of scripts without blanks between words: Thai, Lao, Burmese, Khmer, kana, Han."""
_HAS_UNSPACED = re.compile(f"[{_UNSPACED}]")
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_ASCII = frozenset(string.punctuation)


def normalised(text: str) -> str:
    """As the official script does it; and, in scripts without blanks, without other punctuation."""
    everywhere = _HAS_UNSPACED.search(text) is not None
    kept = "".join(
        c for c in text.lower() if c not in _ASCII and not (everywhere and unicodedata.category(c)[0] == "P")
    )
    return " ".join(_ARTICLES.sub(" ", kept).split())


def tokens_of(text: str) -> list[str]:
    """The tokens of a normalised text: words, and characters of scripts without blanks."""
    if _HAS_UNSPACED.search(text) is None:
        return text.split()
    found: list[str] = []
    before = " "
    for c in text:
        mark = (
            unicodedata.category(c)[0] == "M" or c == "\u0e33"
        )  # the Thai vowel am is a mark that Unicode calls a letter
        begins = before.isspace() or (not mark and (_HAS_UNSPACED.match(c) or _HAS_UNSPACED.match(before)))
        if begins and not c.isspace():
            found.append(c)
        elif not c.isspace():
            found[-1] += c
        before = c
    return found


def exact_match(prediction: str, answers: Sequence[str]) -> float:
    """1 where the answer is one of the right ones, else 0; no answers: whether it is empty."""
    return float(any(normalised(prediction) == normalised(answer) for answer in answers or ("",)))


def answer_f1(prediction: str, answers: Sequence[str]) -> float:
    """2 common tokens / all tokens of both, with the best of the right answers."""
    given = tokens_of(normalised(prediction))
    return max(_f1(given, tokens_of(normalised(answer))) for answer in answers or ("",))


def _f1(given: list[str], right: list[str]) -> float:
    if not given or not right:
        return float(given == right)
    return 2 * (Counter(given) & Counter(right)).total() / (len(given) + len(right))


def answer_scores(predictions: Sequence[str], answers: Sequence[Sequence[str]]) -> Floats:
    """Of each question exact match and F1, 0 to 1: `(questions, 2)`. An empty prediction is no answer."""
    pairs = list(zip(predictions, answers, strict=True))
    return np.array(
        [(exact_match(given, right), answer_f1(given, right)) for given, right in pairs], np.float64
    ).reshape(-1, 2)


def answer_metrics(
    predictions: Sequence[str], answers: Sequence[Sequence[str]], resamples: int = RESAMPLES
) -> dict[str, float]:
    """exact_match and f1, 0 to 100, and where there are `resamples` the 95 % interval of each (bootstrap over
    questions); how many questions there are. Where some have no answer also has_answer_f1 and
    no_answer_accuracy, of either part alone. There must be a question."""
    scores = 100 * answer_scores(predictions, answers)
    metrics = with_intervals(
        ("exact_match", "f1"), lambda drawn: drawn @ scores / len(scores), len(scores), resamples
    )
    answered = np.array([bool(right) for right in answers])
    if answered.any() and not answered.all():
        metrics["has_answer_f1"] = float(scores[answered, 1].mean())
        metrics["no_answer_accuracy"] = float(scores[~answered, 0].mean())
    return {**metrics, "questions": len(scores)}
