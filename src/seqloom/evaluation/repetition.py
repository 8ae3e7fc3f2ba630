"""How much texts repeat themselves, how diverse they are, and how probable a model finds them.

    rep-n       share of the n-grams of a text that occurred earlier in it, 1 - distinct / all, the mean over
    texts
                (Welleck et al. 2020, arXiv:1908.04319, seq-rep-n)
    distinct-n  distinct / all n-grams, over all texts together (Li et al. 2016, arXiv:1510.03055)
    loop        a text that ends in at least three copies of a phrase of at least two tokens (Holtzman et al.
    2020,
                arXiv:1904.09751, section 5)

An n-gram lies within one text, which is a list of tokens without special ids. distinct-n falls with the
amount of text, so only equal amounts can be compared.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from seqloom.evaluation.perplexity import perplexity_of

SHORTEST_PHRASE, FEWEST_COPIES = 2, 3
"""What counts as a loop."""


class RepetitionLoop(NamedTuple):
    """A phrase that is repeated until the end of a text."""

    phrase: int
    """Length in tokens of the shortest such phrase."""
    copies: int
    """Whole copies of it at the end of the text."""


def ngrams(tokens: Sequence[int], n: int) -> list[tuple[int, ...]]:
    """All n-grams of a text, in order."""
    return [tuple(tokens[start : start + n]) for start in range(len(tokens) - n + 1)]


def repeated_share(tokens: Sequence[int], n: int) -> float | None:
    """rep-n of one text; None if it is shorter than n."""
    all_ngrams = ngrams(tokens, n)
    return 1 - len(set(all_ngrams)) / len(all_ngrams) if all_ngrams else None


def rep_n(texts: Sequence[Sequence[int]], n: int) -> float:
    """The mean over the texts that have an n-gram; NaN where none has."""
    shares = [share for text in texts if (share := repeated_share(text, n)) is not None]
    return sum(shares) / len(shares) if shares else math.nan


def distinct_n(texts: Sequence[Sequence[int]], n: int) -> float:
    """NaN where no text has an n-gram."""
    all_ngrams = [ngram for text in texts for ngram in ngrams(text, n)]
    return len(set(all_ngrams)) / len(all_ngrams) if all_ngrams else math.nan


def repetition_loop(tokens: Sequence[int]) -> RepetitionLoop | None:
    """The loop that a text ends in; None if there is none. A text that ends in the middle of a phrase
    counts too: it repeats the same phrase with another beginning."""
    backwards = list(reversed(tokens))
    for length in range(SHORTEST_PHRASE, len(backwards) // FEWEST_COPIES + 1):
        copies = 1
        while backwards[copies * length : (copies + 1) * length] == backwards[:length]:
            copies += 1
        if copies >= FEWEST_COPIES:
            return RepetitionLoop(length, copies)
    return None


class ScoredContinuation(NamedTuple):
    """The continuation of a prompt, by a person or a model, and how a model scores it."""

    tokens: list[int]
    """Without the end mark."""
    finished: bool
    """Whether the text ends there."""
    log_probs: NDArray[np.float64]
    """log p of each token, and of the end mark where the text is finished, in nats."""


@final
@dataclass(frozen=True, kw_only=True)
class RepetitionStatistics:
    """Statistics of several continuations."""

    perplexity: float
    """exp of the mean -log p over all tokens and end marks."""
    mean_probability: float
    """Of a token or end mark."""
    rep_4: float
    loops: float
    """Share of texts that end in a loop."""
    distinct_1: float
    distinct_2: float
    distinct_3: float
    mean_length: float
    """Tokens, the end mark not counted."""
    finished: float
    """Share of texts that end with an end mark."""
    by_position: list[float]
    """Mean probability at each position, over the texts that are as long."""
    texts_by_position: list[int]

    @classmethod
    def from_texts(cls, texts: Sequence[ScoredContinuation]) -> RepetitionStatistics:
        """There must be a text."""
        log_probs = np.concatenate([text.log_probs for text in texts])
        tokens = [text.tokens for text in texts]
        nats = -float(log_probs.mean())
        longest = max(len(text.log_probs) for text in texts)
        by_position: list[list[float]] = [[] for _ in range(longest)]
        for text in texts:
            for position, log_prob in enumerate(text.log_probs):
                by_position[position].append(log_prob)
        return cls(
            perplexity=perplexity_of(nats),
            mean_probability=float(np.exp(log_probs).mean()),
            rep_4=rep_n(tokens, 4),
            loops=sum(repetition_loop(text) is not None for text in tokens) / len(texts),
            distinct_1=distinct_n(tokens, 1),
            distinct_2=distinct_n(tokens, 2),
            distinct_3=distinct_n(tokens, 3),
            mean_length=sum(map(len, tokens)) / len(texts),
            finished=sum(text.finished for text in texts) / len(texts),
            by_position=[float(np.exp(values).mean()) for values in by_position],
            texts_by_position=[len(values) for values in by_position],
        )
