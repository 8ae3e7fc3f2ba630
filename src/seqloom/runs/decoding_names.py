"""Strategies of decoding by name, on one line, for verbs that compare several."""

from __future__ import annotations

from seqloom.config import DecodeConfig
from seqloom.errors import UsageError, printable
from seqloom.run_file import apply_settings, parse

NAMES: dict[str, dict[str, object]] = {
    "greedy": {"strategy": "beam", "beam": 1},
    "sampling": {"strategy": "sample"},
}
SEARCH = ("beam", "length_penalty", "refill", "early_stopping")
SAMPLE = ("temperature", "top_k", "top_p", "min_p")
EITHER = ("repetition_penalty", "no_repeat_ngram", "min_length")


def strategy_settings(name: str, seed: int) -> DecodeConfig:
    """What a strategy's name says: `greedy`, `sampling`, settings of decode such as beam=5, or several joined
    by +.

    None of the folder's own settings counts. Raises UsageError for what is none, or does not go together.
    """
    known = (*SEARCH, *SAMPLE, *EITHER)
    changes: dict[str, object] = {}
    for part in map(str.strip, name.split("+")):
        key = part.partition("=")[0].replace("-", "_")
        if part not in NAMES and ("=" not in part or key not in known):
            raise UsageError(
                f"a strategy must be {', '.join(NAMES)}, a setting such as beam=5, or several such as"
                f" top_k=40+temperature=0.7, but is {printable(repr(name))}; settings are {', '.join(known)}"
            )
        new = NAMES.get(part) or apply_settings({}, [f"decode.{part}"])["decode"]
        if both := changes.keys() & new.keys():
            raise UsageError(
                f"a strategy must say {sorted(both)[0]} once, but {printable(repr(name))} says it twice;"
                " leave one out"
            )
        changes |= new
    sampling = changes.get("strategy") == "sample" or bool(changes.keys() & set(SAMPLE))
    if sampling and (changes.get("strategy") == "beam" or changes.keys() & set(SEARCH)):
        raise UsageError(
            f"a strategy must search or sample, but {printable(repr(name))} does both; ask for two strategies"
        )
    width = {} if sampling else {"beam": changes.get("beam", 1)}
    chosen = {"strategy": "sample" if sampling else "beam", "seed": seed} | width
    return parse(DecodeConfig, changes | chosen, "decode.")
