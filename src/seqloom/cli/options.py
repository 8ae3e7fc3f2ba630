"""What verbs have in common: kinds of arguments, checked settings, exit codes. Imports only what `--help`
needs."""

from __future__ import annotations

import inspect
import logging
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from cyclopts import Parameter

from seqloom.errors import UsageError, printable
from seqloom.json_values import as_text, as_whole_number

if TYPE_CHECKING:
    from seqloom.config import DataConfig

logger = logging.getLogger(__name__)


class Verb(NamedTuple):
    """A verb of the command line."""

    run: Callable[..., int | None]
    """Its arguments are those of the command line. It may return an exit code."""
    example: str
    """A command line that the end of its help shows."""
    name: str | None = None
    """By default the name of the function."""

    @property
    def takes_model(self) -> bool:
        """Whether its first argument is a run folder, a Hugging Face directory or hf://NAME@REVISION."""
        return next(iter(inspect.signature(self.run).parameters)) in ("folder", "place")


def _refuse_settings(_: object, words: object) -> None:
    """Refuses a second setting after one --set, which would otherwise count as a file."""
    for given in words if isinstance(words, tuple) else (words,):
        word = as_text(given)
        if word is None:
            continue
        if word.startswith("-") and word != "-":
            raise ValueError(f"there is no option {word}")
        if _is_setting(word) and not os.path.exists(word):
            raise ValueError(f"{word} is no file, but a setting: each needs its own --set")


def _is_setting(word: str) -> bool:
    key, equals, _ = word.partition("=")
    section, dot, _ = key.partition(".")
    if not (equals and dot):
        return False
    from seqloom.config import SECTIONS

    return section in (*SECTIONS, "model")


Data = Annotated[str, Parameter(allow_leading_hyphen=True, validator=_refuse_settings)]
"""A file; - is standard input."""
_once = Parameter(negative="", consume_multiple=False, show_default=False)
Settings = Annotated[tuple[str, ...], Parameter(name="--set"), _once]
Also = Annotated[tuple[str, ...], _once]
"""Settings, each after its own option."""
Folders = Annotated[tuple[str, ...], _once]
"""Run folders, each after its own option."""
Texts = Annotated[tuple[str, ...], Parameter(allow_leading_hyphen=True), _once]
"""Texts, each after its own option."""
Files = Annotated[
    tuple[str, ...],
    Parameter(
        negative="",
        consume_multiple=True,
        show_default=False,
        validator=_refuse_settings,
    ),
]
"""Files after one option."""
Flag = Annotated[bool, Parameter(negative="")]
From = Annotated[str | None, Parameter(name="--from")]

EXIT_CODES = {"SIGINT": 130, "SIGTERM": 143}
"""How a process ends that a signal asked to stop."""


def exit_code(stopped: str | None, to_continue: str = "run the same command again") -> int:
    """The exit code of work that stopped for this reason. After a signal, says how to continue."""
    if stopped not in EXIT_CODES:
        return 0
    logger.info(f"to continue: {to_continue}")
    return EXIT_CODES[stopped]


class ReadSettings(NamedTuple):
    """The `--set` of a verb that uses a trained model."""

    data: dict[str, object]
    """The settings of data.* that were given. The model's own settings may fill in the others."""
    decode: dict[str, Any]
    """The settings of decode.* that were given."""
    evaluate: dict[str, object]
    """The settings of evaluate.* that were given."""
    config: DataConfig
    """The settings of data.* that were given, and defaults for the others."""


def read_settings(
    settings: Sequence[str],
    sections: tuple[str, ...] = ("data", "decode"),
    option: str = "--set",
) -> ReadSettings:
    """Checks `--set`, or another option of settings, before a model is opened. Raises UsageError for a wrong
    value or another section."""
    from seqloom.config import DataConfig, DecodeConfig, EvaluateConfig
    from seqloom.run_file import apply_settings, parse

    content = apply_settings({}, settings)
    if other := sorted(content.keys() - set(sections)):
        reasons = {"data": "no file is read", "decode": "nothing is decoded"}
        why = reasons.get(other[0], "the model is trained")
        allowed = " and ".join(f"{section}.*" for section in sections) or "nothing"
        raise UsageError(f"{option} can change {allowed} here, but not {', '.join(other)}.*: {why}")
    data, decode = content.get("data", {}), content.get("decode", {})
    evaluate = content.get("evaluate", {})
    parse(EvaluateConfig, evaluate, "evaluate.")
    # Checks values by themselves. Whether they fit the folder's beam shows when the folder is open, so the
    # beam is as wide as it may be here, and a multiple of the groups.
    beam, groups = 1000, as_whole_number(decode.get("groups"))
    if groups is not None and 0 < groups <= beam:
        beam -= beam % groups
    parse(DecodeConfig, {"beam": beam} | decode, "decode.")
    return ReadSettings(data, decode, evaluate, parse(DataConfig, data, "data."))


def whole_numbers(text: str, option: str, example: str) -> list[int]:
    """The numbers of a list such as 1,5,50. Raises UsageError that names the option."""
    try:
        return [int(word) for word in text.split(",")]
    except ValueError:
        raise UsageError(
            f"{option} must be whole numbers with commas between, such as {example}, but is {printable(text)}"
        ) from None
