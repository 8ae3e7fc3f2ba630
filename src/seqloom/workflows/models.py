"""Every family of models, its sizes and its settings."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import textwrap
from typing import Any, TypedDict

from seqloom.config import SECTIONS
from seqloom.models import about_sizes, all_families, encoder_families, model_family
from seqloom.protocols import FittedModel
from seqloom.runs.run_folder import FROM_DATA, FROM_TOKENIZER
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


def settings_of(name: str) -> list[dict[str, str]]:
    """key, default and meaning of every setting of a run with this family. Raises UsageError for an unknown
    one."""
    config, model, _ = model_family(name)
    fitted = issubclass(model, FittedModel)
    settings = []
    for section, kind in {"model": config, **SECTIONS}.items():
        if section == "head" and name not in encoder_families():
            continue
        documented = meanings(kind)
        for field in dataclasses.fields(kind):
            if field.name not in FROM_TOKENIZER | FROM_DATA:
                key, meaning = f"{section}.{field.name}", documented.get(field.name, "")
                if fitted and section == "train" and key not in FITTED:
                    continue
                settings.append({"key": key, "default": _default(field), "meaning": meaning})
    return settings


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


def _default(field: dataclasses.Field[Any]) -> str:
    if field.default is dataclasses.MISSING:
        return ""
    return "none" if field.default in (None, ()) else str(field.default)
