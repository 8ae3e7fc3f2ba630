"""Tiny random encoders of `transformers` with a WordPiece tokenizer, saved as directories of the hub."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
import transformers as hf
from torch import nn
from transformers.utils import logging

logging.set_verbosity_error()  # type: ignore[no-untyped-call]
logging.disable_progress_bar()  # type: ignore[no-untyped-call]

WORDS = (
    "the a cat dog runs sleeps sits on mat log and in house big small . , ! ##s ##ing run un ##do"
)
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS.split()]
SIZES: dict[str, Any] = {
    "hidden_size": 12,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 20,
    "vocab_size": len(VOCABULARY),
    "max_position_embeddings": 16,
}
TEXTS = [
    "The cat sleeps.",
    "a dog runs on the big mat and the log",
    "",
    "cats",
    "undo the run, the house!",
    "the the the",
    "a cat, a dog",
]


def saved(folder: Path, kind: Any = hf.BertModel) -> Any:
    """A model whose every number is far from that of a fresh one, with its tokenizer."""
    torch.manual_seed(3)
    model = kind(kind.config_class(**SIZES)).eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.4)
    model.save_pretrained(folder)
    (folder / "vocab.txt").write_text("".join(f"{one}\n" for one in VOCABULARY))
    roles = {f"{role}_token": f"[{role.upper()}]" for role in ("pad", "unk", "cls", "sep", "mask")}
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "BertTokenizer", "do_lower_case": True, **roles})
    )
    return model


def pooled_as(folder: Path, *modes: str, normalise: bool = True, **settings: Any) -> None:
    """The files of sentence-transformers; `modes` are the ends of their keys."""
    kinds = [
        ("", "Transformer"),
        ("1_Pooling", "Pooling"),
        *([("2_Normalize", "Normalize")] if normalise else []),
    ]
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (path, kind) in enumerate(kinds)
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "sentence_bert_config.json").write_text(json.dumps(settings))
    (folder / "1_Pooling").mkdir(exist_ok=True)
    names = (
        "cls_token",
        "max_tokens",
        "mean_tokens",
        "mean_sqrt_len_tokens",
        "weightedmean_tokens",
    )
    content = {
        "word_embedding_dimension": 12,
        **{f"pooling_mode_{name}": name in modes for name in names},
    }
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(content))
