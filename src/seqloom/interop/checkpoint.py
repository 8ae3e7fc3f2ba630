"""A Hugging Face directory as a model of ours: its configuration understood, every tensor placed, nothing left at random."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from seqloom import files
from seqloom.config import parse
from seqloom.errors import FolderError, UsageError, printable
from seqloom.interop.families import FAMILIES, Architecture, Family
from seqloom.interop.names import Rule, Shape, pattern
from seqloom.interop.weights import Weights
from seqloom.layers.positions import sinusoids
from seqloom.models import model_family

CONFIG, GENERATION = "config.json", "generation_config.json"
RANDOM_STARTS = {"normal_", "uniform_", "kaiming_uniform_", "xavier_uniform_", "trunc_normal_"}
LISTED = 8
"""So many names of tensors at most are printed."""


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
    """Whether it holds a checkpoint of others: a config.json that seqloom did not write. Raises FolderError where that is no JSON."""
    if (folder / files.MANIFEST).exists():
        return False
    content = read_object(folder / CONFIG)
    return "seqloom_version" not in content and ("architectures" in content or "model_type" in content)


def read_checkpoint(folder: str | Path, dtype: torch.dtype | None = None, new: Collection[str] = ()) -> Checkpoint:
    """Opens the directory. Weights of 16 bits become float32, others stay as they are, unless `dtype` says what all become.

    `new`: beginnings of names of ours that may be missing; such tensors begin as training begins them, and are named in `notes`.
    Raises FolderError where the directory is damaged, is of an unknown architecture, has an option that our model has not got, or where a
    tensor is missing, left over or of another shape.
    """
    folder = Path(folder)
    content, family, architecture = read_family(folder)
    where = str(folder / CONFIG)
    weights = Weights(folder)
    names = _Theirs(weights, family)
    fields = {**family.options.read(content, where, str(content["model_type"])), **architecture.fields}
    if family.refine is not None:
        try:
            fields = family.refine(content, fields, names.by_today)
        except FolderError as error:
            raise FolderError(f"{printable(where)}: {error}") from None
    notes = family.options.said(content)
    if content.get("quantization_config") is not None:
        notes.append("quantization_config of config.json changes nothing here: the weights are not quantised")
    if fields.get("tie_output") and (twin := names.untied()) is not None:
        fields["tie_output"] = False
        notes.append(f"{printable(twin[0])} is not {printable(twin[1])}, though config.json says that they are tied: both are kept")
    config_class, model_class, _ = model_family(family.model_type)
    try:
        config = parse(config_class, fields, prefix="")
        _check_layers(config, family, weights, where)
        model = empty_model(model_class, config)
    except UsageError as error:
        raise FolderError(f"{printable(where)}: {error}") from None
    except (RuntimeError, TypeError, OverflowError) as error:  # sizes beyond what torch counts to
        reason = printable(str(error).partition("\n")[0])[:200]
        raise FolderError(f"{printable(where)}: sizes must be those of a model, but with these none can be made ({reason})") from None
    rules = {name: family.names.of(name, config) for name in first_names(model)}
    missing = _check(model, rules, names, new)
    notes += names.left(rules)
    dtype, told = _dtype(weights, dtype)
    notes += told
    there = [name for name in rules if name not in missing]
    with ThreadPoolExecutor(torch.get_num_threads()) as pool:  # what is copied waits for fresh memory more than for the file
        tensors = dict(zip(there, pool.map(lambda name: names.tensor(rules[name], dtype), there), strict=True))
    if missing:
        notes.append(f"new, and to be trained: {', '.join(sorted(missing))}")
        fresh = model_class(config)
        tensors |= {name: tensor.detach().to(dtype) for name, tensor in fresh.state_dict().items() if name in missing}
    assign(model, tensors)
    return Checkpoint(
        model_type=family.model_type,
        model=model.eval(),
        config=config,
        task=architecture.task,
        content=content,
        notes=notes,
    )


def read_family(folder: Path) -> tuple[dict[str, Any], Family, Architecture]:
    """The content of config.json, and what it names. Raises FolderError where it is unknown; the known ones are listed."""
    path = folder / CONFIG
    content = read_object(path)
    hub_type = content.get("model_type")
    if not isinstance(hub_type, str) or hub_type not in FAMILIES:
        raise FolderError(f"{printable(str(path))}: model_type must be one of {', '.join(FAMILIES)}, but is {printable(str(hub_type))}")
    family = FAMILIES[hub_type]
    named = content.get("architectures") or [next(iter(family.architectures))]
    if not isinstance(named, list) or len(named) != 1 or not isinstance(named[0], str) or named[0] not in family.architectures:
        shown = ", ".join(map(str, named)) if isinstance(named, list) else str(named)
        raise FolderError(
            f"{printable(str(path))}: the architecture of a {hub_type} must be one of {', '.join(family.architectures)}, "
            f"but is {printable(shown)}"
        )
    return content, family, family.architectures[named[0]]


def _check_layers(config: Any, family: Family, weights: Weights, where: str) -> None:
    """Raises FolderError for more layers than there are tensors, which would take for ever to make."""
    for name in ("layers", "encoder_layers", "decoder_layers"):
        if (count := getattr(config, name, 0)) > len(weights.stored):
            theirs = next((option.theirs for option in family.options.table if option.ours == name), f"num_{name}")
            raise FolderError(
                f"{printable(where)}: {theirs} must be at most the number of tensors, {len(weights.stored)}, but is {count}; do its files "
                "belong together?"
            )


class _NoStart(TorchFunctionMode):
    """Random starts are left out: on the meta device they fill nothing, but take their time."""

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        kwargs = kwargs or {}
        if func.__name__ in RANDOM_STARTS:
            return args[0] if args else kwargs["tensor"]
        return func(*args, **kwargs)


def empty_model(model_class: Any, config: Any) -> nn.Module:
    """A model on the meta device, for which nothing is allocated. Raises UsageError as the model does."""
    with torch.device("meta"), _NoStart():
        model: nn.Module = model_class(config)
    return model


def first_names(model: nn.Module) -> dict[str, Tensor]:
    """The tensors of a model by name; one that has two names stands under the first."""
    first: dict[int, str] = {}
    named = model.state_dict(keep_vars=True)
    return {name: tensor for name, tensor in named.items() if first.setdefault(id(tensor), name) == name}


def assign(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Makes these the tensors of a model on the meta device, without a copy; what is tied stays tied."""
    named = model.state_dict(keep_vars=True)
    first = {id(tensor): name for name, tensor in first_names(model).items()}
    ours = {
        name: nn.Parameter(tensors[name], requires_grad=tensor.requires_grad) if isinstance(tensor, nn.Parameter) else tensors[name]
        for name, tensor in named.items()
        if first[id(tensor)] == name
    }
    model.load_state_dict({name: ours[first[id(tensor)]] for name, tensor in named.items()}, assign=True)


