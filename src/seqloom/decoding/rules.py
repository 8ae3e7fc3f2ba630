"""The old name of `logits_processors.py`, with its old names; it stays for one release."""

from seqloom.decoding.logits_processors import LogitsProcessor as Rule
from seqloom.decoding.logits_processors import (
    forbid,
    min_length,
    min_p,
    most_likely,
    no_repeat_ngram,
    repetition_penalty,
    temperature,
    top_k,
    top_p,
)
from seqloom.decoding.logits_processors import logits_processors as rules_of

__all__ = [
    "Rule",
    "forbid",
    "min_length",
    "min_p",
    "most_likely",
    "no_repeat_ngram",
    "repetition_penalty",
    "rules_of",
    "temperature",
    "top_k",
    "top_p",
]
