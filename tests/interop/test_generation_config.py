"""Settings of decoding that a checkpoint comes with: each as `transformers` takes it, or named."""

from __future__ import annotations

from typing import Any

import pytest
from tests.interop.published import hf

from seqloom.config import DecodeConfig
from seqloom.interop.generation_config import (
    DEFAULT_NEW_TOKENS,
    DEFAULT_TOP_K,
    NEUTRAL,
    HubGeneration,
)
from seqloom.interop.written_generation import OWN, WrittenGeneration
from seqloom.protocols import SpecialIds

LENGTH = {"max_new_tokens": 9}


def marks(*bos: int) -> SpecialIds:
    return SpecialIds(
        pad=-1,
        bos=bos,
        eos=1,
        unk=None,
        prefix=(),
        separator=(),
        suffix=(1,),
        mask=None,
        forbidden=(16,),
    )


def read(
    content: dict[str, Any],
    *,
    encodes: bool = True,
    bos: tuple[int, ...] = (2,),
    name: str = "generation_config.json",
    positions: int | None = None,
) -> tuple[DecodeConfig, list[str]]:
    generation = HubGeneration(
        content=content,
        name=name,
        special_ids=marks(*bos),
        encodes=encodes,
        positions=positions,
    )
    return generation.decode_config({"strategy": "sample"})


def test_defaults_are_those_that_transformers_fills_in() -> None:
    theirs = hf.GenerationConfig._get_default_generation_params()
    decode, notes = read({})
    assert (decode.strategy, decode.beam, decode.max_length) == ("beam", 1, theirs["max_length"])
    assert theirs["num_beams"] == 1
    assert not theirs["do_sample"]
    assert notes == [
        (
            "generation_config.json has no max_length: at most 20 new tokens, as in transformers; set"
            " decode.max_length"
        )
    ]
    decode, notes = read({"do_sample": True, **LENGTH})
    assert (decode.strategy, decode.top_k, notes) == ("sample", theirs["top_k"], [])
    assert (theirs["max_length"], theirs["top_k"]) == (DEFAULT_NEW_TOKENS, DEFAULT_TOP_K)
    assert read({"do_sample": True, "top_k": 0, **LENGTH})[0].top_k is None
    decode, _ = read({"num_beams": 4, **LENGTH})
    assert (decode.refill, decode.early_stopping) == (True, "likely")
    assert theirs["early_stopping"] is False
    assert decode.length_penalty == theirs["length_penalty"]
    assert decode.min_length == theirs["min_length"]


@pytest.mark.parametrize(
    ("content", "bos", "longest", "shortest"),
    [
        ({"max_length": 9}, (2,), 8, 0),
        ({"max_length": 9}, (2, 0), 7, 0),
        ({"max_new_tokens": 9}, (2,), 9, 0),
        ({"max_new_tokens": 9, "max_length": 30}, (2, 0), 8, 0),
        ({}, (2, 0), 19, 0),
        ({"max_length": 9, "min_length": 5}, (2, 0), 7, 3),
        ({"max_length": 9, "min_length": 1}, (2, 0), 7, 0),
        ({"max_length": 9, "min_new_tokens": 4, "min_length": 9}, (2, 0), 7, 3),
        ({"max_length": 9, "min_length": 40}, (2,), 8, 8),
    ],
)
def test_lengths_of_an_encoder_decoder_count_what_it_begins_with(
    content: dict[str, Any], bos: tuple[int, ...], longest: int, shortest: int
) -> None:
    decode, _ = read(content, bos=bos)
    assert (decode.max_length, decode.min_length) == (longest, shortest)


def test_the_default_length_is_bounded_by_the_positions() -> None:
    assert read({}, positions=12)[0].max_length == 11
    assert read({}, positions=1024)[0].max_length == 20


def test_lengths_of_a_language_model_are_of_new_tokens_or_named() -> None:
    decode, notes = read({"max_new_tokens": 9, "min_new_tokens": 4}, encodes=False)
    assert (decode.max_length, decode.min_length, notes) == (9, 4, [])
    decode, notes = read({"max_length": 9, "min_length": 4}, encodes=False)
    assert (decode.max_length, decode.min_length) == (9, 0)
    assert ["max_length=9" in notes[0], "min_length=4" in notes[1]] == [True, True]