class _Theirs:
    """The names in a folder of weights, whatever old or short form they have."""

    def __init__(self, weights: Weights, family: Family) -> None:
        self.weights = weights
        self.names = family.names
        self.by_today = {self._today(name): name for name in weights.stored}

    def _today(self, name: str) -> str:
        for old, today in self.names.renamed.items():
            if name.endswith(old):
                name = name.removesuffix(old) + today
        return name

    def find(self, name: str) -> str | None:
        """The name in the file of what the table calls so; a copy, or what stands in for it, does where it is missing."""
        others = [copy for copy, original in self.names.copies.items() if original == name]
        for one in (name, *others, self.names.fallbacks.get(name, name)):
            for form in (one, one.removeprefix(self.names.prefix)):
                if form in self.by_today:
                    return self.by_today[form]
        return None

    def found(self, name: str) -> str:
        found = self.find(name)
        assert found is not None, name
        return found

    def tensor(self, rule: Rule, dtype: torch.dtype) -> Tensor:
        """A tensor of ours: where nothing is joined or converted, the file's own memory."""
        found = [self.found(part) for part in rule.theirs]
        kinds = {self.weights.stored[part].dtype for part in found}
        if len(found) == 1 and kinds == {dtype}:
            return rule.join([self.weights.mapped(found[0])])
        if len(kinds) == 1 and not rule.transposed and not rule.ones:
            return self.weights.read(*found).to(dtype)
        return rule.join([self.weights.read(part) for part in found]).to(dtype)

    def source(self, copy: str) -> str | None:
        """The name in the file of what this is a copy of."""
        original = self.names.copies.get(copy)
        if original is None:
            return None
        found = self.find(original)
        return found if found not in (None, self.find(copy)) else self.source(original)

    def untied(self) -> tuple[str, str] | None:
        """The weight of the output and the embedding that it should be, where both are there and differ."""
        output = self.find(self.names.output)
        source = self.source(self.names.output)
        return None if output is None or source is None or self._equal(output, source) else (output, source)

    def _equal(self, one: str, two: str) -> bool:
        same = self.weights.stored[one].shape == self.weights.stored[two].shape
        return same and torch.equal(self.weights.read(one), self.weights.read(two))

    def left(self, rules: Mapping[str, Rule]) -> list[str]:
        """What is said of tensors that no rule takes. Raises FolderError for those that are not known to be of no use."""
        taken = {self.found(part) for rule in rules.values() for part in rule.theirs if self.find(part) is not None}
        unused: dict[str, int] = {}
        strange = []
        for today, name in sorted(self.by_today.items()):
            if name in taken or self._constant(today) or self._copy(today, name) or self._sinusoid(today, name):
                continue
            part = next((what for form, what in self.names.unused.items() if self._is(form, today)), None)
            if part is None:
                strange.append(name)
            else:
                unused[part] = unused.get(part, 0) + 1
        if strange:
            raise FolderError(
                f"{printable(str(self.weights.folder))}: every tensor must have its place, but these have none: {listed(strange)}"
            )
        return [f"not read: {part} ({count} tensors), which the model here has not got" for part, count in unused.items()]

    def _is(self, form: str, name: str) -> bool:
        return any(pattern(form).fullmatch(one) is not None for one in (name, self.names.prefix + name))

    def _constant(self, name: str) -> bool:
        return any(self._is(form, name) for form in self.names.constants)

    def _sinusoid(self, today: str, name: str) -> bool:
        """Whether it is a table of sinusoids, which our model computes."""
        if not any(self._is(form, today) for form in self.names.sinusoids):
            return False
        table = self.weights.read(name)
        ours = sinusoids(torch.arange(len(table)), table.shape[1], table.dtype, halves=True)
        return torch.allclose(table, ours, rtol=0, atol=4 * torch.finfo(table.dtype).eps)

    def _copy(self, today: str, name: str) -> bool:
        """Whether it is a copy. Raises FolderError where it is not equal to what it is a copy of."""
        copy = next((one for one in self.names.copies if today in (one, one.removeprefix(self.names.prefix))), None)
        source = None if copy is None else self.source(copy)
        if source is not None and not self._equal(name, source):
            where = printable(str(self.weights.folder))
            raise FolderError(f"{where}: {printable(name)} must be the same as {printable(source)}, with which it is tied, but differs")
        return source is not None


