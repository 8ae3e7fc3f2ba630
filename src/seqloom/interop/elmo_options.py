"""The options of a published ELMo (`options.json` of bilm-tf and AllenNLP), and the configuration of ours."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from seqloom import files
from seqloom.errors import FolderError, UsageError
from seqloom.json_values import field_of
from seqloom.layers.word_characters import CHARACTERS
from seqloom.models.elmo import ElmoConfig
from seqloom.run_file import parse

LSTM: dict[str, str] = {
    "dim": "width",
    "projection_dim": "projection",
    "n_layers": "layers",
    "use_skip_connections": "residual",
    "cell_clip": "cell_clip",
    "proj_clip": "projection_clip",
}
"""Option of `lstm` -> field of ours."""
CHARACTER_CNN: dict[str, str] = {
    "filters": "filters",
    "n_highway": "highways",
    "activation": "activation",
    "max_characters_per_token": "longest_word",
}
"""Option of `char_cnn` -> field of ours."""


def read_options(path: Path, vocabulary_size: int) -> ElmoConfig:
    """Raises FolderError if they are damaged, or those of a model that we do not have."""
    content = files.read_json_object(path)
    if field_of(content, "bidirectional") is False:
        raise FolderError("must be of both directions, but bidirectional is false", path)
    fields: dict[str, object] = {
        "vocabulary_size": vocabulary_size,
        "output": "none",
        "embedding_width": 0,
        "tokens": "characters" if "char_cnn" in content else "embedding",
    }
    fields |= _fields(content, "lstm", LSTM, path)
    if "char_cnn" in content:
        fields |= _fields(content, "char_cnn", CHARACTER_CNN, path)
        characters = content["char_cnn"]
        fields["character_width"] = field_of(field_of(characters, "embedding"), "dim")
        # bilm-tf counts the padding of whole words where a model is used, and not where it is trained
        if field_of(characters, "n_characters") not in (CHARACTERS, CHARACTERS + 1):
            raise FolderError(
                f"char_cnn.n_characters must be {CHARACTERS} or {CHARACTERS + 1}, those of bytes and marks",
                path,
            )
    try:
        return parse(ElmoConfig, fields, "")
    except UsageError as error:
        raise FolderError(f"must be the options of an ELMo, but {error}", path) from None


def _fields(
    content: Mapping[str, object], part: str, names: Mapping[str, str], path: Path
) -> dict[str, object]:
    found = content.get(part)
    # both kinds of clipping may be left out, or null
    missing = [
        f"{part}.{name}"
        for name in names
        if field_of(found, name) is None and not name.endswith("clip")
    ]
    if missing:
        raise FolderError(f"must say {', '.join(missing)}, but does not", path)
    return {ours: field_of(found, name) for name, ours in names.items()}


def options_of(config: ElmoConfig) -> dict[str, object]:
    """The content of options.json."""
    content: dict[str, object] = {
        "bidirectional": True,
        "lstm": {name: vars(config)[ours] for name, ours in LSTM.items()},
    }
    if config.tokens == "characters":
        content["char_cnn"] = {
            **{name: vars(config)[ours] for name, ours in CHARACTER_CNN.items()},
            "embedding": {"dim": config.character_width},
            "n_characters": CHARACTERS + 1,
        }
    return content
