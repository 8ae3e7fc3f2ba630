"""Where a text may be cut without any change to the ids of a `tokenizer.json`."""

from __future__ import annotations

from itertools import chain

from seqloom.text.hub.pipeline import Component, Pipeline, added_entries
from seqloom.text.segment_encoder import ALL_CUTS, Cuts, with_added

LOCAL_NORMALIZERS = {"NFC", "NFD", "Lowercase"}
"""They change no white space, and compose nothing with it."""
BLANKS = Cuts.SPACES | Cuts.LINES


def cuts_of(pipeline: Pipeline) -> Cuts:
    """None for what is not known here: then texts are tokenised whole."""
    words = _steps(pipeline.get("pre_tokenizer"))
    cuts = _between_words(words, {step["type"] for step in _steps(pipeline.get("normalizer"))})
    added = [*added_entries(pipeline, special=True), *added_entries(pipeline, special=False)]
    if any(entry["rstrip"] or entry["single_word"] for entry in added):
        return Cuts.NONE
    return with_added(cuts, [entry["content"] for entry in added if not entry["special"]])


def _between_words(words: list[Component], normalizers: set[str]) -> Cuts:
    kinds = [step["type"] for step in words]
    if kinds == ["WhitespaceSplit", "Metaspace"] and normalizers <= {"Precompiled"}:
        # a table of sentencepiece may change characters that are not ASCII together with those around them
        always = words[1].get("prepend_scheme") == "always" and words[1].get("split", True)
        return Cuts.SPACES | Cuts.ASCII if always else Cuts.NONE
    if kinds == ["BertPreTokenizer"] and normalizers <= LOCAL_NORMALIZERS | {"BertNormalizer"}:
        return ALL_CUTS
    if not normalizers <= LOCAL_NORMALIZERS:
        return Cuts.NONE
    match kinds:
        case ["Whitespace"]:
            return ALL_CUTS
        case ["WhitespaceSplit"]:
            return BLANKS
        case ["ByteLevel"] | ["Digits", "ByteLevel"] if words[-1].get("use_regex", True):
            # a space is put before a text that begins with none
            if words[-1].get("add_prefix_space", True):
                return Cuts.SPACES
            return ALL_CUTS if len(words) == 1 else BLANKS
    return Cuts.NONE


def _steps(component: Component | None) -> list[Component]:
    """The components of a Sequence, and of those in it."""
    if component is None:
        return []
    if component["type"] != "Sequence":
        return [component]
    parts = component.get("normalizers") or component.get("pretokenizers") or []
    return [*chain.from_iterable(map(_steps, parts))]
