"""New models: a family, one of its sizes and what a user sets become a configuration, and that a model."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from torch import nn

from seqloom.errors import UsageError
from seqloom.json_values import JsonObject
from seqloom.models import model_family
from seqloom.protocols import ModelConfig
from seqloom.run_file import parse

FROM_DATA = {"labels", "alphabet"}
FROM_TOKENIZER = {"vocabulary_size", "pad_id", "bos_id", "eos_id", "unk_id", "suppressed_ids"}
"""Fields of a model's configuration that nobody sets."""
READS_AHEAD = "a layer that reads backwards would read the tokens that are to be predicted"
REFUSED_FIELDS = {name: {"bidirectional": READS_AHEAD} for name in ("recurrent_lm", "gpt", "ngram")}
"""Family -> fields that other families have, and why it has none."""


def build_model(
    model_type: str,
    size: str,
    vocabulary_size: int,
    fields: JsonObject,
    *,
    suppressed_ids: tuple[int, ...] = (),
) -> tuple[nn.Module, ModelConfig]:
    """A new model and its configuration. Raises UsageError for an unknown family, size or field."""
    config = model_config(model_type, size, vocabulary_size, fields, suppressed_ids=suppressed_ids)
    model: nn.Module = model_family(model_type)[1](config)
    return model, config


def model_config(
    model_type: str,
    size: str,
    vocabulary_size: int,
    fields: JsonObject,
    labels: tuple[str, ...] = (),
    *,
    suppressed_ids: tuple[int, ...] = (),
) -> ModelConfig:
    """The configuration of a named size, changed by `fields`; of what comes from the tokenizer and the data
    it takes what the family has. Raises UsageError that names all that is wrong."""
    config_class = model_family(model_type)[0]
    of_size = size_fields(model_type, size)
    refuse_given_fields(fields)
    for name, reason in REFUSED_FIELDS.get(model_type, {}).items():
        if fields.get(name):
            raise UsageError(f"model.{name} is not for {model_type}: {reason}; leave it out")
    found = {
        "vocabulary_size": vocabulary_size,
        "labels": labels,
        "suppressed_ids": suppressed_ids,
    }
    known = {field.name for field in dataclasses.fields(config_class)}
    return parse(
        config_class,
        {**{key: v for key, v in found.items() if key in known}, **of_size, **fields},
        prefix="model.",
    )


def size_fields(model_type: str, size: str) -> Mapping[str, object]:
    """What a named size sets. Raises UsageError for an unknown one."""
    sizes = model_family(model_type)[2]
    if size not in sizes:
        raise UsageError(
            f"the size of {model_type} must be one of {', '.join(sizes)}, but is {size!r}"
        )
    return sizes[size]


def refuse_given_fields(fields: JsonObject) -> None:
    """Raises UsageError if a user sets what the tokenizer or the data say."""
    for source, names in (("tokenizer", FROM_TOKENIZER), ("data", FROM_DATA)):
        if given := sorted(fields.keys() & names):
            raise UsageError(
                f"model.{given[0]} comes from the {source} and cannot be set; leave it out"
            )
