"""Changes to the content of a tokenizer.json: special tokens around a text, a space before its first word.

Our own tokenizers leave both to the template of rows (`data/encoding/`). An exported tokenizer must do them
itself.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from seqloom.protocols import SpecialTokenTemplate
from seqloom.text.hub.token_bytes import WHOLE_WORDPIECE, WHOLE_WORDS


def with_template(
    content: str, template: SpecialTokenTemplate, names: Mapping[int, str], *, segments: bool
) -> str:
    """The content of a tokenizer.json with special tokens (ids, named in `names`) before a text, between two,
    and after it or the second. `segments`: whether the second text, and the tokens after it, are of another
    segment than the first."""
    prefix, separator, suffix = template
    second = int(segments)
    single = [*_tokens(prefix, names, 0), _text("A", 0), *_tokens(suffix, names, 0)]
    pair = [
        *_tokens(prefix, names, 0),
        _text("A", 0),
        *_tokens(separator, names, 0),
        _text("B", second),
        *_tokens(suffix, names, second),
    ]
    used = {
        names[i]: {"id": names[i], "ids": [i], "tokens": [names[i]]}
        for i in prefix + separator + suffix
    }
    processor = {
        "type": "TemplateProcessing",
        "single": single,
        "pair": pair,
        "special_tokens": used,
    }
    return _dumped(json.loads(content) | {"post_processor": processor})


def with_special_entries(
    content: str, first: int, names: Sequence[str]
) -> tuple[str, dict[int, str]]:
    """The content of a tokenizer.json with more special entries, from id `first` on, and their names: these,
    in more brackets where another entry has that name."""
    pipeline = json.loads(content)
    added = list(pipeline.get("added_tokens") or [])
    known = {*pipeline["model"]["vocab"], *(token["content"] for token in added)}
    new: dict[int, str] = {}
    for i, name in enumerate(names, start=first):
        while name in known:
            name = f"<{name}>"
        new[i] = name
        options = {
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": True,
        }
        added.append({"id": i, "content": name, **options})
    return _dumped(pipeline | {"added_tokens": added}), new


def with_mask(content: str, mask: int, name: str) -> str:
    """The content of a tokenizer.json that looks for the mask in a text, and takes the spaces before it
    along."""
    pipeline = json.loads(content)
    options = {"single_word": False, "lstrip": True, "rstrip": False, "normalized": False}
    added = [{"id": mask, "content": name, **options, "special": True}]
    return _dumped(pipeline | {"added_tokens": [*added, *(pipeline.get("added_tokens") or [])]})


DECODERS = {"WordPiece": WHOLE_WORDPIECE, "WordLevel": WHOLE_WORDS}
"""Kind of a model -> a decoder that spells any of its tokens as seqloom does."""


def with_whole_texts(content: str) -> str:
    """The content of a tokenizer.json of ours with a decoder that spells texts as seqloom does, whatever
    tokens a model writes."""
    pipeline = json.loads(content)
    decoder = DECODERS.get(pipeline["model"]["type"], pipeline.get("decoder"))
    return _dumped(pipeline | {"decoder": decoder})


def with_prefix_space(content: str) -> str:
    """The content of a tokenizer.json that splits the first word of a text as the others, which have a space
    before them."""
    pipeline = json.loads(content)
    pre_tokenizer = pipeline.get("pre_tokenizer") or {}
    for part in pre_tokenizer.get("pretokenizers", [pre_tokenizer]):
        if part.get("type") == "ByteLevel":
            part["add_prefix_space"] = True
    return _dumped(pipeline)


def _dumped(pipeline: object) -> str:
    return json.dumps(pipeline, ensure_ascii=False, indent=2)


def _text(name: str, segment: int) -> dict[str, object]:
    return {"Sequence": {"id": name, "type_id": segment}}


def _tokens(ids: Sequence[int], names: Mapping[int, str], segment: int) -> list[dict[str, object]]:
    return [{"SpecialToken": {"id": names[i], "type_id": segment}} for i in ids]
