"""What the settings of decoding mean for a tokenizer: a strategy, rules, and where a text ends."""

from __future__ import annotations

from collections.abc import Sequence

from seqloom.config import DecodeConfig
from seqloom.decoding.generate import GenerationOptions
from seqloom.decoding.hypotheses import Hypothesis
from seqloom.decoding.logits_processors import logits_processors, registered_processors
from seqloom.decoding.strategies import Sampling, Strategy, strategy_of
from seqloom.decoding.string_constraints import Spelling, ban, begin, stop_strings
from seqloom.errors import SeqloomError
from seqloom.protocols import Tokenizer


def require_hypotheses(found: Sequence[Hypothesis], strategy: Strategy) -> Sequence[Hypothesis]:
    """The hypotheses of an input. Raises SeqloomError if the rules left none, or not every sample."""
    if len(found) < (strategy.samples if isinstance(strategy, Sampling) else 1):
        raise SeqloomError(
            "the rules must leave a token that may come next, but they left none; "
            "make decode.ban, begin, min_length or no_repeat_ngram weaker"
        )
    return found


def generation_options(decode: DecodeConfig, tokenizer: Tokenizer) -> GenerationOptions:
    """Raises UsageError if the tokenizer cannot spell `decode.begin`."""
    spelling, special_ids = Spelling.from_tokenizer(tokenizer), tokenizer.special_ids
    constraints = []
    if decode.ban:
        constraints.append(ban(spelling, decode.ban))
    if decode.begin:
        constraints.append(begin(spelling, decode.begin))
    # those of plugins first, so that what is forbidden stays so
    processors = registered_processors(decode.processors, tokenizer)
    processors += logits_processors(decode, special_ids.forbidden, special_ids.eos, constraints)
    return GenerationOptions(
        strategy=strategy_of(decode, special_ids.eos, max(0, len(special_ids.bos) - 1)),
        eos=special_ids.eos,
        pad=special_ids.pad,
        processors=processors,
        stop=stop_strings(spelling, decode.stop) if decode.stop else None,
    )
