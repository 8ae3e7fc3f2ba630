"""Shows where [CLS] looks in a picture, and which patches an answer needs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from seqloom.data.images.image_files import Picture, read_pictures
from seqloom.data.images.preprocessing import Preprocessing
from seqloom.errors import DataError, UsageError, printable
from seqloom.explaining.explanation import Explanation
from seqloom.explaining.patch_attention import occluded, patch_panels, rollout
from seqloom.explaining.studies.attention_maps import attention_maps
from seqloom.models.vit import ViT
from seqloom.tasks.explain.look import Look

if TYPE_CHECKING:
    import altair as alt


class SeenImage(NamedTuple):
    """An image as a model reads it."""

    model: ViT
    image: Picture
    pixels: Tensor
    """Of a person: `(height, width, channels)`, 0 to 255."""
    inputs: Tensor
    """Of the model: `(1, channels, height, width)`."""
    labels: Sequence[str]

    @property
    def patches(self) -> int:
        """Along a side."""
        return self.inputs.shape[-1] // self.model.config.patch_size

    @torch.inference_mode()
    def logits(self, inputs: Tensor) -> Tensor:
        """`(rows, labels)`"""
        logits: Tensor = self.model(inputs)
        return logits.double().cpu()


SHOWN = ("attention", "attribution")
"""Pictures that there are of an image, the default one first."""


def first_image(path: str) -> Picture:
    """That of a file. Raises DataError if it has none."""
    image = next(read_pictures([path], labelled=False), None)
    if image is None:
        raise DataError("must hold at least one image, but holds none", path)
    return image


def explain_image(
    model: ViT, preprocessing: Preprocessing, labels: Sequence[str], image: Picture, look: Look
) -> Explanation:
    weight = next(model.parameters())
    pixels = preprocessing.fitted(image.pixels)
    inputs = preprocessing.scaled(pixels[None]).to(weight.device, weight.dtype)
    seen = SeenImage(model, image, torch.from_numpy(pixels), inputs, labels)
    if look.show not in SHOWN:
        raise UsageError(f"--show must be {' or '.join(SHOWN)} of images, but is {look.show}")
    return (_attention if look.show == "attention" else _occlusion)(seen, look)


def _attention(seen: SeenImage, look: Look) -> Explanation:
    """Where [CLS] looks: through all layers, and in each head of one layer, by default the last."""
    for name in ("target", "part", "head"):
        if vars(look)[name] is not None:
            raise UsageError(f"--{name} changes nothing of the attention of images; leave it out")
    maps = attention_maps(seen.model, lambda: seen.model(seen.inputs))["self"][0].double()
    layer = look.layer or len(maps)
    if not 1 <= layer <= len(maps):
        raise UsageError(f"--layer must be 1 to {len(maps)}, but is {layer}")
    rolled = rollout(maps).view(seen.patches, seen.patches)
    # of [CLS], the first query, to each patch
    heads = maps[layer - 1, :, 0, 1:].reshape(-1, seen.patches, seen.patches)
    panels = {"all layers (rollout)": rolled.numpy()}
    for number, head in enumerate(heads, start=1):
        panels[f"layer {layer}, head {number}"] = head.numpy()
    numbers = {"layer": layer, "rollout": rolled.tolist(), "heads": heads.tolist()}
    return _explanation(
        seen,
        "attention",
        "Where [CLS] looks",
        numbers,
        lambda title: patch_panels(
            seen.pixels.numpy(), panels, title=title, subtitle=seen.image.place
        ),
    )


def _occlusion(seen: SeenImage, look: Look) -> Explanation:
    """How much the difference of two logits falls where a patch is made grey (the mean of the colours)."""
    if look.method != "leave-one-out" or look.word is not None:
        raise UsageError("of images only patches can be left out; leave --method and --word out")
    logits = seen.logits(seen.inputs)[0]
    order = [seen.labels[number] for number in logits.argsort(descending=True).tolist()]
    target = look.target or order[0]
    foil = look.foil or next((label for label in order if label != target), target)
    for label in (target, foil):
        if label not in seen.labels:
            raise UsageError(
                f"the label must be one of {', '.join(map(printable, seen.labels))}, but is"
                f" {printable(label)}"
            )
    first, second = seen.labels.index(target), seen.labels.index(foil)

    def score(inputs: Tensor) -> Tensor:
        found = seen.logits(inputs)
        return found[:, first] - found[:, second]

    falls = occluded(seen.inputs, seen.model.config.patch_size, score)
    asked = f"logit of {target} - logit of {foil}"
    numbers = {"asked": asked, "score": float(score(seen.inputs)), "patches": falls.tolist()}
    panels = {f"fall of {asked}": falls.numpy()}
    return _explanation(
        seen,
        "attribution",
        "What each patch adds to the answer",
        numbers,
        lambda title: patch_panels(
            seen.pixels.numpy(), panels, title=title, subtitle=seen.image.place, signed=True
        ),
    )


def _explanation(
    seen: SeenImage,
    show: str,
    title: str,
    numbers: dict[str, object],
    draw: Callable[[str], alt.VConcatChart],
) -> Explanation:
    """With the label and its probability."""
    probabilities = seen.logits(seen.inputs)[0].softmax(dim=-1)
    best = int(probabilities.argmax())
    label, probability = seen.labels[best], float(probabilities[best])
    place = seen.image.place
    return Explanation(
        show=show,
        numbers={"image": place, "label": label, "probability": probability, **numbers},
        text=[f"{printable(label)}\t{probability:.4f}\t{place}"],
        draw=lambda: draw(f"{title}: {label} ({probability:.2f})"),
    )
