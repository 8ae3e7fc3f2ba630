"""From scores of where an answer begins and ends to parts of the context (Devlin et al. 2019, section 4.2 and
4.3).

A span from token i to j >= i has the score S·T_i + E·T_j. No answer has that of the first place, S·C + E·C;
of a context that is read in several windows the least of theirs, as each must find nothing. A span that
several windows see has the best of its scores.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@final
class AnswerSpan(NamedTuple):
    """A part of the context."""

    text: str
    start: int
    """In code points."""
    end: int
    score: float
    probability: float
    """Among the answers that are given and no answer."""


@final
class Answers(NamedTuple):
    """The best answers to a question, best first, and what speaks for none."""

    spans: tuple[AnswerSpan, ...]
    no_answer: float
    """Its score."""
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

    For each window: scores `(1 + tokens or more,)`, the first of no answer, then one for each token; and
    where its tokens stand in the context. There must be a window. Scores of -inf cannot be chosen; a text of
    white space is no answer.
    """
    found: dict[tuple[int, int], float] = {}
    none = np.inf
    for start, end, spans in zip(starts, ends, offsets, strict=True):
        start, end = np.asarray(start, np.float64), np.asarray(end, np.float64)
        none = min(none, float(start[0] + end[0]))
        of_window = _of_window(
            start[1 : 1 + len(spans)], end[1 : 1 + len(spans)], spans, context, n_best, longest
        )
        for place, score in of_window.items():
            found[place] = max(score, found.get(place, -np.inf))
    ranked = sorted(found.items(), key=lambda item: (-item[1], item[0]))[:n_best]
    weights = _softmax(np.array([*(score for _, score in ranked), none]))
    answers = (
        AnswerSpan(context[begin:end], begin, end, score, float(weight))
        for ((begin, end), score), weight in zip(ranked, weights[:-1], strict=True)
    )
    return Answers(tuple(answers), none, float(weights[-1]))


def _of_window(
    start: Floats, end: Floats, spans: Sequence[tuple[int, int]], context: str, n_best: int, longest: int
) -> dict[tuple[int, int], float]:
    """(begin, end) in the context -> score, of the best spans of a window."""
    tokens = len(spans)
    if not tokens:
        return {}
    last = np.arange(tokens)[:, None] + np.arange(min(longest, tokens))  # (first token, length - 1)
    scores = np.where(last < tokens, start[:, None] + end[np.minimum(last, tokens - 1)], -np.inf)
    found: dict[tuple[int, int], float] = {}
    for flat in np.argsort(-scores, axis=None, kind="stable"):
        first, more = divmod(int(flat), scores.shape[1])
        score = float(scores[first, more])
        if score == -np.inf or len(found) == n_best:
            break
        place = spans[first][0], spans[first + more][1]
        if context[slice(*place)].strip():
            found.setdefault(place, score)  # tokens of one character give the same place
    return found


def _softmax(scores: Floats) -> Floats:
    if not np.isfinite(scores).any():
        return np.full(len(scores), 1 / len(scores))
    weights = np.exp(scores - scores.max())
    return np.asarray(weights / weights.sum(), np.float64)
