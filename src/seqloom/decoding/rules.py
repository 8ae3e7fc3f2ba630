"""Small pure functions on log-probabilities: what may come next, and the choice of the most likely.

A rule that samples from what it leaves (temperature, top-k, top-p, min-p) gives log-probabilities that sum to
1 again. Where nothing may come next (all -inf) it stays so. Rules on what tokens spell are in `spelled.py`.

Sources: temperature is Ackley, Hinton and Sejnowski 1985; top-k Fan, Lewis and Dauphin 2018
(arXiv:1805.04833); top-p, the nucleus, Holtzman et al. 2020 (arXiv:1904.09751, equations 2 and 3); min-p
Nguyen et al. 2024 (arXiv:2407.01082); the repetition penalty Keskar et al. 2019 (arXiv:1909.05858, section
4.1); no repeated n-gram Paulus, Xiong and Socher 2017 (arXiv:1705.04304).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from seqloom.config import DecodeConfig
from seqloom.decoding.live_rows import NOTHING, Live
from seqloom.errors import UsageError

Rule = Callable[[Live, Tensor], Tensor]
"""(rows, their log-probabilities `(rows, vocabulary)`) -> log-probabilities; never in place."""

BLOCK = 64
"""Tokens that `most_likely` looks at together."""


def rules_of(
    decode: DecodeConfig, forbidden: Sequence[int], eos: int | None, spelled: Sequence[Rule] = ()
) -> list[Rule]:
    """The rules in their order, each over what the one before left: forbidden tokens, those on what tokens
    spell, length, repetition; and in sampling temperature, top-k, top-p, min-p."""
    rules = [forbid(forbidden), *spelled]
    if decode.min_length and eos is not None:
        rules.append(min_length(decode.min_length, eos))
    if decode.no_repeat_ngram is not None:
        rules.append(no_repeat_ngram(decode.no_repeat_ngram, eos))
    if decode.repetition_penalty > 1:
        rules.append(repetition_penalty(decode.repetition_penalty, eos))
    if decode.strategy == "sample":
        if decode.temperature != 1 or decode.top_p < 1:  # top-p is about shares of 1
            rules.append(temperature(decode.temperature))
        if decode.top_k is not None:
            rules.append(top_k(decode.top_k))
        if decode.top_p < 1:
            rules.append(top_p(decode.top_p))
        if decode.min_p > 0:
            rules.append(min_p(decode.min_p))
    return rules


def forbid(ids: Sequence[int]) -> Rule:
    """These ids never come next."""
    banned = torch.tensor(list(ids), dtype=torch.long)

    def rule(_: Live, log_probs: Tensor) -> Tensor:
        return log_probs.index_fill(1, banned.to(log_probs.device), -math.inf)

    return rule


def min_length(tokens: int, eos: int) -> Rule:
    """No text ends before it has so many new tokens."""

    def rule(live: Live, log_probs: Tensor) -> Tensor:
        short = live.new < tokens
        if not bool(short.any()):
            return log_probs
        result = log_probs.clone()
        result[short, eos] = -math.inf
        return result

    return rule


def no_repeat_ngram(n: int, eos: int | None) -> Rule:
    """No token that would make a run of n tokens which the text, its prompt too, holds already. The end may
    always come."""
    if n < 1:
        raise UsageError(f"no_repeat_ngram must be at least 1, but is {n}")

    def rule(live: Live, log_probs: Tensor) -> Tensor:
        text = live.text
        if text.shape[1] < n:
            return log_probs
        runs = text.unfold(1, n, 1)  # (rows, places, n)
        last = text[:, text.shape[1] - n + 1 :]
        row, place = ((runs[:, :, :-1] == last[:, None]).all(dim=2) & (runs[:, :, -1] >= 0)).nonzero(
            as_tuple=True
        )
        result = log_probs.clone()
        result[row, runs[row, place, -1]] = -math.inf
        if eos is not None:
            result[:, eos] = log_probs[:, eos]
        return result

    return rule


def repetition_penalty(theta: float, eos: int | None = None) -> Rule:
    """The probability p of a token that stands in the text already, its prompt too, becomes p^θ, for θ >= 1;
    not that of the end, which may be what begins a text too (GPT-2).

    Keskar et al. divide logits, which are defined up to a constant only; of these the log-probabilities are
    taken.
    """
    if not theta >= 1:
        raise UsageError(f"the repetition penalty must be at least 1, but is {theta}")

    def rule(live: Live, log_probs: Tensor) -> Tensor:
        text = live.text
        row, place = ((text >= 0) & (text != (NOTHING if eos is None else eos))).nonzero(as_tuple=True)
        at = (row, text[row, place])
        return log_probs.index_put(at, theta * log_probs[at])

    return rule


def temperature(beta: float) -> Rule:
    """Softmax of logits / β, for β > 0: flatter above 1, sharper below; towards 0 it is the argmax."""
    if not beta > 0:
        raise UsageError(f"the temperature must be above 0, but is {beta}")
    divisor = min(max(beta, 1e-30), 1e30)  # the same choice, and no float32 becomes 0 or infinite

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
    """Only the smallest set of most likely tokens whose mass is at least p; of equals the lowest ids. At
    least one, and all where rounding keeps even all of them below p.

    The mass is a sum in float64 over the sorted tokens. It looks at the `first_look` most likely of each row,
    then, in rows where they do not have the mass, at 8 times as many, and so on: a row of 50,000 is hardly
    ever sorted.
    """
    if not 0 < p <= 1:
        raise UsageError(f"top_p must be above 0 and at most 1, but is {p}")

    def rule(_: Live, log_probs: Tensor) -> Tensor:
        vocabulary = log_probs.shape[1]
        result = torch.empty_like(log_probs)
        rows = torch.arange(len(log_probs), device=log_probs.device)
        looked = (
            first_look if log_probs.device.type == "cpu" else vocabulary
        )  # elsewhere a sort is cheap and a look back is not
        while len(rows):
            looked = looked if 2 * looked < vocabulary else vocabulary
            seen = log_probs[rows]
            values, ids = most_likely(seen, looked)
            mass = values.double().exp().cumsum(dim=-1)
            before = F.pad(mass[:, :-1], (1, 0))  # the mass of those that are more likely
            result[rows] = _only(seen, ids, values.masked_fill(before >= p, -math.inf))
            rows = rows[mass[:, -1] < p] if looked < vocabulary else rows[:0]
            looked *= 8
        return result

    return rule


def min_p(share: float) -> Rule:
    """Only tokens whose probability is at least `share` of the likeliest one's."""
    if not 0 <= share <= 1:
        raise UsageError(f"min_p must be from 0 to 1, but is {share}")
    least = math.log(share) if share else -math.inf

    def rule(_: Live, log_probs: Tensor) -> Tensor:
        best = log_probs.amax(dim=-1, keepdim=True)
        return _normalised(log_probs.masked_fill(log_probs < best + least, -math.inf))

    return rule


