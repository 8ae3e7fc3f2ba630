"""What a new model takes from its data: frequencies of words and labels, means of numbers."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from seqloom.config import RunConfig
from seqloom.data.encoding.encoded_dataset import EncodedDataset
from seqloom.models.bag_of_words import BagOfWords
from seqloom.models.encoder_with_head import EncoderWithHead
from seqloom.protocols import device_of

ROWS_AT_A_TIME = 1024
"""Of those whose words are counted."""


def initialise_from_data(
    model: EncoderWithHead, run: RunConfig, dataset: EncodedDataset, fresh: bool
) -> None:
    """Sets what a model takes from the data and does not train. Where it is `fresh`, without weights of its
    own yet, sets the initial values of what it trains too."""
    if run.head.class_weights == "balanced":
        weights = class_weights(dataset, len(model.config.labels))
        model.head.set_class_weights(weights.to(device_of(model)))
    if isinstance(model.encoder, BagOfWords) and run.model.get("from") is None:
        set_frequencies(model.encoder, dataset)
    if fresh:
        model.head.start_from(dataset.flat_targets)


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
    targets = torch.from_numpy(np.asarray(dataset.flat_targets))
    if targets.dim() == 2:
        counts = targets.clamp(min=0).sum(dim=0)
        return len(targets) / (labels * counts.clamp(min=1))
    counts = torch.bincount(targets[targets >= 0].long(), minlength=labels)
    return counts.sum() / (labels * counts.clamp(min=1))
