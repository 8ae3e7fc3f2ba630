"""A configuration of others and ours, translated by one table in both directions.

Each `Option` is a key of `config.json`. Whatever changes the mathematics stands in the table: as a field of
ours, or as the one value that our model computes. A key that no table has is one that `transformers` does not
look at either.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, final

from seqloom.errors import FolderError, UsageError, printable


class Option(NamedTuple):
    """A key of `config.json`."""

    theirs: str
    ours: str | None
    """The field that it is; None where our model computes one value only, the default."""
    default: Any
    """What `transformers` takes where the key is missing."""
    values: Mapping[Any, Any] | None = None
    """Their values -> ours; the first of several that mean the same is written. None: taken as it is."""


@final
@dataclass(frozen=True, kw_only=True)
class Options:
    """All of a family."""

    table: Sequence[Option]
    training: Sequence[Option] = ()
    """Keys that change training alone and that our model has not got: said where they are not the default."""
    always: Mapping[str, Any] = field(default_factory=dict)
    """Fields of ours that a checkpoint of this family always has so."""
    either: Mapping[str, Any] = field(default_factory=dict)
    """Fields of ours that change nothing in what a checkpoint holds, and what they become when one is read.
    """

    def read(self, content: Mapping[str, Any], where: str, hub_type: str) -> dict[str, Any]:
        """The fields of our configuration. Raises FolderError that names an option or a value which is not
        known here."""
        fields = {**self.always, **self.either}
        for option in self.table:
            value = content.get(option.theirs, option.default)
            if option.values is not None:
                if not isinstance(value, str | int | float | bool | None) or value not in option.values:
                    raise _unknown(option, value, where, hub_type)
                value = option.values[value]
            elif option.ours is None and value != option.default:
                raise _unknown(option, value, where, hub_type)
            if option.ours is not None:
                fields[option.ours] = value
        return fields

    def said(self, content: Mapping[str, Any]) -> list[str]:
        """What is to be said of keys that change training alone."""
        given = [(one.theirs, content.get(one.theirs, one.default), one.default) for one in self.training]
        return [
            f"{name}={printable(str(value))} changes training only, and there is none here"
            for name, value, usual in given
            if value != usual
        ]

    def write(self, fields: Mapping[str, Any], hub_type: str) -> dict[str, Any]:
        """The inverse: keys of `config.json`. Raises UsageError that names a field which this family has not
        got."""
        for name, value in self.always.items():
            if fields[name] != value:
                raise UsageError(
                    f"a {hub_type} has model.{name}={printable(str(value))}, but this model has"
                    f" {printable(str(fields[name]))}: it cannot be written as one"
                )
        content: dict[str, Any] = {}
        for option in self.table:
            if option.ours is None:
                content[option.theirs] = option.default
                continue
            value = fields[option.ours]
            if option.values is not None:
                known = [
                    theirs
                    for theirs, ours in option.values.items()
                    if ours == value and type(ours) is type(value)
                ]
                if not known:
                    raise UsageError(
                        f"a {hub_type} cannot have model.{option.ours}={printable(str(value))}, as this"
                        " model has"
                    )
                value = known[0]
            content[option.theirs] = value
        return content


def _unknown(option: Option, value: Any, where: str, hub_type: str) -> FolderError:
    known = [option.default] if option.values is None else list(option.values)
    return FolderError(
        f"{printable(where)}: {hub_type}'s {option.theirs}={printable(str(value))} is not known here, only "
        f"{', '.join(printable(str(one)) for one in known)}"
    )
