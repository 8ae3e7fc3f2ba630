"""Dropout of weights instead of features: of recurrent matrices, and of whole words of an embedding."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from torch import Tensor, nn
from torch.nn import functional as F

from seqloom.layers.one_hot import OneHot
from seqloom.layers.recurrent.layer import RecurrentLayer


@contextmanager
def dropped_recurrent_weights(layers: Iterable[RecurrentLayer], share: float) -> Iterator[None]:
    """While it is open, the layers use `W_h ⊙ m / (1 - share)`, with one mask m for each layer, drawn now,
    the same at all steps and for all rows.

    DropConnect (Wan et al. 2013) of the hidden-to-hidden matrices (Merity et al. 2018). Every implementation
    of a layer sees an ordinary weight; the gradient reaches the weight itself.
    """
    dropped = list(layers) if share else []
    for layer in dropped:
        layer.dropped_weight_h = F.dropout(layer.weight_h, share)
    try:
        yield
    finally:
        for layer in dropped:
            layer.dropped_weight_h = None


def embed(embedding: nn.Embedding | OneHot, tokens: Tensor, share: float) -> Tensor:
    """tokens `(rows, steps)` -> `(rows, steps, width)`, with some rows of the matrix set to 0 and the others
    scaled by `1 / (1 - share)`: a dropped word is dropped at every position (Gal and Ghahramani 2016; Merity
    et al. 2018)."""
    embedded: Tensor = embedding(tokens)
    if not share or not isinstance(embedding, nn.Embedding):
        return embedded
    kept = F.dropout(embedding.weight.new_ones(embedding.num_embeddings), share)
    return embedded * kept[tokens][..., None]
