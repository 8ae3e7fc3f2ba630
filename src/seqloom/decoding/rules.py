"""The old name of `logits_processors.py`; it stays for one release."""

from seqloom.decoding.logits_processors import (
    min_length,
    min_p,
    temperature,
    top_k,
    top_p,
)

__all__ = ["min_length", "min_p", "temperature", "top_k", "top_p"]
