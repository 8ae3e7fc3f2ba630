"""Every key of a configuration class of transformers has its meaning here: it is read, it changes nothing for
a reason that stands in a list, or the folder is refused by its name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.interop.published import Asked, ask_ours, hf, saved

from seqloom.errors import FolderError
from seqloom.interop.checkpoint import read_checkpoint
from seqloom.interop.config_options import READ_ELSEWHERE, WITHOUT_EFFECT
from seqloom.interop.families import FAMILIES
from seqloom.interop.families.family import HubFamily
from seqloom.interop.generation_config import GENERATION_KEYS
from seqloom.interop.generation_config import WITHOUT_EFFECT as NO_TEXT

pytestmark = pytest.mark.usefixtures("one_thread")

SPECIMENS = {
    "bert": "bert-mlm",
    "roberta": "roberta-mlm",
    "electra": "electra-generator",
    "openai-gpt": "gpt1",
    "gpt2": "gpt2",
    "t5": "t5",
    "bart": "bart",
    "marian": "marian",
    "vit": "vit",
}
"""Family -> a checkpoint of `published.py`."""
OTHER: dict[str, Any] = {
    "hidden_act": "tanh",
    "activation_function": "tanh",
    "afn": "relu",
    "feed_forward_proj": "gated-silu",
    "dense_act_fn": "tanh",
    "summary_type": "mean",
    "summary_activation": "tanh",
    "problem_type": "regression",
    "pooler_act": "relu",
    "num_labels": 5,
    "id2label": {"0": "a", "1": "b", "2": "c", "3": "d"},
}
"""Values that are not the default, where the type of the default does not suggest one."""


def class_of(hub_type: str) -> Any:
    return hf.CONFIG_MAPPING[hub_type]


def keys_of(hub_type: str) -> list[str]:
    """What transformers writes into a config.json, and other names of it."""
    return sorted({*class_of(hub_type)().to_dict(), *class_of(hub_type).attribute_map})


def other_value(key: str, default: Any) -> Any:
    match default:
        case _ if key in OTHER:
            return OTHER[key]
        case bool():
            return not default
        case int():
            return default + 1
        case float():
            return default + 0.125
        case _:
            return 2


def without_effect(family: HubFamily) -> set[str]:
    return set(family.options.without_effect).union(*WITHOUT_EFFECT.values())


@pytest.mark.parametrize("hub_type", FAMILIES)
def test_names_that_transformers_maps_are_those_of_its_own_table(hub_type: str) -> None:
    assert FAMILIES[hub_type].options.aliases == class_of(hub_type).attribute_map


@pytest.mark.parametrize("hub_type", FAMILIES)
def test_defaults_are_those_of_the_classes(hub_type: str) -> None:
    theirs, options = class_of(hub_type)(), FAMILIES[hub_type].options
    for option in (*options.table, *options.training_only):
        # older versions had the key
        if option.theirs != "position_embedding_type":
            assert getattr(theirs, option.theirs) == option.default, option.theirs


@pytest.mark.parametrize("hub_type", FAMILIES)
def test_every_key_is_read_or_without_effect_or_refused_by_its_name(
    hub_type: str, tmp_path: Path
) -> None:
    saved(SPECIMENS[hub_type], tmp_path)
    path, family = tmp_path / "config.json", FAMILIES[hub_type]
    content = json.loads(path.read_text())
    options = family.options
    read = {*(option.theirs for option in options.table), *options.adjusted, *family.head_keys}
    for alias in keys_of(hub_type):
        key = options.aliases.get(alias, alias)
        if key in READ_ELSEWHERE or key.endswith("_token_id"):
            continue
        value = other_value(key, content.get(key, getattr(class_of(hub_type)(), key, None)))
        path.write_text(json.dumps({**content, alias: value}))
        said = outcome(tmp_path)
        assert key in read or key in without_effect(family) or key in said, (alias, said)


def outcome(folder: Path) -> str:
    """The refusal of a folder, or its notices; that a key is not known is none for a key of transformers."""
    try:
        notes = read_checkpoint(folder).notes
    except FolderError as error:
        return str(error)
    return " ".join(note for note in notes if not note.startswith("not read of config.json"))


@pytest.mark.parametrize("name", SPECIMENS.values())
def test_keys_without_effect_change_no_logits_of_theirs_or_ours(name: str, tmp_path: Path) -> None:
    theirs = saved(name, tmp_path)
    path = tmp_path / "config.json"
    content = json.loads(path.read_text())
    family = FAMILIES[content["model_type"]]
    keys = without_effect(family) & set(keys_of(content["model_type"]))
    # tuples have no logits by name, and 0.1 chunks are none
    keys -= {"return_dict", "use_return_dict", "output_attentions", "chunk_size_feed_forward"}
    defaults = type(theirs.config)().to_dict()
    changed = {key: other_value(key, defaults.get(key)) for key in keys}
    before = read_checkpoint(tmp_path).model
    path.write_text(json.dumps({**content, **changed}))
    after = read_checkpoint(tmp_path).model
    again = type(theirs).from_pretrained(tmp_path).eval()
    for one, two in zip(theirs.state_dict().values(), again.state_dict().values(), strict=True):
        assert torch.equal(one, two)
    with torch.no_grad():
        if name == "vit":
            images = torch.randn(2, 3, 8, 8)
            pairs = [(theirs(images).logits, again(images).logits), (before(images), after(images))]
        else:
            asked = Asked.of("none", name)
            inputs = {"input_ids": asked.ids}
            if family.model_type in ("t5", "transformer"):
                inputs["decoder_input_ids"] = asked.target
            pairs = [
                (theirs(**inputs).logits, again(**inputs).logits),
                (ask_ours(name, before, asked), ask_ours(name, after, asked)),
            ]
    for one, two in pairs:
        assert torch.equal(one, two)


def test_a_key_that_nobody_knows_is_said(tmp_path: Path) -> None:
    saved("gpt2", tmp_path)
    path = tmp_path / "config.json"
    path.write_text(
        json.dumps(json.loads(path.read_text()) | {"rope_theta": 3, "use_cache": False})
    )
    assert read_checkpoint(tmp_path).notes == [
        "not read of config.json, as not known here: rope_theta"
    ]


@pytest.mark.parametrize("hub_type", [name for name in FAMILIES if FAMILIES[name].options.aliases])
def test_a_key_by_its_other_name_is_the_same_key(hub_type: str, tmp_path: Path) -> None:
    """Where both are given, the other name overrides, as in transformers."""
    saved(SPECIMENS[hub_type], tmp_path)
    path = tmp_path / "config.json"
    content = json.loads(path.read_text())
    before = read_checkpoint(tmp_path).config
    for alias, key in FAMILIES[hub_type].options.aliases.items():
        for renamed in (
            {**{one: value for one, value in content.items() if one != key}, alias: content[key]},
            {**content, key: content[key] + 1, alias: content[key]},
        ):
            path.write_text(json.dumps(renamed))
            assert getattr(hf.AutoConfig.from_pretrained(tmp_path), key) == content[key]
            if hub_type == "t5" and alias == "num_hidden_layers":
                # decoder layers follow from num_layers, and from no other name of it
                assert hf.AutoConfig.from_pretrained(tmp_path).num_decoder_layers == 3
            assert read_checkpoint(tmp_path).config == before, alias


def test_decoder_layers_of_a_t5_follow_from_num_layers_alone(tmp_path: Path) -> None:
    saved("t5-v1.1", tmp_path)
    path = tmp_path / "config.json"
    content = json.loads(path.read_text())
    del content["num_decoder_layers"]
    path.write_text(json.dumps({**content, "num_layers": 3, "num_hidden_layers": 2}))
    assert hf.AutoConfig.from_pretrained(tmp_path).num_decoder_layers == 3
    config: Any = read_checkpoint(tmp_path).config
    assert (config.encoder_layers, config.decoder_layers) == (2, 3)


def test_every_key_of_a_generation_config_is_known() -> None:
    theirs = hf.GenerationConfig().to_dict()
    assert {key for key in theirs if not key.startswith("_")} <= GENERATION_KEYS
    assert {key for keys in NO_TEXT.values() for key in keys} <= GENERATION_KEYS
