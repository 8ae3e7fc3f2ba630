"""What a JSON value is. Values that were read are `object` until a function here says more."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeGuard

JsonObject = Mapping[str, object]
"""An object of JSON, or the fields of a configuration."""
UNIT = "\x1f"
"""ASCII's unit separator: after each item of a list that was in one cell."""

_KINDS = {
    type(None): "null",
    bool: "true or false",
    int: "a number",
    float: "a number",
    list: "a list",
    dict: "an object",
    str: "a text",
}


def kind_of(value: object) -> str:
    """What messages call a value; Parquet has more kinds of them than JSON."""
    return _KINDS.get(type(value), f"of type {type(value).__name__}")


def as_text(value: object) -> str | None:
    """A text; None for anything else."""
    return value if isinstance(value, str) else None


def full_text(value: object) -> str | None:
    """A text that is not blank; None for anything else."""
    text = as_text(value)
    return text if text is not None and text.strip() else None


def several_texts(value: str | Iterable[str]) -> list[str]:
    """One text, or several, as a list."""
    return [value] if isinstance(value, str) else list(value)


def as_texts(value: object) -> list[str] | None:
    """A list or tuple of texts; None for anything else."""
    match value:
        case list() | tuple():
            texts = [text for item in value if (text := as_text(item)) is not None]
            return texts if len(texts) == len(value) else None
    return None


def as_list(value: object) -> list[object] | None:
    """A list; None for anything else."""
    return value if isinstance(value, list) else None


def as_object(value: object) -> dict[str, object] | None:
    """An object; None for anything else."""
    return value if isinstance(value, dict) else None


def as_whole_number(value: object) -> int | None:
    """A whole number, which true and false are not; None for anything else."""
    return value if type(value) is int else None


def is_number(value: object) -> TypeGuard[int | float]:
    """Whether a value is a number, which true and false are not."""
    return type(value) in (int, float)


def field_of(value: object, name: str) -> object:
    """What an object has under a name; None if it has nothing, and for what is no object."""
    fields = as_object(value)
    return None if fields is None else fields.get(name)


def loose_text(value: object) -> str | None:
    """A value as text: `2.5`, `true`, nothing for null, a list of such with UNIT after each; None for
    anything else."""
    match value:
        case None:
            return ""
        case bool():
            return str(value).lower()
        case str() | int() | float():
            return str(value)
        case list():
            items = [None if as_list(item) is not None else loose_text(item) for item in value]
            return None if None in items else "".join(f"{item}{UNIT}" for item in items)
    return None
