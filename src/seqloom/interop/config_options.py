"""The keys of a `config.json` and the fields of our configurations, by one table for both directions.

Each `Option` is a key. Whatever changes the mathematics is in the table: as a field of ours, or as the one
value that our model computes. Keys that change nothing stand in a list with the reason; any other key is
named in a notice.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, final

from seqloom.errors import FolderError, UsageError, listed, printable, shown
from seqloom.json_values import JsonObject, as_text

Fields = dict[str, object]
"""Of one of our configurations, by name."""

WITHOUT_EFFECT: Mapping[str, Collection[str]] = {
    "it says where the file comes from": (
        "_name_or_path",
        "_commit_hash",
        "finetuning_task",
        "name_or_path",
        "transformers_version",
    ),
    "code is never loaded": ("auto_map", "custom_pipelines"),
    "it says how training begins": (
        "init_std",
        "initializer_factor",
        "initializer_range",
    ),
    "it says what the methods of transformers return": (
        "output_attentions",
        "output_hidden_states",
        "output_past",
        "return_dict",
        "tie_last_hidden_states",
        "torchscript",
        "use_return_dict",
    ),
    "it changes the speed and the memory alone": (
        "_attn_implementation",
        "_attn_implementation_autoset",
        "attn_implementation",
        "chunk_size_feed_forward",
        "gradient_checkpointing",
        "reorder_and_upcast_attn",
        "use_bfloat16",
        "use_cache",
    ),
    "pipelines of transformers read it, its models do not": ("prefix", "task_specific_params"),
    "no model of transformers 5 reads it": (
        "_num_labels",
        "add_bias_logits",
        "add_final_layer_norm",
        "classif_dropout",
        "cross_attention_hidden_size",
        "directionality",
        "do_blenderbot_90_layernorm",
        "extra_pos_embeddings",
        "n_ctx",
        "n_special",
        "normalize_before",
        "normalize_embedding",
        "pooler_fc_size",
        "pooler_num_attention_heads",
        "pooler_num_fc_layers",
        "pooler_size_per_head",
        "pooler_type",
        "predict_special_tokens",
        "pruned_heads",
        "save_step",
        "static_position_embeddings",
        "tie_encoder_decoder",
    ),
}
"""Reason -> keys of every family that change nothing in what a checkpoint computes."""
READ_ELSEWHERE = (
    "architectures",
    "dtype",
    "id2label",
    "label2id",
    "model_type",
    "num_labels",
    "problem_type",
    "quantization_config",
    "torch_dtype",
)
"""Keys of every family that other modules read, beside those that end in `_token_id`."""
OF_OUR_FIELD = re.compile(r"model\.(\w+)")


class Option(NamedTuple):
    """A key of `config.json`."""

    theirs: str
    ours: str | None
    """Our field; None if our model computes only one value, the default."""
    default: object
    """What `transformers` takes where the key is missing."""
    values: Mapping[str, str] | None = None
    """Their values -> ours; of several that mean the same the first is written. None: taken as they are."""


@final
@dataclass(frozen=True, kw_only=True)
class Options:
    """All of a family."""

    table: Sequence[Option]
    training_only: Sequence[Option] = ()
    """Keys that change only training, and that our model has not got: a notice where they are not the
    default."""
    fixed: JsonObject = field(default_factory=dict)
    """Fields of ours that have one value in every checkpoint of this family."""
    defaults: JsonObject = field(default_factory=dict)
    """Fields of ours that change nothing in what a checkpoint holds, and their values when one is read."""
    aliases: Mapping[str, str] = field(default_factory=dict)
    """Other names of keys (`attribute_map` of the classes of `transformers`), which override."""
    adjusted: Mapping[str, str] = field(default_factory=dict)
    """Keys that no table can translate -> the field of ours that they decide."""
    without_effect: Collection[str] = ()
    """Keys of this family alone that no architecture which opens here reads."""

    def value(self, content: JsonObject, option: Option) -> object:
        """What a config.json says, by any name of the key."""
        for alias, key in self.aliases.items():
            if key == option.theirs and alias in content:
                return content[alias]
        return content.get(option.theirs, option.default)

    def read(self, content: JsonObject, where: object, hub_type: str) -> Fields:
        """The fields of our configuration. Raises FolderError that names an option or a value which is not
        known here."""
        fields: Fields = {**self.fixed, **self.defaults}
        for option in self.table:
            value = self.value(content, option)
            if option.values is not None:
                text = as_text(value)
                if text is None or text not in option.values:
                    raise _unknown(option, value, where, hub_type)
                value = option.values[text]
            elif option.ours is None and value != option.default:
                raise _unknown(option, value, where, hub_type)
            if option.ours is not None:
                fields[option.ours] = value
        return fields

    def known(self) -> set[str]:
        """The keys whose meaning is known here."""
        keys = {option.theirs for option in (*self.table, *self.training_only)}
        keys.update(READ_ELSEWHERE, self.aliases, self.adjusted, self.without_effect)
        return keys.union(*WITHOUT_EFFECT.values())

    def notes(self, content: JsonObject, also_known: Collection[str] = ()) -> list[str]:
        """Notices about keys that change only training, and about keys that are not known."""
        notes = []
        for option in self.training_only:
            value = content.get(option.theirs, option.default)
            if value != option.default:
                said = shown(f"{option.theirs}={value}")
                notes.append(f"{said} changes training only, and there is none here")
        known = self.known().union(also_known)
        unknown = [
            shown(key) for key in content if key not in known and not key.endswith("_token_id")
        ]
        if unknown:
            notes.append(f"not read of config.json, as not known here: {listed(unknown)}")
        return notes

    def in_their_words(self, message: str) -> str:
        """A message about fields of ours, with the keys of config.json that decide them."""
        keys = {field: key for key, field in self.adjusted.items()}
        keys |= {option.ours: option.theirs for option in self.table if option.ours}
        return OF_OUR_FIELD.sub(lambda match: keys.get(match[1], match[0]), message)

    def write(self, fields: JsonObject, hub_type: str) -> Fields:
        """The inverse: keys of `config.json`. Raises UsageError that names a field whose value this family
        has not got."""
        for name, value in self.fixed.items():
            if fields[name] != value:
                raise UsageError(
                    f"a {hub_type} has model.{name}={printable(str(value))}, but this model has"
                    f" {printable(str(fields[name]))}: it cannot be written as one"
                )
        return {option.theirs: _written(option, fields, hub_type) for option in self.table}


def _written(option: Option, fields: JsonObject, hub_type: str) -> object:
    if option.ours is None:
        return option.default
    value = fields[option.ours]
    if option.values is None:
        return value
    for theirs, ours in option.values.items():
        if ours == value:
            return theirs
    raise UsageError(
        f"a {hub_type} cannot have model.{option.ours}={printable(str(value))}, as this model has"
    )


def _unknown(option: Option, value: object, where: object, hub_type: str) -> FolderError:
    known = [option.default] if option.values is None else option.values
    return FolderError(
        f"{hub_type}'s {option.theirs}={shown(value)} is not known here, only "
        f"{', '.join(printable(str(value)) for value in known)}",
        where,
    )
