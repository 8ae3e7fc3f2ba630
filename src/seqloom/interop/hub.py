"""Names of the hub. Only what begins with `hf://` ever touches the network."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from seqloom.errors import FolderError, UsageError, printable
from seqloom.files import is_there

SCHEME = "hf://"
FILES = (
    *("config.json", "generation_config.json", "preprocessor_config.json", "adapter_config.json"),
    "adapter_model.safetensors",
    *("model.safetensors", "model.safetensors.index.json", "model-*-of-*.safetensors"),
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
    *(
        "vocab.txt",
        "vocab.json",
        "merges.txt",
        "spiece.model",
        "sentencepiece.bpe.model",
        "source.spm",
        "target.spm",
    ),
    *(
        "modules.json",
        "sentence_bert_config.json",
        "sentence_roberta_config.json",
        "1_Pooling/config.json",
    ),
)
"""What is read of a repository; nothing else is fetched."""
NO_MODELS = {
    "model_index.json": "a pipeline of diffusers; name the folder of one of its models",
    "*.gguf": "a model for llama.cpp (.gguf), which does not open here; get its safetensors",
}
"""Patterns of files that a folder without config.json may hold -> what it is then."""


def foreign_kind(folder: Path) -> str | None:
    """What is wrong with a folder without config.json that holds something else; None for others."""
    if is_there(folder / "config.json"):
        return None
    for pattern, what in NO_MODELS.items():
        for found in folder.glob(pattern):
            return f"holds {printable(found.name)} and no config.json: it is {what}"
    return None


def is_hub_name(place: str | Path) -> bool:
    """Whether it is `hf://NAME` or `hf://NAME@REVISION`; a Path has lost one of the slashes."""
    return str(place).startswith("hf:/")


@cache
def fetched(place: str) -> Path:
    """The folder of the cache that holds `hf://NAME` or `hf://NAME@REVISION`, fetched where it is not there
    yet; it is named after its commit. `HF_HOME` and `HF_HUB_OFFLINE` are honoured.

    Raises UsageError for what is no name, FolderError if it is not to be had.
    """
    name, _, revision = str(place).removeprefix("hf:").lstrip("/").partition("@")
    from huggingface_hub import constants, snapshot_download
    from huggingface_hub.errors import (
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    shown = printable(f"{SCHEME}{name}" + (f"@{revision}" if revision else ""))
    try:
        return Path(snapshot_download(name, revision=revision or None, allow_patterns=list(FILES)))
    except HFValidationError as error:
        raise UsageError(
            f"{shown}: a name must be such as {SCHEME}google-t5/t5-small ({printable(str(error))})"
        ) from None
    except (RepositoryNotFoundError, RevisionNotFoundError):
        raise FolderError(
            f"{shown}: the hub has no such repository or revision that is open to you; check the name"
        ) from None
    except LocalEntryNotFoundError:
        why = "HF_HUB_OFFLINE is set" if constants.HF_HUB_OFFLINE else "the hub cannot be reached"
        raise FolderError(
            f"{shown}: is not in the cache ({printable(constants.HF_HUB_CACHE)}), and {why}"
        ) from None
    except (HfHubHTTPError, OSError) as error:
        raise FolderError(
            f"{shown}: cannot be fetched ({printable(' '.join(str(error).split()))[:200]})"
        ) from None