@pytest.mark.parametrize(
    ("content", "encodes", "names"),
    [
        ({"bad_words_ids": [[16]], "suppress_tokens": [3], "typical_p": 1.0}, True, ["suppress"]),
        ({"bad_words_ids": [[17]], "suppress_tokens": [16]}, True, ["bad_words_ids"]),
        ({"bad_words_ids": 5}, True, ["bad_words_ids"]),
        ({"sequence_bias": True}, True, ["sequence_bias=True"]),
        ({"early_stopping": "soon", "num_beams": 4}, True, ["early_stopping"]),
        ({"early_stopping": True, "num_beams": 4}, True, []),
        ({"early_stopping": True, "num_beams": 1}, True, []),
        ({"forced_eos_token_id": 1}, True, []),
        ({"forced_eos_token_id": [1]}, False, []),
        ({"forced_eos_token_id": 0}, True, ["forced_eos_token_id=0"]),
        ({"forced_bos_token_id": 0}, False, ["forced_bos_token_id"]),
        ({"stop_strings": ["."]}, False, ["stop_strings"]),
        ({"min_new_tokens": None, "stop_strings": None, "eos_token_id": [1]}, False, []),
        ({"eos_token_id": [1, 7, 8]}, False, ["eos_token_id after the first, [7, 8]"]),
        ({"num_beams": 4, "num_beam_groups": "2"}, True, ["num_beam_groups"]),
        ({"num_beams": 2, "num_return_sequences": 3}, True, ["num_return_sequences"]),
        ({"do_sample": True, "num_beams": 3}, True, ["num_beams=3"]),
        ({"repetition_penalty": 1.2}, True, ["repetition_penalty"]),
        ({"repetition_penalty": 0.8}, True, ["repetition_penalty", "repetition_penalty"]),
        ({"no_repeat_ngram_size": 1}, True, ["no_repeat_ngram_size=1"]),
        ({"no_repeat_ngram_size": 2}, True, []),
        ({"length_penalty": -1.0}, True, ["length_penalty"]),
        ({"temperature": "hot"}, True, ["temperature"]),
        ({"max_length": 1}, True, ["max_length=1"]),
        ({"max_length": "9"}, True, ["max_length"]),
        ({"renormalize_logits": True}, True, ["renormalize_logits=True"]),
        ({"renormalize_logits": False, "guidance_scale": 1}, True, []),
        ({"guidance_scale": 2.5}, True, ["guidance_scale=2.5"]),
        ({"my_own_setting": 0}, True, ["my_own_setting=0"]),
        ({"use_cache": False, "output_scores": True}, True, []),
    ],
)
def test_what_is_not_kept_is_named(
    content: dict[str, Any], encodes: bool, names: list[str]
) -> None:
    length = {} if "max_length" in content else LENGTH
    _, notes = read(content | length, encodes=encodes)
    assert len(notes) == len(names), notes
    assert all(name in note for name, note in zip(names, notes, strict=True)), notes


@pytest.mark.parametrize("key", NEUTRAL)
def test_every_setting_that_is_not_kept_is_named_when_it_says_something(key: str) -> None:
    for value in NEUTRAL[key]:
        assert read({key: value, **LENGTH})[1] == []
    (note,) = read({key: 0.375, **LENGTH})[1]
    assert f"{key}=0.375, which is not known here" in note


def test_however_many_unknown_keys_there_are_is_one_line() -> None:
    (note,) = read({**{f"key {number}": 1 for number in range(20_000)}, **LENGTH})[1]
    assert note.startswith("not kept of generation_config.json: key 0=1, key 1=1")
    assert note.endswith("and 19992 more, which is not known here")


def test_a_forced_begin_that_is_the_end_is_named() -> None:
    (note,) = read(LENGTH, bos=(2, 1))[1]
    assert note.startswith("forced_bos_token_id is the id that ends a text")


def test_of_config_json_only_settings_of_decoding_are_named() -> None:
    decode, notes = read(
        {"vocab_size": 7, "summary_type": "x", "num_beams": 3, "typical_p": 0.5, **LENGTH},
        name="config.json",
    )
    assert decode.beam == 3
    assert notes == ["not kept of config.json: typical_p=0.5, which is not known here"]


@pytest.mark.parametrize("early", ["never", "likely", "full"])
@pytest.mark.parametrize("bos", [(2,), (2, 0)])
def test_settings_survive_the_way_through_their_file(early: Any, bos: tuple[int, ...]) -> None:
    before = DecodeConfig(
        refill=True, early_stopping=early, beam=4, max_length=7, min_length=2, no_repeat_ngram=3
    )
    written = WrittenGeneration(
        decode=before,
        special_ids=marks(*bos),
        pad=0,
        encodes=True,
        positions=None,
        layers=(),
        renormalised=False,
        may_be_unknown=False,
    )
    content = {key: one for key, one in written.content().items() if key != OWN}
    assert read(content, bos=bos)[0] == before
