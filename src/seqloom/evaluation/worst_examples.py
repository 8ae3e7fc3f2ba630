"""The examples that a model answers worst, and how good it is by the length of its inputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from seqloom.arrays import Floats
from seqloom.evaluation.correlation import rank_errors
from seqloom.protocols import EvaluatedExample

GROUPS = 8
"""Groups of lengths, at most."""


class LengthGroup(NamedTuple):
    """Examples of similar length."""

    words: float
    """Their mean number of words."""
    examples: int
    right: float
    """Their mean."""


def with_text_scores(examples: Sequence[EvaluatedExample]) -> list[EvaluatedExample]:
    """The examples, and chrF (0 to 1) of those whose answer is a text that is neither right nor wrong."""
    from sacrebleu.metrics.chrf import CHRF

    metric = CHRF()
    scored = []
    for example in examples:
        if example.right is None:
            score = metric.sentence_score(example.answer, [example.truth]).score / 100
            example = example._replace(right=float(example.answer == example.truth) or score)
        scored.append(example)
    return scored


def similarity_examples(
    pairs: Sequence[tuple[str, str]], scores: Floats, cosines: Floats
) -> list[EvaluatedExample]:
    """Pairs `(place, input)` with the scores of people and the cosines of a model. The two have scales of
    their own, so a cosine is as wrong as its rank is."""
    errors = rank_errors(cosines, scores)
    return [
        EvaluatedExample(where, pair, f"{score:g}", f"{cosine:.6f}", -error)
        for (where, pair), score, cosine, error in zip(pairs, scores, cosines, errors, strict=True)
    ]


def worst_examples(examples: Sequence[EvaluatedExample], count: int) -> list[EvaluatedExample]:
    """Wrong answers that the model is most sure of, first; where it says no probability, those that are
    furthest from the truth."""
    scored = with_text_scores(examples)
    if any(example.confidence is not None for example in scored):
        wrong = [example for example in scored if (example.right or 0.0) < 1]
        return sorted(wrong, key=lambda example: -(example.confidence or 0))[:count]
    wrong = [example for example in scored if example.answer != example.truth]
    return sorted(wrong, key=lambda example: example.right or 0.0)[:count]


def by_length(examples: Sequence[EvaluatedExample]) -> list[LengthGroup]:
    """Groups of about equally many examples, short inputs first; the same length is in one group."""
    scored = with_text_scores(examples)
    words = np.array([len(example.input.split()) for example in scored])
    right = np.array([example.right or 0.0 for example in scored])
    edges = np.unique(np.quantile(words, np.linspace(0, 1, GROUPS + 1)[1:-1], method="higher"))
    group = np.searchsorted(edges, words, side="left")
    found = []
    for number in np.unique(group).tolist():
        inside = group == number
        mean = float(words[inside].mean()), float(right[inside].mean())
        found.append(LengthGroup(mean[0], int(inside.sum()), mean[1]))
    return found
