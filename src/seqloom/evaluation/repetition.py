"""How much texts repeat themselves, how much they say that is new, and how probable a model holds them.

    rep-n       share of the n-grams of a text that came before in it, 1 - distinct / all, the mean over texts
                (Welleck et al. 2020, arXiv:1908.04319, seq-rep-n)
    distinct-n  distinct / all n-grams, over all texts together (Li et al. 2016, arXiv:1510.03055)
    loop        a text ends in at least three copies of a phrase of at least two tokens (Holtzman et al. 2020,
                arXiv:1904.09751, section 5)

An n-gram lies within one text, which is a list of tokens without marks. distinct-n falls with the amount of
text: compare only as much with as much.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, final

import numpy as np
from numpy.typing import NDArray

SHORTEST_PHRASE, FEWEST_COPIES = 2, 3
"""Of a loop."""


class Loop(NamedTuple):
    """What a text ends in."""

    phrase: int
    """Tokens of the shortest phrase that is repeated."""
    copies: int
    """Whole copies of it at the end of the text."""


def ngrams(tokens: Sequence[int], n: int) -> list[tuple[int, ...]]:
    """All n-grams of a text, in order: as many as there are places for them."""
    return list(zip(*(tokens[at:] for at in range(n)), strict=False))


def repeated_share(tokens: Sequence[int], n: int) -> float | None:
    """rep-n of one text; None where it is shorter than n."""
    found = ngrams(tokens, n)
    return 1 - len(set(found)) / len(found) if found else None


def rep_n(texts: Sequence[Sequence[int]], n: int) -> float:
    """The mean over the texts that have an n-gram; NaN where none has."""
    shares = [share for share in (repeated_share(text, n) for text in texts) if share is not None]
    return sum(shares) / len(shares) if shares else math.nan


def distinct_n(texts: Sequence[Sequence[int]], n: int) -> float:
    """NaN where no text has an n-gram."""
    found = [one for text in texts for one in ngrams(text, n)]
    return len(set(found)) / len(found) if found else math.nan


def loop_at_end(tokens: Sequence[int]) -> Loop | None:
    """The loop that a text ends in. It may end in the midst of a phrase: the same phrase, begun elsewhere, is
    then repeated."""
    backwards = list(reversed(tokens))
    for phrase in range(SHORTEST_PHRASE, len(backwards) // FEWEST_COPIES + 1):
        copies = 1
        while backwards[copies * phrase : (copies + 1) * phrase] == backwards[:phrase]:
            copies += 1
        if copies >= FEWEST_COPIES:
            return Loop(phrase, copies)
    return None


class Written(NamedTuple):
    """How somebody went on with a prompt."""

    tokens: list[int]
    """Without the end mark."""
    finished: bool
    """Whether the text ends there."""
    log_probs: NDArray[np.float64]
    """log p of each token, and of the end mark where the text is finished, in nats."""


@final
@dataclass(frozen=True, kw_only=True)
class RepetitionStatistics:
    """What is measured of several texts."""

    perplexity: float
    """exp of the mean -log p over all tokens and end marks."""
    mean_probability: float
    """Over the same."""
    rep_4: float
    loops: float
    """Share of texts that end in a loop."""
    distinct_1: float
    distinct_2: float
    distinct_3: float
    mean_length: float
    """Tokens, the end mark not counted."""
    finished: float
    """Share of texts that ended by themselves."""
    by_position: list[float]
    """Mean probability at each position, over the texts that have it."""
    texts_by_position: list[int]

    @classmethod
    def of(cls, texts: Sequence[Written]) -> RepetitionStatistics:
        """Of at least one text."""
        log_probs = np.concatenate([one.log_probs for one in texts])
        tokens = [one.tokens for one in texts]
        nats = -float(log_probs.mean())
        there = [
            [one.log_probs[at] for one in texts if len(one.log_probs) > at]
            for at in range(max(len(one.log_probs) for one in texts))
        ]
        return cls(
            perplexity=math.exp(nats) if nats < 700 else math.inf,
            mean_probability=float(np.exp(log_probs).mean()),
            rep_4=rep_n(tokens, 4),
            loops=sum(loop_at_end(one) is not None for one in tokens) / len(texts),
            distinct_1=distinct_n(tokens, 1),
            distinct_2=distinct_n(tokens, 2),
            distinct_3=distinct_n(tokens, 3),
            mean_length=sum(map(len, tokens)) / len(texts),
            finished=sum(one.finished for one in texts) / len(texts),
            by_position=[float(np.exp(some).mean()) for some in there],
            texts_by_position=[len(some) for some in there],
        )
