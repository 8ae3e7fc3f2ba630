"""How a checkpoint of others decodes unless told otherwise: `generation_config.json` <-> our settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from seqloom.config import DecodeConfig
from seqloom.errors import UsageError, printable
from seqloom.protocols import SpecialIds
from seqloom.run_file import parse

SAME = {
    "temperature": "temperature",
    "top_p": "top_p",
    "min_p": "min_p",
    "length_penalty": "length_penalty",
    "repetition_penalty": "repetition_penalty",
}
"""Theirs -> ours, of one meaning."""
COUNTS = {"top_k": "top_k", "no_repeat_ngram_size": "no_repeat_ngram"}
"""The same, where 0 stands for none."""
UNKNOWN = (
    *(
        "bad_words_ids",
        "suppress_tokens",
        "begin_suppress_tokens",
        "encoder_no_repeat_ngram_size",
        "encoder_repetition_penalty",
    ),
    *(
        "typical_p",
        "epsilon_cutoff",
        "eta_cutoff",
        "sequence_bias",
        "force_words_ids",
        "constraints",
        "exponential_decay_length_penalty",
    ),
)
"""Settings that change what is written and that we have not got."""
NOTHING: tuple[Any, ...] = (None, 0, 1, 0.0, 1.0, [])
"""Values with which they change nothing; True, which equals 1, is none of them."""


def decode_fields(
    generation: Mapping[str, Any], *, writes_after: int | None, usual: Mapping[str, Any]
) -> tuple[dict[str, Any], list[str]]:
    """Our settings, beginning with those `usual` for the task; and what is said of settings that cannot be
    kept.

    `writes_after`: of an encoder-decoder the number of ids that its output begins with, which their lengths
        count; None of a language
    model, whose lengths count the prompt and are not taken.
    """
    found = {ours: generation[theirs] for theirs, ours in SAME.items() if generation.get(theirs) is not None}
    found |= {
        ours: generation[theirs] or None
        for theirs, ours in COUNTS.items()
        if generation.get(theirs) is not None
    }
    if generation.get("do_sample") is not None or generation.get("num_beams") is not None:
        found["strategy"] = "sample" if generation.get("do_sample") else "beam"
        found["beam"] = generation.get("num_beams") or 1
    if (groups := generation.get("num_beam_groups")) not in (None, 1):
        found |= {"groups": groups, "diversity": generation.get("diversity_penalty") or 0.0}
    if generation.get("max_new_tokens") is not None:
        found["max_length"] = generation["max_new_tokens"]
    elif writes_after is not None and isinstance(generation.get("max_length"), int):
        found["max_length"] = max(1, generation["max_length"] - writes_after)
    if writes_after is not None and isinstance(generation.get("min_length"), int):
        found["min_length"] = max(0, generation["min_length"] - writes_after)
    settings, notes = dict(usual) | {"refill": True}, []  # as transformers searches
    for name, value in found.items():
        try:
            parse(
                DecodeConfig,
                settings | {name: value} | ({"beam": 1000} if name == "groups" else {}),
                "decode.",
            )
        except UsageError as error:
            notes.append(f"not kept of generation_config.json: {error}")
            continue
        settings[name] = value
    try:
        parse(DecodeConfig, settings, "decode.")
    except UsageError as error:
        return dict(usual), [*notes, f"generation_config.json is not kept: {error}"]
    return settings, notes


def not_kept(generation: Mapping[str, Any], special_ids: SpecialIds, *, encodes: bool) -> list[str]:
    """What is said of settings that we have not got; `encodes`: of an encoder-decoder.

    Forbidden ids are never written anyhow: Marian bans no more than its `<pad>`. An encoder-decoder that is
    forced to its end at the last step writes what one does that is cut there.
    """
    never = [[i] for i in special_ids.forbidden]
    found = [name for name in UNKNOWN if (value := generation.get(name)) is True or value not in NOTHING]
    banned = generation.get("bad_words_ids")
    if isinstance(banned, list) and all(one in never for one in banned):
        found = [name for name in found if name != "bad_words_ids"]
    beams = generation.get("num_beams")
    if generation.get("early_stopping") is True and isinstance(beams, int) and beams > 1:
        found.append("early_stopping")
    forced = generation.get("forced_eos_token_id")
    if forced is not None and not (encodes and forced in (special_ids.eos, [special_ids.eos])):
        found.append("forced_eos_token_id")
    found += [
        name for name in ("min_new_tokens", "stop_strings") if generation.get(name) not in (None, 0, [])
    ]
    notes = [f"not kept of generation_config.json: {name}, which is not known here" for name in found]
    ends = generation.get("eos_token_id")
    if isinstance(ends, list) and len(ends) > 1:
        notes.append(
            f"not kept of generation_config.json: eos_token_id after the first, {printable(str(ends[1:]))};"
            " one ends a text"
        )
    return notes


def generation_content(decode: DecodeConfig, *, writes_after: int | None) -> dict[str, Any]:
    """The inverse, as far as there are words for it."""
    content: dict[str, Any] = {
        "do_sample": decode.strategy == "sample",
        "num_beams": decode.beam if decode.strategy == "beam" else 1,
        "repetition_penalty": decode.repetition_penalty,
        "no_repeat_ngram_size": decode.no_repeat_ngram or 0,
    }
    if decode.strategy == "sample":
        content |= {"temperature": decode.temperature, "top_k": decode.top_k or 0, "top_p": decode.top_p}
    else:
        content["length_penalty"] = decode.length_penalty
        content |= {"early_stopping": "never"} if decode.refill else {}
    if decode.max_length is not None:
        length = (
            {"max_new_tokens": decode.max_length}
            if writes_after is None
            else {"max_length": decode.max_length + writes_after}
        )
        content |= length
    return content
