"""What a new model takes from its data: word vectors, frequencies of words and labels, means of numbers."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from seqloom.config import RunConfig
from seqloom.data.encoding.encoded_dataset import EncodedDataset, SequenceArray
from seqloom.errors import UsageError, printable
from seqloom.models.bag_of_words import BagOfWords
from seqloom.models.convolution import Convolution
from seqloom.models.encoder_with_head import EncoderWithHead
from seqloom.models.heads import RegressionHead
from seqloom.protocols import Tokenizer, device_of
from seqloom.tasks.word_vectors.exchange import vectors_of_run
from seqloom.text.vectors.word_vectors import read_word_vectors

logger = logging.getLogger(__name__)

ROWS_AT_A_TIME = 1024
"""Of those whose words are counted."""


def initialise_from_data(
    model: nn.Module, run: RunConfig, tokenizer: Tokenizer, dataset: EncodedDataset, fresh: bool
) -> None:
    """Sets what a model takes from the data and does not train. Where it is `fresh`, without weights of its
    own yet, sets the initial values of what it trains too."""
    assert isinstance(model, EncoderWithHead)
    if run.head.class_weights == "balanced":
        weights = class_weights(dataset, len(model.config.labels))
        model.head.set_class_weights(weights.to(device_of(model)))
    if isinstance(model.encoder, BagOfWords) and run.model.get("from") is None:
        set_frequencies(model.encoder, dataset)
    if fresh and isinstance(model.head, RegressionHead):
        numbers = torch.from_numpy(np.asarray(dataset.targets))
        model.head.initialise_bias(numbers[numbers.isfinite()])
    if run.train.word_vectors is not None and fresh:
        load_word_vectors(
            model, run.train.word_vectors, tokenizer, run.data.normalisation == "lower"
        )


def set_frequencies(encoder: BagOfWords, dataset: EncodedDataset) -> None:
    """Counts the rows that each word occurs in, for an encoder that weights words by tf-idf."""
    if encoder.idf is None:
        return
    frequency: Tensor = torch.zeros_like(encoder.idf)
    for first in range(0, len(dataset), ROWS_AT_A_TIME):
        rows = np.arange(first, min(first + ROWS_AT_A_TIME, len(dataset)))
        tokens = dataset.batch(rows).tokens.to(device_of(encoder))
        frequency += encoder.occurring(tokens.clamp(min=0), tokens >= 0)
    encoder.initialise(frequency, len(dataset.tokens))


def class_weights(dataset: EncodedDataset, labels: int) -> Tensor:
    """`(labels,)`: examples / (labels × examples of the label), as scikit-learn balances classes."""
    values = (
        dataset.targets.values if isinstance(dataset.targets, SequenceArray) else dataset.targets
    )
    targets = torch.from_numpy(np.asarray(values))
    if targets.dim() == 2:
        counts = targets.clamp(min=0).sum(dim=0)
        return len(targets) / (labels * counts.clamp(min=1))
    counts = torch.bincount(targets[targets >= 0].long(), minlength=labels)
    return counts.sum() / (labels * counts.clamp(min=1))


@torch.no_grad()
def load_word_vectors(model: EncoderWithHead, path: str, tokenizer: Tokenizer, lower: bool) -> None:
    """The vectors of a file, or of a run folder, become the embeddings of its words; others stay as they are.
    Raises UsageError where they do not fit."""
    embedding = dict(model.encoder.named_children()).get("embedding")
    if not isinstance(embedding, nn.Embedding):
        raise UsageError(
            f"train.word_vectors needs an encoder with an embedding, but {model.model_type} has none"
        )
    spellings = {
        spelling.decode("utf-8", "replace"): i
        for i, spelling in enumerate(tokenizer.token_bytes)
        if spelling
    }
    if Path(path).is_dir():
        loaded = vectors_of_run(path).of(spellings.keys(), lower)
    else:
        loaded = read_word_vectors(path, spellings.keys(), lower)
    width = loaded.vectors.shape[1]
    if width != embedding.embedding_dim:
        name = "model.width" if model.model_type == "bag_of_words" else "model.embedding_width"
        raise UsageError(
            f"{printable(path)}: its vectors have {width} numbers, and the model's words"
            f" {embedding.embedding_dim}; set {name}={width}"
        )
    rows = torch.tensor([spellings[word] for word in loaded.words], dtype=torch.long)
    embedding.weight[rows.to(embedding.weight.device)] = torch.from_numpy(loaded.vectors).to(
        embedding.weight
    )
    if isinstance(model.encoder, Convolution):
        model.encoder.settle_static()
    words = f"{len(loaded.words):,} of {len(spellings):,} words of the vocabulary"
    logger.info(f"{printable(path)}: vectors of {words}")
    for note in loaded.facts:
        logger.info(note)
