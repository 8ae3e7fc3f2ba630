"""A trained model of images measured and asked."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, cast, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional as F

from seqloom import files
from seqloom.data.images.image_files import Picture, read_pictures
from seqloom.data.images.image_store import unknown_label
from seqloom.data.images.masked_patches import FIXED, MaskedPatchBatch, masked_patches
from seqloom.data.images.preprocessing import Preprocessing
from seqloom.errors import DataError, FolderError, UsageError, printable
from seqloom.evaluation.classification import LabelPredictions, confusion, label_metrics
from seqloom.explaining.explanation import Explanation
from seqloom.interop.adapter import base_folder
from seqloom.json_values import several_texts
from seqloom.long_work import log_progress
from seqloom.models.vit import LEVELS, ViT, ViTConfig
from seqloom.packed_weights import KeptWeights, packed_weights
from seqloom.protocols import (
    NO_REQUEST,
    Answer,
    EvaluatedExample,
    Evaluation,
    Request,
    device_of,
)
from seqloom.run_file import parse
from seqloom.runs import run_folder
from seqloom.runs.output_files import PICTURES, new_file
from seqloom.shapes import IGNORE
from seqloom.tasks.explain.look import Look
from seqloom.tasks.images.explain import SHOWN, explain_image, first_image
from seqloom.tasks.model import TrainedModel, single_path

CHUNK = 256
"""Images of a batch in evaluation."""

Labelled = tuple[NDArray[np.uint8], NDArray[np.int64]]
"""Pixels `(rows, size, size, channels)` and labels `(rows,)`."""


@packed_weights()
@torch.no_grad()
def classify(
    model: nn.Module, batches: Iterable[Labelled], preprocessing: Preprocessing
) -> LabelPredictions:
    """The predictions of a model in evaluation mode for these images."""
    found, device = [], device_of(model)
    for pixels, true in batches:
        logits = model(
            preprocessing.scaled(pixels).to(device, next(model.parameters()).dtype)
        ).float()
        losses = F.cross_entropy(logits, torch.from_numpy(true).to(device), reduction="none")
        confidence, predicted = logits.softmax(dim=-1).max(dim=-1)
        found.append(
            LabelPredictions(
                true, *(column.cpu().numpy() for column in (predicted, confidence, losses))
            )
        )
    return LabelPredictions.concatenate(found)


@packed_weights()
@torch.no_grad()
def patch_metrics(model: ViT, batches: Iterable[MaskedPatchBatch]) -> dict[str, float]:
    """How well a model in evaluation mode predicts the colours of corrupted patches: loss (nats a patch),
    accuracy, baseline_accuracy (of always predicting the most frequent colour), patches. There must be at
    least one batch."""
    weight, counts = next(model.parameters()), np.zeros(model.config.outputs, np.int64)
    loss = hits = 0.0
    for batch in batches:
        images, sources, targets = (part.to(weight.device) for part in batch)
        trained = targets != IGNORE
        logits, true = model(images.to(weight.dtype), sources)[trained].float(), targets[trained]
        loss += float(F.cross_entropy(logits, true, reduction="sum"))
        hits += float((logits.argmax(dim=-1) == true).sum())
        counts += np.bincount(true.cpu().numpy(), minlength=len(counts))
    total = int(counts.sum())
    return {
        "loss": loss / total,
        "accuracy": hits / total,
        "baseline_accuracy": int(counts.max()) / total,
        "patches": total,
    }


class ImageLabel(NamedTuple):
    """The prediction for an image."""

    image: str
    label: str
    probability: float
    probabilities: dict[str, float]
    """Of every label."""


@final
class ImageClassifier(TrainedModel):
    """A trained classifier of images, ready to be asked.

    seqloom.load("runs/digits").predict(["seven.png"])
    """

    reads: ClassVar = {
        "evaluate": frozenset(),
        "explain": frozenset(),
        "predict": frozenset({"labels"}),
    }

    def __init__(
        self, folder: Path, model: nn.Module, preprocessing: Preprocessing, labels: tuple[str, ...]
    ) -> None:
        super().__init__(folder, run_folder.IMAGES, model, "vit")
        self.preprocessing, self.labels = preprocessing, labels
        self._kept = KeptWeights(model)

    @classmethod
    def load(cls, folder: str | Path, device: str = "auto") -> ImageClassifier:
        """Opens a run folder. Raises FolderError if it is none, is damaged, or its model classifies no
        images."""
        folder = run_folder.resolve_folder(folder)
        opened = run_folder.open_model(folder, device)
        wanted = f"{run_folder.IMAGES} with labels"
        model = _vit_of(opened, folder, wanted)
        if opened.content["task"] != run_folder.IMAGES or not model.config.labels:
            raise _no_model_of(wanted, folder)
        preprocessing = read_preprocessing(base_folder(folder), model.config)
        return cls(folder, model, preprocessing, model.config.labels)

    def predict(self, paths: Sequence[str]) -> list[ImageLabel]:
        """The label of each image in these files."""
        return list(self.stream(paths))

    @torch.no_grad()
    def stream(self, paths: Sequence[str], chunk: int = CHUNK) -> Iterator[ImageLabel]:
        """The same, in order; memory is bounded by the chunk."""
        weight = next(self.model.parameters())
        for pictures in _chunks(read_pictures(paths, labelled=False), chunk):
            pixels = self.preprocessing.scaled(self._pixels(pictures))
            with self._kept.of():
                logits = self.model(pixels.to(weight.device, weight.dtype))
            for picture, probabilities in zip(
                pictures, logits.softmax(dim=-1).tolist(), strict=True
            ):
                # two classes of ImageNet may have the same name: a crane is a bird or a machine
                named = dict.fromkeys(self.labels, 0.0)
                for label, probability in zip(self.labels, probabilities, strict=True):
                    named[label] += probability
                best = max(range(len(probabilities)), key=probabilities.__getitem__)
                yield ImageLabel(picture.place, self.labels[best], probabilities[best], named)

    def answers(self, paths: Sequence[str], request: Request = NO_REQUEST) -> Iterator[Answer]:
        """The label and its probability for each image of these files."""
        self.check("predict", request)
        for found in self.stream(paths):
            line = f"{printable(found.label)}\t{found.probability:.4f}\t{found.image}"
            cells = {"label": found.label, "probability": found.probability, "image": found.image}
            if request.all_labels:
                cells |= {f"probability_{name}": p for name, p in found.probabilities.items()}
            yield Answer(line, found._asdict(), cells)

    def shows(self) -> list[str]:
        """The pictures that there are of this model, the default one first."""
        return list(SHOWN)

    def default_show(self) -> str:
        """The picture that is drawn where none is asked for."""
        return SHOWN[0]

    def explain(
        self,
        image: str | Sequence[str],
        output: str | None = None,
        request: Request = NO_REQUEST,
        **options: Any,
    ) -> Explanation:
        """A picture of what the model sees in the (first) image of a file; the keywords are the fields of
        `Look`. With `output` it is written to a new file, and must not be there already."""
        self.check("explain", request)
        look = parse(Look, {"show": self.default_show(), **options}, "--")
        explanation = self.looked_at(first_image(single_path(several_texts(image))), look)
        return explanation if output is None else explanation.save(new_file(output, PICTURES))

    def looked_at(self, image: Picture, look: Look) -> Explanation:
        """A picture of what the model sees in an image."""
        return explain_image(cast(ViT, self.model), self.preprocessing, self.labels, image, look)

    def evaluate(self, paths: Sequence[str], request: Request = NO_REQUEST) -> Evaluation:
        """How good it is on labelled images. Raises DataError if it does not have one of the labels."""
        self.check("evaluate", request)
        ids = {label: index for index, label in enumerate(self.labels)}

        places: list[str] = []

        def batches() -> Iterator[Labelled]:
            for pictures in _chunks(log_progress(read_pictures(paths), "images read"), CHUNK):
                for picture in pictures:
                    if picture.label not in ids:
                        raise DataError(
                            f"{picture.place}: {unknown_label(str(picture.label), self.labels)}"
                        )
                places.extend(picture.place for picture in pictures)
                yield (
                    self._pixels(pictures),
                    np.array([ids[str(picture.label)] for picture in pictures]),
                )

        found = classify(self.model, batches(), self.preprocessing)
        if not len(found.true):
            raise DataError(f"{printable(paths[0])}: must hold at least one image, but holds none")
        counts = confusion(found.true, found.predicted, len(self.labels))[:-1]  # no label is unseen
        predicted = [self.labels[label] for label in found.predicted]
        rows = zip(places, found.true, predicted, found.confidence.tolist(), strict=True)
        examples = [
            EvaluatedExample(
                image,
                image,
                self.labels[true],
                answer,
                float(answer == self.labels[true]),
                confidence,
            )
            for image, true, answer, confidence in rows
        ]
        return Evaluation(
            label_metrics(found, len(self.labels), "images"),
            outputs=predicted,
            examples=examples,
            details={"labels": list(self.labels), "confusion": counts.tolist()},
        )

    def _pixels(self, pictures: Sequence[Picture]) -> NDArray[np.uint8]:
        return np.stack([self.preprocessing.fitted(picture.pixels) for picture in pictures])


def read_preprocessing(folder: Path, config: ViTConfig) -> Preprocessing:
    """How a picture becomes what a model of this configuration reads. Raises FolderError if no file says
    so, or a damaged one."""
    path = folder / run_folder.PREPROCESSOR
    try:
        return Preprocessing.from_json(files.read_json(path), config.image_size, config.channels)
    except (UsageError, TypeError, ValueError) as error:
        raise FolderError(f"{printable(str(path))}: {error}") from None


def _chunks(pictures: Iterable[Picture], size: int) -> Iterator[list[Picture]]:
    remaining = iter(pictures)
    while chunk := list(islice(remaining, size)):
        yield chunk


def open_image_classifier(folder: Path, device: str) -> ImageClassifier:
    return ImageClassifier.load(folder, device)


@final
class PatchPredictor(TrainedModel):
    """A trained model of masked patches: it is measured, and fine-tuned."""

    reads: ClassVar = {"evaluate": frozenset()}

    def __init__(self, folder: Path, model: ViT) -> None:
        super().__init__(folder, run_folder.PATCHES, model, "vit")
        self.vit = model
        self.preprocessing = read_preprocessing(folder, model.config)

    def evaluate(self, paths: Sequence[str], request: Request = NO_REQUEST) -> Evaluation:
        """How well it predicts the colours of corrupted patches of images, whose labels are not read. The
        corruption is always the same. Raises DataError if there is no image."""
        self.check("evaluate", request)
        config = self.vit.config

        def batches() -> Iterator[MaskedPatchBatch]:
            read = 0
            for pictures in _chunks(
                log_progress(read_pictures(paths, labelled=False), "images read"), CHUNK
            ):
                rows = np.arange(read, read + len(pictures))
                read += len(pictures)
                pixels = np.stack(
                    [self.preprocessing.fitted(picture.pixels) for picture in pictures]
                )
                yield masked_patches(
                    pixels,
                    rows,
                    np.full_like(rows, FIXED),
                    0,
                    self.preprocessing,
                    config.patch_size,
                    LEVELS,
                )
            if not read:
                raise DataError("must hold at least one image, but holds none", paths[0])

        return Evaluation(patch_metrics(self.vit, batches()))


def open_patch_predictor(folder: Path, device: str) -> PatchPredictor:
    """Raises FolderError if the folder holds no such model."""
    model = _vit_of(run_folder.open_model(folder, device), folder, "masked patches")
    if model.config.head != "patches":
        raise _no_model_of("masked patches", folder)
    return PatchPredictor(folder, model)


def _vit_of(opened: run_folder.OpenedModel, folder: Path, wanted: str) -> ViT:
    if not isinstance(opened.model, ViT):
        raise _no_model_of(wanted, folder)
    return opened.model


def _no_model_of(wanted: str, folder: Path) -> FolderError:
    return FolderError(f"{printable(str(folder))}: must be a model of {wanted}, but is none")
