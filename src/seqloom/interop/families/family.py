"""What a family of the hub is: its options, the names of its tensors, its architectures."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, final

from seqloom.interop.names import Names
from seqloom.interop.options import Options

ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": "gelu-tanh",
    "gelu_pytorch_tanh": "gelu-tanh",
    "gelu_fast": "gelu-tanh",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
    "tanh": "tanh",
}
"""As `transformers` names them -> as we do."""


@final
@dataclass(frozen=True, kw_only=True)
class Architecture:
    """What a checkpoint of this name is for."""

    task: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    """Fields of our configuration that it sets."""
    bare: bool = False
    """Whether its names have no prefix."""


Refine = Callable[[Mapping[str, Any], dict[str, Any], Collection[str]], dict[str, Any]]
"""(content of config.json, fields, names of the tensors) -> fields."""


@final
@dataclass(frozen=True, kw_only=True)
class Family:
    """One `model_type` of the hub."""

    model_type: str
    """Ours."""
    options: Options
    names: Names
    architectures: Mapping[str, Architecture]
    """By the name that `config.json` has; the first is taken where it has none."""
    refine: Refine | None = None
    """What no table says, on the way in."""
    back: Callable[[Any], dict[str, Any]] | None = None
    """What no table says, on the way out: our configuration -> keys of config.json."""
