"""A model of ours as a checkpoint of the hub: `config.json` and the weights, by the tables that read them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields as fields_of
from pathlib import Path
from typing import Any, NamedTuple, final

from torch import Tensor, nn

from seqloom import files
from seqloom.errors import UsageError, printable
from seqloom.interop.checkpoint import CONFIG
from seqloom.interop.families import FAMILIES, Architecture, Family
from seqloom.interop.tensor_mapping import first_names
from seqloom.interop.weights import write_weights
from seqloom.models import model_family
from seqloom.models.encoder_with_head import EncoderWithHeadConfig, resolved_head
from seqloom.run_file import parse

DROPPED = {"torch_dtype", "auto_map", "quantization_config", "_name_or_path", "num_labels"}
"""Keys of a config.json that came with a model and are not true of what is written: code, a place, a form of
other weights, a number of other labels."""
TRANSFORMERS = "5.0.0"
"""The version whose names of keys are written."""


@final
class Target(NamedTuple):
    """What a model is written as."""

    hub_type: str
    architecture: str
    family: Family
    form: Architecture
    content: dict[str, Any]
    """Of config.json, as far as the model says it."""


USUAL: dict[str, Callable[[Any], int]] = {
    "feed_forward_width": lambda config: 4 * config.width,
    "decoder_feed_forward_width": lambda config: config.feed_forward_width or 4 * config.width,
    "decoder_heads": lambda config: config.heads,
    "head_width": lambda config: config.width // config.heads,
}
"""What None stands for in our configurations; theirs say the number."""


def target_of(model_type: str, config: Any, task: str, origin: Mapping[str, Any] | None = None) -> Target:
    """The family and architecture that a model is; `origin`, the config.json that it came with, decides where
    several would do.

    Raises UsageError where there is none, naming the field that no family of the hub has.
    """
    if isinstance(config, EncoderWithHeadConfig):
        return _target_of_reader(config, origin)
    values = _values(config, origin)
    problems = []
    for hub_type, family in FAMILIES.items():
        if family.model_type != model_type or (origin and origin.get("model_type") != hub_type):
            continue
        try:
            content = family.options.write(values, hub_type) | (family.back(config) if family.back else {})
            name = _architecture(family, values, task, (origin or {}).get("architectures"))
            return Target(hub_type, name, family, family.architectures[name], content)
        except UsageError as error:
            problems.append(str(error))
    if not problems:
        known = sorted({family.model_type for family in FAMILIES.values()})
        raise UsageError(
            f"models of the hub's families can be written so ({', '.join(known)}), but this is a {model_type}"
        )
    raise UsageError("; ".join(dict.fromkeys(problems)))


def _values(config: Any, origin: Mapping[str, Any] | None) -> dict[str, Any]:
    """The fields of a configuration."""
    values = {one.name: getattr(config, one.name) for one in fields_of(config)}
    if origin is None:  # what came open goes back open
        values |= {name: usual(config) for name, usual in USUAL.items() if values.get(name, 0) is None}
    return values


def _target_of_reader(reader: EncoderWithHeadConfig, origin: Mapping[str, Any] | None) -> Target:
    """`target_of` for an encoder with a head."""
    fields = dict(reader.encoder)
    model_type = str(fields.pop("model_type"))
    config = parse(model_family(model_type)[0], fields, "model.encoder.")
    head = resolved_head(reader.head, reader.kind, config.traits)
    problems = []
    for hub_type, family in FAMILIES.items():
        if family.model_type != model_type or (origin and origin.get("model_type") != hub_type):
            continue
        try:
            content = family.options.write(_values(config, origin), hub_type) | (
                family.back(config) if family.back else {}
            )
            for name, form in family.architectures.items():
                if form.head is not None and reader.kind in form.head.kinds:
                    return Target(
                        hub_type, name, family, form, content | form.head.write(reader, head, config)
                    )
            problems.append(
                f"no architecture of a {hub_type} has a head for {reader.kind}, so this model cannot be"
                " written as one"
            )
        except UsageError as error:
            problems.append(str(error))
    if not problems:
        known = sorted(
            {
                one.model_type
                for one in FAMILIES.values()
                if any(form.head for form in one.architectures.values())
            }
        )
        raise UsageError(
            f"readers of the hub's families can be written so ({', '.join(known)}), but the encoder of this"
            f" one is {model_type}"
        )
    raise UsageError("; ".join(dict.fromkeys(problems)))


def _architecture(family: Family, values: Mapping[str, Any], task: str, origin: Any) -> str:
    """The one that a model came as, or else the first whose fields and task are the model's."""
    fitting = [
        name
        for name, form in family.architectures.items()
        if form.task == task
        and all(values[field] == value for field, value in form.fields.items() if field != "head_activation")
    ]
    if not fitting:
        raise UsageError(
            f"no architecture of the family does {printable(task)} with this model's heads, only"
            f" {', '.join(family.architectures)}"
        )
    fullest = max(
        fitting, key=lambda name: len(family.architectures[name].fields)
    )  # the first of those that say as much
    return next((name for name in origin or () if name in fitting), fullest)


def their_tensors(model: nn.Module, config: Any, target: Target) -> dict[str, Tensor]:
    """Names of theirs -> tensors, without a copy where nothing is transposed or taken apart. Raises
    UsageError for a tensor that is not 0 and has no place there."""
    names = target.family.names_of(target.form)
    encoder: Any = model.encoder if isinstance(config, EncoderWithHeadConfig) else model
    tensors: dict[str, Tensor] = {}
    for name, tensor in first_names(model).items():
        rule = names.of(name, encoder.config)
        if not rule.theirs and bool(tensor.any()):
            raise UsageError(
                f"a {target.architecture} has no {name}, but this model has one that is not 0: it cannot be"
                " written as one"
            )
        for theirs, part in zip(rule.theirs, rule.split(tensor.detach()), strict=True):
            tensors[theirs.removeprefix(names.prefix) if target.form.bare else theirs] = part
            if theirs in names.fallbacks:  # which is always there, though nothing looks at it
                tensors[names.fallbacks[theirs]] = part.clone()
    return tensors


def write_checkpoint(
    folder: Path,
    model: nn.Module,
    config: Any,
    target: Target,
    *,
    origin: Mapping[str, Any] | None = None,
    ids: Mapping[str, Any] | None = None,
    shard_bytes: int | None = None,
) -> list[str]:
    """Writes `config.json` and the weights into a folder that is there; returns the names of the files.

    `origin`: the config.json that the model came with, whose other keys stay. `ids`: keys such as
        `eos_token_id`.
    """
    tensors = their_tensors(model, config, target)
    dtype = str(next(iter(tensors.values())).dtype).removeprefix("torch.")
    content = {
        "transformers_version": TRANSFORMERS,
        **(ids or {}),
        **{key: value for key, value in (origin or {}).items() if key not in DROPPED},
        "model_type": target.hub_type,
        "architectures": [target.architecture],
        **target.content,
        "dtype": dtype,
    }
    files.write_json(folder / CONFIG, content)
    return [CONFIG, *write_weights(folder, tensors, shard_bytes)]
