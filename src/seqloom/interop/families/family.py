"""What a family of the hub is: its options, the names of its tensors, its architectures."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, final

from seqloom.interop.config_options import Options
from seqloom.interop.families.heads import HeadForm
from seqloom.interop.tensor_names import Names, pattern

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
    head: HeadForm | None = None
    """What it puts on its encoder, where it is a reader of ours."""


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
    encoder: Mapping[str, Any] = field(default_factory=dict)
    """Fields of our configuration that its model has as the encoder of a reader."""
    beyond: Mapping[str, str] = field(default_factory=dict)
    """Patterns of theirs -> the part that such an encoder leaves behind."""

    def names_of(self, architecture: Architecture) -> Names:
        """The names of an architecture's tensors; of ours those of a reader where it has a head."""
        if architecture.head is None:
            return self.names
        rules = [rule._replace(ours=f"encoder.{rule.ours}") for rule in self.names.rules]
        return replace(self.names_of_encoder, rules=(*rules, *architecture.head.rules()))

    @property
    def names_of_encoder(self) -> Names:
        """The names of the tensors of its encoder, whatever else is there."""
        parts = {**self.names.unused, **self.beyond}
        unused = {
            form: parts[form] for form in sorted(parts, key=lambda form: "{rest}" not in form)
        }  # whole heads before their parts
        copies = {
            copy: of
            for copy, of in self.names.copies.items()
            if not any(pattern(form).fullmatch(copy) for form in unused)
        }
        return replace(self.names, unused=unused, copies=copies)
