"""What a reader says of every item of a set: items of like length together, answers in the order of the
items."""

from __future__ import annotations

from typing import Any, NamedTuple, final

import numpy as np
import torch
from numpy.typing import NDArray

from seqloom.data.batching.pair_batches import batch_ends
from seqloom.data.encoding.encoded_dataset import EncodedDataset
from seqloom.protocols import device_of

BUDGET = {"cpu": 4096, "cuda": 65536}
"""Steps of a batch, rows × longest, where the model is."""


@final
class HeadOutputs(NamedTuple):
    """Of each item; the loss over all of them."""

    likely: list[NDArray[Any]]
    """Probabilities as the head gives them for one item: `(labels,)`, a number `()`, `(places, labels)` or
    `(options,)`; of spans the scores `(places, 2)`, which windows share."""
    predictions: list[NDArray[Any]]
    loss: float
    """Mean over what has a target; nan where nothing has."""


@torch.inference_mode()
def head_outputs(model: Any, items: EncodedDataset) -> HeadOutputs:
    """What a `Reader` in evaluation mode says."""
    device = device_of(model)
    order = np.argsort(items.costs, kind="stable")
    total, count = 0.0, 0
    likely: list[Any] = [None] * len(items)
    predictions: list[Any] = [None] * len(items)
    first = 0
    for end in (
        batch_ends(items.costs[order], np.zeros(len(order), np.int64), BUDGET[device.type])
        if len(items)
        else ()
    ):
        which = order[first:end]
        first = end
        batch = type(whole := items.batch(which))(*(part.to(device) for part in whole))
        scores = model(batch)
        loss = model.head.loss(scores, batch)
        total, count = total + float(loss.total), count + int(loss.count)
        values = (
            (scores if model.config.kind == "span" else model.head.probabilities(scores, batch))
            .float()
            .cpu()
            .numpy()
        )
        chosen = model.head.predictions(scores, batch).cpu().numpy()
        sizes = (batch.places >= 0).sum(dim=1).tolist()
        for at, item in enumerate(which):
            spans, tags = (
                model.config.kind == "span",
                model.config.kind == "tagging",
            )  # there an item is a row, and has so many places
            likely[item] = values[at, : sizes[at]] if spans or tags else values[at]
            predictions[item] = chosen[at, : sizes[at]] if tags else chosen[at]
    return HeadOutputs(likely, predictions, total / count if count else float("nan"))
