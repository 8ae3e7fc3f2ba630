"""A checkpoint of the hub as a model of ours: its configuration translated, every tensor in its place."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple, final

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from seqloom import files, manifest
from seqloom.errors import FolderError, UsageError, printable, shown
from seqloom.interop.config_options import Fields
from seqloom.interop.families import FAMILIES
from seqloom.interop.families.family import OWN_KEYS, Architecture, HubFamily
from seqloom.interop.families.heads import TASKS
from seqloom.interop.tensor_mapping import CheckpointTensors, unique_tensors
from seqloom.interop.tensor_names import Rule
from seqloom.interop.weights import StoredWeights
from seqloom.json_values import JsonObject, as_text
from seqloom.models import model_family
from seqloom.protocols import ModelConfig
from seqloom.run_file import parse

CONFIG, GENERATION = "config.json", "generation_config.json"
RANDOM_INITIALISERS = {
    "normal_",
    "uniform_",
    "kaiming_uniform_",
    "xavier_uniform_",
    "trunc_normal_",
}
ENCODER_WITH_HEAD = "encoder_with_head"
"""model_type of an encoder with a task head."""


@final
@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A model that was read."""

    model_type: str
    """Ours."""
    model: nn.Module
    config: ModelConfig
    task: str
    content: Fields
    """Of config.json."""
    notes: list[str] = field(default_factory=list)
    """What was not read, and what was changed, in words."""


def is_hub_folder(folder: Path) -> bool:
    """Whether it holds a checkpoint of the hub: a config.json that seqloom did not write. Raises FolderError
    if that is no JSON."""
    if any(files.is_there(folder / name) for name in (manifest.MANIFEST, manifest.UNFINISHED)):
        return False
    content = read_object(folder / CONFIG)
    return "seqloom_version" not in content and (
        "architectures" in content or "model_type" in content
    )


def read_checkpoint(
    folder: str | Path,
    dtype: torch.dtype | None = None,
    new: Collection[str] = (),
    *,
    encoder: bool = False,
) -> Checkpoint:
    """Opens the directory. Weights of 16 bits become float32, others stay as they are, unless `dtype` says
    what all become.

    `new`: beginnings of names of ours that may be missing; such tensors are initialised as for training, and
        are named in `notes`.
    `encoder`: whatever a task head does not need is left out, such as the head of masked tokens; a head on
        labels stays.
    Raises FolderError if the directory is damaged, is of an unknown architecture, has an option that our
    model has not got, or where a tensor is missing, unexpected or of another shape.
    """
    folder = Path(folder)
    content, family, architecture = read_family(folder)
    weights = StoredWeights(folder)
    bare = encoder and architecture.head is None
    names = family.names_of_encoder if bare else family.names_of(architecture)
    tensors = CheckpointTensors(weights, names)
    fields = _fields(content, folder / CONFIG, family, architecture, tensors, bare=bare)
    notes = family.notes(content)
    if (
        architecture.bare
        and fields.get("tie_output") is False
        and tensors.find(names.output) is None
    ):
        # what is only a body has no output
        fields["tie_output"] = True
        notes.append(f"the file has no {names.output}: the embedding is taken for it")
    if content.get("quantization_config") is not None:
        notes.append(
            "quantization_config of config.json changes nothing here: the weights are not quantised"
        )
    if fields.get("tie_output") and (untied := tensors.untied_output()) is not None:
        fields["tie_output"] = False
        output, embedding = map(printable, untied)
        notes.append(
            f"{output} is not {embedding}, though config.json says that they are tied: both are kept"
        )
    tensors.tied_output = fields.get("tie_output") is not False
    plan = _plan(content, folder / CONFIG, family, architecture, fields, weights)
    rules = {name: names.rule_for(name, plan.encoder_config) for name in unique_tensors(plan.empty)}
    missing = tensors.missing(plan.empty, rules, new)
    notes += tensors.unexpected(rules.values())
    if dtype is None:
        dtype = _widest(weights, content, notes)
    present = [name for name, rule in rules.items() if rule.theirs and name not in missing]
    # a copy waits for fresh pages of memory more than for the file, so threads help
    with ThreadPoolExecutor(torch.get_num_threads()) as pool:
        loaded = pool.map(lambda name: tensors.load(rules[name], dtype), present)
        ours = dict(zip(present, loaded, strict=True))
    if missing:
        notes.append(f"new, and to be trained: {', '.join(sorted(missing))}")
    return Checkpoint(
        model_type=plan.model_type,
        model=_filled(plan, rules, ours, missing, dtype).eval(),
        config=plan.config,
        task=architecture.task,
        content=content,
        notes=notes,
    )


