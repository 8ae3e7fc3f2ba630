"""Small pure functions on log-probabilities: what may come next, and the choice of the most likely."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

Rule = Callable[[Tensor, Tensor], Tensor]
"""(prefix `(rows, steps)`, log-probabilities `(rows, vocabulary)`) -> log-probabilities; never in place."""


def forbid(ids: Sequence[int]) -> Rule:
    """These ids never come next."""
    banned = torch.tensor(list(ids), dtype=torch.long)

    def rule(_: Tensor, log_probs: Tensor) -> Tensor:
        return log_probs.index_fill(1, banned.to(log_probs.device), float("-inf"))

    return rule


def most_likely(log_probs: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k largest of each row, `(rows, k)` values and ids, best first; ties go to the lowest id, at the border too."""
    if k == 1:
        values, ids = log_probs.max(dim=-1, keepdim=True)  # the first of equals
        return values, ids
    values, ids = log_probs.topk(k, dim=-1)
    if bool(((log_probs >= values[:, -1:]).sum(dim=-1) > k).any()):  # equals at the border: topk may take any of them
        ids = log_probs.sort(dim=-1, descending=True, stable=True).indices[:, :k]
        return log_probs.gather(1, ids), ids
    ids = ids.sort(dim=-1).values
    values, at = log_probs.gather(1, ids).sort(dim=-1, descending=True, stable=True)
    return values, ids.gather(1, at)
