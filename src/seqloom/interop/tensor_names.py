"""The names of tensors, theirs and ours, by one table for both directions.

In a pattern `{i}` stands for the number of a layer, `{kind}` for weight or bias, `{rest}` for anything.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple, final

import torch
from torch import Tensor

Shape = tuple[int, ...]


class Rule(NamedTuple):
    """A tensor of ours: which of theirs it is, or which of theirs it joins, one above the other."""

    ours: str
    theirs: tuple[str, ...]
    """Where there are none, ours is 0."""
    transposed: bool = False
    """Theirs is `(in, out)`, as GPT's Conv1D has it."""
    ones: int = 0
    """Theirs has so many dimensions of length 1 before those of ours."""
    when: tuple[str, Any] | None = None
    """(field of our configuration, value) for which the rule holds."""

    def their_shape(self, ours: Shape) -> Shape:
        """The shape of each of theirs."""
        one = (ours[0] // max(1, len(self.theirs)), *ours[1:]) if ours else ours
        return (1,) * self.ones + (one[::-1] if self.transposed else one)

    def join(self, tensors: Sequence[Tensor]) -> Tensor:
        """Theirs -> ours: a view where there is one."""
        parts = [tensor.reshape(tensor.shape[self.ones :]) for tensor in tensors]
        parts = [part.T if self.transposed and part.dim() == 2 else part for part in parts]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def split(self, tensor: Tensor) -> list[Tensor]:
        """Ours -> theirs."""
        parts = tensor.chunk(len(self.theirs)) if len(self.theirs) > 1 else [tensor] * len(self.theirs)
        parts = [part.T if self.transposed and part.dim() == 2 else part for part in parts]
        return [part.reshape((1,) * self.ones + part.shape).contiguous() for part in parts]


def layer(ours: str, *theirs: str, transposed: bool = False) -> Rule:
    """A layer's weight and bias."""
    return Rule(f"{ours}.{{kind}}", tuple(f"{name}.{{kind}}" for name in theirs), transposed)


@final
@dataclass(frozen=True, kw_only=True)
class Names:
    """All of a family."""

    rules: Sequence[Rule]
    prefix: str = ""
    """What stands before the names of the body in a checkpoint with a head, and may be missing in one
    without."""
    output: str = "lm_head.weight"
    """The weight of the output, which may be tied: a copy then, where it is there."""
    copies: Mapping[str, str] = field(default_factory=dict)
    """Theirs: a copy that a file may hold -> what it is a copy of."""
    fallbacks: Mapping[str, str] = field(default_factory=dict)
    """Theirs -> the one that is taken where it is missing."""
    constants: Sequence[str] = ()
    """Patterns of theirs that carry nothing: causal masks, numbers of positions."""
    sinusoids: Sequence[str] = ()
    """Patterns of theirs that must be the sinusoids which our model computes."""
    unused: Mapping[str, str] = field(default_factory=dict)
    """Patterns of theirs -> the part that our model has not got; said when it is left."""
    renamed: Mapping[str, str] = field(default_factory=dict)
    """Endings of names in old files -> those of today."""

    def of(self, ours: str, config: Any) -> Rule:
        """The rule of a tensor of ours, with the numbers put in. Raises KeyError where the table has none."""
        for rule in self.rules:
            if rule.when is not None and getattr(config, rule.when[0]) != rule.when[1]:
                continue
            if (found := pattern(rule.ours).fullmatch(ours)) is not None:
                return rule._replace(
                    ours=ours, theirs=tuple(theirs.format(**found.groupdict()) for theirs in rule.theirs)
                )
        raise KeyError(ours)


@cache
def pattern(text: str) -> re.Pattern[str]:
    """A pattern of the table as a regular expression."""
    escaped = re.escape(text)
    return re.compile(
        escaped.replace(r"\{i\}", r"(?P<i>\d+)")
        .replace(r"\{kind\}", "(?P<kind>weight|bias)")
        .replace(r"\{rest\}", ".*")
    )
