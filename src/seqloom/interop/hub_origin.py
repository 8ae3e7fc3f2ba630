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
from seqloom.text.hub.special_ids import DECODERS, DEFAULTS, ENCODER_DECODERS
from seqloom.text.hub.tokenizer import HubTokenizer, read_hub_tokenizer

TOKENIZER_CONFIG, SPECIAL_TOKENS = "tokenizer_config.json", "special_tokens_map.json"
NOT_KEPT = {
    "auto_map",
    "name_or_path",
    "tokenizer_class",
    "tokenizer_file",
    "vocab_file",
    "merges_file",
    "special_tokens_map_file",
}
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
        return cls(
            read_object(folder / CONFIG), read_object(folder / GENERATION), tokenizer, pooling_of(folder)
        )

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
        return bool(
            self.content.get("is_encoder_decoder", self.content.get("model_type") in ENCODER_DECODERS)
        )

    def tokenizer_config(self, tokenizer: HubTokenizer) -> dict[str, Any]:
        """The content of our tokenizer_config.json: as it came, but for what names code or places, and with
        the special tokens that the classes of `transformers` take for granted."""
        return {
            **self._special_tokens(tokenizer),
            **{key: value for key, value in self.tokenizer.items() if key not in NOT_KEPT},
            "tokenizer_class": "PreTrainedTokenizerFast",
        }

    def _special_tokens(self, tokenizer: HubTokenizer) -> dict[str, str]:
        """What stands for each role, as far as the marks and the ids of the configuration say it."""
        special_ids, kind = tokenizer.special_ids, str(self.content.get("model_type"))
        ids = {**DEFAULTS.get(kind, {}), **self.ids()}
        end = special_ids.eos if special_ids.eos is not None else ids.get("eos_token_id")
        begin = ids.get("bos_token_id")
        framed = bool(special_ids.prefix) and kind not in DECODERS
        roles = {
            "unk": special_ids.unk,
            "mask": special_ids.mask,
            "eos": end,
            "cls": special_ids.prefix[0] if framed else None,
            "sep": special_ids.suffix[-1] if framed and special_ids.suffix else None,
            "pad": special_ids.pad if special_ids.pad >= 0 else ids.get("pad_token_id"),
            "bos": None if self.encodes and begin == end else begin,
        }
        found = {role: tokenizer.token(i) for role, i in roles.items() if isinstance(i, int)}
        return {f"{role}_token": token for role, token in found.items() if token is not None}

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
