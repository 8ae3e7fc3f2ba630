"""Files that a user asks for: new ones only, and asked for before the work."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from seqloom import files
from seqloom.errors import UsageError, printable

PICTURES = (".png", ".svg", ".html", ".json")
"""Endings of a picture; .json is its Vega-Lite description."""


def write_lines(path: str, texts: Sequence[str]) -> None:
    """Texts to a new file, one a line. Raises UsageError as `new_file` does."""
    place = new_file(path)
    files.write_atomic(
        place, "".join(text.replace("\r", " ").replace("\n", " ") + "\n" for text in texts)
    )


def new_file(path: str, suffixes: tuple[str, ...] = ()) -> Path:
    """The place of an output, to be asked for before the work is done.

    Raises UsageError if a file of this name is there already (nothing that a user made is overwritten),
    where its folder is none, or where its name ends in none of `suffixes`, if there are any.
    """
    place = Path(path)
    if suffixes and place.suffix.lower() not in suffixes:
        given = printable(place.suffix) or "no suffix"
        raise UsageError(
            f"{printable(path)}: the output must end in {', '.join(suffixes)}, but this has {given}; name one"
            " of these"
        )
    if not place.parent.is_dir():
        raise UsageError(
            f"{printable(path)}: the output must be in a folder that is there, but"
            f" {printable(str(place.parent))} is none; make it first"
        )
    if place.exists():
        raise UsageError(
            f"{printable(path)}: the output must be a new file, but there is one already; name another or"
            " delete it"
        )
    return place
