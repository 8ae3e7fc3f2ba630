"""The answers of a model with a task head to every item of a dataset, in batches of similar lengths."""

from __future__ import annotations

from typing import NamedTuple, final

import numpy as np
import torch

from seqloom.arrays import Numbers
from seqloom.data.batching.pair_batches import batch_ends
from seqloom.data.encoding.encoded_dataset import EncodedDataset
from seqloom.long_work import LongWork
from seqloom.models.encoder_with_head import EncoderWithHead
from seqloom.packed_weights import packed_weights
from seqloom.protocols import device_of
from seqloom.shapes import on_device

BATCH_STEPS = {"cpu": 4096, "cuda": 65536}
"""Steps of a batch, rows × longest, by device."""


@final
class HeadOutputs(NamedTuple):
    """The outputs for each item, in the order of the dataset, and the loss over all of them."""

    probabilities: list[Numbers]
    """Those of one item: `(labels,)`, `(places, labels)` or `(options,)`; of a regression the number `()`; of
    spans the scores `(places, 2)`, which windows share."""
    predictions: list[Numbers]
    loss: float
    """Mean over what has a target; nan where nothing has."""


@packed_weights()
@torch.inference_mode()
def predict_dataset(
    model: EncoderWithHead, dataset: EncodedDataset, work: LongWork | None = None
) -> HeadOutputs:
    """The outputs of a model in evaluation mode. `work` counts the items."""
    device, kind = device_of(model), model.config.kind
    order = np.argsort(dataset.costs, kind="stable")
    probabilities = [np.empty(0)] * len(dataset)
    predictions = [np.empty(0)] * len(dataset)
    total, count, first = 0.0, 0, 0
    no_targets = np.zeros(len(order), np.int64)
    ends = (
        batch_ends(dataset.costs[order], no_targets, BATCH_STEPS[device.type])
        if len(dataset)
        else []
    )
    for end in ends:
        items = order[first:end]
        if work is not None:
            work.add(len(items))
        first = end
        batch = on_device(dataset.batch(items), device)
        scores = model(batch)
        loss = model.head.loss(scores, batch)
        total, count = total + float(loss.total), count + int(loss.count)
        likely = scores if kind == "span" else model.head.probabilities(scores, batch)
        values = likely.float().cpu().numpy()
        chosen = model.head.predictions(scores, batch).cpu().numpy()
        # in tagging and spans an item is a row, which is cut to the places that it has
        sizes = (batch.places >= 0).sum(dim=1).tolist()
        for row, item in enumerate(items):
            per_place = kind in ("span", "tagging")
            probabilities[item] = values[row, : sizes[row]] if per_place else values[row]
            predictions[item] = chosen[row, : sizes[row]] if kind == "tagging" else chosen[row]
    mean_loss = total / count if count else float("nan")
    return HeadOutputs(probabilities, predictions, mean_loss)
