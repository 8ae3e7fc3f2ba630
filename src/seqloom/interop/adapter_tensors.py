"""Adapters of LoRA and the models that they change: merged into a base, and written from a training.

The names of an adapter are those of modules of transformers where the model has a twin there; else our own,
and `seqloom_names` says so. Where transformers has one matrix for several maps of ours, such as c_attn of
GPT-2, its A is ours one above the other, and its B has each of ours in its own rows and columns: the same
update, of a higher rank.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, final

import torch
from torch import Tensor, nn

from seqloom import files
from seqloom.errors import FolderError, listed, printable
from seqloom.interop.adapter import (
    ADAPTER_CONFIG,
    ADAPTER_WEIGHTS,
    OWN_NAMES,
    PREFIX,
    Adapter,
    LowRankUpdate,
    base_of_hub,
    is_target,
    matches,
)
from seqloom.interop.export import Target
from seqloom.interop.tensor_mapping import unique_tensors
from seqloom.interop.tensor_names import Rule
from seqloom.json_values import as_list
from seqloom.training.checkpoints import write_tensors

TASK_TYPES = {
    "LMHeadModel": "CAUSAL_LM",
    "ForConditionalGeneration": "SEQ_2_SEQ_LM",
    "MTModel": "SEQ_2_SEQ_LM",
    "ForSequenceClassification": "SEQ_CLS",
    "ForTokenClassification": "TOKEN_CLS",
    "ForQuestionAnswering": "QUESTION_ANS",
}
"""Ending of an architecture -> what PEFT calls its task."""


@final
class _Place(NamedTuple):
    """Where a tensor of theirs is in a model of ours."""

    ours: str
    rule: Rule
    part: int
    """Which of the tensors that ours stacks."""


def _rule(target: Target | None, ours: str, *, old: bool = False) -> Rule:
    """The names of a tensor of ours in an adapter, or in one of an older transformers; our own without a
    target."""
    if target is None:
        return Rule(ours, (ours,))
    names = target.family.names_of(target.form)
    rule = names.rule_for(ours, target.encoder_config)
    left = names.prefix if target.form.bare else ""
    theirs = rule.theirs if old else tuple(map(names.name_of_module, rule.theirs))
    return rule._replace(theirs=tuple(name.removeprefix(left) for name in theirs))


def _copies(target: Target | None) -> dict[str, str]:
    """A name of theirs -> the one that it is a copy of, as an output is of the embedding."""
    if target is None:
        return {}
    tied = target.family.names_of(target.form).tied
    copies = {}
    for copy in tied:
        original = tied[copy]
        while original in tied:
            original = tied[original]
        copies[copy] = original
    return copies


def merge_adapter(adapter: Adapter, model: nn.Module, target: Target | None) -> None:
    """Adds the updates to the weights of the base, in place. `target`: what the base is in transformers; None
    where the adapter has our names.

    Raises FolderError if a tensor has no place in the base or another shape there, or where a module that
    target_modules names has no update.
    """
    tensors = unique_tensors(model)
    places: dict[str, _Place] = {}
    for ours in tensors:
        for old in (False, True):
            rule = _rule(target, ours, old=old)
            for part, theirs in enumerate(rule.theirs):
                places[theirs] = _Place(ours, rule, part)
    _check_complete(adapter, tensors, places)
    changed: dict[str, Tensor] = {}
    copies = _copies(target)
    changes: dict[str, LowRankUpdate | Tensor] = {}
    for name, whole in adapter.whole.items():
        original = adapter.whole.get(copies.get(name, ""))
        if original is None or not torch.equal(whole, original):
            changes[name] = whole
    for module, update in adapter.updates.items():
        changes[f"{module}.weight"] = update
    for name, change in changes.items():
        if name not in places:
            raise FolderError(
                f"every tensor must have its place in the base, but {printable(name)} has none there; take"
                " the base with the head that the adapter was trained with, or merge both with peft",
                adapter.folder / ADAPTER_WEIGHTS,
            )
        ours = places[name].ours
        current = changed.setdefault(ours, tensors[ours].detach().clone())
        _change(adapter, current, places[name], change)
    for ours, tensor in changed.items():
        tensors[ours].data = tensor


def _change(
    adapter: Adapter, current: Tensor, place: _Place, change: LowRankUpdate | Tensor
) -> None:
    """Adds an update to the rows of a weight, or puts a tensor in their place."""
    rows = current.chunk(len(place.rule.theirs))[place.part]
    expected, given = tuple(rows.shape), tuple(change.shape)
    if not isinstance(change, LowRankUpdate):
        expected = place.rule.their_shape(tuple(current.shape))
    if expected != given:
        raise FolderError(
            f"the adapter must fit its base, but {printable(place.rule.theirs[place.part])} has shape"
            f" {expected} there and {given} here",
            adapter.folder / ADAPTER_WEIGHTS,
        )
    if isinstance(change, LowRankUpdate):
        rows += change.delta().to(rows.dtype)
    else:
        rows.copy_(place.rule.join([change]))


def _check_complete(
    adapter: Adapter, tensors: Mapping[str, Tensor], places: Mapping[str, _Place]
) -> None:
    """Raises FolderError if a module that target_modules names has no update: the file is not whole."""
    if as_list(adapter.config.get("target_modules")) is None:
        return
    updated = set()
    for module in adapter.updates:
        if (found := places.get(f"{module}.weight")) is not None:
            updated.add((found.ours, found.part))
    missing = []
    for name, place in places.items():
        module = name.removesuffix(".weight")
        if module == name or tensors[place.ours].dim() != 2 or "embedding" in place.ours:
            continue
        is_saved = matches(adapter.config.get("modules_to_save"), module)
        if (
            (place.ours, place.part) not in updated
            and not is_saved
            and is_target(adapter.config, module)
        ):
            missing.append(module)
    if missing:
        raise FolderError(
            "must have lora_A and lora_B of every module that target_modules names, but lacks those of"
            f" {listed(missing)}",
            adapter.folder / ADAPTER_WEIGHTS,
        )


def write_adapter(
    folder: Path,
    base: str,
    model: nn.Module,
    target: Target | None,
    low_rank: Mapping[str, Tensor],
    scale: float,
    whole_parts: Sequence[str],
) -> None:
    """Writes the adapter of a training that started from `base`.

    model: merged. low_rank: what a checkpoint keeps (`layers/low_rank.py`). whole_parts: beginnings of the
        names of tensors that go along whole, such as a new head.
    """
    updates = _updates(target, low_rank, scale)
    kept = [name for name in unique_tensors(model) if name.startswith(tuple(whole_parts))]
    whole: dict[str, Tensor] = {}
    for ours in kept:
        rule = _rule(target, ours)
        parts = rule.split(model.state_dict()[ours])
        whole |= dict(zip(rule.theirs, parts, strict=True))
    for copy, original in _copies(target).items():
        if original in whole and copy not in whole:
            whole[copy] = whole[original].clone()
    tensors = {PREFIX + name: tensor for name, tensor in whole.items()}
    for module, update in updates.items():
        tensors[f"{PREFIX}{module}.lora_A.weight"] = update.a
        tensors[f"{PREFIX}{module}.lora_B.weight"] = update.b
    modules = set[str]()
    for ours in unique_tensors(model):
        modules |= {name.removesuffix(".weight") for name in _rule(target, ours).theirs}
    place, revision = base_of_hub(base)
    ranks = {module: len(update.a) for module, update in updates.items()}
    alphas = {module: scale * rank for module, rank in ranks.items()}
    content = {
        "peft_type": "LORA",
        "task_type": _task_type(target),
        "base_model_name_or_path": place,
        "revision": revision,
        "inference_mode": True,
        **_common("r", "rank_pattern", ranks),
        **_common("lora_alpha", "alpha_pattern", alphas),
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": any(_rule(target, name).transposed for name in _adapted(low_rank)),
        "init_lora_weights": True,
        "target_modules": _target_modules(set(updates), modules),
        "modules_to_save": _whole_modules(target, whole),
        "use_rslora": False,
        "use_dora": False,
        **({OWN_NAMES: True} if target is None else {}),
    }
    folder.mkdir(exist_ok=True)
    with files.writing(folder / ADAPTER_WEIGHTS):
        write_tensors(folder / ADAPTER_WEIGHTS, tensors)
    files.write_json(folder / ADAPTER_CONFIG, content)


def _adapted(low_rank: Mapping[str, Tensor]) -> list[str]:
    """The weights that were adapted."""
    return [name for name in low_rank if name.endswith(".weight")]


def _updates(
    target: Target | None, low_rank: Mapping[str, Tensor], scale: float
) -> dict[str, LowRankUpdate]:
    """Module of theirs -> its update."""
    updates: dict[str, LowRankUpdate] = {}
    for weight in _adapted(low_rank):
        name = weight.removesuffix(".weight")
        blocks = {
            int(key.rpartition(".")[2]): (tensor, low_rank[key.replace(".lora_a.", ".lora_b.")])
            for key, tensor in low_rank.items()
            if key.startswith(f"{name}.lora_a.")
        }
        theirs = [name.removesuffix(".weight") for name in _rule(target, weight).theirs]
        if len(theirs) > 1:
            for block, (a, b) in blocks.items():
                updates[theirs[block]] = LowRankUpdate(a, b, scale)
        else:
            updates[theirs[0]] = _stacked(blocks, len(low_rank[weight]), scale)
    return updates


def _stacked(blocks: Mapping[int, tuple[Tensor, Tensor]], rows: int, scale: float) -> LowRankUpdate:
    """The updates of blocks of rows as one of the whole matrix."""
    parts = []
    for block, (_, b) in blocks.items():
        part = b.new_zeros(rows, b.shape[1])
        part[block * len(b) : (block + 1) * len(b)] = b
        parts.append(part)
    return LowRankUpdate(torch.cat([a for a, _ in blocks.values()]), torch.cat(parts, 1), scale)


def _task_type(target: Target | None) -> str | None:
    name = "" if target is None or target.form.bare else target.architecture
    return next((kind for end, kind in TASK_TYPES.items() if name.endswith(end)), None)


def _below_layer(module: str) -> str:
    """The name of a module within its layer: `attn.c_attn` of `transformer.h.0.attn.c_attn`."""
    return re.split(r"\.\d+\.", module)[-1]


def _common(key: str, pattern: str, values: Mapping[str, float]) -> dict[str, object]:
    """The smallest value, and the others by the names of modules."""
    usual = min(values.values())
    others = {_below_layer(name): value for name, value in values.items() if value != usual}
    plain = {name: int(value) if value == int(value) else value for name, value in others.items()}
    return {key: int(usual) if usual == int(usual) else usual, pattern: plain}


def _target_modules(wanted: set[str], modules: set[str]) -> list[str]:
    """The names within a layer, or where they name other modules too, the full names."""
    short = sorted({_below_layer(name) for name in wanted})
    named = {name for name in modules if matches(short, name)}
    return short if named == wanted else sorted(wanted)


def _whole_modules(target: Target | None, whole: Mapping[str, Tensor]) -> list[str] | None:
    """The modules of the head: those beside the body by the first part of their names, as PEFT adds
    `classifier` of its own accord; those in it by their full names."""
    if not whole:
        return None
    body = "" if target is None else target.family.names_of(target.form).prefix
    names = set[str]()
    for name in whole:
        inside = target is None or name.startswith(body)
        names.add(name.rpartition(".")[0] if inside else name.partition(".")[0])
    return sorted(names)
