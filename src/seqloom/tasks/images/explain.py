"""Shows where [CLS] looks in a picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

import torch
from torch import Tensor

from seqloom.data.images.image_files import read_pictures
from seqloom.data.images.preprocessing import Preprocessing
from seqloom.errors import DataError, printable
from seqloom.explaining.charts import save_chart
from seqloom.explaining.patch_attention import patch_panels, rollout
from seqloom.models.vit import ViT


@final
@dataclass(frozen=True, kw_only=True)
class ImageExplanation:
    image: str
    label: str
    probability: float
    rollout: list[list[float]]
    """What [CLS] takes from each patch, through all layers: `(down, across)`."""
    heads: list[list[list[float]]]
    """Where each head of the last layer looks."""
    picture: Path

    def summary(self) -> dict[str, object]:
        return {**vars(self), "picture": str(self.picture)}

    def lines(self) -> list[str]:
        """For people."""
        label = f"{printable(self.label)}\t{self.probability:.4f}\t{self.image}"
        return [label, f"where [CLS] looks: {self.picture}"]


def explain_image(
    model: ViT, preprocessing: Preprocessing, labels: Sequence[str], path: str, picture: Path
) -> ImageExplanation:
    """Draws the attention for the (first) image of a file."""
    image = next(read_pictures([path], labelled=False), None)
    if image is None:
        raise DataError("must hold at least one image, but holds none", path)
    weight = next(model.parameters())
    pixels = preprocessing.fitted(image.pixels)
    inputs = preprocessing.scaled(pixels[None]).to(weight.device, weight.dtype)
    with torch.inference_mode():
        probabilities = model(inputs)[0].softmax(dim=-1)
        weights: Tensor = model.attention_weights(inputs)[0].double().cpu()
    side = preprocessing.size // model.config.patch_size
    rolled = rollout(weights).view(side, side)
    # of [CLS], the first query, to each patch
    heads = weights[-1, :, 0, 1:].reshape(-1, side, side)
    panels = {"all layers (rollout)": rolled.numpy()}
    panels |= {
        f"last layer, head {number}": head.numpy() for number, head in enumerate(heads, start=1)
    }
    best = int(probabilities.argmax())
    label, probability = labels[best], float(probabilities[best])
    title = f"Where [CLS] looks: {label} ({probability:.2f})"
    save_chart(patch_panels(pixels, panels, title=title, subtitle=image.place), picture)
    return ImageExplanation(
        image=image.place,
        label=label,
        probability=probability,
        rollout=rolled.tolist(),
        heads=heads.tolist(),
        picture=picture,
    )
