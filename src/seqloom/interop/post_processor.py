"""What a model reads beside a text, told to the readers of a tokenizer.json: marks around it, and a blank
before its first word.

Our own tokenizers leave both to the template of rows (`data/encoding/encoded_dataset.py`,
`data/encoding/encode_words.py`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any


def framed(
    content: str,
    before: Sequence[int],
    between: Sequence[int],
    after: Sequence[int],
    names: Sequence[str] | Mapping[int, str],
    *,
    segments: bool,
) -> str:
    """The content of a tokenizer.json with marks (ids, whose names stand in `names`) before a text, between
    two, and after it or the second. `segments`: whether the second text, and the marks after it, are of
    another segment than the first."""
    second = int(segments)
    single = [*_marks(before, names, 0), _text("A", 0), *_marks(after, names, 0)]
    pair = [
        *_marks(before, names, 0),
        _text("A", 0),
        *_marks(between, names, 0),
        _text("B", second),
        *_marks(after, names, second),
    ]
    used = {names[i]: {"id": names[i], "ids": [i], "tokens": [names[i]]} for i in (*before, *between, *after)}
    template = {"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": used}
    return json.dumps(json.loads(content) | {"post_processor": template}, ensure_ascii=False, indent=2)


def with_entries(content: str, first: int, names: Sequence[str]) -> tuple[str, dict[int, str]]:
    """The content of a tokenizer.json with special entries more, from id `first` on, and their names: these,
    in more brackets where another entry has that name."""
    pipeline = json.loads(content)
    added = list(pipeline.get("added_tokens") or [])
    known = {*pipeline["model"]["vocab"], *(token["content"] for token in added)}
    found: dict[int, str] = {}
    for at, name in enumerate(names, start=first):
        while name in known:
            name = f"<{name}>"
        found[at] = name
        usual = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
        added.append({"id": at, "content": name, **usual})
    return json.dumps(pipeline | {"added_tokens": added}, ensure_ascii=False, indent=2), found


def with_first_blank(content: str) -> str:
    """The content of a tokenizer.json that cuts the first word of a text as those inside of it, which have a
    blank before them."""
    pipeline = json.loads(content)
    splitter = pipeline.get("pre_tokenizer") or {}
    for part in splitter.get("pretokenizers", [splitter]):
        if part.get("type") == "ByteLevel":
            part["add_prefix_space"] = True
    return json.dumps(pipeline, ensure_ascii=False, indent=2)


def _text(name: str, segment: int) -> dict[str, Any]:
    return {"Sequence": {"id": name, "type_id": segment}}


def _marks(
    ids: Sequence[int], names: Sequence[str] | Mapping[int, str], segment: int
) -> list[dict[str, Any]]:
    return [{"SpecialToken": {"id": names[i], "type_id": segment}} for i in ids]
