"""The `generation_config.json` of an exported model: our settings of decoding in the keys of `generate` of
transformers, and notices about what these keys cannot say.

The file also holds our settings as they are (`OWN`), so that seqloom decodes an export as the model that was
exported. They count as long as no other key was changed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import final

from seqloom.config import DecodeConfig
from seqloom.errors import UsageError
from seqloom.interop.config_options import Fields
from seqloom.interop.generation_config import EARLY_STOPPING
from seqloom.json_values import JsonObject, as_object
from seqloom.protocols import SpecialIds
from seqloom.run_file import parse, to_plain

OWN = "seqloom"
"""Our own key: `decode` has the settings that are not the defaults, `digest` is that of the other keys."""
NOT_OF_THE_SETTINGS = (OWN, "transformers_version", "_from_model_config")
"""Keys that change no text; transformers adds some where it saves a model."""
NEW_TOKENS_OF_A_TEXT = 200
"""What a language model writes at most, where decode.max_length says nothing."""
LONGEST_OUTPUT = 512
"""The same for an encoder-decoder, whose limit here is twice the source and 20 more: enough for 246 ids."""
STRINGS = {"ban": "strings", "begin": "beginnings", "stop": "strings that end a text"}
"""Settings on the text, for which `generate` has no keys that mean the same."""


@final
@dataclass(frozen=True, kw_only=True)
class WrittenGeneration:
    """How an exported model decodes."""

    decode: DecodeConfig
    special_ids: SpecialIds
    pad: int | None
    """The id that transformers fills up shorter outputs with."""
    encodes: bool
    """Whether it is an encoder-decoder."""
    positions: int | None
    """How many positions its decoder has in transformers; None if there is no limit."""
    layers: Sequence[object]
    """Those of its encoder and its decoder, where transformers counts them apart (T5)."""
    renormalised: bool
    """Whether the model gives no probability to the ids that are never written."""
    may_be_unknown: bool
    """Whether the unknown id has some."""

    def content(self) -> Fields:
        """The whole file."""
        keys = {**self.ids(), **self._settings()}
        return {**keys, OWN: {"decode": _changed(self.decode), "digest": _digest(keys)}}

    def ids(self) -> Fields:
        """The special ids, as config.json has them too."""
        first, forced, *_ = (*self.special_ids.bos, None, None)
        ids: dict[str, int | None] = {
            "bos_token_id": first,
            "eos_token_id": self.special_ids.eos,
            "pad_token_id": self.pad,
        }
        if self.encodes:
            ids |= {"decoder_start_token_id": first, "forced_bos_token_id": forced}
        return {key: i for key, i in ids.items() if i is not None}

    def _settings(self) -> Fields:
        decode = self.decode
        # transformers knows no temperature of 0, which is greedy search
        sampled = decode.strategy == "sample" and decode.temperature > 0
        keys: Fields = {
            "do_sample": sampled,
            "num_beams": decode.beam if decode.strategy == "beam" else 1,
            "repetition_penalty": decode.repetition_penalty,
            "no_repeat_ngram_size": decode.no_repeat_ngram or 0,
            **self._lengths(),
        }
        if self.special_ids.forbidden:
            # looked at before a forced beginning, which may be one of them
            keys["bad_words_ids"] = [[i] for i in self.special_ids.forbidden]
        if sampled:
            keys["temperature"] = decode.temperature
            keys["top_k"] = decode.top_k or 0
            keys["top_p"] = decode.top_p
            if decode.min_p:
                keys["min_p"] = decode.min_p
        elif keys["num_beams"] != 1:
            keys["length_penalty"] = decode.length_penalty
            theirs = {ours: theirs for theirs, ours in EARLY_STOPPING.items()}
            keys["early_stopping"] = theirs[decode.early_stopping]
            if self.renormalised:
                keys["renormalize_logits"] = True
        if decode.forced_end:
            keys["forced_eos_token_id"] = self.special_ids.eos
        if decode.n_best > 1:
            keys["num_return_sequences"] = decode.n_best
        if not self._can_be_cached:
            keys["use_cache"] = False
        return keys

    @property
    def _can_be_cached(self) -> bool:
        """Transformers makes the cache of a T5 for as many layers as its encoder has."""
        match self.layers:
            case [int(encoder), int(decoder)]:
                return decoder <= encoder
        return True

    def _lengths(self) -> Fields:
        """Their lengths count a forced beginning as new; ours do not."""
        forced = max(0, len(self.special_ids.bos) - 1) if self.encodes else 0
        wanted = self.decode.max_length
        if wanted is None:
            wanted = LONGEST_OUTPUT if self.encodes else NEW_TOKENS_OF_A_TEXT
        keys: Fields = {}
        if self.positions is None or wanted + forced <= self.positions - (not self.encodes):
            keys["max_new_tokens"] = wanted + forced
        elif self.encodes:
            keys["max_new_tokens"] = self.positions
        else:
            # the last token is not read; a prompt leaves fewer
            keys["max_length"] = self.positions + 1
        if self.decode.min_length:
            keys["min_new_tokens"] = self.decode.min_length + forced
        return keys

    def notices(self) -> list[str]:
        """What transformers does otherwise, one line each."""
        notices = [*self._length_notices(), *self._rule_notices()]
        if not self._can_be_cached:
            notices.append(
                "the decoder has more layers than the encoder, for which transformers has no cache: it writes"
                " slowly (use_cache=false)"
            )
        return notices

    def _length_notices(self) -> Iterator[str]:
        keys = self._lengths()
        name = next(iter(keys))
        limit = f"{name}={keys[name]}"
        if self.decode.max_length is None and self.encodes:
            yield (
                "decode.max_length is not set: an output has at most twice the ids of its source and 20 more"
                f" here, but {limit} in transformers"
            )
        elif self.decode.max_length is not None and name == "max_length":
            yield f"decode.max_length={self.decode.max_length} is {limit} in transformers, the prompt counted"
        if not self.encodes and self.positions is not None:
            yield (
                f"transformers reads at most {self.positions} tokens of prompt and text; seqloom goes on with"
                " the last of them"
            )

    def _rule_notices(self) -> Iterator[str]:
        decode, wide = self.decode, self.decode.strategy == "beam" and self.decode.beam > 1
        if wide and not decode.refill:
            yield (
                "decode.refill=false: transformers gives the place of a hypothesis that ends to the next best"
                " one, so texts of a beam may differ; decode.refill=true does so here too"
            )
        if wide and decode.groups > 1:
            yield f"decode.groups={decode.groups} is not kept: transformers has no groups in its beam search"
        if decode.repetition_penalty > 1:
            yield (
                "decode.repetition_penalty: transformers applies it to logits, and to the end mark too, so"
                " texts may differ"
            )
        if decode.no_repeat_ngram == 1:
            yield "decode.no_repeat_ngram=1: transformers rules out an end mark that was read before"
        for name, what in STRINGS.items():
            if vars(decode)[name]:
                yield f"decode.{name} is not kept: generation_config.json has no {what}"
        for rule in decode.processors:
            yield f"decode.processors {rule} is not kept: it is a rule of a plugin"
        ruled_out = decode.min_length or decode.no_repeat_ngram or self.may_be_unknown
        if wide and self.renormalised and ruled_out:
            yield (
                "in transformers the probability of ids that are ruled out (unknown, repeated, or an end that"
                " comes too early) goes to the others, so texts of a beam may differ"
            )


def own_settings(generation: JsonObject) -> DecodeConfig | None:
    """The settings that seqloom wrote into a generation_config.json; None if it did not, or where the file
    was changed since."""
    own = as_object(generation.get(OWN)) or {}
    settings = as_object(own.get("decode"))
    if settings is None or own.get("digest") != _digest(generation):
        return None
    try:
        return parse(DecodeConfig, settings, "decode.")
    except UsageError:
        return None


def _changed(decode: DecodeConfig) -> Fields:
    defaults = to_plain(DecodeConfig())
    return {name: value for name, value in to_plain(decode).items() if value != defaults[name]}


def _digest(generation: JsonObject) -> str:
    keys = {key: value for key, value in generation.items() if key not in NOT_OF_THE_SETTINGS}
    return hashlib.sha256(json.dumps(keys, sort_keys=True).encode()).hexdigest()[:16]
