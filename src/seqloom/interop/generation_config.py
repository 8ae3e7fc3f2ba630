"""How a checkpoint of the hub decodes by default: `generation_config.json` <-> our settings."""

from __future__ import annotations

from seqloom.config import DecodeConfig
from seqloom.data.formats.json_values import as_list
from seqloom.errors import UsageError, printable
from seqloom.files import JsonObject
from seqloom.interop.config_options import Fields
from seqloom.protocols import SpecialIds
from seqloom.run_file import parse

SAME = ("temperature", "top_p", "min_p", "length_penalty", "repetition_penalty")
"""Keys of one name and one meaning."""
COUNTS = {"top_k": "top_k", "no_repeat_ngram_size": "no_repeat_ngram"}
"""Theirs -> ours, where 0 stands for none."""
UNKNOWN = (
    "bad_words_ids",
    "suppress_tokens",
    "begin_suppress_tokens",
    "encoder_no_repeat_ngram_size",
    "encoder_repetition_penalty",
    "typical_p",
    "epsilon_cutoff",
    "eta_cutoff",
    "sequence_bias",
    "force_words_ids",
    "constraints",
    "exponential_decay_length_penalty",
)
"""Settings that change what is written and that we have not got."""
NEUTRAL: tuple[object, ...] = (None, 0, 1, 0.0, 1.0, [])
"""Values with which they change nothing; True, which equals 1, is none of them."""
NOT_KEPT = "not kept of generation_config.json: "


def decode_fields(
    generation: JsonObject, *, writes_after: int | None, usual: JsonObject
) -> tuple[Fields, list[str]]:
    """Our settings, where `usual` are those of the task; and notices about settings that cannot be kept.

    `writes_after`: for an encoder-decoder the number of ids that its output begins with, which their lengths
        count; None for a language model, whose lengths count the prompt and are not taken.
    """
    settings, notes = dict(usual) | {"refill": True}, []  # as transformers searches
    for name, value in _translated(generation, writes_after).items():
        # the beam is checked with all settings, below
        wide_beam = {"beam": 1000} if name == "groups" else {}
        try:
            parse(DecodeConfig, settings | {name: value} | wide_beam, "decode.")
        except UsageError as error:
            notes.append(f"{NOT_KEPT}{error}")
            continue
        settings[name] = value
    try:
        parse(DecodeConfig, settings, "decode.")
    except UsageError as error:
        return dict(usual), [*notes, f"generation_config.json is not kept: {error}"]
    return settings, notes


def _translated(generation: JsonObject, writes_after: int | None) -> Fields:
    given = {key: value for key, value in generation.items() if value is not None}
    fields: Fields = {key: given[key] for key in SAME if key in given}
    fields |= {ours: given[theirs] or None for theirs, ours in COUNTS.items() if theirs in given}
    if "do_sample" in given or "num_beams" in given:
        fields["strategy"] = "sample" if given.get("do_sample") else "beam"
        fields["beam"] = given.get("num_beams") or 1
    if given.get("num_beam_groups", 1) != 1:
        fields |= {
            "groups": given["num_beam_groups"],
            "diversity": given.get("diversity_penalty") or 0.0,
        }
    if "max_new_tokens" in given:
        fields["max_length"] = given["max_new_tokens"]
    if writes_after is not None:
        for key, least in (("max_length", 1), ("min_length", 0)):
            match given.get(key):
                case int(length):
                    fields.setdefault(key, max(least, length - writes_after))
    return fields


def not_kept(generation: JsonObject, special_ids: SpecialIds, *, encodes: bool) -> list[str]:
    """Notices about settings that we have not got; `encodes`: of an encoder-decoder.

    Forbidden ids are never written anyway: Marian bans only its `<pad>`. An encoder-decoder that is forced to
    its end at the last step writes the same as one that is cut there.
    """
    names = [
        name for name in UNKNOWN if (value := generation.get(name)) is True or value not in NEUTRAL
    ]
    banned, never = as_list(generation.get("bad_words_ids")), [[i] for i in special_ids.forbidden]
    if banned is not None and all(ids in never for ids in banned):
        names = [name for name in names if name != "bad_words_ids"]
    match generation:
        case {"early_stopping": True, "num_beams": int(beams)} if beams > 1:
            names.append("early_stopping")
    forced = generation.get("forced_eos_token_id")
    if forced is not None and not (encodes and forced in (special_ids.eos, [special_ids.eos])):
        names.append("forced_eos_token_id")
    names += [
        name
        for name in ("min_new_tokens", "stop_strings")
        if generation.get(name) not in (None, 0, [])
    ]
    notes = [f"{NOT_KEPT}{name}, which is not known here" for name in names]
    ends = as_list(generation.get("eos_token_id")) or []
    if len(ends) > 1:
        notes.append(
            f"{NOT_KEPT}eos_token_id after the first, {printable(str(ends[1:]))}; one ends a text"
        )
    return notes


def generation_content(decode: DecodeConfig, *, writes_after: int | None) -> Fields:
    """The inverse, as far as generation_config.json has keys for it."""
    content: Fields = {
        "do_sample": decode.strategy == "sample",
        "num_beams": decode.beam if decode.strategy == "beam" else 1,
        "repetition_penalty": decode.repetition_penalty,
        "no_repeat_ngram_size": decode.no_repeat_ngram or 0,
    }
    if decode.strategy == "sample":
        content |= {
            "temperature": decode.temperature,
            "top_k": decode.top_k or 0,
            "top_p": decode.top_p,
        }
    else:
        content["length_penalty"] = decode.length_penalty
        if decode.refill:
            content["early_stopping"] = "never"
    if decode.max_length is not None and writes_after is None:
        content["max_new_tokens"] = decode.max_length
    elif decode.max_length is not None and writes_after is not None:
        content["max_length"] = decode.max_length + writes_after
    return content
