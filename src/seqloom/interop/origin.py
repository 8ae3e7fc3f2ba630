"""What a directory of the hub says beside the weights: kept in our run folder, so that a model can go back there."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, final

from seqloom.config import DecodeConfig, parse
from seqloom.interop.checkpoint import CONFIG, GENERATION, read_object
from seqloom.interop.generation import decode_fields, not_kept
from seqloom.interop.pooling import Pooling, pooling_of
from seqloom.text.hub_tokenizer import HubTokenizer, read_hub_tokenizer

TOKENIZER_CONFIG, SPECIAL_TOKENS = "tokenizer_config.json", "special_tokens_map.json"
NOT_KEPT = {"auto_map", "name_or_path", "tokenizer_class", "tokenizer_file", "vocab_file", "merges_file", "special_tokens_map_file"}
"""Keys of a tokenizer_config.json that name code or places."""


@final
class HubOrigin(NamedTuple):
    """The files of a directory, read."""

    content: dict[str, Any]
    """config.json."""
    generation: dict[str, Any]
    """generation_config.json; empty where there is none."""
    tokenizer: dict[str, Any]
    """tokenizer_config.json and special_tokens_map.json; empty where there are none."""
    pooling: Pooling | None = None
    """What the files of sentence-transformers say; None where there are none."""

    @classmethod
    def of(cls, folder: Path) -> HubOrigin:
        """Raises FolderError where a file is damaged."""
        tokenizer = {**read_object(folder / SPECIAL_TOKENS), **read_object(folder / TOKENIZER_CONFIG)}
        return cls(read_object(folder / CONFIG), read_object(folder / GENERATION), tokenizer, pooling_of(folder))

    def ids(self) -> dict[str, Any]:
        """Keys such as eos_token_id; those of generation_config.json go first."""
        return {key: value for key, value in {**self.content, **self.generation}.items() if key.endswith("_token_id")}

    def tokenizer_config(self) -> dict[str, Any]:
        """The content of our tokenizer_config.json: as it came, but for what names code or places."""
        return {
            **{key: value for key, value in self.tokenizer.items() if key not in NOT_KEPT},
            "tokenizer_class": "PreTrainedTokenizerFast",
        }

    def decoding(self, task_decode: Mapping[str, Any], tokenizer: HubTokenizer) -> tuple[DecodeConfig, list[str]]:
        """How it decodes, beginning with what is usual for its task; and what is said of that."""
        encodes = bool(self.content.get("is_encoder_decoder", self.content.get("model_type") in ("t5", "bart", "marian")))
        writes_after = len(tokenizer.marks.begin) if encodes else None
        fields, notes = decode_fields(self.generation or self.content, writes_after=writes_after, usual=task_decode)
        return parse(DecodeConfig, fields, "decode."), notes + not_kept(self.generation, tokenizer.marks.forbidden)


def hub_tokenizer(folder: Path, hub_config: Mapping[str, Any], vocabulary_size: int) -> HubTokenizer:
    """The tokenizer in a folder whose config.json is, or was, `hub_config`."""
    return read_hub_tokenizer(folder, {**hub_config, "vocab_size": vocabulary_size})