def read_family(folder: Path) -> tuple[Fields, HubFamily, Architecture]:
    """The content of config.json, and what it names. Raises FolderError if it is unknown; the known ones
    are listed."""
    path = folder / CONFIG
    content = read_object(path)
    hub_type = content.get("model_type")
    family = FAMILIES.get(as_text(hub_type) or "")
    if family is None:
        raise FolderError(
            f"model_type must be one of {', '.join(FAMILIES)}, but is {shown(hub_type)}",
            path,
        )
    named = content.get("architectures") or [next(iter(family.architectures))]
    match named:
        case [str(name)] if name in family.architectures:
            architecture = family.architectures[name]
        case _:
            raise FolderError(
                f"architectures of a {hub_type} must be a list with one of"
                f" {', '.join(family.architectures)}, but is {shown(named)}",
                path,
            )
    if architecture.head is not None:
        architecture = replace(architecture, task=TASKS[architecture.head.kind_of(content, path)])
    return content, family, architecture


def _fields(
    content: JsonObject,
    path: Path,
    family: HubFamily,
    architecture: Architecture,
    tensors: CheckpointTensors,
    *,
    bare: bool,
) -> Fields:
    """Of the configuration of a model of the family, or of what a task head needs of it."""
    below_head = family.encoder_fields if bare or architecture.head is not None else {}
    read = family.options.read(content, path, str(content["model_type"]))
    fields = {**read, **architecture.fields, **below_head}
    # of an export of ours
    known = model_family(family.model_type)[0].__dataclass_fields__
    fields |= {key: content[key] for key in OWN_KEYS if key in content and key in known}
    if family.adjust_fields is not None:
        try:
            fields = family.adjust_fields(content, fields, tensors.file_names)
        except FolderError as error:
            raise FolderError(str(error), path) from None
    return fields if bare else {**fields, **below_head}


class _Plan(NamedTuple):
    """What a directory is read into."""

    model_type: str
    model_class: Callable[[object], nn.Module]
    config: object
    encoder_config: object
    """The configuration below a task head; the same if there is none."""
    empty: nn.Module
    """The model on the meta device."""


def _plan(
    content: JsonObject,
    path: Path,
    family: HubFamily,
    architecture: Architecture,
    fields: Fields,
    weights: StoredWeights,
) -> _Plan:
    """Raises FolderError if there cannot be such a model."""
    model_type = family.model_type
    config_class, model_class, _ = model_family(model_type)
    try:
        encoder_config = config = parse(config_class, fields, prefix="model.")
        _check_layers(encoder_config, family, weights, path)
        if architecture.head is not None:
            model_type = ENCODER_WITH_HEAD
            config_class, model_class, _ = model_family(model_type)
            encoder = {"model_type": family.model_type, **fields}
            head = architecture.head.read(content, path, encoder_config.width)
            size = fields["vocabulary_size"]
            config = parse(
                config_class, {"encoder": encoder, "vocabulary_size": size, **head}, prefix=""
            )
        return _Plan(
            model_type, model_class, config, encoder_config, empty_model(model_class, config)
        )
    except UsageError as error:
        raise FolderError(family.options.in_their_words(str(error)), path) from None
    except (RuntimeError, TypeError, OverflowError) as error:  # sizes beyond what torch counts to
        reason = shown(str(error).partition("\n")[0], 200)
        raise FolderError(
            f"sizes must be those of a model, but with these none can be made ({reason})", path
        ) from None


