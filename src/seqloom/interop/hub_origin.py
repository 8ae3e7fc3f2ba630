"""What a directory of the hub says beside the weights: kept in our run folder, so that a model can go back
there."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, final

from seqloom.config import DecodeConfig
from seqloom.interop.checkpoint import CONFIG, GENERATION, read_object
from seqloom.interop.generation_config import decode_fields, not_kept
from seqloom.interop.sentence_transformers import Pooling, pooling_of
from seqloom.run_file import parse
from seqloom.text.hub.special_ids import is_encoder_decoder
from seqloom.text.hub.tokenizer import HubTokenizer, read_hub_tokenizer

TOKENIZER_CONFIG = "tokenizer_config.json"


@final
class HubOrigin(NamedTuple):
    """The files of a directory, read."""

    content: dict[str, Any]
    """config.json."""
    generation: dict[str, Any]
    """generation_config.json; empty where there is none."""
    pooling: Pooling | None = None
    """What the files of sentence-transformers say; None where there are none."""

    @classmethod
    def of(cls, folder: Path) -> HubOrigin:
        """Raises FolderError where a file is damaged."""
        return cls(read_object(folder / CONFIG), read_object(folder / GENERATION), pooling_of(folder))

    def ids(self) -> dict[str, Any]:
        """Keys such as eos_token_id; those of generation_config.json go first."""
        return {
            key: value
            for key, value in {**self.content, **self.generation}.items()
            if key.endswith("_token_id")
        }

    @property
    def encodes(self) -> bool:
        """Whether it is an encoder-decoder."""
        return is_encoder_decoder(self.content)

    def decoding(
        self, task_decode: Mapping[str, Any], tokenizer: HubTokenizer
    ) -> tuple[DecodeConfig, list[str]]:
        """How it decodes, beginning with what is usual for its task; and what is said of that."""
        writes_after, asked = (
            len(tokenizer.special_ids.bos) if self.encodes else None,
            self.generation or self.content,
        )
        fields, notes = decode_fields(asked, writes_after=writes_after, usual=task_decode)
        return parse(DecodeConfig, fields, "decode."), notes + not_kept(
            asked, tokenizer.special_ids, encodes=self.encodes
        )


def hub_tokenizer(folder: Path, hub_config: Mapping[str, Any], vocabulary_size: int) -> HubTokenizer:
    """The tokenizer in a folder whose config.json is, or was, `hub_config`."""
    return read_hub_tokenizer(folder, {**hub_config, "vocab_size": vocabulary_size})