def most_likely(log_probs: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k largest of each row, `(rows, k)` values and ids, best first; ties go to the lowest id, at the
    border too.

    Of the impossible (-inf) any may come, last. On a CPU it looks into those blocks of a long row alone whose
    maxima are the largest.
    """
    rows, vocabulary = log_probs.shape
    if log_probs.device.type != "cpu" or 4 * k * BLOCK > vocabulary or not rows:
        return _largest(log_probs, k)
    blocks, rest = (
        log_probs[:, : vocabulary // BLOCK * BLOCK].view(rows, -1, BLOCK),
        log_probs[:, vocabulary // BLOCK * BLOCK :],
    )
    chosen = (
        _largest(blocks.amax(dim=2), k)[1].sort(dim=-1).values
    )  # in order, so that of equals the first still come first
    seen = torch.cat([blocks.gather(1, chosen[:, :, None].expand(-1, -1, BLOCK)).flatten(1), rest], dim=1)
    values, at = _largest(seen, k)
    first = torch.cat([chosen, torch.full_like(chosen[:, :1], vocabulary // BLOCK)], dim=1)
    return values, first.gather(1, at.div(BLOCK, rounding_mode="floor")) * BLOCK + at % BLOCK


def _largest(values: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k largest of each row and where they stand, best first; of equals the first, and of -inf any."""
    if k == 1:
        found, at = values.max(dim=-1, keepdim=True)  # the first of equals
        return found, at
    found, at = values.topk(
        min(k + 1, values.shape[1]), dim=-1
    )  # one more shows whether there are equals at the border
    equals = (found[:, 1:] == found[:, :-1]) & (found[:, 1:] > -math.inf)
    if bool(equals.any()):  # of which topk may take any, in any order
        tied = equals.any(dim=-1)
        at[tied] = values[tied].sort(dim=-1, descending=True, stable=True).indices[:, : at.shape[1]]
    return found[:, :k], at[:, :k]


def _only(log_probs: Tensor, ids: Tensor, values: Tensor) -> Tensor:
    """Log-probabilities where only `ids` have a share: that of `values`, which are made to sum to 1."""
    return torch.full_like(log_probs, -math.inf).scatter(1, ids, _normalised(values))


def _normalised(log_probs: Tensor) -> Tensor:
    total = log_probs.logsumexp(dim=-1, keepdim=True)
    return log_probs - total.clamp(
        min=torch.finfo(total.dtype).min
    )  # -inf where nothing is left, and not NaN
