"""A model of ours as a checkpoint of the hub: `config.json` and the weights, by the tables that read them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields as fields_of
from pathlib import Path
from typing import NamedTuple, final

from torch import Tensor, nn

from seqloom import files
from seqloom.errors import UsageError, printable
from seqloom.interop.checkpoint import CONFIG, dtype_name
from seqloom.interop.config_options import Fields
from seqloom.interop.families import FAMILIES
from seqloom.interop.families.family import SUPPRESSED, Architecture, HubFamily
from seqloom.interop.tensor_mapping import unique_tensors
from seqloom.interop.weights import write_weights
from seqloom.json_values import JsonObject, as_list
from seqloom.models import model_family
from seqloom.models.encoder_with_head import EncoderWithHeadConfig, resolved_head
from seqloom.protocols import EncoderConfig, ModelConfig
from seqloom.run_file import parse

NOT_WRITTEN = {"torch_dtype", "auto_map", "quantization_config", "_name_or_path", "num_labels"}
"""Keys of a config.json that came with a model and are not true of what is written: code, a place, a form of
other weights, a number of other labels."""
NEVER = -1e9
"""A bias that leaves no probability; unlike -inf it is a number that any program takes for a weight."""
TRANSFORMERS = "5.0.0"
"""The version whose names of keys are written."""


@final
class Target(NamedTuple):
    """What a model is written as."""

    hub_type: str
    architecture: str
    family: HubFamily
    form: Architecture
    content: Fields
    """Of config.json, as far as the model decides it."""
    encoder_config: object
    """The configuration below a task head; the same if there is none."""


IMPLIED: dict[str, Callable[[ModelConfig], int]] = {
    "feed_forward_width": lambda config: 4 * config.width,
    "decoder_feed_forward_width": lambda config: config.feed_forward_width or 4 * config.width,
    "decoder_heads": lambda config: config.heads,
    "head_width": lambda config: config.width // config.heads,
}
"""The number that None means in our configurations; a config.json must have it."""


def target_of(
    model_type: str, config: ModelConfig, task: str, origin: JsonObject | None = None
) -> Target:
    """The family and architecture that a model is; `origin`, the config.json that it came with, decides where
    several would do.

    Raises UsageError if there is none, naming the field that no family of the hub has.
    """
    head_config = config if isinstance(config, EncoderWithHeadConfig) else None
    if head_config is not None:
        fields = dict(head_config.encoder)
        model_type = str(fields.pop("model_type"))
        config = parse(model_family(model_type)[0], fields, "model.encoder.")
    families = [known for known in FAMILIES.values() if known.model_type == model_type]
    done = {form.task for family in families for form in family.architectures.values()}
    if head_config is None and done and task not in done:
        raise UsageError(
            f"the hub has no {model_type} for {printable(task)}, only for {', '.join(sorted(done))}, so this"
            " model cannot be written as one"
        )
    fields = _fields(config, origin)
    origin = origin or {}
    problems = []
    for hub_type, family in FAMILIES.items():
        if family.model_type != model_type or (origin and origin.get("model_type") != hub_type):
            continue
        try:
            content = family.config_content(fields, config, hub_type)
            if head_config is None:
                name = _architecture(family, fields, task, origin.get("architectures"))
            else:
                name = _architecture_with_head(family, hub_type, head_config.kind)
                content |= _head_content(family.architectures[name], head_config, config)
            return Target(hub_type, name, family, family.architectures[name], content, config)
        except UsageError as error:
            problems.append(str(error))
    if problems:
        raise UsageError("; ".join(dict.fromkeys(problems)))
    if head_config is None:
        known = sorted({family.model_type for family in FAMILIES.values()})
        raise UsageError(
            f"models of the hub's families can be written so ({', '.join(known)}), but this is a {model_type}"
        )
    known = sorted({family.model_type for family in FAMILIES.values() if _heads(family)})
    raise UsageError(
        f"encoders with a head of the hub's families can be written so ({', '.join(known)}), but the encoder"
        f" of this one is {model_type}"
    )


def _fields(config: ModelConfig, origin: JsonObject | None) -> Fields:
    fields: Fields = {field.name: vars(config)[field.name] for field in fields_of(config)}
    if origin is None:  # otherwise a null goes back as it came
        for name, implied in IMPLIED.items():
            if fields.get(name, 0) is None:
                fields[name] = implied(config)
    return fields


def _architecture(family: HubFamily, fields: JsonObject, task: str, origin: object) -> str:
    """The one that a model came as, or else the first of those whose fields say most."""
    fitting = {}
    for name, form in family.architectures.items():
        decisive = {key: value for key, value in form.fields.items() if key != "head_activation"}
        if form.task == task and all(fields[key] == value for key, value in decisive.items()):
            fitting[name] = len(form.fields)
    if not fitting:
        raise UsageError(
            f"no architecture of the family does {printable(task)} with this model's heads, only"
            f" {', '.join(family.architectures)}"
        )
    came_as = [str(name) for name in as_list(origin) or []]
    return next(
        (name for name in came_as if name in fitting), max(fitting, key=fitting.__getitem__)
    )


def _heads(family: HubFamily) -> dict[str, Sequence[str]]:
    """The architectures with a task head, and the kinds of heads that each can be."""
    return {
        name: form.head.kinds
        for name, form in family.architectures.items()
        if form.head is not None
    }


def _architecture_with_head(family: HubFamily, hub_type: str, kind: str) -> str:
    for name, kinds in _heads(family).items():
        if kind in kinds:
            return name
    raise UsageError(
        f"no architecture of a {hub_type} has a head for {kind}, so this model cannot be written as one"
    )


def _head_content(
    form: Architecture, config: EncoderWithHeadConfig, encoder: EncoderConfig
) -> Fields:
    assert form.head is not None
    return form.head.write(config, resolved_head(config.head, config.kind, encoder.traits), encoder)


def their_tensors(model: nn.Module, target: Target) -> dict[str, Tensor]:
    """Names of theirs -> tensors, without a copy where nothing is transposed or split. Raises UsageError for
    a tensor that is not 0 and has no place there."""
    names = target.family.names_of(target.form)
    tensors: dict[str, Tensor] = {}
    for name, tensor in unique_tensors(model).items():
        rule = names.rule_for(name, target.encoder_config)
        if not rule.theirs and bool(tensor.any()):
            raise UsageError(
                f"a {target.architecture} has no {name}, but this model has one that is not 0: it cannot be"
                " written as one"
            )
        for theirs, part in zip(rule.theirs, rule.split(tensor.detach()), strict=True):
            tensors[theirs.removeprefix(names.prefix) if target.form.bare else theirs] = part
            if theirs in names.fallbacks:  # files always have it, though nothing reads it
                tensors[names.fallbacks[theirs]] = part.clone()
    _suppress(tensors, target)
    return tensors


def _suppress(tensors: dict[str, Tensor], target: Target) -> None:
    """Gives ids that can never be a target no probability in transformers, by the bias of the output where
    there is one. Elsewhere `suppress_tokens` of generation_config.json has to do."""
    config, name = vars(target.encoder_config), target.family.names.output_bias
    ids: Sequence[int] = config.get(SUPPRESSED, ())
    if not ids or name is None or target.form.bare:
        return
    like = next(iter(tensors.values()))
    bias = (
        tensors[name].clone() if name in tensors else like.new_zeros(1, config["vocabulary_size"])
    )
    bias[:, list(ids)] = NEVER
    tensors[name] = bias


def write_checkpoint(
    folder: Path,
    model: nn.Module,
    config: object,
    target: Target,
    *,
    origin: JsonObject | None = None,
    ids: JsonObject | None = None,
    shard_bytes: int | None = None,
) -> list[str]:
    """Writes `config.json` and the weights into a folder that is there; returns the names of the files.

    `origin`: the config.json that the model came with, whose other keys stay. `ids`: keys such as
        `eos_token_id`.
    """
    tensors = their_tensors(model, target)
    content = {
        "transformers_version": TRANSFORMERS,
        **(ids or {}),
        **{key: value for key, value in (origin or {}).items() if key not in NOT_WRITTEN},
        "model_type": target.hub_type,
        "architectures": [target.architecture],
        **target.content,
        "dtype": dtype_name(next(iter(tensors.values())).dtype),
    }
    files.write_json(folder / CONFIG, content)
    return [CONFIG, *write_weights(folder, tensors, shard_bytes)]
