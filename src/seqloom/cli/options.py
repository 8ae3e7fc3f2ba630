"""What the verbs have in common: kinds of arguments, settings of reading, exit codes."""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

from cyclopts import Parameter

from seqloom.config import DataConfig, DecodeConfig
from seqloom.errors import UsageError
from seqloom.run_file import apply_settings, parse


def _not_an_option(_: object, word: object) -> None:
    if isinstance(word, str) and word.startswith("-") and word != "-":
        raise ValueError(f"there is no option {word}")


Data = Annotated[str, Parameter(allow_leading_hyphen=True, validator=_not_an_option)]
"""A file, where - is standard input."""
Settings = Annotated[list[str] | None, Parameter(name="--set", negative="", consume_multiple=False)]
Several = Annotated[list[str] | None, Parameter(negative="", consume_multiple=True)]
Folders = Annotated[list[str] | None, Parameter(negative="", consume_multiple=False)]
"""Run folders, each with its option."""
Flag = Annotated[bool, Parameter(negative="")]
EXIT_CODES = {"SIGINT": 130, "SIGTERM": 143}
"""How a process ends that a signal asked to stop."""


class Reads(NamedTuple):
    """--set of a verb that reads, checked."""

    data: dict[str, Any]
    """What was given of data.*; the rest may be as in the training."""
    decode: dict[str, Any]
    config: DataConfig
    """The same data.*, and defaults."""


def reading(settings: list[str] | None, sections: tuple[str, ...] = ("data", "decode")) -> Reads:
    """Raises UsageError for what cannot be, and for other than these sections."""
    content = apply_settings({}, settings or [])
    if other := sorted(content.keys() - set(sections)):
        why = "no file is read" if other == ["data"] else "the model is trained"
        raise UsageError(
            f"--set can change {' and '.join(f'{one}.*' for one in sections)} here, but not"
            f" {', '.join(other)}.*: {why}"
        )
    decode = content.get("decode", {})
    groups = decode.get("groups")
    widest = 1000 // groups * groups if isinstance(groups, int) and 0 < groups <= 1000 else 1000
    parse(DecodeConfig, {"beam": widest} | decode, "decode.")  # by itself: the folder's beam is not known yet
    data = content.get("data", {})
    return Reads(data, decode, parse(DataConfig, data, "data."))
