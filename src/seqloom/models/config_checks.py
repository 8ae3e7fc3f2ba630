"""What the fields of a model's configuration may be. Each function gives one line for every field that is
otherwise; a field that is None is not asked."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from seqloom.errors import UsageError


def at_least(least: int, config: Any, *names: str) -> list[str]:
    """Sizes and numbers."""
    return [
        f"model.{name} must be at least {least}, but is {value}"
        for name in names
        if (value := getattr(config, name)) is not None and value < least
    ]


def fractions(config: Any, *names: str) -> list[str]:
    """What dropout drops."""
    return [
        f"model.{name} must be in [0, 1), but is {value}"
        for name in names
        if (value := getattr(config, name)) is not None and not 0 <= value < 1
    ]


def one_of(known: Collection[str], config: Any, *names: str) -> list[str]:
    """Names of parts."""
    return [
        f"model.{name} must be one of {', '.join(known)}, but is {value!r}"
        for name in names
        if (value := getattr(config, name)) is not None and value not in known
    ]


def divisors(whole: str, config: Any, *names: str) -> list[str]:
    """Heads of a width, patches of an image."""
    size = getattr(config, whole)
    return [
        f"model.{name} must divide model.{whole}, but {size} is not a multiple of {value}"
        for name in names
        if (value := getattr(config, name)) is not None and value >= 1 and size % value
    ]


def raise_problems(problems: Sequence[str]) -> None:
    """Raises UsageError where there are any."""
    if problems:
        raise UsageError("; ".join(problems))
