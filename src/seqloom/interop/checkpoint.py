"""A Hugging Face directory as a model of ours: its configuration understood, every tensor placed, nothing
left at random."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, final

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from seqloom import files
from seqloom.errors import FolderError, UsageError, printable
from seqloom.interop.families import FAMILIES, Architecture, Family
from seqloom.interop.families.heads import TASKS, HeadForm
from seqloom.interop.tensor_mapping import Theirs, check, first_names
from seqloom.interop.tensor_names import Rule
from seqloom.interop.weights import StoredWeights
from seqloom.models import model_family
from seqloom.run_file import parse

CONFIG, GENERATION = "config.json", "generation_config.json"
RANDOM_STARTS = {"normal_", "uniform_", "kaiming_uniform_", "xavier_uniform_", "trunc_normal_"}
ENCODER_WITH_HEAD = "encoder_with_head"


@final
@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A model that was read, and what was said on the way."""

    model_type: str
    """Ours."""
    model: nn.Module
    config: Any
    task: str
    content: dict[str, Any]
    """Of config.json."""
    notes: list[str] = field(default_factory=list)
    """What was left, and what was changed, in words."""


def is_hub_folder(folder: Path) -> bool:
    """Whether it holds a checkpoint of others: a config.json that seqloom did not write. Raises FolderError
    where that is no JSON."""
    if (folder / files.MANIFEST).exists():
        return False
    content = read_object(folder / CONFIG)
    return "seqloom_version" not in content and ("architectures" in content or "model_type" in content)


def read_checkpoint(
    folder: str | Path, dtype: torch.dtype | None = None, new: Collection[str] = (), *, encoder: bool = False
) -> Checkpoint:
    """Opens the directory. Weights of 16 bits become float32, others stay as they are, unless `dtype` says
    what all become.

    `new`: beginnings of names of ours that may be missing; such tensors begin as training begins them, and
        are named in `notes`.
    `encoder`: whatever a reader has no use for is left behind, such as the head of masked tokens; a head on
        labels stays.
    Raises FolderError where the directory is damaged, is of an unknown architecture, has an option that our
    model has not got, or where a tensor is missing, left over or of another shape.
    """
    folder = Path(folder)
    content, family, architecture = read_family(folder)
    where = str(folder / CONFIG)
    weights = StoredWeights(folder)
    bare = encoder and architecture.head is None
    names = Theirs(weights, family.names_of_encoder if bare else family.names_of(architecture))
    fields = _fields(content, where, family, architecture, names, bare=bare)
    notes = family.options.said(content)
    if content.get("quantization_config") is not None:
        notes.append("quantization_config of config.json changes nothing here: the weights are not quantised")
    if fields.get("tie_output") and (twin := names.untied()) is not None:
        fields["tie_output"] = False
        notes.append(
            f"{printable(twin[0])} is not {printable(twin[1])}, though config.json says that they are tied:"
            " both are kept"
        )
    plan = _planned(content, where, family, architecture, fields, weights)
    rules = {name: names.names.of(name, plan.body) for name in first_names(plan.empty)}
    missing = check(plan.empty, rules, names, new)
    notes += names.left(rules)
    dtype, told = _dtype(weights, dtype)
    notes += told
    there = [name for name, rule in rules.items() if rule.theirs and name not in missing]
    with ThreadPoolExecutor(
        torch.get_num_threads()
    ) as pool:  # what is copied waits for fresh memory more than for the file
        tensors = dict(
            zip(there, pool.map(lambda name: names.tensor(rules[name], dtype), there), strict=True)
        )
    if missing:
        notes.append(f"new, and to be trained: {', '.join(sorted(missing))}")
    return Checkpoint(
        model_type=plan.model_type,
        model=_filled(plan, rules, tensors, missing, dtype).eval(),
        config=plan.config,
        task=architecture.task,
        content=content,
        notes=notes,
    )


def read_family(folder: Path) -> tuple[dict[str, Any], Family, Architecture]:
    """The content of config.json, and what it names. Raises FolderError where it is unknown; the known ones
    are listed."""
    path = folder / CONFIG
    content = read_object(path)
    hub_type = content.get("model_type")
    if not isinstance(hub_type, str) or hub_type not in FAMILIES:
        raise FolderError(
            f"{printable(str(path))}: model_type must be one of {', '.join(FAMILIES)}, but is"
            f" {printable(str(hub_type))}"
        )
    family = FAMILIES[hub_type]
    named = content.get("architectures") or [next(iter(family.architectures))]
    if (
        not isinstance(named, list)
        or len(named) != 1
        or not isinstance(named[0], str)
        or named[0] not in family.architectures
    ):
        shown = ", ".join(map(str, named)) if isinstance(named, list) else str(named)
        raise FolderError(
            f"{printable(str(path))}: the architecture of a {hub_type} must be one of"
            f" {', '.join(family.architectures)}, but is {printable(shown)}"
        )
    architecture = family.architectures[named[0]]
    if architecture.head is not None:
        architecture = replace(
            architecture, task=TASKS[architecture.head.kind_of(content, printable(str(path)))]
        )
    return content, family, architecture


def _fields(
    content: Mapping[str, Any],
    where: str,
    family: Family,
    architecture: Architecture,
    names: Theirs,
    *,
    bare: bool,
) -> dict[str, Any]:
    """Of the configuration of a model of the family, or of what a reader has of it."""
    read = family.encoder if bare or architecture.head is not None else {}
    fields = {
        **family.options.read(content, where, str(content["model_type"])),
        **architecture.fields,
        **read,
    }
    if family.refine is not None:
        try:
            fields = family.refine(content, fields, names.by_today)
        except FolderError as error:
            raise FolderError(f"{printable(where)}: {error}") from None
    return fields if bare else {**fields, **read}


