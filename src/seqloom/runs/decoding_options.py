"""What the settings of decoding mean for a tokenizer: a strategy, rules, and where a text ends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from seqloom.config import DecodeConfig
from seqloom.decoding.live_rows import Hypothesis, Stop
from seqloom.decoding.rules import Rule, rules_of
from seqloom.decoding.strategies import Sample, Strategy, strategy_of
from seqloom.decoding.string_rules import Spelling, ban, begin, stops
from seqloom.errors import SeqloomError
from seqloom.protocols import Tokenizer


def found_or_refused(found: Sequence[Hypothesis], strategy: Strategy) -> Sequence[Hypothesis]:
    """The hypotheses of an input. Raises SeqloomError where the rules left none, or not every sample."""
    if len(found) < (strategy.samples if isinstance(strategy, Sample) else 1):
        raise SeqloomError(
            "the rules must leave a token that may come next, but they left none; "
            "make decode.ban, begin, min_length or no_repeat_ngram weaker"
        )
    return found


class Decoding(NamedTuple):
    strategy: Strategy
    rules: Sequence[Rule]
    stop: Stop | None


def decoding_of(decode: DecodeConfig, tokenizer: Tokenizer) -> Decoding:
    """Raises UsageError where the tokenizer cannot spell `decode.begin`."""
    spelling = Spelling.of(tokenizer)
    spelled = []
    if decode.ban:
        spelled.append(ban(spelling, decode.ban))
    if decode.begin:
        spelled.append(begin(spelling, decode.begin))
    rules = rules_of(decode, tokenizer.special_ids.forbidden, tokenizer.special_ids.eos, spelled)
    return Decoding(
        strategy_of(decode, tokenizer.special_ids.eos),
        rules,
        stops(spelling, decode.stop) if decode.stop else None,
    )
