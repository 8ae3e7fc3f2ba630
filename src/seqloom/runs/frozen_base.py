"""The frozen model that a prompt was trained for, which config.json of the prompt's folder names.

It is looked for under `base` in the prompt's folder (a folder, or a link to where it is today), where it was
in the training, and where it is if both have moved together.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar, final

from seqloom import files
from seqloom.config import STRICT, Positive
from seqloom.errors import FolderError, UsageError, printable
from seqloom.interop.hub import fetched, is_hub_name
from seqloom.interop.weights import weight_files
from seqloom.json_values import JsonObject, as_object
from seqloom.run_file import parse

OWN_PLACE = "base"
"""In the folder of a prompt."""
PROMPT = "prompt"
"""In config.json."""
T = TypeVar("T")


@final
@dataclass(frozen=True, kw_only=True)
class FrozenBase:
    """What a prompt says of its frozen model."""

    __pydantic_config__ = STRICT
    length: Positive
    """Vectors of the prompt."""
    base: str
    """The folder of the model, or its name on the hub."""
    relative: str
    """The folder as seen from that of the prompt."""
    weights: dict[str, str]
    """File -> SHA-256."""

    @classmethod
    def of(cls, place: str, weights: Path, length: int, folder: Path) -> FrozenBase:
        """A model at `place`, with these weights, for a prompt in `folder`."""
        relative = place if is_hub_name(place) else os.path.relpath(place, folder)
        return cls(length=length, base=place, relative=relative, weights=checksums(weights))

    @classmethod
    def said_by(cls, content: JsonObject, folder: Path) -> FrozenBase:
        """What config.json says. Raises FolderError if that cannot be."""
        try:
            return parse(cls, as_object(content[PROMPT]) or {}, f"{PROMPT}.")
        except UsageError as error:
            raise FolderError(str(error), folder / "config.json") from None

    def find(self, folder: Path, open_at: Callable[[Path], tuple[T, Path]]) -> T:
        """The frozen model of the prompt in `folder`. `open_at` opens a folder: (the model, its weights).
        Raises FolderError if it is nowhere, or has other weights."""
        if is_hub_name(self.base):
            places = [folder / OWN_PLACE, fetched(self.base)]
        else:
            places = [folder / OWN_PLACE, Path(self.base), folder / self.relative]
        problem = "there is none"
        for place in places:
            if files.is_there(place / "config.json"):
                model, weights = open_at(place)
                if checksums(weights) == self.weights:
                    return model
                problem = f"that of {printable(str(place))} has other weights"
        raise FolderError(
            f"its frozen model must be at {printable(self.base)} with the weights that the prompt was trained"
            f" for, but {problem}; put it back, or say where it is:"
            f" ln -s BASE {printable(str(folder / OWN_PLACE))}",
            folder,
        )


def checksums(weights: Path) -> dict[str, str]:
    """File -> SHA-256, of one file of weights or of the shards that it lists."""
    return {path.name: files.sha256(path) for path in weight_files(weights.parent)}
