"""Agreement of answers with those that people gave: exact match and token F1 of SQuAD (Rajpurkar et al.
2016), 0 to 100.

Both compare normalised texts: in lower case, without punctuation and the articles a, an, the, with one space
between words. Of several right answers the best counts. Where there is none (SQuAD 2.0) the empty answer is
right, and any other is wrong.

Chinese, Japanese, Thai, Lao, Khmer, Burmese and Tibetan have no spaces between words. There each character,
with its marks, is a token of the F1, and all punctuation of Unicode is left out: for Chinese the rule of
MLQA's script (Lewis et al. 2020), here the same for all. The rule depends on the characters, not on the
language, so a text in another script has exactly the numbers of the official script. XQuAD's published
numbers (Artetxe et al. 2020) split only at spaces, in all languages: our F1 of Chinese and Thai is not
comparable with them, and the exact match is so only up to punctuation.
"""

from __future__ import annotations

import re
import string
import unicodedata
from collections import Counter
from collections.abc import Sequence

import numpy as np

from seqloom.arrays import Floats
from seqloom.evaluation.intervals import RESAMPLES, with_intervals
from seqloom.evaluation.writing_systems import UNSPACED

_HAS_UNSPACED = re.compile(f"[{UNSPACED}]")
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_ASCII = frozenset(string.punctuation)
_THAI_AM = "\u0e33"
"""A vowel that is written like a mark, though Unicode calls it a letter."""


def normalised(text: str) -> str:
    """As the official script does it; in scripts without spaces also without other punctuation."""
    text = "".join(c for c in text.lower() if c not in _ASCII)
    if _HAS_UNSPACED.search(text):
        text = "".join(c for c in text if unicodedata.category(c)[0] != "P")
    return " ".join(_ARTICLES.sub(" ", text).split())


def tokens_of(text: str) -> list[str]:
    """The tokens of a normalised text: words, and characters of scripts without spaces."""
    if _HAS_UNSPACED.search(text) is None:
        return text.split()
    tokens: list[str] = []
    before = " "
    for c in text:
        is_mark = unicodedata.category(c)[0] == "M" or c == _THAI_AM
        unspaced = _HAS_UNSPACED.match(c) or _HAS_UNSPACED.match(before)
        if not c.isspace():
            if before.isspace() or (unspaced and not is_mark):
                tokens.append(c)
            else:
                tokens[-1] += c
        before = c
    return tokens


def exact_match(prediction: str, answers: Sequence[str]) -> float:
    """1 where the answer is one of the right ones, else 0; no answers: whether it is empty."""
    return float(any(normalised(prediction) == normalised(answer) for answer in answers or ("",)))


def answer_f1(prediction: str, answers: Sequence[str]) -> float:
    """2 common tokens / all tokens of both, with the best of the right answers."""
    predicted = tokens_of(normalised(prediction))
    return max(_f1(predicted, tokens_of(normalised(answer))) for answer in answers or ("",))


def _f1(predicted: list[str], right: list[str]) -> float:
    if not predicted or not right:
        return float(predicted == right)
    return 2 * (Counter(predicted) & Counter(right)).total() / (len(predicted) + len(right))


def answer_scores(predictions: Sequence[str], answers: Sequence[Sequence[str]]) -> Floats:
    """Exact match and F1 of each question, 0 to 1: `(questions, 2)`. An empty prediction is no answer."""
    pairs = zip(predictions, answers, strict=True)
    scores = [
        (exact_match(predicted, right), answer_f1(predicted, right)) for predicted, right in pairs
    ]
    return np.array(scores, np.float64).reshape(-1, 2)


def answer_metrics(
    predictions: Sequence[str], answers: Sequence[Sequence[str]], resamples: int = RESAMPLES
) -> dict[str, float]:
    """exact_match and f1, 0 to 100, with `resamples` also their 95 % intervals (bootstrap over questions);
    the number of questions. Where some have no answer, also has_answer_f1 and no_answer_accuracy of either
    part alone. There must be a question."""
    scores = 100 * answer_scores(predictions, answers)
    statistics = lambda weights: weights @ scores / len(scores)  # noqa: E731
    metrics = with_intervals(("exact_match", "f1"), statistics, len(scores), resamples)
    answered = np.array([bool(right) for right in answers])
    if answered.any() and not answered.all():
        metrics["has_answer_f1"] = float(scores[answered, 1].mean())
        metrics["no_answer_accuracy"] = float(scores[~answered, 0].mean())
    return {**metrics, "questions": len(scores)}
