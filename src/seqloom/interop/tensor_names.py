"""The names of tensors in checkpoints of the hub (theirs) and in our models (ours), by one table for both
directions.

In a pattern `{i}` stands for the number of a layer, `{kind}` for weight or bias, `{rest}` for anything.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import NamedTuple, final

import torch
from torch import Tensor

Shape = tuple[int, ...]


class Rule(NamedTuple):
    """A tensor of ours, and the one of theirs that it is, or those that it stacks."""

    ours: str
    theirs: tuple[str, ...]
    """Where there are none, ours is 0."""
    transposed: bool = False
    """Theirs is `(in, out)`, as in GPT's Conv1D."""
    leading_ones: int = 0
    """Theirs has so many dimensions of length 1 before those of ours."""
    when: tuple[str, object] | None = None
    """(field of our configuration, value) for which the rule holds."""

    def their_shape(self, ours: Shape) -> Shape:
        """The shape of each of theirs."""
        shape = (ours[0] // max(1, len(self.theirs)), *ours[1:]) if ours else ours
        return (1,) * self.leading_ones + (shape[::-1] if self.transposed else shape)

    def join(self, tensors: Sequence[Tensor]) -> Tensor:
        """Theirs -> ours: a view where there is one."""
        parts = [
            self._turned(tensor.reshape(tensor.shape[self.leading_ones :])) for tensor in tensors
        ]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def split(self, tensor: Tensor) -> list[Tensor]:
        """Ours -> theirs."""
        parts = tensor.chunk(len(self.theirs)) if self.theirs else ()
        ones = (1,) * self.leading_ones
        return [part.reshape(ones + part.shape).contiguous() for part in map(self._turned, parts)]

    def _turned(self, tensor: Tensor) -> Tensor:
        return tensor.T if self.transposed and tensor.dim() == 2 else tensor


def layer(ours: str, *theirs: str, transposed: bool = False) -> Rule:
    """The weight and the bias of a layer."""
    return Rule(f"{ours}.{{kind}}", tuple(f"{name}.{{kind}}" for name in theirs), transposed)


@final
@dataclass(frozen=True, kw_only=True)
class TensorNames:
    """The names of a family."""

    rules: Sequence[Rule]
    prefix: str = ""
    """Of the body in a checkpoint with a head; it may be missing in one without."""
    output: str = "lm_head.weight"
    """The weight of the output, which may be tied: then a file may hold a copy."""
    output_bias: str | None = None
    """The bias of the output, `(1, vocabulary)`, where it has one."""
    tied: Mapping[str, str] = field(default_factory=dict)
    """A copy that a file may hold -> the tensor that it is tied to."""
    fallbacks: Mapping[str, str] = field(default_factory=dict)
    """A tensor -> the one that is taken where it is missing."""
    constants: Sequence[str] = ()
    """Patterns of buffers that carry nothing: causal masks, position ids."""
    sinusoids: Sequence[str] = ()
    """Patterns of tensors that must be the sinusoids which our model computes."""
    unused: Mapping[str, str] = field(default_factory=dict)
    """Patterns -> the part of a model that ours has not got; a notice says that it is not read."""
    legacy_suffixes: Mapping[str, str] = field(default_factory=dict)
    """Endings of names in old files -> those of today."""

    renamed: Mapping[str, str] = field(default_factory=dict)
    """Patterns of names in files -> those of the modules of transformers today, which adapters have."""

    def name_of_module(self, theirs: str) -> str:
        """What an adapter calls a tensor of theirs."""
        for form, name in self.renamed.items():
            if (match := pattern(form).fullmatch(theirs)) is not None:
                return name.format(**match.groupdict())
        return theirs

    def rule_for(self, ours: str, config: object) -> Rule:
        """The rule for one of our tensors, with its numbers filled in. Raises KeyError if there is none."""
        for rule in self.rules:
            if rule.when is not None and vars(config)[rule.when[0]] != rule.when[1]:
                continue
            if (match := pattern(rule.ours).fullmatch(ours)) is not None:
                theirs = tuple(name.format(**match.groupdict()) for name in rule.theirs)
                return rule._replace(ours=ours, theirs=theirs)
        raise KeyError(ours)


@cache
def pattern(text: str) -> re.Pattern[str]:
    """A pattern of the table as a regular expression."""
    escaped = re.escape(text).replace(r"\{i\}", r"(?P<i>\d+)")
    return re.compile(
        escaped.replace(r"\{kind\}", "(?P<kind>weight|bias)").replace(r"\{rest\}", ".*")
    )
