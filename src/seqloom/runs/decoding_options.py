"""What the settings of decoding mean for a tokenizer: a strategy, rules, and where a text ends."""

from __future__ import annotations

from collections.abc import Sequence

from seqloom.config import DecodeConfig
from seqloom.decoding.generate import GenerationOptions
from seqloom.decoding.hypotheses import Hypothesis
from seqloom.decoding.logits_processors import logits_processors, registered_processors
from seqloom.decoding.strategies import Strategy, strategy_of
from seqloom.decoding.string_constraints import Spelling, ban, begin, stop_strings
from seqloom.errors import SeqloomError
from seqloom.protocols import Tokenizer

SAMPLING = ("temperature", "top_k", "top_p", "min_p", "seed")
BEAMS = ("beam", "groups", "diversity", "refill", "early_stopping")
IDLE = {
    "beam": SAMPLING,
    "sample": (*BEAMS, "length_penalty"),
    "greedy": (*BEAMS, *SAMPLING),
}
"""Settings of decoding that change nothing, for each strategy."""


def idle_decoding(decode: DecodeConfig) -> dict[str, str]:
    """Setting -> why it changes nothing with the others, as a sentence."""
    reasons = {}
    for name in IDLE[decode.strategy]:
        other = next(strategy for strategy in IDLE if name not in IDLE[strategy])
        reasons[f"decode.{name}"] = (
            f"decode.{name} changes nothing with decode.strategy={decode.strategy}: it needs"
            f" decode.strategy={other}"
        )
    if decode.strategy == "sample" and decode.temperature == 0:
        for name in SAMPLING[1:]:
            reasons[f"decode.{name}"] = (
                f"decode.{name} changes nothing with decode.temperature=0, which leaves the most likely token"
            )
    if decode.groups == 1:
        reasons.setdefault(
            "decode.diversity",
            "decode.diversity changes nothing with one group: it needs decode.groups",
        )
    return reasons


def require_hypotheses(found: Sequence[Hypothesis], strategy: Strategy) -> Sequence[Hypothesis]:
    """The hypotheses of an input. Raises SeqloomError if the rules left none, or not every sample."""
    if len(found) < strategy.fewest:
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
