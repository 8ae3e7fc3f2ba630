"""Every family of models, its sizes and its settings."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import textwrap
from collections.abc import Sequence
from typing import Any, TypedDict

import torch

from seqloom.config import SECTIONS
from seqloom.errors import UsageError
from seqloom.familiar_names import familiar_model
from seqloom.models import about_sizes, all_families, families_for, model_family
from seqloom.models.config_checks import fields_of_tasks
from seqloom.models.t5 import T5
from seqloom.models.transformer import Transformer
from seqloom.protocols import FittedModel, Task
from seqloom.registry import all_tasks, hub_task, task_to_train
from seqloom.runs.compiled_reading import why_not_read
from seqloom.runs.new_model import FROM_DATA, FROM_TOKENIZER, size_fields
from seqloom.runs.quantised_weights import why_not_compiled
from seqloom.runs.run_folder import load_run
from seqloom.tasks.setting_names import FITTED

FamilySummary = TypedDict(
    "FamilySummary",
    {"name": str, "sizes": list[str], "about": dict[str, str], "summary": str, "class": str},
)


def families() -> list[FamilySummary]:
    """name, sizes, what each size is for or its paper, and the summary of each family."""
    listed = list[FamilySummary]()
    for name in all_families():
        config, model, sizes = model_family(name)
        module = inspect.getmodule(config)
        listed.append(
            {
                "name": name,
                "sizes": list(sizes),
                "about": about_sizes(name),
                "summary": (inspect.getdoc(module) or "").splitlines()[0],
                "class": model.__name__,
            }
        )
    return listed


def settings_of(called: str, task_name: str | None = None) -> list[dict[str, str]]:
    """key, default and meaning of every setting that a run with NAME or NAME:SIZE reads, in one task or in
    any. Raises UsageError for an unknown name."""
    given, _, size = called.partition(":")
    named = [] if task_name is None else [task_to_train(task_name)]
    able = families_for(named[0]) if named else all_families()
    name, meant = familiar_model(given, able)
    config, model, _ = model_family(name)
    tasks = named or [task for task in all_tasks() if name in families_for(task)]
    if named and name not in families_for(named[0]):
        listed = ", ".join(families_for(named[0]))
        raise UsageError(f"the model of {task_name} must be one of {listed}, but is {name!r}")
    read = frozenset[str]().union(*(task.settings for task in tasks))
    if issubclass(model, FittedModel):
        read = frozenset(key for key in read if not key.startswith("train.") or key in FITTED)
    read |= {f"model.{field}" for field in _model_fields(name, config, tasks)}
    values: dict[str, dict[str, Any]] = {"model": {**size_fields(name, size or "small"), **meant}}
    if len(tasks) == 1:
        content = {"task": tasks[0].name, "model": {"name": name}}
        for section, of_task in tasks[0].defaults(content).items():
            values[section] = {**of_task, **values.get(section, {})}
    settings = []
    for section, kind in {"model": config, **SECTIONS}.items():
        documented = meanings(kind)
        for field in dataclasses.fields(kind):
            key, meaning = f"{section}.{field.name}", documented.get(field.name, "")
            if key in read:
                value = values.get(section, {}).get(field.name, field.default)
                settings.append({"key": key, "default": _shown(value), "meaning": meaning})
    return settings


def model_of_run(folder: str) -> dict[str, str]:
    """What the model of texts in a run folder is, and how it reads and decodes. Raises as `load_run`."""
    run = load_run(folder)
    reasons = {}
    if run.only_reads or isinstance(run.model, T5 | Transformer):
        reasons["reading"] = why_not_read(run.model)
    if not run.only_reads:
        reasons["step of decoding"] = why_not_compiled(run.model)
    kind = torch.backends.cpu.get_cpu_capability()
    said = {
        what: f"by torch: {reason}" if reason else f"compiled, for {kind}"
        for what, reason in reasons.items()
    }
    return {
        "task": run.task,
        "model": run.model_type,
        "parameters": f"{sum(parameter.numel() for parameter in run.model.parameters()):,}",
        **said,
        "weights in the folder": run.storage,
        "weights in decoding": run.decode.weights,
    }


def _model_fields(name: str, config: type, tasks: Sequence[Task]) -> set[str]:
    """The fields of a family that a user may set in some of these tasks; in any where there is no task."""
    names = {field.name for field in dataclasses.fields(config)} - FROM_TOKENIZER - FROM_DATA
    own = fields_of_tasks(config)
    if not tasks:
        return names
    return {
        field
        for field in names
        for task in tasks
        if field not in task.fixed_fields.get(name, {})
        and (field not in own or hub_task(task.name) in own[field])
    }


def meanings(kind: type) -> dict[str, str]:
    """The line of documentation under each field of a configuration."""
    body = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]
    assert isinstance(body, ast.ClassDef)
    texts = {}
    for statement, after in zip(body.body, body.body[1:], strict=False):
        match statement, after:
            case ast.AnnAssign(target=target), ast.Expr(value=ast.Constant(value=text)):
                texts[ast.unparse(target)] = " ".join(str(text).split())
    return texts


def _shown(default: object) -> str:
    if default is dataclasses.MISSING:
        return ""
    return "none" if default in (None, ()) else str(default)
