"""Small pure functions on log-probabilities: what may come next, and the choice of the most likely.

A rule of sampling gives log-probabilities that sum to 1 again. Where nothing may come next (all -inf) it stays so.

Sources: temperature is Ackley, Hinton and Sejnowski 1985; top-k Fan, Lewis and Dauphin 2018 (arXiv:1805.04833); top-p, the
nucleus, Holtzman et al. 2020 (arXiv:1904.09751, equations 2 and 3).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from seqloom.config import DecodeConfig
from seqloom.decoding.live import Live
from seqloom.errors import UsageError

Rule = Callable[[Live, Tensor], Tensor]
"""(rows, their log-probabilities `(rows, vocabulary)`) -> log-probabilities; never in place."""


def rules_of(decode: DecodeConfig, forbidden: Sequence[int]) -> list[Rule]:
    """The rules in their order: forbidden tokens, and in sampling temperature, top-k, top-p, each over what the one before left."""
    rules = [forbid(forbidden)]
    if decode.strategy == "sample":
        rules.append(temperature(decode.temperature))  # at 1 it only makes what is allowed sum to 1
        if decode.top_k is not None:
            rules.append(top_k(decode.top_k))
        if decode.top_p < 1:
            rules.append(top_p(decode.top_p))
    return rules


def forbid(ids: Sequence[int]) -> Rule:
    """These ids never come next."""
    banned = torch.tensor(list(ids), dtype=torch.long)

    def rule(_: Live, log_probs: Tensor) -> Tensor:
        return log_probs.index_fill(1, banned.to(log_probs.device), float("-inf"))

    return rule


def temperature(beta: float) -> Rule:
    """Softmax of logits / β, for β > 0: flatter above 1, sharper below; towards 0 it is the argmax."""
    if not beta > 0:
        raise UsageError(f"the temperature must be above 0, but is {beta}")
    divisor = max(beta, 1e-30)  # the same argmax, and no float32 becomes 0 or infinite

    def rule(_: Live, log_probs: Tensor) -> Tensor:
        best = log_probs.amax(dim=-1, keepdim=True)
        return _normalised((log_probs - best.clamp(min=torch.finfo(best.dtype).min)) / divisor)

    return rule


def top_k(k: int) -> Rule:
    """Only the k most likely tokens, exactly k also where there are equals: of these the lowest ids."""
    if k < 1:
        raise UsageError(f"top_k must be at least 1, but is {k}")

    def rule(_: Live, log_probs: Tensor) -> Tensor:
        values, ids = most_likely(log_probs, min(k, log_probs.shape[1]))
        return _only(log_probs, ids, values)

    return rule


def top_p(p: float, first_look: int = 64) -> Rule:
    """Only the smallest set of most likely tokens whose mass is at least p; of equals the lowest ids. At least one, and all
    where rounding keeps even all of them below p.

    The mass is a sum in float64 over the sorted tokens. It looks at the `first_look` most likely of each row, then, in rows where
    they do not have the mass, at 8 times as many, and so on: a row of 50,000 is hardly ever sorted.
    """
    if not 0 < p <= 1:
        raise UsageError(f"top_p must be above 0 and at most 1, but is {p}")

    def rule(_: Live, log_probs: Tensor) -> Tensor:
        vocabulary = log_probs.shape[1]
        result = torch.empty_like(log_probs)
        rows = torch.arange(len(log_probs), device=log_probs.device)
        looked = first_look if log_probs.device.type == "cpu" else vocabulary  # elsewhere a sort is cheap and a look back is not
        while len(rows):
            looked = looked if 2 * looked < vocabulary else vocabulary
            seen = log_probs[rows]
            values, ids = most_likely(seen, looked)
            mass = values.double().exp().cumsum(dim=-1)
            before = torch.nn.functional.pad(mass[:, :-1], (1, 0))  # the mass of those that are more likely
            result[rows] = _only(seen, ids, values.masked_fill(before >= p, float("-inf")))
            rows = rows[mass[:, -1] < p] if looked < vocabulary else rows[:0]
            looked *= 8
        return result

    return rule


def most_likely(log_probs: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k largest of each row, `(rows, k)` values and ids, best first; ties go to the lowest id, at the border too.

    Of the impossible (-inf) any may come, last.
    """
    if k == 1:
        values, ids = log_probs.max(dim=-1, keepdim=True)  # the first of equals
        return values, ids
    values, ids = log_probs.topk(k, dim=-1)
    border = values[:, -1:]
    tied = ((log_probs >= border) & (border > float("-inf"))).sum(dim=-1) > k
    if bool(tied.any()):  # equals at the border, of which topk may take any
        ids[tied] = log_probs[tied].sort(dim=-1, descending=True, stable=True).indices[:, :k]
    ids = ids.sort(dim=-1).values
    values, at = log_probs.gather(1, ids).sort(dim=-1, descending=True, stable=True)
    return values, ids.gather(1, at)


def _only(log_probs: Tensor, ids: Tensor, values: Tensor) -> Tensor:
    """Log-probabilities where only `ids` have a share: that of `values`, which are made to sum to 1."""
    return torch.full_like(log_probs, float("-inf")).scatter(1, ids, _normalised(values))


def _normalised(log_probs: Tensor) -> Tensor:
    total = log_probs.logsumexp(dim=-1, keepdim=True)
    return log_probs - total.clamp(min=torch.finfo(total.dtype).min)  # -inf where nothing is left, and not NaN
