"""Extractive question answering: from scores of where an answer begins and ends to spans of the context
(Devlin et al. 2019, sections 4.2 and 4.3).

A span from token i to j >= i has the score S·T_i + E·T_j. "No answer" has that of the first place, S·C + E·C;
in a context of several windows the lowest of theirs, since each must contain no answer. A span in several
windows has the highest of its scores.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, final

import numpy as np

from seqloom.arrays import Floats


@final
class AnswerSpan(NamedTuple):
    """A span of the context."""

    text: str
    start: int
    """In code points."""
    end: int
    score: float
    probability: float
    """Among the returned answers and no answer."""


@final
class Answers(NamedTuple):
    """The best answers to a question, best first, and the score of no answer."""

    spans: tuple[AnswerSpan, ...]
    no_answer: float
    """The score of no answer."""
    no_answer_probability: float

    def best(self, threshold: float = 0.0) -> AnswerSpan | None:
        """The best span; None where no answer is better by more than `threshold`."""
        if not self.spans or self.no_answer - self.spans[0].score > threshold:
            return None
        return self.spans[0]


def best_answers(
    starts: Sequence[Floats],
    ends: Sequence[Floats],
    offsets: Sequence[Sequence[tuple[int, int]]],
    context: str,
    *,
    n_best: int = 20,
    longest: int = 30,
) -> Answers:
    """The `n_best` spans of at most `longest` tokens.

    For each window: scores `(1 + tokens or more,)`, the first of no answer, then one for each token; and the
    offsets of its tokens in the context. There must be a window. Scores of -inf cannot be chosen; white space
    is no answer.
    """
    best: dict[tuple[int, int], float] = {}
    no_answer = np.inf
    for start, end, tokens in zip(starts, ends, offsets, strict=True):
        start, end = np.asarray(start, np.float64), np.asarray(end, np.float64)
        no_answer = min(no_answer, float(start[0] + end[0]))
        start, end = start[1 : 1 + len(tokens)], end[1 : 1 + len(tokens)]
        for span, score in _window_spans(start, end, tokens, context, n_best, longest).items():
            best[span] = max(score, best.get(span, -np.inf))
    ranked = sorted(best.items(), key=lambda item: (-item[1], item[0]))[:n_best]
    probabilities = _softmax(np.array([*(score for _, score in ranked), no_answer]))
    spans = [
        AnswerSpan(context[first:last], first, last, score, float(probability))
        for ((first, last), score), probability in zip(ranked, probabilities[:-1], strict=True)
    ]
    return Answers(tuple(spans), no_answer, float(probabilities[-1]))


def _window_spans(
    start: Floats,
    end: Floats,
    tokens: Sequence[tuple[int, int]],
    context: str,
    n_best: int,
    longest: int,
) -> dict[tuple[int, int], float]:
    """(start, end) in the context -> score, of the best spans of a window."""
    count = len(tokens)
    if not count:
        return {}
    last = np.arange(count)[:, None] + np.arange(min(longest, count))  # (first token, length - 1)
    scores = np.where(last < count, start[:, None] + end[np.minimum(last, count - 1)], -np.inf)
    spans: dict[tuple[int, int], float] = {}
    for flat in np.argsort(-scores, axis=None, kind="stable"):
        first, more = divmod(int(flat), scores.shape[1])
        score = float(scores[first, more])
        if score == -np.inf or len(spans) == n_best:
            break
        span = tokens[first][0], tokens[first + more][1]
        if context[slice(*span)].strip():
            spans.setdefault(span, score)  # several tokens of one character give the same span
    return spans


def _softmax(scores: Floats) -> Floats:
    if not np.isfinite(scores).any():
        return np.full(len(scores), 1 / len(scores))
    exponentials = np.exp(scores - scores.max())
    return np.asarray(exponentials / exponentials.sum(), np.float64)
