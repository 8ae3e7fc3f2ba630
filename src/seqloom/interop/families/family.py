"""What a family of the hub is: its options, the names of its tensors, its architectures."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import final

from seqloom.interop.config_options import Fields, Options
from seqloom.interop.families.heads import MAY_BE_NONE, HubHead
from seqloom.interop.generation_config import GENERATION_KEYS
from seqloom.interop.tensor_names import TensorNames, pattern
from seqloom.json_values import JsonObject
from seqloom.protocols import ModelConfig

ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": "gelu-tanh",
    "gelu_pytorch_tanh": "gelu-tanh",
    "gelu_fast": "gelu-tanh",
    "gelu_accurate": "gelu-tanh",
    "gelu_python": "gelu",
    "gelu_python_tanh": "gelu-tanh",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
    "tanh": "tanh",
}
"""The names of `transformers` -> ours."""
SUPPRESSED, DOCUMENTS = "suppressed_ids", "documents"
OWN_KEYS: JsonObject = {SUPPRESSED: (), DOCUMENTS: "joined"}
"""Our fields that are keys of our own in config.json -> what models of transformers have: no mask for ids
that can never be a target (`export.py`), and no end of what a causal model reads where a document begins."""


@final
@dataclass(frozen=True, kw_only=True)
class Architecture:
    """What a checkpoint of this name is for."""

    task: str
    fields: JsonObject = field(default_factory=dict)
    """Fields of our configuration that it sets."""
    bare: bool = False
    """Whether its names have no prefix."""
    head: HubHead | None = None
    """What it puts on its encoder, where ours is an encoder with a task head."""


AdjustFields = Callable[[JsonObject, Fields, Collection[str]], Fields]
"""(content of config.json, fields, names of the tensors) -> fields."""


@final
@dataclass(frozen=True, kw_only=True)
class HubFamily:
    """One `model_type` of the hub."""

    model_type: str
    """Ours."""
    options: Options
    names: TensorNames
    architectures: Mapping[str, Architecture]
    """By the name that `config.json` has; the first is taken where it has none."""
    adjust_fields: AdjustFields | None = None
    """What no table says, when a checkpoint is read."""
    extra_keys: Callable[[ModelConfig], Fields] | None = None
    """What no table says, when one is written: our configuration -> keys of config.json."""
    encoder_fields: JsonObject = field(default_factory=dict)
    """Fields of our configuration where its model is the encoder below a task head."""
    dropped_by_encoder: Mapping[str, str] = field(default_factory=dict)
    """Patterns of names -> the part that such an encoder does not have."""

    def names_of(self, architecture: Architecture) -> TensorNames:
        """The names of an architecture's tensors; ours begin with `encoder.` below a task head."""
        if architecture.head is None:
            return self.names
        rules = [rule._replace(ours=f"encoder.{rule.ours}") for rule in self.names.rules]
        return replace(self.names_of_encoder, rules=(*rules, *architecture.head.rules()))

    @property
    def names_of_encoder(self) -> TensorNames:
        """The names of the tensors of its encoder, whatever else a file holds."""
        parts = {**self.names.unused, **self.dropped_by_encoder}
        whole_heads = [form for form in parts if "{rest}" in form]
        unused = {form: parts[form] for form in [*whole_heads, *parts]}
        tied = dict(self.names.tied)
        for copy in self.names.tied:
            if any(pattern(form).fullmatch(copy) for form in unused):
                del tied[copy]
        return replace(self.names, unused=unused, tied=tied)

    def notes(self, content: JsonObject) -> list[str]:
        """Notices about keys of config.json that are not read, or change only training."""
        known = {MAY_BE_NONE, *OWN_KEYS, *GENERATION_KEYS, *self.head_keys}
        return self.options.notes(content, known)

    @property
    def head_keys(self) -> set[str]:
        """Keys of config.json that only a head reads."""
        keys = set[str]()
        for architecture in self.architectures.values():
            if architecture.head is not None:
                keys.update(architecture.head.dropout)
                keys.update(option.theirs for option in architecture.head.fixed)
        return keys

    def config_content(self, fields: JsonObject, config: object, hub_type: str) -> Fields:
        """The keys of config.json of a model of ours. Raises UsageError if the family has not got it."""
        extra = {} if self.extra_keys is None else self.extra_keys(config)
        own = {
            key: fields[key] for key in OWN_KEYS if fields.get(key, OWN_KEYS[key]) != OWN_KEYS[key]
        }
        return self.options.write(fields, hub_type) | extra | own
