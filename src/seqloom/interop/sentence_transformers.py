"""The files that sentence-transformers puts beside an encoder: how the states of a text's tokens become one
vector.

Reimers and Gurevych: Sentence-BERT, EMNLP 2019.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, final

from pydantic import Field

from seqloom import files
from seqloom.config import STRICT
from seqloom.errors import FolderError, UsageError, printable
from seqloom.interop.checkpoint import CONFIG, is_hub_folder, read_object
from seqloom.json_values import as_list, field_of
from seqloom.run_file import parse

MODULES, POOLING = "modules.json", "1_Pooling"
SETTINGS = ("sentence_bert_config.json", "sentence_roberta_config.json")
MODES = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean-sqrt",
}
"""Their key -> our mode, in the order in which they are concatenated."""
RENAMED = {"mean_sqrt_len_tokens": "mean-sqrt"}
"""Modes with another name in newer files, which have one key pooling_mode."""
MODULE = "sentence_transformers.models."


@final
@dataclass(frozen=True, kw_only=True)
class Pooling:
    """How the states of a text's tokens, special ones included, become one vector."""

    __pydantic_config__ = STRICT
    modes: Annotated[
        tuple[Literal["cls", "max", "mean", "mean-sqrt"], ...], Field(min_length=1)
    ] = ("mean",)
    """The first state, the largest of each feature, the mean, or the sum / √tokens; several stand side by
    side."""
    normalise: bool = False
    """Whether the vector is divided by its length."""
    max_length: Annotated[int, Field(ge=1, strict=True)] | None = None
    """Tokens of a text, special ones included, that are read at most; the rest is cut. None: as many as the
    model can read."""
    lower_case: bool = False
    """Whether texts are put in lower case before they are tokenised."""


def pooling_of(folder: Path) -> Pooling | None:
    """That of a checkpoint of the hub, or of a run folder made of one; None if there is none. Raises
    FolderError if a file is damaged, or has a module that is not known here."""
    if is_hub_folder(folder):
        return read_pooling(folder)
    kept: Any = field_of(read_object(folder / CONFIG).get("hub"), "pooling")
    return None if kept is None else _parsed(kept, folder / CONFIG)


def read_pooling(folder: Path) -> Pooling | None:
    """What `modules.json` says, None if there is none. Raises FolderError as `pooling_of` does."""
    path = folder / MODULES
    if not files.is_there(path):
        return None
    try:
        modules = [
            (str(module["type"]).rpartition(".")[2], str(module["path"]))
            for module in files.read_json(path)
        ]
    except (TypeError, KeyError):
        raise FolderError(
            "must be a list of modules, each with a type and a path, but is not", path
        ) from None
    kinds = [kind for kind, _ in modules]
    if kinds not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
        raise FolderError(
            "the modules must be Transformer, Pooling and perhaps Normalize, but are"
            f" {printable(', '.join(kinds))}",
            path,
        )
    for _, place in modules:
        if Path(place).name != place:
            raise FolderError(
                f"the path of a module must be a folder beside it, but is {printable(place)}", path
            )
    (_, transformer), (_, pooling), *_ = modules
    if transformer:
        raise FolderError(
            f"the Transformer must lie in the folder itself, but lies in {printable(transformer)}",
            path,
        )
    settings = next((content for name in SETTINGS if (content := read_object(folder / name))), {})
    fields = {
        "modes": _modes(folder / pooling / CONFIG),
        "normalise": len(modules) == 3,
        "max_length": settings.get("max_seq_length"),
        "lower_case": settings.get("do_lower_case", False),
    }
    return _parsed(fields, path)


def _modes(path: Path) -> tuple[str, ...]:
    content = read_object(path)
    named = content.get("pooling_mode")
    if named is not None:
        listed = as_list(named)
        modes = [named] if listed is None else listed
        return tuple(RENAMED.get(str(mode), str(mode)) for mode in modes)
    if not content:
        raise FolderError(
            "must say how states are pooled, but is not there; get the files again", path
        )
    chosen = [key for key, value in content.items() if key.startswith("pooling_mode_") and value]
    if unknown := sorted(set(chosen) - MODES.keys()):
        raise FolderError(
            f"the pooling must be one of {', '.join(MODES)}, but is {printable(unknown[0])}", path
        )
    return tuple(mode for key, mode in MODES.items() if key in chosen)


def _parsed(content: dict[str, object], path: Path) -> Pooling:
    try:
        return parse(Pooling, content, "pooling.")
    except UsageError as error:
        raise FolderError(str(error), path) from None


def write_pooling(folder: Path, pooling: Pooling, width: int) -> list[str]:
    """Writes those files; returns their names. `width` is that of a state."""
    kinds = [("Transformer", ""), ("Pooling", POOLING)]
    if pooling.normalise:
        kinds.append(("Normalize", "2_Normalize"))
    modules = [
        {"idx": index, "name": str(index), "path": path, "type": MODULE + kind}
        for index, (kind, path) in enumerate(kinds)
    ]
    files.write_json(folder / MODULES, modules)
    settings = {"max_seq_length": pooling.max_length, "do_lower_case": pooling.lower_case}
    files.write_json(folder / SETTINGS[0], settings)
    (folder / POOLING).mkdir(exist_ok=True)
    chosen = {key: mode in pooling.modes for key, mode in MODES.items()}
    files.write_json(folder / POOLING / CONFIG, {"word_embedding_dimension": width, **chosen})
    return [MODULES, SETTINGS[0], f"{POOLING}/{CONFIG}"]
