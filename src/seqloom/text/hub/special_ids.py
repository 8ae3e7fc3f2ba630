"""The ids that mean something in a checkpoint of the field, out of its `config.json` and its tokenizer."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple, final

from seqloom.errors import FolderError, printable
from seqloom.protocols import SpecialIds

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

ENCODERS, DECODERS, ENCODER_DECODERS = (
    ("bert", "roberta", "electra"),
    ("openai-gpt", "gpt2"),
    ("t5", "bart", "marian"),
)
"""The families by what they do; of other names the configuration and the frame say it."""


@final
class Frame(NamedTuple):
    """What an encoder reads around a text, and between two."""

    before: tuple[int, ...] = ()
    between: tuple[int, ...] = ()
    after: tuple[int, ...] = ()


@final
class Roles(NamedTuple):
    """The ids of a tokenizer's own special tokens; None where it has none."""

    unknown: int | None = None
    pad: int | None = None
    mask: int | None = None


def frame_of(processor: Mapping[str, Any] | None) -> Frame:
    """What the `post_processor` of a `tokenizer.json` puts around two texts. Raises KeyError or TypeError
    where it is damaged."""
    if processor is None or processor["type"] == "ByteLevel":
        return Frame()
    if processor["type"] == "Sequence":
        return next((frame for part in processor["processors"] if any(frame := frame_of(part))), Frame())
    if processor["type"] in ("BertProcessing", "RobertaProcessing"):
        begin, end = (processor["cls"][1],), (processor["sep"][1],)
        return Frame(begin, end * (2 if processor["type"] == "RobertaProcessing" else 1), end)
    parts: list[tuple[int, ...]] = [()]
    for item in processor["pair"]:
        if "Sequence" in item:
            parts.append(())
        else:
            parts[-1] += tuple(processor["special_tokens"][item["SpecialToken"]["id"]]["ids"])
    before, between, after = parts
    return Frame(before, between, after)


def special_ids_of(
    config: Mapping[str, Any], size: int, roles: Roles, frame: Frame, unspelled: Collection[int] = ()
) -> SpecialIds:
    """The marks of a checkpoint whose model has `size` ids; `unspelled` are those that no entry of its
    tokenizer has.

    An encoder reads `frame` around a text; a decoder begins with `begin`. A decoder of the field has no
    `<pad>` that is just that, so its pad is -1. What a model may write but is no text (the sentinels of T5)
    is not forbidden. Raises FolderError where an id is none.
    """
    kind = str(config.get("model_type", ""))
    ids = {
        name: _id(config, name, kind, size)
        for name in ("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id")
    }
    forced = _id(config, "forced_bos_token_id", kind, size)
    both = bool(config.get("is_encoder_decoder", kind in ENCODER_DECODERS))
    encoder = not both and (
        kind in (*ENCODERS, *ENCODER_DECODERS) or (kind not in DECODERS and bool(frame.before))
    )
    pad = ids["pad_token_id"] if ids["pad_token_id"] is not None else roles.pad
    end = ids["eos_token_id"]
    if both:
        start = next(
            (i for i in (ids["decoder_start_token_id"], pad, ids["bos_token_id"]) if i is not None), None
        )
        begin = tuple(i for i in (start, forced) if i is not None)
    elif encoder:
        begin, end = (), None
    else:
        begin, frame = tuple(i for i in (ids["bos_token_id"],) if i is not None), Frame()
    special = {
        pad,
        roles.unknown,
        roles.mask,
        *begin,
        *frame.before,
        *frame.between,
        *frame.after,
        *unspelled,
    }
    return SpecialIds(
        pad=pad if encoder and pad is not None else -1,
        bos=begin,
        eos=end,
        unk=(
            roles.unknown if roles.unknown != end else None
        ),  # GPT-2 names its end for what its bytes can always spell
        prefix=frame.before,
        separator=frame.between,
        suffix=frame.after,
        mask=roles.mask,
        forbidden=tuple(sorted(i for i in special if i is not None and i != end)),
    )


def _id(config: Mapping[str, Any], name: str, kind: str, size: int) -> int | None:
    """An id of the configuration; of several that end a text the first."""
    if name not in config:
        usual = DEFAULTS.get(kind, {}).get(name)
        return usual if usual is not None and usual < size else None
    found = config[name]
    if name == "eos_token_id" and isinstance(found, list) and found:
        found = found[0]
    if found is None or (type(found) is int and 0 <= found < size):
        return found
    raise FolderError(
        f"config.json: {name} must be an id from 0 to {size - 1}, but is {printable(str(found))[:50]}; mend"
        " config.json"
    )
