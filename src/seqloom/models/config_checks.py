"""Checks of a model's configuration. What one field may be is in its type, as in `width: Size = 256`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from seqloom.errors import UsageError
from seqloom.layers.recurrent.cells import CELLS
from seqloom.layers.transformer.feed_forward import ACTIVATIONS
from seqloom.plugins import is_known


@dataclass(frozen=True, eq=False)
class Constraint:
    """What a value must be. None is always allowed."""

    words: str
    """As in "must be at least 1"."""
    holds: Callable[[Any], bool]
    known: Collection[str] = ()
    """What comes after the words; plugins add to it."""

    def __str__(self) -> str:
        return f"{self.words} {', '.join(self.known)}" if self.known else self.words


class UsedWith:
    """A field that is read only where other fields have one of these values, or meet this constraint."""

    def __init__(self, **conditions: str | tuple[str, ...] | Constraint) -> None:
        self.conditions = {name: _constraint(value) for name, value in conditions.items()}

    def unmet(self, config: object) -> str:
        """The first condition that does not hold, in words; empty if all hold."""
        for name, constraint in self.conditions.items():
            if not constraint.holds(vars(config)[name]):
                return f"model.{name} to be {constraint}"
        return ""


class UsedInTasks:
    """A field that is read only in tasks whose models the hub names so (`Task.hub_task`)."""

    def __init__(self, *tasks: str) -> None:
        self.tasks = tasks


def _constraint(value: str | tuple[str, ...] | Constraint) -> Constraint:
    match value:
        case Constraint():
            return value
        case str():
            known: tuple[str, ...] = (value,)
        case _:
            known = value
    return Constraint(" or ".join(known), known.__contains__)


def above(least: float) -> Constraint:
    return Constraint(f"above {least:g}", lambda value: value is not None and value > least)


def at_least(least: int) -> Constraint:
    return Constraint(f"at least {least}", lambda value: value >= least)


def one_of(known: Collection[str]) -> Constraint:
    return Constraint("one of", lambda name: is_known(name, known), known)


Size = Annotated[int, at_least(1)]
Count = Annotated[int, at_least(0)]
Fraction = Annotated[float, Constraint("in [0, 1)", lambda value: 0 <= value < 1)]
"""What dropout drops."""
Epsilon = Annotated[float, Constraint("at least 0", lambda value: value >= 0)]
"""What a norm adds before it takes a root."""
ZERO = Constraint("0", lambda value: value == 0)
ActivationName = Annotated[str, one_of(ACTIVATIONS)]
CellName = Annotated[str, one_of(CELLS)]


def field_problems(config: object) -> list[str]:
    """One line for each field that is not as its type says."""
    problems = []
    config_class: type = type(config)
    for name, constraints in _constraints_of(config_class).items():
        value = vars(config)[name]
        problems += [
            f"model.{name} must be {constraint}, but is {value!r}"
            for constraint in constraints
            if value is not None and not constraint.holds(value)
        ]
    return problems


@cache
def _constraints_of(config_class: type) -> dict[str, list[Constraint]]:
    constraints = {}
    for name, hint in get_type_hints(config_class, include_extras=True).items():
        if not name.startswith("_"):
            markers = [marker for marker in _metadata(hint) if isinstance(marker, Constraint)]
            constraints[name] = markers
    return constraints


def unused_fields(config: object) -> dict[str, str]:
    """Fields that change nothing in this configuration -> what they need."""
    unused = {}
    for name, hint in get_type_hints(type(config), include_extras=True).items():
        for marker in _metadata(hint):
            if isinstance(marker, UsedWith) and (unmet := marker.unmet(config)):
                unused[name] = unmet
    return unused


def fields_of_tasks(config_class: type) -> dict[str, tuple[str, ...]]:
    """Fields that are read only in some tasks -> these."""
    hints = get_type_hints(config_class, include_extras=True)
    return {
        name: marker.tasks
        for name, hint in hints.items()
        for marker in _metadata(hint)
        if isinstance(marker, UsedInTasks)
    }


def _metadata(hint: object) -> Iterator[object]:
    """That of `Size`, of `Size | None`, and of either inside of another annotation."""
    if get_origin(hint) is Annotated:
        inner, *metadata = get_args(hint)
        yield from metadata
        yield from _metadata(inner)
        return
    for part in get_args(hint):
        yield from _metadata(part)


def not_divisible(whole: str, size: int, part: str, value: int | None) -> list[str]:
    """Of heads that share a width, of patches of an image: one line where `value` does not divide `size`."""
    if value is None or value < 1 or size % value == 0:
        return []
    return [f"model.{part} must divide model.{whole}, but {size} is not a multiple of {value}"]


def raise_problems(problems: Sequence[str]) -> None:
    """Raises UsageError if there are any."""
    if problems:
        raise UsageError("; ".join(problems))
