"""Logits processors: small pure functions on log-probabilities that say which tokens may come next.

Those of sampling (temperature, top-k, top-p, min-p) return probabilities that sum to 1 again. Where no token
may come next (all -inf) it stays so. Processors that look at the text are in `string_constraints.py`.

Sources: temperature is Ackley, Hinton and Sejnowski 1985; top-k Fan, Lewis and Dauphin 2018
(arXiv:1805.04833); top-p, the nucleus, Holtzman et al. 2020 (arXiv:1904.09751, equations 2 and 3); min-p
Nguyen et al. 2024 (arXiv:2407.01082); the repetition penalty Keskar et al. 2019 (arXiv:1909.05858, section
4.1); no repeated n-gram Paulus, Xiong and Socher 2017 (arXiv:1705.04304).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor
from torch.nn import functional as F

from seqloom.config import DecodeConfig
from seqloom.decoding.hypotheses import LiveHypotheses
from seqloom.errors import UsageError
from seqloom.plugins import register
from seqloom.protocols import Tokenizer, WantedTokens
from seqloom.run_file import read_yaml

LogitsProcessor = Callable[[LiveHypotheses, Tensor], Tensor]
"""(hypotheses, their log-probabilities `(rows, vocabulary)`) -> log-probabilities; never in place."""

ProcessorFactory = Callable[[Any, Tokenizer], LogitsProcessor]
"""(its setting, None where none is given; the tokenizer) -> the processor."""
PROCESSORS: dict[str, ProcessorFactory] = {}
"""Processors from plugins, which decode.processors names."""

BLOCK = 64
"""Tokens of a block in `most_likely`."""

MANY = 256
"""So many of the likeliest tokens are no longer found faster than all."""


def register_logits_processor(name: str, make: ProcessorFactory) -> None:
    """Makes a decoding rule of one's own known: decode.processors=[NAME], or [NAME=SETTING]. Raises
    UsageError where the name is taken."""
    register("logits processor", name, make, PROCESSORS)


def registered_processors(rules: Sequence[str], tokenizer: Tokenizer) -> list[LogitsProcessor]:
    """The processors of `decode.processors`; a setting is read as YAML."""
    parts = [rule.partition("=") for rule in rules]
    return [
        PROCESSORS[name](
            read_yaml(setting, f"decode.processors {name}") if setting else None, tokenizer
        )
        for name, _, setting in parts
    ]


def logits_processors(
    decode: DecodeConfig,
    forbidden: Sequence[int],
    eos: int | None,
    string_constraints: Sequence[LogitsProcessor] = (),
) -> list[LogitsProcessor]:
    """The processors in their order, each applied to what the one before left: forbidden tokens, string
    constraints, length, repetition; and in sampling temperature, top-k, top-p, min-p."""
    processors: list[LogitsProcessor] = [forbid(forbidden), *string_constraints]
    if decode.min_length and eos is not None:
        processors.append(min_length(decode.min_length, eos))
    if decode.no_repeat_ngram is not None:
        processors.append(no_repeat_ngram(decode.no_repeat_ngram, eos))
    if decode.repetition_penalty > 1:
        processors.append(repetition_penalty(decode.repetition_penalty, eos))
    if decode.forced_end and decode.max_length is not None and eos is not None:
        processors.append(forced_end(decode.max_length, eos))
    if decode.strategy == "sample" and decode.temperature == 0:
        processors.append(top_k(1))
    elif decode.strategy == "sample":
        if decode.temperature != 1 or decode.top_p < 1:  # top-p needs probabilities that sum to 1
            processors.append(temperature(decode.temperature))
        if decode.top_k is not None:
            processors.append(top_k(decode.top_k))
        if decode.top_p < 1:
            processors.append(top_p(decode.top_p))
        if decode.min_p > 0:
            processors.append(min_p(decode.min_p))
    return processors


@final
class Forbid:
    """Ids that never come next."""

    def __init__(self, ids: Sequence[int]) -> None:
        self.ids = tuple(ids)
        self._banned = torch.tensor(self.ids, dtype=torch.long)

    def __call__(self, _: LiveHypotheses, log_probs: Tensor) -> Tensor:
        return log_probs.index_fill(1, self._banned.to(log_probs.device), -math.inf)


@final
@dataclass(frozen=True)
class Reshaping:
    """A processor that looks at log-probabilities only, not at whose they are, and keeps their order."""

    change: Callable[[Tensor], Tensor]
    scales: bool = False
    """It multiplies them."""
    most: int | None = None
    """It keeps so many, whatever the probability of the others."""

    def __call__(self, _: LiveHypotheses, log_probs: Tensor) -> Tensor:
        return self.change(log_probs)


def name_of(processor: LogitsProcessor) -> str:
    """The name of the function that made it; a processor of a plugin is any callable, perhaps without one."""
    if isinstance(processor, Forbid):
        return "forbid"
    function = processor.change if isinstance(processor, Reshaping) else processor
    name: str = getattr(function, "__qualname__", type(function).__name__)
    return name.partition(".")[0]


def enough(
    likeliest: int | None, processors: Sequence[LogitsProcessor]
) -> tuple[WantedTokens | None, Sequence[LogitsProcessor]]:
    """What a search needs to know of the next tokens whose strategy looks at so many of the likeliest (None:
    at all) after these processors; and which of them remain to be applied to that. None where it needs to
    know all."""
    forbidden: list[int] = []
    remaining = list(processors)
    while remaining and isinstance(rule := remaining[0], Forbid):
        forbidden += rule.ids
        remaining = remaining[1:]
    if not remaining:
        return None if likeliest is None else WantedTokens(likeliest, tuple(forbidden)), remaining
    reshaping = [rule for rule in remaining if isinstance(rule, Reshaping)]
    most = next((rule.most for rule in reshaping if not rule.scales), None)
    if len(reshaping) < len(remaining) or most is None or most >= MANY:
        return None, processors
    return WantedTokens(most, tuple(forbidden)), remaining


def forbid(ids: Sequence[int]) -> LogitsProcessor:
    """These ids never come next."""
    return Forbid(ids)


def min_length(tokens: int, eos: int) -> LogitsProcessor:
    """The end mark comes after so many new tokens at the earliest."""

    def process(live: LiveHypotheses, log_probs: Tensor) -> Tensor:
        short = live.new_length < tokens
        if not bool(short.any()):
            return log_probs
        result = log_probs.clone()
        result[short, eos] = -math.inf
        return result

    return process


def forced_end(longest: int, eos: int) -> LogitsProcessor:
    """The new token that makes a text as long as it may be is the end mark, at no cost."""

    def process(live: LiveHypotheses, log_probs: Tensor) -> Tensor:
        last = live.new_length == longest - 1
        if not bool(last.any()):
            return log_probs
        result = log_probs.masked_fill(last[:, None], -math.inf)
        result[last, eos] = 0.0
        return result

    return process


def no_repeat_ngram(n: int, eos: int | None) -> LogitsProcessor:
    """No token that would repeat an n-gram of the sequence, prompt included. The end mark may always come."""
    if n < 1:
        raise UsageError(f"no_repeat_ngram must be at least 1, but is {n}")

    def process(live: LiveHypotheses, log_probs: Tensor) -> Tensor:
        sequences = live.sequences
        if sequences.shape[1] < n:
            return log_probs
        # an n-gram whose first n - 1 tokens are the last ones of the sequence forbids its last token
        ngrams = sequences.unfold(1, n, 1)  # (rows, positions, n)
        last = sequences[:, sequences.shape[1] - n + 1 :]
        repeats = (ngrams[:, :, :-1] == last[:, None]).all(dim=2) & (ngrams[:, :, -1] >= 0)
        row, position = repeats.nonzero(as_tuple=True)
        result = log_probs.clone()
        result[row, ngrams[row, position, -1]] = -math.inf
        if eos is not None:
            result[:, eos] = log_probs[:, eos]
        return result

    return process


def repetition_penalty(theta: float, eos: int | None = None) -> LogitsProcessor:
    """The probability p of a token that the sequence, prompt included, has already becomes p^θ, for θ >= 1.
    That of the end mark stays, since it may begin a text too (GPT-2).

    Keskar et al. divide logits, which are defined only up to a constant; here it is the log-probabilities.
    """
    if not theta >= 1:
        raise UsageError(f"the repetition penalty must be at least 1, but is {theta}")

    def process(live: LiveHypotheses, log_probs: Tensor) -> Tensor:
        sequences = live.sequences
        counted = sequences >= 0
        if eos is not None:
            counted = counted & (sequences != eos)
        row, position = counted.nonzero(as_tuple=True)
        repeated = (row, sequences[row, position])
        return log_probs.index_put(repeated, theta * log_probs[repeated])

    return process


def temperature(beta: float) -> LogitsProcessor:
    """Softmax of logits / β, for β > 0: flatter above 1, sharper below; towards 0 it is the argmax."""
    if not beta > 0:
        raise UsageError(f"the temperature must be above 0, but is {beta}")
    divisor = min(max(beta, 1e-30), 1e30)  # the same choice, and no float32 becomes 0 or infinite

    def process(log_probs: Tensor) -> Tensor:
        best = log_probs.amax(dim=-1, keepdim=True)
        return _normalised((log_probs - best.clamp(min=torch.finfo(best.dtype).min)) / divisor)

    return Reshaping(process, scales=True)


def top_k(k: int) -> LogitsProcessor:
    """Only the k most likely tokens, exactly k: among equals the lowest ids."""
    if k < 1:
        raise UsageError(f"top_k must be at least 1, but is {k}")

    def process(log_probs: Tensor) -> Tensor:
        values, ids = most_likely(log_probs, min(k, log_probs.shape[1]))
        return _keep_only(log_probs, ids, values)

    return Reshaping(process, most=k)


def top_p(p: float, first_look: int = 64) -> LogitsProcessor:
    """Only the smallest set of most likely tokens whose probabilities sum to at least p; among equals the
    lowest ids. At least one token, and all where p is 1.

    Sums are in float64 over sorted tokens. They reach p where they do so up to the rounding of a
    log-probability: exp(log 0.5) is 0.49999998 in float32. First the `first_look` most likely tokens of each
    row are sorted, then, in rows where their sum is below p, 8 times as many, and so on: a row of 50,000 is
    hardly ever sorted.
    """
    if not 0 < p <= 1:
        raise UsageError(f"top_p must be above 0 and at most 1, but is {p}")

    def process(log_probs: Tensor) -> Tensor:
        vocabulary = log_probs.shape[1]
        result = torch.empty_like(log_probs)
        rows = torch.arange(len(log_probs), device=log_probs.device)  # those that are not done
        rounding = 4 * torch.finfo(torch.promote_types(log_probs.dtype, torch.float32)).eps
        reached = p * (1 - rounding) if p < 1 else math.inf
        # on a GPU a full sort is cheap, and waiting for the sums is not
        looked = first_look if log_probs.device.type == "cpu" else vocabulary
        while len(rows):
            if 2 * looked >= vocabulary:
                looked = vocabulary
            part = log_probs[rows]
            values, ids = most_likely(part, looked)
            mass = values.double().exp().cumsum(dim=-1)
            mass_before = F.pad(mass[:, :-1], (1, 0))  # of the more likely tokens
            result[rows] = _keep_only(
                part, ids, values.masked_fill(mass_before >= reached, -math.inf)
            )
            if looked == vocabulary:
                break
            rows = rows[mass[:, -1] < reached]
            looked *= 8
        return result

    return Reshaping(process)


def min_p(share: float) -> LogitsProcessor:
    """Only tokens whose probability is at least `share` of the highest."""
    if not 0 <= share <= 1:
        raise UsageError(f"min_p must be from 0 to 1, but is {share}")
    log_share = math.log(share) if share else -math.inf

    def process(log_probs: Tensor) -> Tensor:
        best = log_probs.amax(dim=-1, keepdim=True)
        return _normalised(log_probs.masked_fill(log_probs < best + log_share, -math.inf))

    return Reshaping(process)


def most_likely(log_probs: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k largest of each row, `(rows, k)` values and ids, best first; ties go to the lowest id, at the
    border too. Impossible ids (-inf) come last, in any order."""
    rows, vocabulary = log_probs.shape
    if log_probs.device.type != "cpu" or 4 * k * BLOCK > vocabulary or not rows:
        return _largest(log_probs, k)
    # on a CPU: the k largest are in the k blocks with the largest maxima, so only these are searched
    whole = vocabulary // BLOCK
    blocks = log_probs[:, : whole * BLOCK].view(rows, whole, BLOCK)
    remainder = log_probs[:, whole * BLOCK :]
    # sorted, so that among equals the lowest id still comes first
    chosen = _largest(blocks.amax(dim=2), k)[1].sort(dim=-1).values
    searched = blocks.gather(1, chosen[:, :, None].expand(-1, -1, BLOCK)).flatten(1)
    values, index = _largest(torch.cat([searched, remainder], dim=1), k)
    block_of = torch.cat([chosen, torch.full_like(chosen[:, :1], whole)], dim=1)
    return values, block_of.gather(
        1, index.div(BLOCK, rounding_mode="floor")
    ) * BLOCK + index % BLOCK


def _largest(values: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k largest of each row and their indices, best first; among equals the first, among -inf any."""
    if k == 1:
        largest, index = values.max(dim=-1, keepdim=True)  # the first of equals
        return largest, index
    # topk may take any of several equals, in any order; one more than k shows whether there are any at the
    # border
    largest, index = values.topk(min(k + 1, values.shape[1]), dim=-1)
    equals = (largest[:, 1:] == largest[:, :-1]) & (largest[:, 1:] > -math.inf)
    if bool(equals.any()):
        tied = equals.any(dim=-1)
        index[tied] = (
            values[tied].sort(dim=-1, descending=True, stable=True).indices[:, : index.shape[1]]
        )
    return largest[:, :k], index[:, :k]


def _keep_only(log_probs: Tensor, ids: Tensor, values: Tensor) -> Tensor:
    """Log-probabilities of `values` at `ids`, normalised, and -inf elsewhere."""
    return torch.full_like(log_probs, -math.inf).scatter(1, ids, _normalised(values))


def _normalised(log_probs: Tensor) -> Tensor:
    total = log_probs.logsumexp(dim=-1, keepdim=True)
    # clamped: where no token is left it is -inf, and must not become NaN
    return log_probs - total.clamp(min=torch.finfo(total.dtype).min)