def _filled(
    plan: _Plan,
    rules: Mapping[str, Rule],
    tensors: dict[str, Tensor],
    missing: Collection[str],
    dtype: torch.dtype,
) -> nn.Module:
    """The model with its tensors. Those that are `missing` are initialised as for training; those that the
    checkpoint never has are 0."""
    model = plan.empty
    # a task head has buffers that no file holds
    if missing or plan.model_type == ENCODER_WITH_HEAD:
        with nullcontext() if missing else _NoInitialisation():
            model = plan.model_class(plan.config)
        for name, tensor in unique_tensors(model).items():
            if name in rules and not rules[name].theirs:
                tensors[name] = torch.zeros_like(tensor, dtype=dtype)
            elif name not in tensors:
                tensors[name] = tensor.detach().to(dtype)
    assign(model, tensors)
    return model


def _check_layers(config: object, family: HubFamily, weights: StoredWeights, path: Path) -> None:
    """Raises FolderError for more layers than there are tensors."""
    for name, problem in endless_layers(vars(config), len(weights.stored)).items():
        raise FolderError(family.options.in_their_words(f"model.{name} {problem}"), path)


def endless_layers(fields: JsonObject, tensors: int) -> dict[str, str]:
    """Fields of a configuration that ask for more layers than there are tensors, and what is wrong with each:
    to make so many would take forever."""
    return {
        name: (
            f"must be at most the number of tensors, {tensors}, but is {count}; do its files belong together?"
        )
        for name, count in fields.items()
        if name.endswith("layers") and type(count) is int and count > tensors
    }


class _NoInitialisation(TorchFunctionMode):
    """Skips random initialisation: on the meta device it fills nothing, but takes its time."""

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: object,
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        kwargs = kwargs or {}
        if func.__name__ in RANDOM_INITIALISERS:
            return args[0] if args else kwargs["tensor"]
        return func(*args, **kwargs)


def empty_model(model_class: Callable[[ModelConfig], nn.Module], config: object) -> nn.Module:
    """A model on the meta device, for which nothing is allocated. Raises UsageError as the model does."""
    with torch.device("meta"), _NoInitialisation():
        return model_class(config)


def assign(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Makes these the tensors of a model on the meta device, without a copy; what is tied stays tied."""
    ours: dict[int, Tensor] = {}
    for name, tensor in unique_tensors(model).items():
        value = tensors[name]
        if isinstance(tensor, nn.Parameter):
            value = nn.Parameter(value, requires_grad=tensor.requires_grad)
        ours[id(tensor)] = value
    named = model.state_dict(keep_vars=True)
    model.load_state_dict({name: ours[id(tensor)] for name, tensor in named.items()}, assign=True)


def _widest(weights: StoredWeights, content: JsonObject, notes: list[str]) -> torch.dtype:
    """float64 where the file has it, else float32; a notice says where that is not what the file has, or what
    config.json asks for."""
    dtypes = {stored.dtype for stored in weights.stored.values() if stored.dtype.is_floating_point}
    widest = torch.float64 if torch.float64 in dtypes else torch.float32
    if short := sorted(dtype_name(dtype) for dtype in dtypes if dtype.itemsize < 4):
        notes.append(f"weights in {' and '.join(short)} were made {dtype_name(widest)}")
    asked = content.get("torch_dtype") if content.get("dtype") is None else content["dtype"]
    if asked not in (None, "auto", dtype_name(widest), *short):
        notes.append(
            f"dtype={shown(asked)} of config.json is not kept: weights are {dtype_name(widest)}"
        )
    return widest


def dtype_name(dtype: torch.dtype) -> str:
    """As files have it: `float32`."""
    return str(dtype).removeprefix("torch.")


def read_object(path: Path) -> Fields:
    """A JSON object; empty if there is no such file. Raises FolderError if it is none."""
    return files.read_json_object(path) if files.is_there(path) else {}
