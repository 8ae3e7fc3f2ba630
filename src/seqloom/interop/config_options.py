"""The keys of a `config.json` and the fields of our configurations, by one table for both directions.

Each `Option` is a key. Whatever changes the mathematics is in the table: as a field of ours, or as the one
value that our model computes. A key that no table has is one that `transformers` does not look at either.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, final

from seqloom.data.formats.json_values import as_text
from seqloom.errors import FolderError, UsageError, printable
from seqloom.files import JsonObject

Fields = dict[str, object]
"""Of one of our configurations, by name."""


class Option(NamedTuple):
    """A key of `config.json`."""

    theirs: str
    ours: str | None
    """Our field; None where our model computes only one value, the default."""
    default: object
    """What `transformers` takes where the key is missing."""
    values: Mapping[str, str] | None = None
    """Their values -> ours; of several that mean the same the first is written. None: taken as they are."""


@final
@dataclass(frozen=True, kw_only=True)
class Options:
    """All of a family."""

    table: Sequence[Option]
    training_only: Sequence[Option] = ()
    """Keys that change only training, and that our model has not got: a notice where they are not the
    default."""
    fixed: JsonObject = field(default_factory=dict)
    """Fields of ours that have one value in every checkpoint of this family."""
    defaults: JsonObject = field(default_factory=dict)
    """Fields of ours that change nothing in what a checkpoint holds, and their values when one is read."""

    def read(self, content: JsonObject, where: object, hub_type: str) -> Fields:
        """The fields of our configuration. Raises FolderError that names an option or a value which is not
        known here."""
        fields: Fields = {**self.fixed, **self.defaults}
        for option in self.table:
            value = content.get(option.theirs, option.default)
            if option.values is not None:
                text = as_text(value)
                if text is None or text not in option.values:
                    raise _unknown(option, value, where, hub_type)
                value = option.values[text]
            elif option.ours is None and value != option.default:
                raise _unknown(option, value, where, hub_type)
            if option.ours is not None:
                fields[option.ours] = value
        return fields

    def notes(self, content: JsonObject) -> list[str]:
        """Notices about keys that change only training."""
        notes = []
        for option in self.training_only:
            value = content.get(option.theirs, option.default)
            if value != option.default:
                shown = printable(f"{option.theirs}={value}")
                notes.append(f"{shown} changes training only, and there is none here")
        return notes

    def write(self, fields: JsonObject, hub_type: str) -> Fields:
        """The inverse: keys of `config.json`. Raises UsageError that names a field whose value this family
        has not got."""
        for name, value in self.fixed.items():
            if fields[name] != value:
                raise UsageError(
                    f"a {hub_type} has model.{name}={printable(str(value))}, but this model has"
                    f" {printable(str(fields[name]))}: it cannot be written as one"
                )
        return {option.theirs: _written(option, fields, hub_type) for option in self.table}


def _written(option: Option, fields: JsonObject, hub_type: str) -> object:
    if option.ours is None:
        return option.default
    value = fields[option.ours]
    if option.values is None:
        return value
    for theirs, ours in option.values.items():
        if ours == value:
            return theirs
    raise UsageError(
        f"a {hub_type} cannot have model.{option.ours}={printable(str(value))}, as this model has"
    )


def _unknown(option: Option, value: object, where: object, hub_type: str) -> FolderError:
    known = [option.default] if option.values is None else option.values
    return FolderError(
        f"{hub_type}'s {option.theirs}={printable(str(value))} is not known here, only "
        f"{', '.join(printable(str(one)) for one in known)}",
        where,
    )
