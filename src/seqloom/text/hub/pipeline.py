"""The parts of a `tokenizer.json`, as the library `tokenizers` writes them.

The types say what a whole file holds. A damaged one raises KeyError, TypeError and the like where a part is
used, which `read_hub_tokenizer` turns into one line.
"""

from __future__ import annotations

import math
from base64 import b64decode
from collections.abc import Iterator
from typing import TypedDict

Vocabulary = dict[str, int] | list[tuple[str, float]]


class AddedEntry(TypedDict):
    """One of `added_tokens`."""

    id: int
    content: str
    special: bool
    single_word: bool
    lstrip: bool
    rstrip: bool
    normalized: bool


class Model(TypedDict, total=False):
    """The vocabulary, and what goes with it."""

    type: str
    vocab: Vocabulary
    merges: list[str | list[str]]
    unk_token: str | None
    unk_id: int | None
    dropout: float | None


class Component(TypedDict, total=False):
    """A normalizer, a pre-tokenizer, a post-processor or a decoder: `type`, and what that type has."""

    type: str
    # the parts of a Sequence
    pretokenizers: list[Component]
    processors: list[Component]
    decoders: list[Component]
    # pre-tokenizers
    split: bool
    use_regex: bool
    add_prefix_space: bool
    # normalizers
    normalizers: list[Component]
    precompiled_charsmap: str
    # post-processors
    cls: tuple[str, int]
    sep: tuple[str, int]
    pair: list[dict[str, dict[str, str]]]
    special_tokens: dict[str, dict[str, list[int]]]
    # decoders
    prefix: str
    suffix: str
    replacement: str
    prepend_scheme: str
    pattern: dict[str, str]
    content: str
    start: int
    stop: int


class Pipeline(TypedDict, total=False):
    """A `tokenizer.json`."""

    model: Model
    added_tokens: list[AddedEntry] | None
    normalizer: Component | None
    pre_tokenizer: Component | None
    post_processor: Component | None
    decoder: Component | None


MOST_GROWTH = 100
"""How many times longer than what a user wrote a text may become. The charsmap of T5, which writes out a
ligature of 18 letters, needs most of those in use."""


def check_growth(pipeline: Pipeline) -> None:
    """Raises ValueError if what is done to a text, or to an entry, could make it too long: sixty steps
    that each double the letter a never end."""
    for part, component in (
        ("normalizer", pipeline.get("normalizer")),
        ("decoder", pipeline.get("decoder")),
    ):
        growth = _growth(component)
        if growth > MOST_GROWTH:
            raise ValueError(
                f"its {part} may make a text at most {MOST_GROWTH} times longer, but can make it"
                f" {growth:.2g} times longer"
            )


def _growth(component: Component | None) -> float:
    """How many times longer a component can make a text. The forms of Unicode count as 1: to do them again
    changes nothing."""
    if component is None:
        return 1.0
    match component["type"]:
        case "Sequence":
            parts = component.get("normalizers") or component.get("decoders") or []
            # as a float, which a long list may bring to infinity but not to a huge integer
            return math.prod((_growth(part) for part in parts), start=1.0)
        case "Replace":
            # a regular expression may match one letter, and nothing at each place
            shortest = len(component["pattern"].get("String", "")) or 1
            return max(1.0, len(component["content"]) / shortest)
        case "Precompiled":
            content = b64decode(component["precompiled_charsmap"])
            table_size = int.from_bytes(content[:4], "little")
            return float(max(map(len, content[4 + table_size :].split(b"\0")), default=1) or 1)
    return 1.0


def added_entries(pipeline: Pipeline, *, special: bool) -> Iterator[AddedEntry]:
    """The added tokens that are special, or those that are not."""
    for entry in pipeline.get("added_tokens") or []:
        if bool(entry["special"]) == special:
            yield entry


def entries_of(pipeline: Pipeline) -> dict[str, int]:
    """The id of each entry, added ones included."""
    match pipeline["model"]["vocab"]:
        case dict() as vocabulary:
            pass
        case entries:
            vocabulary = {text: i for i, (text, _) in enumerate(entries)}
    added = pipeline.get("added_tokens") or []
    return {**vocabulary, **{entry["content"]: entry["id"] for entry in added}}
