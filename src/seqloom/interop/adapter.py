"""Adapters of LoRA in the files of PEFT, read: `adapter_config.json` and `adapter_model.safetensors`.

    W := W + s B A      s = α / r, or α / √r with use_rslora (Kalajdzievski 2023)

A tensor without A and B, such as a head or a bias, takes the place of the base's. Every key of the
configuration is obeyed, is known to change nothing in a trained adapter, or is refused.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple, final

from torch import Tensor

from seqloom import files
from seqloom.errors import FolderError, listed, printable, shown
from seqloom.interop.config_options import Fields
from seqloom.interop.hub import SCHEME, fetched, is_hub_name
from seqloom.json_values import JsonObject, as_list, as_object, as_text
from seqloom.training.checkpoints import read_tensors

ADAPTER_CONFIG, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
PREFIX = "base_model.model."
"""Of every name in the file."""
OWN_NAMES = "seqloom_names"
"""Our key: the names are those of our tensors, as no model of transformers has them."""
OBEYED = {
    *("peft_type", "base_model_name_or_path", "revision", "r", "lora_alpha", "use_rslora"),
    *("rank_pattern", "alpha_pattern", "target_modules", "exclude_modules", "modules_to_save"),
    *("layers_to_transform", "layers_pattern", "bias", "init_lora_weights", OWN_NAMES),
}
WITHOUT_EFFECT = {
    *("task_type", "auto_mapping", "peft_version", "inference_mode", "lora_dropout"),
    *("megatron_core", "qalora_group_size", "runtime_config", "eva_config"),
    # which way a weight is stored is seen; PEFT corrects this key too
    "fan_in_fan_out",
}
"""Keys that change nothing in a trained adapter."""
PLAIN_STARTS = (None, True, False, "gaussian", "eva", "orthogonal")
"""Values of init_lora_weights that leave the weights of the base alone."""
MOST_OF_PATTERN, MOST_REPEATS = 1000, 4
"""Signs of a pattern of names, and its repetitions, each of which multiplies the time that it takes."""
MERGE_FIRST = "merge it into its base with peft (merge_and_unload), save that, and name its folder"


@final
class LowRankUpdate(NamedTuple):
    """Of the weight of a module."""

    a: Tensor
    """`(r, in)`"""
    b: Tensor
    """`(out, r)`"""
    scale: float

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.b), self.a.shape[1]

    def delta(self) -> Tensor:
        """`(out, in)`"""
        return (self.b @ self.a) * self.scale


@final
class Adapter(NamedTuple):
    """An adapter that was read."""

    folder: Path
    config: Fields
    updates: dict[str, LowRankUpdate]
    """Module -> its update."""
    whole: dict[str, Tensor]
    """Name of a tensor -> what takes its place."""


def is_adapter(folder: Path) -> bool:
    """Whether a folder holds an adapter and no model."""
    return files.is_there(folder / ADAPTER_CONFIG) and not files.is_there(folder / "config.json")


def base_folder(folder: Path) -> Path:
    """The folder of the model that an adapter changes, or this one where it is none. Raises FolderError if
    the base is not to be had, or is an adapter itself."""
    if not is_adapter(folder):
        return folder
    content = _read_config(folder)
    named, revision = content.get("base_model_name_or_path"), content.get("revision")
    place = as_text(named)
    if not place:
        raise FolderError(
            f"base_model_name_or_path must name the model that the adapter changes, but is {shown(named)}",
            folder / ADAPTER_CONFIG,
        )
    name = place if revision is None else f"{place}@{revision}"
    if is_hub_name(place):
        return fetched(name)
    for base in (folder / place, Path(place)):
        if base.is_dir():
            if is_adapter(base):
                raise FolderError(
                    f"its base must be a model, but {printable(place)} is an adapter; import that first"
                    " (seqloom import)",
                    folder / ADAPTER_CONFIG,
                )
            return base
    hub = ""
    if re.fullmatch(r"[\w.-]+(/[\w.-]+)?", place):
        hub = f", or write {printable(SCHEME + name)} there if it is a model of the hub"
    raise FolderError(
        f"its base, base_model_name_or_path={shown(place)}, must be a folder, but there is none; put the path"
        f" of the base there{hub}",
        folder / ADAPTER_CONFIG,
    )


def _read_config(folder: Path) -> Fields:
    """Raises FolderError for a key that asks for what is not done here."""
    path = folder / ADAPTER_CONFIG
    content = files.read_json_object(path)
    kind = content.get("peft_type")
    if kind != "LORA":
        raise FolderError(f"peft_type must be LORA, but is {shown(kind)}; {MERGE_FIRST}", path)
    start = content.get("init_lora_weights")
    if start not in PLAIN_STARTS:
        raise FolderError(
            f"init_lora_weights={shown(start)} changes the base too, which is not known here; {MERGE_FIRST}",
            path,
        )
    bias = content.get("bias", "none")
    if bias not in ("none", "all", "lora_only"):
        raise FolderError(f"bias must be none, all or lora_only, but is {shown(bias)}", path)
    for key, value in content.items():
        if key not in OBEYED | WITHOUT_EFFECT and value not in (None, False, "", [], {}):
            raise FolderError(
                f"{printable(key)}={shown(value)} is not known here; {MERGE_FIRST}", path
            )
    _check_patterns(content, path)
    return content


def read_adapter(folder: Path) -> Adapter:
    """Raises FolderError if a file is missing or damaged, or has what is not known here."""
    content = _read_config(folder)
    path = folder / ADAPTER_WEIGHTS
    if not files.is_there(path):
        raise FolderError(
            f"must hold {ADAPTER_WEIGHTS}, but does not (adapter_model.bin may run code when it is opened and"
            " is not read here)",
            folder,
        )
    halves: dict[str, dict[str, Tensor]] = {}
    whole = {}
    for name, stored in read_tensors(path).items():
        tensor = stored.float() if stored.dtype.itemsize < 4 else stored
        if not name.startswith(PREFIX):
            raise FolderError(f"names must begin with {PREFIX}, but one is {printable(name)}", path)
        theirs = name.removeprefix(PREFIX)
        if (half := re.fullmatch(r"(.*)\.lora_([AB])\.weight", theirs)) is not None:
            halves.setdefault(half[1], {})[half[2]] = tensor
        elif "lora_" in theirs:
            raise FolderError(f"{printable(theirs)} is not known here; {MERGE_FIRST}", path)
        else:
            whole[theirs.replace(".base_layer.", ".")] = tensor  # the bias of a changed module
    updates = {}
    for module, pair in halves.items():
        if pair.keys() != {"A", "B"}:
            raise FolderError(f"{printable(module)} must have lora_A and lora_B, but has one", path)
        rank = _setting(content, "r", "rank_pattern", 8, module, path)
        alpha = _setting(content, "lora_alpha", "alpha_pattern", 8, module, path)
        a, b = pair["A"], pair["B"]
        if a.dim() != 2 or b.dim() != 2 or not a.shape[0] == b.shape[1] == rank:
            raise FolderError(
                f"lora_A and lora_B of {printable(module)} must have shapes (r, in) and (out, r), r={rank:g},"
                f" but have {tuple(a.shape)} and {tuple(b.shape)}",
                path,
            )
        scale = alpha / (math.sqrt(rank) if content.get("use_rslora") else rank)
        updates[module] = LowRankUpdate(a, b, scale)
    _check_targets(content, updates, folder)
    return Adapter(folder, content, updates, whole)


def _setting(
    content: JsonObject, key: str, pattern: str, usual: int, module: str, path: Path
) -> float:
    """r or α of a module: what the first pattern says that fits its name, else the common one."""
    value = content.get(key, usual)
    for form, other in (as_object(content.get(pattern)) or {}).items():
        if re.match(rf"(.*\.)?({form})$", module):
            value = other
            break
    if type(value) not in (int, float) or not 0 < float(str(value)) < math.inf:
        raise FolderError(f"{key} must be a number above 0, but is {shown(value)}", path)
    return float(str(value))


def _check_patterns(content: JsonObject, path: Path) -> None:
    """Raises FolderError for a pattern of names that is invalid, or could take forever to match."""
    forms = [content.get(key) for key in ("target_modules", "exclude_modules", "layers_pattern")]
    forms += as_list(content.get("layers_pattern")) or []
    for key in ("rank_pattern", "alpha_pattern"):
        forms += as_object(content.get(key)) or {}
    for form in filter(None, map(as_text, forms)):
        problem = ""
        if len(form) > MOST_OF_PATTERN or len(re.findall(r"[*+{]", form)) > MOST_REPEATS:
            problem = "is long or repeats much"
        elif re.search(r"\)[*+{]", form):
            problem = "repeats a group"
        try:
            re.compile(form)
        except (re.error, OverflowError, RecursionError) as error:
            problem = f"is none ({error})"
        if problem:
            raise FolderError(f"names must be simple patterns, but {shown(form)} {problem}", path)


def matches(names: object, module: str) -> bool:
    """Whether a list of names, or of their ends, or a pattern of the whole name, fits a module."""
    if (pattern := as_text(names)) is not None:
        return re.fullmatch(pattern, module) is not None
    return any(
        module == name or module.endswith(f".{name}") for name in map(str, as_list(names) or [])
    )


def is_target(content: JsonObject, module: str) -> bool:
    """Whether target_modules, exclude_modules and layers_to_transform name a module, as PEFT reads them."""
    if content.get("exclude_modules") and matches(content["exclude_modules"], module):
        return False
    targets = content.get("target_modules")
    if (pattern := as_text(targets)) is not None:
        return pattern.lower() == "all-linear" or matches(pattern, module)
    if not matches(targets, module):
        return False
    layers = content.get("layers_to_transform")
    if layers in (None, []):
        return True
    wanted = as_list(layers) or [layers]
    given = content.get("layers_pattern") or []
    patterns = as_list(given) or ([given] if given else [r"[^.]*"])
    for before in patterns:
        found = re.match(rf"(?:^|.*?\.){before}\.(\d+)\.", module)
        if found is not None:
            return int(found[1]) in wanted
    return False


def _check_targets(content: JsonObject, modules: Iterable[str], folder: Path) -> None:
    """Raises FolderError for an update of a module that is not a target: PEFT would leave it out."""
    wrong = [module for module in modules if not is_target(content, module)]
    if wrong:
        raise FolderError(
            f"target_modules, exclude_modules and layers_to_transform must name every module that"
            f" {ADAPTER_WEIGHTS} updates, but do not name {listed(wrong)}",
            folder / ADAPTER_CONFIG,
        )


def base_of_hub(base: str) -> tuple[str, str | None]:
    """What `--from` named, as PEFT names a base: a path, or a name of the hub and its revision."""
    if not is_hub_name(base):
        return os.path.abspath(base), None
    name, _, revision = base.removeprefix("hf:").lstrip("/").partition("@")
    return name, revision or None
