"""Dropout of weights instead of features: of recurrent matrices, and of whole words of an embedding."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from torch import Tensor, nn
from torch.nn import functional as F

from seqloom.layers.recurrent.layer import RecurrentLayer


@contextmanager
def dropped_recurrent_weights(layers: Iterable[RecurrentLayer], share: float) -> Iterator[None]:
    """While it is open, the layers use `W_h ⊙ m / (1 - share)`: one mask m each, drawn now, the same at all
    steps and for all rows.

    DropConnect (Wan et al. 2013) of the hidden-to-hidden matrices (Merity et al. 2018). Since it is a weight
    like any other, every way to run a layer takes it; the gradient goes to the weight itself.
    """
    dropped = list(layers) if share else []
    for layer in dropped:
        layer.dropped_h = F.dropout(layer.weight_h, share)
    try:
        yield
    finally:
        for layer in dropped:
            layer.dropped_h = None


def embed(embedding: nn.Embedding, tokens: Tensor, share: float) -> Tensor:
    """tokens `(rows, steps)` -> `(rows, steps, width)`, from a matrix some of whose rows are zeros, the
    others scaled by `1 / (1 - share)`: a dropped word is gone wherever it stands (Gal and Ghahramani 2016;
    Merity et al. 2018)."""
    embedded: Tensor = embedding(tokens)
    if not share:
        return embedded
    kept = F.dropout(embedding.weight.new_ones(embedding.num_embeddings), share)
    return embedded * kept[tokens][..., None]
