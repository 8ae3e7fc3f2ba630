"""What a new reader is told of its data before it is trained: word vectors, how rare words and labels are,
the mean of numbers."""

from __future__ import annotations

import logging

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
from seqloom.text.vectors.word_vectors import read_word_vectors

logger = logging.getLogger(__name__)

ROWS_AT_A_TIME = 1024
"""Rows whose words are counted at a time."""


def initialise_from_data(
    model: nn.Module, run: RunConfig, tokenizer: Tokenizer, dataset: EncodedDataset, fresh: bool
) -> None:
    """Sets what a model takes from the data and training does not change, and where it is `fresh` what it
    begins with."""
    assert isinstance(model, EncoderWithHead)
    if run.head.class_weights == "balanced":
        model.head.set_class_weights(class_weights(dataset, len(model.config.labels)).to(device_of(model)))
    if (
        isinstance(model.encoder, BagOfWords)
        and model.encoder.idf is not None
        and run.model.get("from") is None
    ):
        frequency: Tensor = torch.zeros_like(model.encoder.idf)
        for first in range(0, len(dataset), ROWS_AT_A_TIME):
            tokens = dataset.batch(np.arange(first, min(first + ROWS_AT_A_TIME, len(dataset)))).tokens.to(
                device_of(model)
            )
            frequency += model.encoder.occurring(tokens.clamp(min=0), tokens >= 0)
        model.encoder.initialise(frequency, len(dataset.tokens))
    if fresh and isinstance(model.head, RegressionHead):
        numbers = torch.from_numpy(np.asarray(dataset.targets))
        model.head.initialise_bias(numbers[numbers.isfinite()])
    if run.train.word_vectors is not None and fresh:
        load_word_vectors(model, run.train.word_vectors, tokenizer, run.data.normalisation == "lower")


def class_weights(dataset: EncodedDataset, labels: int) -> Tensor:
    """`(labels,)`: examples / (labels × examples of the label), as `class_weights=balanced` of scikit-learn."""
    targets = torch.from_numpy(
        np.asarray(dataset.targets.values if isinstance(dataset.targets, SequenceArray) else dataset.targets)
    )
    if targets.dim() == 2:
        counts = targets.clamp(min=0).sum(dim=0)
        return len(targets) / (labels * counts.clamp(min=1))
    counts = torch.bincount(targets[targets >= 0].long(), minlength=labels)
    return counts.sum() / (labels * counts.clamp(min=1))


@torch.no_grad()
def load_word_vectors(model: EncoderWithHead, path: str, tokenizer: Tokenizer, lower: bool) -> None:
    """The vectors of a file become the embeddings of the words that it has; the others keep their start.
    Raises UsageError where they do not fit."""
    embedding = getattr(model.encoder, "embedding", None)
    if not isinstance(embedding, nn.Embedding):
        raise UsageError(
            f"train.word_vectors needs an encoder with an embedding, but {model.model_type} has none"
        )
    words = {
        spelled.decode("utf-8", "replace"): i for i, spelled in enumerate(tokenizer.token_bytes) if spelled
    }
    found = read_word_vectors(path, words.keys(), lower)
    width = found.vectors.shape[1]
    if width != embedding.embedding_dim:
        name = "model.width" if model.model_type == "bag_of_words" else "model.embedding_width"
        raise UsageError(
            f"{printable(path)}: its vectors have {width} numbers, and the model's words"
            f" {embedding.embedding_dim}; set {name}={width}"
        )
    rows = torch.tensor(
        [words[word] for word in found.words], dtype=torch.long, device=embedding.weight.device
    )
    embedding.weight[rows] = torch.from_numpy(found.vectors).to(embedding.weight)
    if isinstance(model.encoder, Convolution):
        model.encoder.settle_static()
    logger.info(
        f"{printable(path)}: vectors of {len(found.words):,} of {len(words):,} words of the vocabulary"
    )
    for note in found.facts:
        logger.info(note)
