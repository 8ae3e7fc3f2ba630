"""Word vectors as the first embeddings of a model of any task."""

from __future__ import annotations

import logging
from pathlib import Path

import torch
from torch import nn

from seqloom.config import RunConfig
from seqloom.errors import UsageError, printable
from seqloom.layers.word_characters import CharacterConvolution
from seqloom.models.convolution import Convolution
from seqloom.models.recurrent import CharacterEncoder
from seqloom.protocols import Tokenizer
from seqloom.run_file import to_plain
from seqloom.tasks.word_vectors.exchange import vectors_of_run
from seqloom.text.vectors.word_vectors import read_word_vectors

logger = logging.getLogger(__name__)

EMBEDDINGS = ("embedding", "source_embedding", "target_embedding")
"""What models call their embeddings of tokens."""
OF_CHARACTERS = (CharacterConvolution, CharacterEncoder)
"""Their tables have a row for each character."""
WIDTHS = ("projection", "embedding_width", "width")
"""The settings that may be the width of an embedded token."""


@torch.no_grad()
def load_word_vectors(model: nn.Module, run: RunConfig, tokenizer: Tokenizer | None) -> None:
    """The vectors of `train.word_vectors`, a file or a run folder, become the embeddings of its words in each
    table that the model has; other words stay as they are. Does nothing without the setting.

    Raises UsageError if they do not fit.
    """
    path = run.train.word_vectors
    if path is None or tokenizer is None:
        return
    tables = word_embeddings(model, tokenizer.vocabulary_size)
    if not tables:
        raise UsageError(
            f"train.word_vectors needs a model with an embedding of words, but {run.model['name']} has none"
        )
    spellings = {
        spelling.decode("utf-8", "replace"): i
        for i, spelling in enumerate(tokenizer.token_bytes)
        if spelling
    }
    fold_case = run.data.normalisation == "lower"
    if Path(path).is_dir():
        loaded = vectors_of_run(path).of(spellings.keys(), fold_case)
    else:
        loaded = read_word_vectors(path, spellings.keys(), fold_case)
    rows = torch.tensor([spellings[word] for word in loaded.words], dtype=torch.long)
    width = loaded.vectors.shape[1]
    for owner, table in tables:
        if width != table.embedding_dim:
            raise UsageError(
                f"{printable(path)}: its vectors have {width} numbers, and the model's words"
                f" {table.embedding_dim}; set model.{_width_setting(owner, table)}={width}"
            )
        vectors = torch.from_numpy(loaded.vectors).to(table.weight)
        table.weight[rows.to(table.weight.device)] = vectors
        if isinstance(owner, Convolution):
            owner.settle_static()
    words = f"{len(loaded.words):,} of {len(spellings):,} words of the vocabulary"
    logger.info(f"{printable(path)}: vectors of {words}")
    for note in loaded.facts:
        logger.info(note)


def word_embeddings(model: nn.Module, vocabulary_size: int) -> list[tuple[nn.Module, nn.Embedding]]:
    """The outermost tables that have a row for each token (those of the hub may have more), and the modules
    that they belong to; a shared one once. A task's own table is outside of the language models of an
    ELMo."""
    found: dict[int, dict[int, tuple[nn.Module, nn.Embedding]]] = {}
    for path, owner in model.named_modules():
        if isinstance(owner, OF_CHARACTERS):
            continue
        for name, table in owner.named_children():
            if not isinstance(table, nn.Embedding) or name not in EMBEDDINGS:
                continue
            if table.num_embeddings >= vocabulary_size:
                found.setdefault(path.count("."), {})[id(table.weight)] = (owner, table)
    return list(found[min(found)].values()) if found else []


def _width_setting(owner: nn.Module, table: nn.Embedding) -> str:
    fields = to_plain(owner.config)
    return next(name for name in WIDTHS if fields.get(name) == table.embedding_dim)
