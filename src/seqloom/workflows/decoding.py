"""What the settings of decoding mean for a tokenizer: a strategy, rules, and where a text ends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from seqloom.config import DecodeConfig
from seqloom.decoding.live import Stop
from seqloom.decoding.rules import Rule, rules_of
from seqloom.decoding.spelled import Spelling, ban, begin, stops
from seqloom.decoding.strategies import Strategy, strategy_of
from seqloom.protocols import Tokenizer
from seqloom.text.special import EOS, SPECIAL_TOKENS

FORBIDDEN = tuple(i for i in range(len(SPECIAL_TOKENS)) if i != EOS)
"""Special ids, which no text has."""


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
    rules = rules_of(decode, FORBIDDEN, EOS, spelled)
    return Decoding(strategy_of(decode), rules, stops(spelling, decode.stop) if decode.stop else None)
