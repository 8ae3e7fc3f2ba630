"""What a checkpoint of the hub says beside its weights. Our run folder keeps it, so that a model can be
exported as it came."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple, final

from seqloom.config import DecodeConfig
from seqloom.errors import FolderError
from seqloom.files import is_there
from seqloom.interop.checkpoint import CONFIG, GENERATION, read_object
from seqloom.interop.config_options import Fields
from seqloom.interop.generation_config import HubGeneration
from seqloom.interop.sentence_transformers import Pooling, pooling_of
from seqloom.interop.written_generation import own_settings
from seqloom.json_values import JsonObject, as_list, as_object
from seqloom.protocols import StoredTokenizer
from seqloom.run_file import parse
from seqloom.text.hub.special_ids import NEVER, is_encoder_decoder, notes_on_ids
from seqloom.text.hub.tokenizer import HubTokenizer, read_hub_tokenizer

TOKENIZER_CONFIG = "tokenizer_config.json"
GENERATING = ("translation", "text-generation")
"""The tasks whose models write text."""


@final
class HubOrigin(NamedTuple):
    """The files of a checkpoint, read."""

    content: Fields
    """config.json."""
    generation: JsonObject | None
    """generation_config.json; None if there is none."""
    pooling: Pooling | None = None
    """What the files of sentence-transformers say; None if there are none."""

    @classmethod
    def of(cls, folder: Path) -> HubOrigin:
        """Raises FolderError if a file is damaged."""
        there = is_there(folder / GENERATION)
        generation = read_object(folder / GENERATION) if there else None
        return cls(read_object(folder / CONFIG), generation, pooling_of(folder))

    @classmethod
    def of_run(cls, folder: Path, content: JsonObject) -> HubOrigin | None:
        """Of a run folder with this config.json; None if its model comes from no checkpoint. Raises
        FolderError if what it says of the checkpoint is damaged."""
        kept = content.get("hub")
        if kept is None:
            return None
        hub = as_object(kept) or {}
        config, generation = as_object(hub.get("config")), hub.get("generation")
        if config is None or (generation is not None and as_object(generation) is None):
            raise FolderError(
                "hub must hold config and generation, the files that the model came with, but does not;"
                " import the model again",
                folder / CONFIG,
            )
        return cls(dict(config), as_object(generation), pooling_of(folder))

    def ids(self) -> Fields:
        """Keys such as eos_token_id; those of generation_config.json override."""
        both = {**self.content, **(self.generation or {})}
        return {
            key: value for key, value in both.items() if key.endswith("_token_id") or key in NEVER
        }

    def architectures(self) -> list[str]:
        """Those that config.json names."""
        return [str(name) for name in as_list(self.content.get("architectures")) or []]

    def decoding(
        self, task: str, usual: JsonObject, tokenizer: StoredTokenizer
    ) -> tuple[DecodeConfig, list[str]]:
        """How it decodes, starting from the `usual` settings of its task; and notices about that."""
        if task not in GENERATING:
            return parse(DecodeConfig, usual, "decode."), []
        if (own := own_settings(self.generation or {})) is not None:
            return own, []
        there = self.generation is not None
        encodes = is_encoder_decoder(self.content)
        positions = self.content.get("max_position_embeddings") if encodes else None
        content = self.content if self.generation is None else self.generation
        generation = HubGeneration(
            content=content,
            name=GENERATION if there else CONFIG,
            special_ids=tokenizer.special_ids,
            encodes=encodes,
            positions=positions if type(positions) is int else None,
        )
        decode, notes = generation.decode_config(usual)
        said = notes_on_ids(self.content, self.generation, tokenizer.vocabulary_size)
        return decode, [*said, *notes]


def hub_tokenizer(folder: Path, hub_config: JsonObject, vocabulary_size: int) -> HubTokenizer:
    """The tokenizer in a folder whose config.json is, or was, `hub_config`."""
    return read_hub_tokenizer(folder, {**hub_config, "vocab_size": vocabulary_size})