def _check(model: nn.Module, rules: Mapping[str, Rule], names: _Theirs, new: Collection[str]) -> set[str]:
    """Names of ours that are new. Raises FolderError where tensors are missing or have other shapes than the configuration says."""
    missing, fresh, wrong = [], set(), []
    for name, tensor in first_names(model).items():
        expected: Shape = rules[name].their_shape(tuple(tensor.shape))
        for part in rules[name].theirs:
            found = names.find(part)
            if found is None:
                if name.startswith(tuple(new)):
                    fresh.add(name)
                else:
                    missing.append(part)
            elif (shape := names.weights.stored[found].shape) != expected:
                wrong.append(f"{printable(found)} must have shape {expected}, but has {shape}")
    where = printable(str(names.weights.folder))
    if missing:
        raise FolderError(f"{where}: the weights must be whole, but these tensors are missing: {listed(missing)}")
    if wrong:
        raise FolderError(f"{where}: weights must have the shapes that {CONFIG} says, but {'; '.join(wrong[:3])}")
    return fresh


def listed(names: list[str]) -> str:
    more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
    return ", ".join(printable(name) for name in names[:LISTED]) + more


def _dtype(weights: Weights, asked: torch.dtype | None) -> tuple[torch.dtype, list[str]]:
    """What the numbers become, and what is said of it."""
    kinds = {stored.dtype for stored in weights.stored.values() if stored.dtype.is_floating_point}
    widest = torch.float64 if torch.float64 in kinds else torch.float32
    if asked is not None:
        return asked, []
    short = sorted(str(kind).removeprefix("torch.") for kind in kinds if kind.itemsize < 4)
    return widest, [f"weights in {' and '.join(short)} were made {str(widest).removeprefix('torch.')}"] if short else []


def read_object(path: Path) -> dict[str, Any]:
    """A JSON object; empty where there is no such file. Raises FolderError where it is none."""
    if not path.is_file():
        return {}
    content = files.read_json(path)
    if not isinstance(content, dict):
        raise FolderError(f"{printable(str(path))}: must be a JSON object, but is none")
    return content
