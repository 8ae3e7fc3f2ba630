"""How an answer is chosen by likelihood, and how often that is right.

    raw         log P(a | prompt)
    token       log P(a | prompt) / tokens of a
    byte        log P(a | prompt) / bytes of a                   acc_bytes of lm-evaluation-harness
    pmi         log P(a | prompt) - log P(a | empty prompt)      Holtzman et al. 2021; Brown et al. 2020
    calibrated  log P(a | prompt) - log q(a)                     Zhao et al. 2021, with b = 0
                q(a) = P(a | prompt with N/A in place of texts) / the sum of that over the answers

A tie is not right: a model that finds all answers equally likely has not chosen the first.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, final

import numpy as np

from seqloom.arrays import Bools, Floats
from seqloom.evaluation.intervals import ratio_interval, wilson_interval
from seqloom.tasks.prompting.answers import LogProb

IMPOSSIBLE = -math.inf


class ScoredItem(NamedTuple):
    """The scores of the answers of an item."""

    given: list[LogProb]
    """After the prompt."""
    bytes: list[int]
    alone: list[float] | None
    """log P after the empty prompt; None if that is not wanted."""
    content_free: list[float] | None
    """log P after the prompt without content; None if that is not wanted."""

    def by(self, kind: str) -> Floats:
        """The scores of one kind, `(answers,)`; an impossible answer has -inf."""
        raw = np.array([score.value for score in self.given])
        if kind == "token":
            raw = raw / [score.tokens for score in self.given]
        elif kind == "byte":
            raw = raw / np.maximum(self.bytes, 1)
        elif kind == "pmi":
            raw = raw - np.maximum(np.array(self.alone), np.finfo(np.float64).min)
        elif kind == "calibrated":
            without = np.array(self.content_free)
            raw = raw - np.maximum(without - np.logaddexp.reduce(without), np.finfo(np.float64).min)
        return np.where(np.isnan(raw), IMPOSSIBLE, raw)


def choose(scores: Floats) -> int | None:
    """The answer with the highest score; None if several have it."""
    (best,) = np.nonzero(scores == scores.max())
    return int(best[0]) if len(best) == 1 else None


class Accuracy(NamedTuple):
    """A share of right answers, 0 to 100."""

    value: float
    low: float
    high: float
    """The ends of the 95 % interval over items."""

    def summary(self, name: str) -> dict[str, float]:
        return {name: self.value, f"{name}_low": self.low, f"{name}_high": self.high}


def accuracy(right: Sequence[Bools]) -> Accuracy:
    """The accuracy of one run, with Wilson's interval; or the mean of several runs on the same items, with
    an interval over the items."""
    shares = np.mean(right, axis=0)
    if len(right) == 1:
        low, high = wilson_interval(float(shares.sum()), len(shares))
    else:
        low, high = ratio_interval(shares, np.ones(len(shares)))
    return Accuracy(100 * float(shares.mean()), 100 * max(low, 0.0), 100 * min(high, 1.0))


@final
@dataclass(frozen=True)
class Spread:
    """Numbers that differ by chance alone."""

    mean: float
    min: float
    max: float
    deviation: float
    """The standard deviation of a sample; nan for one number."""

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        deviation = float(np.std(values, ddof=1)) if len(values) > 1 else math.nan
        return cls(float(np.mean(values)), min(values), max(values), deviation)
