"""How a checkpoint of the hub decodes by default: `generation_config.json` <-> our settings.

A setting is what `generate` of `transformers` makes of it, with the defaults that it fills in; what is not
kept, or means another thing here, is named in a notice. Keys that change no text stand in a list with the
reason.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import final

from seqloom.config import DecodeConfig
from seqloom.errors import UsageError, listed, shown
from seqloom.interop.config_options import Fields
from seqloom.json_values import JsonObject, as_list
from seqloom.protocols import SpecialIds
from seqloom.run_file import parse

SAME = ("temperature", "top_p", "min_p", "length_penalty", "repetition_penalty")
"""Keys of the same name here. Only the repetition penalty has another meaning; a notice says so."""
THEIRS = {
    "beam": "num_beams",
    "diversity": "diversity_penalty",
    "forced_end": "forced_eos_token_id",
    "groups": "num_beam_groups",
    "max_length": "max_length or max_new_tokens",
    "min_length": "min_length or min_new_tokens",
    "n_best": "num_return_sequences",
    "no_repeat_ngram": "no_repeat_ngram_size",
    "strategy": "do_sample",
}
"""Our fields -> keys of other names, for messages."""
READ = (
    *SAME,
    "bad_words_ids",
    "begin_suppress_tokens",
    "bos_token_id",
    "decoder_start_token_id",
    "diversity_penalty",
    "do_sample",
    "early_stopping",
    "eos_token_id",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "max_length",
    "max_new_tokens",
    "min_length",
    "min_new_tokens",
    "no_repeat_ngram_size",
    "num_beam_groups",
    "num_beams",
    "num_return_sequences",
    "pad_token_id",
    "suppress_tokens",
    "top_k",
)
WITHOUT_EFFECT: Mapping[str, Collection[str]] = {
    "it says where the file comes from": (
        "_commit_hash",
        "_from_model_config",
        "transformers_version",
    ),
    "it says what generate returns beside the text": (
        "output_attentions",
        "output_hidden_states",
        "output_logits",
        "output_scores",
        "return_dict_in_generate",
    ),
    "it changes the speed and the memory alone": (
        "compile_config",
        "disable_compile",
        "max_cache_len",
        "prefill_chunk_size",
        "use_cache",
    ),
    "it changes numbers that are not finite alone": ("remove_invalid_values",),
    "a second model reads it, and a checkpoint has none": (
        "assistant_confidence_threshold",
        "assistant_ensemble_weight",
        "assistant_lookbehind",
        "max_matching_ngram_size",
        "num_assistant_tokens",
        "num_assistant_tokens_schedule",
        "target_lookbehind",
    ),
}
"""Reason -> keys that change no text."""
NEUTRAL: Mapping[str, Collection[object]] = {
    "assistant_early_exit": (),
    "cache_config": (),
    "cache_implementation": ("dynamic", "static", "offloaded", "offloaded_static", "hybrid"),
    "constraints": (),
    "continuous_batching_config": (),
    "dola_layers": (),
    "encoder_no_repeat_ngram_size": (0,),
    "encoder_repetition_penalty": (1,),
    "epsilon_cutoff": (0,),
    "eta_cutoff": (0,),
    "exponential_decay_length_penalty": (),
    "force_words_ids": (),
    "guidance_scale": (1,),
    "is_assistant": (False,),
    "low_memory": (False,),
    "max_time": (),
    "penalty_alpha": (0,),
    "prompt_lookup_num_tokens": (),
    "renormalize_logits": (False,),
    "sequence_bias": (),
    "speculation_type": (),
    "stop_strings": (),
    "token_healing": (False,),
    "top_h": (),
    "typical_p": (1,),
    "use_mtp": (False,),
    "watermarking_config": (),
}
"""Keys that are not kept -> the values with which they change nothing, beside null and an empty list."""
GENERATION_KEYS = frozenset(READ).union(NEUTRAL, *WITHOUT_EFFECT.values())
DEFAULT_NEW_TOKENS = 20
DEFAULT_TOP_K = 50
"""The defaults of `transformers`."""
EARLY_STOPPING: Mapping[object, str] = {"never": "never", False: "likely", True: "full"}
"""Theirs -> ours."""


@final
@dataclass(frozen=True, kw_only=True)
class HubGeneration:
    """What a checkpoint says about decoding."""

    content: JsonObject
    """generation_config.json, or config.json where there is no such file."""
    name: str
    """Of that file."""
    special_ids: SpecialIds
    encodes: bool
    """Whether it is an encoder-decoder, whose lengths count the ids that its output begins with; those of a
    language model count the prompt."""
    positions: int | None = None
    """max_position_embeddings of an encoder-decoder, which bounds the default length."""
    notes: list[str] = field(default_factory=list)

    def decode_config(self, usual: JsonObject) -> tuple[DecodeConfig, list[str]]:
        """Our settings, where `usual` are those of the task; and notices about what is not kept."""
        self.notes.clear()
        settings = self._valid({**usual, "refill": True})
        self._note_ids()
        self._note_unknown()
        return parse(DecodeConfig, settings, "decode."), list(self.notes)

    def _valid(self, usual: Fields) -> Fields:
        settings = usual
        for name, value in self._fields():
            # a beam must be a multiple of its groups, which are checked with all settings below
            wide_beam = {"beam": 1000} if name == "groups" else {}
            try:
                parse(DecodeConfig, settings | {name: value} | wide_beam, "decode.")
            except UsageError as error:
                self._not_kept(f"{THEIRS.get(name, name)}, as {error}")
                continue
            settings = settings | {name: value}
        try:
            parse(DecodeConfig, settings, "decode.")
        except UsageError as error:
            self.notes.append(f"{self.name} is not kept: {error}")
            return usual
        return settings

    def _fields(self) -> Iterator[tuple[str, object]]:
        """Our fields in an order in which each can be checked with those before."""
        given = self._given()
        samples, beams = given.get("do_sample") is True, given.get("num_beams", 1)
        yield "strategy", "sample" if samples else "beam"
        yield "beam", 1 if samples else beams
        if samples and beams != 1:
            self._not_kept(f"num_beams={shown(beams)}, as samples are drawn one by one here")
        if samples:
            yield "top_k", given.get("top_k", DEFAULT_TOP_K) or None
        elif beams != 1:
            yield "early_stopping", self._early_stopping(given.get("early_stopping", False))
        yield from self._lengths(given)
        for name in SAME:
            if name in given:
                yield name, given[name]
        if given.get("repetition_penalty", 1) != 1:
            self.notes.append(
                f"repetition_penalty of {self.name} works on log-probabilities here, and not on the end mark:"
                " texts may differ from those of transformers"
            )
        if given.get("no_repeat_ngram_size"):
            yield "no_repeat_ngram", given["no_repeat_ngram_size"]
        if given.get("no_repeat_ngram_size") == 1:
            self.notes.append(f"no_repeat_ngram_size=1 of {self.name} spares the end mark here")
        if given.get("num_beam_groups", 1) != 1:
            yield "diversity", given.get("diversity_penalty", 0.0)
            yield "groups", given["num_beam_groups"]
        if given.get("num_return_sequences", 1) != 1:
            yield "n_best", given["num_return_sequences"]
        if "forced_eos_token_id" in given:
            yield from self._forced_end(given["forced_eos_token_id"])

    def _given(self) -> Fields:
        return {
            key: value
            for key, value in self.content.items()
            if key in GENERATION_KEYS and value is not None
        }

    def _early_stopping(self, value: object) -> object:
        # 1 and 0 would count as true and false
        return EARLY_STOPPING.get(value, value) if type(value) in (bool, str) else value

    def _lengths(self, given: Fields) -> Iterator[tuple[str, object]]:
        """The longest and the shortest output in new ids."""
        # a forced begin counts as new there, and belongs to the beginning here
        forced = max(0, len(self.special_ids.bos) - 1) if self.encodes else 0
        before = 1 + forced if self.encodes else 0
        longest, key = given.get("max_new_tokens"), "max_new_tokens"
        less = forced
        if longest is None and "max_length" in given:
            longest, key, less = given["max_length"], "max_length", before
            if not self.encodes:
                self.notes.append(
                    f"max_length={shown(longest)} of {self.name} counts the prompt in transformers, but here"
                    " new tokens alone; set decode.max_length"
                )
        elif longest is None:
            longest = DEFAULT_NEW_TOKENS
            if self.positions is not None:
                longest = min(longest, self.positions - 1)
            self.notes.append(
                f"{self.name} has no max_length: at most {longest} new tokens, as in transformers; set"
                " decode.max_length"
            )
        if type(longest) is int and longest - less < 1:
            self._not_kept(f"{key}={longest}, which leaves no token to write")
            longest = less + 1
        longest = longest - less if type(longest) is int else longest
        yield "max_length", longest
        yield from self._shortest(given, longest, forced, before)

    def _shortest(
        self, given: Fields, longest: object, forced: int, before: int
    ) -> Iterator[tuple[str, object]]:
        shortest, less = given.get("min_new_tokens"), forced
        if shortest is None and "min_length" in given:
            shortest, less = given["min_length"], before
            if not self.encodes and shortest:
                self._not_kept(
                    f"min_length={shown(shortest)}, which counts the prompt; set decode.min_length, which"
                    " does not"
                )
                return
        if type(shortest) is int and type(longest) is int:
            yield "min_length", min(max(0, shortest - less), longest)
        elif shortest is not None:
            yield "min_length", shortest

    def _forced_end(self, forced: object) -> Iterator[tuple[str, object]]:
        eos = self.special_ids.eos
        if eos is not None and forced in (eos, [eos]):
            yield "forced_end", True
        else:
            self._not_kept(
                f"forced_eos_token_id={shown(forced)}, as it is not the id that ends a text"
            )

    def _note_ids(self) -> None:
        """Notices about ids that are not as in `transformers`. Forbidden ids are never written anyway:
        Marian bans only its `<pad>`."""
        never = [*self.special_ids.forbidden, *([i] for i in self.special_ids.forbidden)]
        for key in ("bad_words_ids", "suppress_tokens", "begin_suppress_tokens"):
            value = self.content.get(key)
            ids = [] if value is None else as_list(value)
            if ids is None or any(token_id not in never for token_id in ids):
                self._not_kept(f"{key}, which is not known here")
        if not self.encodes and self.content.get("forced_bos_token_id") is not None:
            self._not_kept("forced_bos_token_id, which belongs to encoder-decoders here")
        if self.encodes and self.special_ids.eos in self.special_ids.bos[1:]:
            self.notes.append(
                "forced_bos_token_id is the id that ends a text, and would end each at once in transformers;"
                " here it is only its beginning"
            )
        ends = as_list(self.content.get("eos_token_id")) or []
        if len(ends) > 1:
            self._not_kept(f"eos_token_id after the first, {shown(ends[1:])}; one ends a text")

    def _note_unknown(self) -> None:
        """Notices about settings that are not known here and change something."""
        unknown = []
        for key, value in self.content.items():
            if value in (None, []):
                continue
            if key not in GENERATION_KEYS:
                unknown.append(f"{shown(key)}={shown(value)}")
            elif key in NEUTRAL and not any(_same(value, neutral) for neutral in NEUTRAL[key]):
                self._not_kept(f"{key}={shown(value)}, which is not known here")
        # config.json has keys of the model, which are looked at with it
        if unknown and self.name != "config.json":
            self._not_kept(f"{listed(unknown)}, which is not known here")

    def _not_kept(self, what: str) -> None:
        self.notes.append(f"not kept of {self.name}: {what}")


def _same(value: object, other: object) -> bool:
    """Equality in which true is not 1."""
    return value == other and (type(value) is bool) == (type(other) is bool)
