"""The parts of a `tokenizer.json`, as the library `tokenizers` writes them.

The types say what a whole file holds. A damaged one raises KeyError, TypeError and the like where a part is
used, which `read_hub_tokenizer` turns into one line.
"""

from __future__ import annotations

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


def added_entries(pipeline: Pipeline, *, special: bool) -> Iterator[AddedEntry]:
    """The added tokens that are special, or those that are not."""
    for entry in pipeline.get("added_tokens") or []:
        if bool(entry["special"]) == special:
            yield entry


def entries_of(pipeline: Pipeline) -> dict[str, int]:
    """The id of each entry, added ones included."""
    vocabulary = pipeline["model"]["vocab"]
    if not isinstance(vocabulary, dict):
        vocabulary = {text: i for i, (text, _) in enumerate(vocabulary)}
    added = pipeline.get("added_tokens") or []
    return {**vocabulary, **{entry["content"]: entry["id"] for entry in added}}
