"""Language models as small as a table, and the test of fit of drawn tokens."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

PAD, BOS, EOS = 0, 1, 2


class Chain:
    """A Markov chain: the next token depends on the last one alone. probabilities: token -> distribution over
    all tokens."""

    def __init__(
        self, probabilities: Mapping[int, Sequence[float]], context: int | None = None
    ) -> None:
        self.log_probs = torch.full((len(next(iter(probabilities.values()))),) * 2, -math.inf)
        self.log_probs[:, EOS] = 0
        for token, distribution in probabilities.items():
            self.log_probs[token] = torch.tensor(distribution).log()
        self.context = context

    def __call__(self, tokens: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
        last = torch.full((len(tokens),), BOS) if state is None else state
        logits = []
        for token in tokens.unbind(1):
            last = torch.where(token == PAD, last, token)
            # a logit is a log-probability up to a constant
            logits.append(self.log_probs[last] + 3.0)
        return torch.stack(logits, 1), last


class Remembering:
    """Logits that are a random function of all tokens that were read since the state was None; it refuses
    more than `context` of them."""

    def __init__(self, vocabulary: int = 30, context: int | None = None, seed: int = 0) -> None:
        self.table = 2 * torch.randn(997, vocabulary, generator=torch.Generator().manual_seed(seed))
        self.table[:, EOS] -= 3
        self.context = context
        self.begun = 0
        """How often it began to read."""

    def __call__(
        self, tokens: Tensor, state: tuple[Tensor, Tensor] | None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        self.begun += state is None
        code, read = (torch.zeros(len(tokens), dtype=torch.long),) * 2 if state is None else state
        codes = []
        for token in tokens.unbind(1):
            code = torch.where(token == PAD, code, (31 * code + 7 * token + 1) % 997)
            read = read + (token != PAD)
            codes.append(code)
        assert self.context is None or int(read.max()) <= self.context
        return self.table[torch.stack(codes, 1)], (code, read)


def fits(counts: Sequence[int], probabilities: Sequence[float]) -> bool:
    """Whether the counts could come from these probabilities: chi-square, at most once in 100,000 wrong for
    ones that did."""
    drawn = sum(counts)
    if any(count and not p for count, p in zip(counts, probabilities, strict=True)):
        return False
    possible = [(count, p) for count, p in zip(counts, probabilities, strict=True) if p]
    statistic = sum((count - drawn * p) ** 2 / (drawn * p) for count, p in possible)
    free = len(possible) - 1
    if not free:
        return True
    # Wilson and Hilferty 1931
    z = ((statistic / free) ** (1 / 3) - (1 - 2 / (9 * free))) / math.sqrt(2 / (9 * free))
    return bool(z < 4.26)
