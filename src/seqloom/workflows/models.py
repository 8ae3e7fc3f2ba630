"""The lineage: every family of models, its sizes, its settings."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import textwrap
from typing import Any

from seqloom.config import SECTIONS
from seqloom.models import MODELS, about_sizes, encoder_families, model_family
from seqloom.runs.run_folder import FROM_DATA, FROM_TOKENIZER


def families() -> list[dict[str, Any]]:
    """name, sizes, what each size is for or its paper, and the summary of each family."""
    listed = []
    for name in MODELS:
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
    config, _, _ = model_family(name)
    kinds = {
        "model": config,
        **{
            section: kind
            for section, kind in SECTIONS.items()
            if section != "head" or name in encoder_families()
        },
    }
    return [
        {
            "key": f"{section}.{field.name}",
            "default": _default(field),
            "meaning": meanings(kind).get(field.name, ""),
        }
        for section, kind in kinds.items()
        for field in dataclasses.fields(kind)
        if field.name not in FROM_TOKENIZER | FROM_DATA
    ]


def meanings(kind: type) -> dict[str, str]:
    """The line of documentation under each field of a configuration."""
    body = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]
    assert isinstance(body, ast.ClassDef)
    found = {}
    for field, after in zip(body.body, body.body[1:], strict=False):
        if (
            isinstance(field, ast.AnnAssign)
            and isinstance(after, ast.Expr)
            and isinstance(after.value, ast.Constant)
        ):
            found[ast.unparse(field.target)] = " ".join(str(after.value.value).split())
    return found


def _default(field: dataclasses.Field[Any]) -> str:
    if field.default is dataclasses.MISSING:
        return ""
    return "none" if field.default in (None, ()) else str(field.default)
