"""The special ids of a checkpoint, from its `config.json` and its tokenizer."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import NamedTuple, final

from seqloom.errors import FolderError, shown
from seqloom.json_values import JsonObject, as_list, as_whole_number
from seqloom.protocols import SpecialIds, SpecialTokenTemplate
from seqloom.text.hub.pipeline import Component

DEFAULTS: dict[str, dict[str, int]] = {
    "gpt2": {"bos_token_id": 50256, "eos_token_id": 50256},
    "bert": {"pad_token_id": 0},
    "electra": {"pad_token_id": 0},
    "roberta": {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2},
    "t5": {"pad_token_id": 0, "eos_token_id": 1},
    "bart": {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 2},
    "marian": {"pad_token_id": 58100, "eos_token_id": 0, "decoder_start_token_id": 58100},
}
"""What a `config.json` means that leaves a key out (the configuration classes of `transformers`)."""

IDS = (
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
    "decoder_start_token_id",
    "forced_bos_token_id",
)
"""The keys that are read here."""
NEVER = ("suppress_tokens", "bad_words_ids")
"""Keys with ids that are never written; of the words of `bad_words_ids` those of one id are read here."""

MOST_IDS = 2**24
"""The largest vocabularies have a million."""

ENCODERS = ("bert", "roberta", "electra")
DECODERS = ("openai-gpt", "gpt2")
ENCODER_DECODERS = ("t5", "bart", "marian")
"""The families by what they do. For other names the configuration and the template decide."""


@final
class TokenizerSpecials(NamedTuple):
    """The ids of special tokens that the tokenizer itself names; None if it names none."""

    unk: int | None = None
    pad: int | None = None
    mask: int | None = None
    bos: int | None = None
    eos: int | None = None


def template_of(processor: Component | None) -> SpecialTokenTemplate:
    """What the `post_processor` of a `tokenizer.json` puts around two texts. Raises KeyError or TypeError
    if it is damaged."""
    if processor is None or processor["type"] == "ByteLevel":
        return SpecialTokenTemplate()
    if processor["type"] == "Sequence":
        templates = map(template_of, processor["processors"])
        return next(filter(any, templates), SpecialTokenTemplate())
    if processor["type"] in ("BertProcessing", "RobertaProcessing"):
        (_, cls), (_, sep) = processor["cls"], processor["sep"]
        between = (sep, sep) if processor["type"] == "RobertaProcessing" else (sep,)
        return SpecialTokenTemplate((cls,), between, (sep,))
    parts: list[tuple[int, ...]] = [()]
    for item in processor["pair"]:
        if "Sequence" in item:
            parts.append(())
        else:
            parts[-1] += tuple(processor["special_tokens"][item["SpecialToken"]["id"]]["ids"])
    prefix, separator, suffix = parts
    return SpecialTokenTemplate(prefix, separator, suffix)


def is_encoder_decoder(config: JsonObject) -> bool:
    family = config.get("model_type")
    if family in (*ENCODERS, *DECODERS, *ENCODER_DECODERS):
        return family in ENCODER_DECODERS
    return config.get("is_encoder_decoder") is True


def special_ids_of(
    config: JsonObject,
    size: int,
    specials: TokenizerSpecials,
    template: SpecialTokenTemplate,
    without_entry: Collection[int] = (),
) -> SpecialIds:
    """The special ids of a checkpoint whose model has `size` ids; `without_entry` are those that no entry of
    its tokenizer has.

    An encoder reads the template around a text; a decoder begins with `bos`. A decoder of the hub has no
    `<pad>` that is used for nothing else, so its pad is -1. What a model may write though it is no text (the
    sentinels of T5) is not forbidden. An id beyond the vocabulary is left out, and the tokenizer's own taken
    (`notes_on_ids` says so). Raises FolderError if an id is none.
    """
    family = str(config.get("model_type", ""))
    ids = {name: configured_id(config, name) for name in IDS}
    beyond = {name for name, i in ids.items() if i is not None and i >= size}
    ids |= dict.fromkeys(beyond, None)
    configured_bos = specials.bos if "bos_token_id" in beyond else ids["bos_token_id"]
    eos = specials.eos if "eos_token_id" in beyond else ids["eos_token_id"]
    start, forced = ids["decoder_start_token_id"], ids["forced_bos_token_id"]
    pad = specials.pad if ids["pad_token_id"] is None else ids["pad_token_id"]
    encoder = False
    if is_encoder_decoder(config):
        first = next((i for i in (start, pad, configured_bos) if i is not None), None)
        bos = _present(first, forced)
    elif family in (*ENCODERS, *ENCODER_DECODERS) or (family not in DECODERS and template.prefix):
        encoder, bos, eos = True, _present(), None
    else:
        bos, template = _present(configured_bos), SpecialTokenTemplate()
    around = (*template.prefix, *template.separator, *template.suffix)
    special = {*_present(pad, specials.unk, specials.mask), *bos[:1], *around, *without_entry}
    special |= _never_written(config, size)
    own_pad = pad if encoder and pad is not None else -1
    # GPT-2 names its end as the unknown token, though its bytes can spell everything
    unk = None if specials.unk == eos else specials.unk
    return SpecialIds(
        pad=own_pad,
        bos=bos,
        eos=eos,
        unk=unk,
        prefix=template.prefix,
        separator=template.separator,
        suffix=template.suffix,
        mask=specials.mask,
        # what an output is forced to begin with may come again, as in transformers
        forbidden=tuple(sorted(special - {eos, *bos[1:]})),
    )


def _never_written(config: JsonObject, size: int) -> set[int]:
    """The ids that generation leaves out."""
    ids = set[int]()
    for key in NEVER:
        for entry in as_list(config.get(key)) or []:
            word = as_list(entry) or [entry]
            i = as_whole_number(word[0]) if len(word) == 1 else None
            if i is not None and 0 <= i < size:
                ids.add(i)
    return ids


def _present(*ids: int | None) -> tuple[int, ...]:
    return tuple(i for i in ids if i is not None)


def check_special_ids(content: JsonObject, path: Path) -> None:
    """Raises FolderError, with file and key, if an id is invalid."""
    for name in IDS:
        if name in content:
            configured_id(content, name, path)


def configured_id(config: JsonObject, name: str, path: Path | None = None) -> int | None:
    """An id of the configuration, or the default of its family; the first where several end a text. Raises
    FolderError if it is no id."""
    if name not in config:
        return DEFAULTS.get(str(config.get("model_type", "")), {}).get(name)
    value = config[name]
    if name == "eos_token_id":
        value = next(iter(as_list(value) or [value]))
    if value is None:
        return None
    # True would count as an int
    if type(value) is int and 0 <= value < MOST_IDS:
        return value
    raise FolderError(
        f"{name} must be an id from 0 on, below {MOST_IDS}, but is {shown(value)}; mend it", path
    )


def notes_on_ids(config: JsonObject, generation: JsonObject | None, size: int) -> list[str]:
    """Notices about ids that are not taken as they are: those beyond a vocabulary of `size`, and those that
    config.json alone has, though `transformers` looks into generation_config.json where there is one."""
    given = {key: value for key, value in (generation or {}).items() if value is not None}
    notes = []
    for name in IDS:
        i = configured_id({**config, **given}, name)
        if i is not None and i >= size:
            notes.append(
                f"{name}={i} is beyond the vocabulary of {size} ids and is left out; where the tokenizer has"
                " such a mark, it is taken"
            )
        elif i is None or generation is None or name in given or not _decides(config, name):
            continue
        elif name != "decoder_start_token_id" or given.get("bos_token_id") != i:
            notes.append(f"{name}={i} is that of config.json, as generation_config.json has none")
    return notes


def _decides(config: JsonObject, name: str) -> bool:
    """Whether generation looks at an id."""
    return name == "eos_token_id" or (
        name in ("decoder_start_token_id", "forced_bos_token_id") and is_encoder_decoder(config)
    )


def special_token_names(
    config: JsonObject, special_ids: SpecialIds, names: Mapping[int, str]
) -> dict[str, str]:
    """Keys such as `eos_token` of a tokenizer_config.json, as far as special ids and config.json say them:
    the classes of `transformers` take some for granted."""
    family = str(config.get("model_type"))
    ids = {**DEFAULTS.get(family, {}), **config}
    eos = ids.get("eos_token_id") if special_ids.eos is None else special_ids.eos
    bos = ids.get("bos_token_id")
    encoder = bool(special_ids.prefix) and family not in DECODERS
    roles = {
        "unk": special_ids.unk,
        "mask": special_ids.mask,
        "eos": eos,
        "cls": special_ids.prefix[0] if encoder else None,
        "sep": special_ids.suffix[-1] if encoder and special_ids.suffix else None,
        "pad": special_ids.pad if special_ids.pad >= 0 else ids.get("pad_token_id"),
        "bos": None if is_encoder_decoder(config) and bos == eos else bos,
    }
    return {f"{role}_token": names[i] for role, i in roles.items() if type(i) is int and i in names}
