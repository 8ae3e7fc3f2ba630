"""The named sizes of every family, which `sizes.toml` holds."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib.resources import files
from typing import Any

from seqloom.json_values import as_list

Fields = dict[str, Any]
"""Of a configuration, whose class says their types."""


def named_sizes(model_type: str) -> tuple[dict[str, Fields], dict[str, str]]:
    """size -> fields of the configuration, and size -> what it is for, or where it was published."""
    sizes, about = {}, {}
    for size, fields in _all_sizes().get(model_type, {}).items():
        sizes[size] = {name: _frozen(value) for name, value in fields.items() if name != "about"}
        about[size] = str(fields["about"])
    return sizes, about


def _frozen(value: object) -> object:
    """A configuration holds tuples, TOML lists."""
    items = as_list(value)
    return value if items is None else tuple(items)


@cache
def _all_sizes() -> dict[str, dict[str, Fields]]:
    return tomllib.loads(files(__package__).joinpath("sizes.toml").read_text("utf-8"))
