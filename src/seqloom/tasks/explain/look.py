"""What a user asks to see of a model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Literal, final

from seqloom.config import STRICT
from seqloom.errors import UsageError

Method = Literal["leave-one-out", "integrated-gradients"]

SHOWS: Mapping[str, frozenset[str]] = {
    "attention": frozenset({"target", "part", "layer", "head"}),
    "attribution": frozenset({"target", "foil", "method", "word"}),
    "surprisal": frozenset({"target"}),
    "gates": frozenset({"target", "part", "layer"}),
    "lens": frozenset({"target"}),
    "knockout": frozenset({"target", "foil"}),
    "induction": frozenset(),
    "backoff": frozenset(),
    "words": frozenset({"column"}),
    "projection": frozenset({"column"}),
}
"""Picture -> the options that it reads."""


@final
@dataclass(frozen=True, kw_only=True)
class Look:
    """The options of a picture. Raises UsageError for one that the picture does not read."""

    __pydantic_config__ = STRICT
    show: str
    target: str | None = None
    """What is explained: a label, a tag, an option, or a text that the model writes. By default its own
    answer."""
    foil: str | None = None
    """What the target is compared with. By default the next best answer."""
    method: Method = "leave-one-out"
    """How words are given their share."""
    word: int | None = None
    """Of tags: the number of the word whose tag is explained, from 1 on."""
    part: str | None = None
    """Of attention and gates: self, encoder, decoder, cross, pooling."""
    layer: int | None = None
    """From 1 on."""
    head: int | None = None
    """From 1 on."""
    column: str | None = None
    """Of words and projection: the column of the file that colours the points."""

    def __post_init__(self) -> None:
        if self.show not in SHOWS:
            raise UsageError(f"--show must be one of {', '.join(SHOWS)}, but is {self.show}")
        for field in fields(self):
            if (
                field.name not in {"show", *SHOWS[self.show]}
                and vars(self)[field.name] != field.default
            ):
                others = [name for name, options in SHOWS.items() if field.name in options]
                raise UsageError(
                    f"--{field.name} changes nothing of --show {self.show} (it is for {', '.join(others)});"
                    " leave it out"
                )
