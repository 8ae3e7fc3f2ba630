"""Where an n-gram model takes the probability of a word from: from the longest history that it knows, with
what that passes down to shorter ones.

    p(w | h) = s_n + γ(h) p(w | h')       s_n = (a(hw) - D) / Σ_v a(hv), a share of the text; 0 if hw is new
             = Σ_n (Π_{m > n} γ_m) s_n    what each order adds to the probability

γ(h) is the mass that the discounts D leave for words that were not seen after h, and 1 for an unknown history
(`models/ngrams/ngram_counts.py`). A run folder keeps p̂ and γ, and no counts: s_n = p̂(hw) - γ(h) p(w | h').
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from seqloom.models.ngrams.ngram import Ngram


class Level(NamedTuple):
    """One order of a word."""

    order: int
    history_known: bool
    words_after: int
    """How many different words the model has seen after this history; 0 for an unknown one."""
    probability: float
    """p(w | the last order - 1 words)"""
    share: float
    """s_n"""
    passed_down: float
    """γ of the history"""
    added: float
    """What this order adds to p(w | h)."""


class BackOff(NamedTuple):
    """The orders of one word, the highest first."""

    levels: list[Level]

    @property
    def order_used(self) -> int:
        """The longest known n-gram that ends in the word."""
        return next((level.order for level in self.levels if level.share), 1)

    @property
    def probability(self) -> float:
        return self.levels[0].probability


@torch.inference_mode()
def back_off(model: Ngram, ids: Sequence[int]) -> list[BackOff]:
    """Of each word after the first of `ids`, which begin with `<s>`."""
    return [
        _of_word(model, ids[max(0, position - model.config.order + 1) : position], ids[position])
        for position in range(1, len(ids))
    ]


def _of_word(model: Ngram, history: Sequence[int], word: int) -> BackOff:
    probability = float(model.log_prob[word].double().exp()) if model.predicted[word] else 0.0
    known = [(1, True, int(model.predicted.sum()), probability, probability, 1.0)]
    for order in range(2, model.config.order + 1):
        table = model.orders[order - 2]
        number = _number(model, history[-(order - 1) :]) if len(history) >= order - 1 else 0
        share, passed = 0.0, 1.0
        after = 0
        if number:
            weights = model.backoff if order == 2 else model.orders[order - 3].backoff
            passed = float(weights[number].double().exp())
            found = int(table.find(torch.tensor([number]), torch.tensor([word]))[0])
            lower = probability
            probability = passed * lower
            if found:
                probability = float(table.log_prob[found].double().exp())
                share = probability - passed * lower
            after = len(table.following(torch.tensor([number]))[0])
        known.append((order, number > 0, after, probability, share, passed))
    levels, reaching = [], 1.0
    for order, is_known, after, p, share, passed in reversed(known):
        levels.append(Level(order, is_known, after, p, share, passed, reaching * share))
        reaching *= passed
    return BackOff(levels)


def _number(model: Ngram, words: Sequence[int]) -> int:
    """The number of an n-gram; 0 where it is not known."""
    number: Tensor = torch.tensor([words[0]])
    for table, word in zip(model.orders, words[1:], strict=False):
        number = table.find(number, torch.tensor([word]))
    return int(number[0])