class _Plan(NamedTuple):
    """What a directory is read into."""

    model_type: str
    make: Callable[[Any], nn.Module]
    config: Any
    body: Any
    """The configuration of the encoder of a reader, of others the same."""
    empty: nn.Module
    """The model on the meta device."""


def _planned(
    content: Mapping[str, Any],
    where: str,
    family: Family,
    architecture: Architecture,
    fields: dict[str, Any],
    weights: StoredWeights,
) -> _Plan:
    """Raises FolderError where there cannot be such a model."""
    model_type = family.model_type
    config_class, model_class, _ = model_family(model_type)
    try:
        body = config = parse(config_class, fields, prefix="")
        _check_layers(body, family, weights, where)
        if architecture.head is not None:
            model_type = ENCODER_WITH_HEAD
            config_class, model_class, _ = model_family(model_type)
            config = parse(
                config_class, _reader(content, printable(where), family, architecture.head, fields), prefix=""
            )
        return _Plan(model_type, model_class, config, body, empty_model(model_class, config))
    except UsageError as error:
        raise FolderError(f"{printable(where)}: {error}") from None
    except (RuntimeError, TypeError, OverflowError) as error:  # sizes beyond what torch counts to
        reason = printable(str(error).partition("\n")[0])[:200]
        raise FolderError(
            f"{printable(where)}: sizes must be those of a model, but with these none can be made ({reason})"
        ) from None


def _filled(
    plan: _Plan,
    rules: Mapping[str, Rule],
    tensors: dict[str, Tensor],
    missing: Collection[str],
    dtype: torch.dtype,
) -> nn.Module:
    """The model with its tensors; those that are `missing` begin as training begins them, those that theirs
    has not got are 0."""
    model = plan.empty
    if missing or plan.model_type == ENCODER_WITH_HEAD:  # whose head has buffers that no file holds
        with nullcontext() if missing else _NoStart():
            model = plan.make(plan.config)
        fresh = first_names(model)
        tensors |= {
            name: torch.zeros_like(fresh[name], dtype=dtype)
            for name, rule in rules.items()
            if not rule.theirs
        }
        tensors |= {name: tensor.detach().to(dtype) for name, tensor in fresh.items() if name not in tensors}
    assign(model, tensors)
    return model


def _reader(
    content: Mapping[str, Any], where: str, family: Family, form: HeadForm, fields: Mapping[str, Any]
) -> dict[str, Any]:
    """The configuration of a reader, whose encoder has these fields."""
    return {
        "encoder": {"model_type": family.model_type, **fields},
        "vocabulary_size": fields["vocabulary_size"],
        **form.read(content, where, fields["width"]),
    }


def _check_layers(config: Any, family: Family, weights: StoredWeights, where: str) -> None:
    """Raises FolderError for more layers than there are tensors, which would take for ever to make."""
    for name, said in endless_layers(vars(config), len(weights.stored)).items():
        theirs = next(
            (option.theirs for option in family.options.table if option.ours == name), f"num_{name}"
        )
        raise FolderError(f"{printable(where)}: {theirs} {said}")


def endless_layers(fields: Mapping[str, Any], tensors: int) -> dict[str, str]:
    """Fields of a configuration that ask for more layers than there are tensors, and what is wrong with each:
    to make so many would take for ever."""
    return {
        name: (
            f"must be at most the number of tensors, {tensors}, but is {count}; do its files belong together?"
        )
        for name, count in fields.items()
        if name.endswith("layers") and type(count) is int and count > tensors
    }


class _NoStart(TorchFunctionMode):
    """Random starts are left out: on the meta device they fill nothing, but take their time."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func.__name__ in RANDOM_STARTS:
            return args[0] if args else kwargs["tensor"]
        return func(*args, **kwargs)


def empty_model(model_class: Any, config: Any) -> nn.Module:
    """A model on the meta device, for which nothing is allocated. Raises UsageError as the model does."""
    with torch.device("meta"), _NoStart():
        model: nn.Module = model_class(config)
    return model


def assign(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Makes these the tensors of a model on the meta device, without a copy; what is tied stays tied."""
    named = model.state_dict(keep_vars=True)
    first = {id(tensor): name for name, tensor in first_names(model).items()}
    ours = {
        name: (
            nn.Parameter(tensors[name], requires_grad=tensor.requires_grad)
            if isinstance(tensor, nn.Parameter)
            else tensors[name]
        )
        for name, tensor in named.items()
        if first[id(tensor)] == name
    }
    model.load_state_dict({name: ours[first[id(tensor)]] for name, tensor in named.items()}, assign=True)


def _dtype(weights: StoredWeights, asked: torch.dtype | None) -> tuple[torch.dtype, list[str]]:
    """What the numbers become, and what is said of it."""
    kinds = {stored.dtype for stored in weights.stored.values() if stored.dtype.is_floating_point}
    widest = torch.float64 if torch.float64 in kinds else torch.float32
    if asked is not None:
        return asked, []
    short = sorted(str(kind).removeprefix("torch.") for kind in kinds if kind.itemsize < 4)
    return widest, (
        [f"weights in {' and '.join(short)} were made {str(widest).removeprefix('torch.')}"] if short else []
    )


def read_object(path: Path) -> dict[str, Any]:
    """A JSON object; empty where there is no such file. Raises FolderError where it is none."""
    if not path.is_file():
        return {}
    content = files.read_json(path)
    if not isinstance(content, dict):
        raise FolderError(f"{printable(str(path))}: must be a JSON object, but is none")
    return content
