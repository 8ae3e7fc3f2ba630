"""What a checkpoint of the hub says beside its weights. Our run folder keeps it, so that a model can be
exported as it came."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple, final

from seqloom.config import DecodeConfig
from seqloom.data.formats.json_values import as_list
from seqloom.files import JsonObject
from seqloom.interop.checkpoint import CONFIG, GENERATION, read_object
from seqloom.interop.config_options import Fields
from seqloom.interop.generation_config import decode_fields, not_kept
from seqloom.interop.sentence_transformers import Pooling, pooling_of
from seqloom.protocols import StoredTokenizer
from seqloom.run_file import parse
from seqloom.text.hub.special_ids import is_encoder_decoder
from seqloom.text.hub.tokenizer import HubTokenizer, read_hub_tokenizer

TOKENIZER_CONFIG = "tokenizer_config.json"


@final
class HubOrigin(NamedTuple):
    """The files of a checkpoint, read."""

    content: Fields
    """config.json."""
    generation: Fields
    """generation_config.json; empty where there is none."""
    pooling: Pooling | None = None
    """What the files of sentence-transformers say; None where there are none."""

    @classmethod
    def of(cls, folder: Path) -> HubOrigin:
        """Raises FolderError where a file is damaged."""
        return cls(
            read_object(folder / CONFIG), read_object(folder / GENERATION), pooling_of(folder)
        )

    @classmethod
    def of_run(cls, folder: Path, content: JsonObject) -> HubOrigin | None:
        """Of a run folder with this config.json; None where its model comes from no checkpoint."""
        kept = content.get("hub")
        if not isinstance(kept, dict):
            return None
        return cls(kept["config"], kept["generation"], pooling_of(folder))

    def ids(self) -> Fields:
        """Keys such as eos_token_id; those of generation_config.json override."""
        both = {**self.content, **self.generation}
        return {key: value for key, value in both.items() if key.endswith("_token_id")}

    def architectures(self) -> list[str]:
        """Those that config.json names."""
        return [str(name) for name in as_list(self.content.get("architectures")) or []]

    def decoding(
        self, task_decode: JsonObject, tokenizer: StoredTokenizer
    ) -> tuple[DecodeConfig, list[str]]:
        """How it decodes, starting from the defaults of its task; and notices about that."""
        encodes = is_encoder_decoder(self.content)
        writes_after = len(tokenizer.special_ids.bos) if encodes else None
        generation = self.generation or self.content
        fields, notes = decode_fields(generation, writes_after=writes_after, usual=task_decode)
        notes += not_kept(generation, tokenizer.special_ids, encodes=encodes)
        return parse(DecodeConfig, fields, "decode."), notes


def hub_tokenizer(folder: Path, hub_config: JsonObject, vocabulary_size: int) -> HubTokenizer:
    """The tokenizer in a folder whose config.json is, or was, `hub_config`."""
    return read_hub_tokenizer(folder, {**hub_config, "vocab_size": vocabulary_size})
