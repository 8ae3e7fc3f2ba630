"""From images to a training: stores, a part held out, a plan of batches, the weights to start from. Images
have
labels for classification, and none for masked patch prediction."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple, TypeVar, cast, final

import numpy as np
from torch import Tensor, nn

from seqloom import files, manifest
from seqloom.config import RunConfig
from seqloom.data.batching.splits import stratified_split
from seqloom.data.batching.token_store import cache_folder, fingerprint
from seqloom.data.images.image_files import Picture, image_files, read_pictures
from seqloom.data.images.image_store import ImageBatch, ImagePlan, ImageStore, build_image_store
from seqloom.data.images.masked_patches import FIXED, MaskedPatchBatch, masked_patches
from seqloom.data.images.preprocessing import Preprocessing
from seqloom.errors import FolderError, UsageError, counted, printable
from seqloom.evaluation.classification import label_metrics
from seqloom.interop.adapter import base_folder
from seqloom.json_values import JsonObject
from seqloom.long_work import log_progress
from seqloom.models.vit import LEVELS, ViT, ViTConfig
from seqloom.protocols import NewModel, Rows
from seqloom.runs import run_folder
from seqloom.runs.new_model import model_config
from seqloom.runs.progress import split_note
from seqloom.runs.settings import model_fields
from seqloom.shapes import IGNORE
from seqloom.tasks.images.classify import CHUNK, classify, patch_metrics, read_preprocessing
from seqloom.tasks.training_data import StepTrainingData, check_same_data, record_data
from seqloom.training.objectives import ImageClassification, MaskedPatchPrediction

logger = logging.getLogger(__name__)

MAY_CHANGE = ("image_size", "dropout", "attention_dropout")
"""Fields that may be set when a ViT begins with the weights of another."""


class PretrainedViT(NamedTuple):
    """The weights that a new ViT starts from."""

    fields: Mapping[str, Any]
    """Of its configuration, labels aside."""
    tensors: dict[str, Tensor]
    """Of its weights, by name."""
    new: tuple[str, ...]
    """Names of the weights that are not among these, and are random."""


@dataclass(frozen=True, kw_only=True)
class _Images(StepTrainingData):
    """Images as the training loop reads them, whatever is trained on them."""

    kind: ClassVar = "images"

    run: RunConfig
    plan: ImagePlan
    validation: ImageStore
    held_out: Rows
    """The rows of `validation` that are validated on."""
    config: ViTConfig
    """Of the model, labels aside."""
    pretrained: PretrainedViT | None
    """The weights that the model starts from; None for random ones."""
    tokenizer: None = None

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the classes, in order; none where nothing is classified."""
        return self.plan.store.names

    def build(self) -> NewModel:
        """A new model, with the weights that it starts from."""
        config = dataclasses.replace(self.config, labels=self.labels)
        model = ViT(config)
        if self.pretrained is not None:
            model.load_state_dict({**model.state_dict(), **self.pretrained.tensors})
            logger.info(f"new, and to be trained: {', '.join(self.pretrained.new)}")
        return NewModel(model, config, "vit")

    def batches(self, epoch: int, start: int) -> Iterator[Rows]:
        return self.plan.epoch(epoch, start)

    def batches_an_epoch(self) -> int:
        return self.plan.count()

    def describe(self, rows: Rows) -> str:
        return self.plan.describe(rows)

    def held_out_chunks(self) -> Iterator[Rows]:
        for first in range(0, len(self.held_out), CHUNK):
            yield self.held_out[first : first + CHUNK]


@final
@dataclass(frozen=True, kw_only=True)
class PreparedImages(_Images):
    """For classification."""

    def about(self) -> str:
        trained, labels, validation = len(self.plan.trained), len(self.labels), len(self.held_out)
        return f"{counted(trained, 'image')} of {counted(labels, 'label')} ({validation:,} for validation)"

    def load(self, rows: Rows, whole: Rows) -> ImageBatch:
        return self.plan.load(rows, whole)

    def objective(self) -> ImageClassification:
        return ImageClassification(self.run.train.label_smoothing)

    def validate(self, model: nn.Module) -> dict[str, float]:
        batches = (
            (self.validation.pixels[rows], np.asarray(self.validation.labels[rows]))
            for rows in self.held_out_chunks()
        )
        return label_metrics(
            classify(model, batches, self.plan.preprocessing), len(self.labels), "images"
        )


@final
@dataclass(frozen=True, kw_only=True)
class PreparedPatches(_Images):
    """For masked patch prediction."""

    def about(self) -> str:
        trained, patches, validation = (
            len(self.plan.trained),
            self.config.patches,
            len(self.held_out),
        )
        return f"{counted(trained, 'image')} of {patches:,} patches ({validation:,} for validation)"

    def load(self, rows: Rows, whole: Rows) -> MaskedPatchBatch:
        """The batch of these rows. No rows: the first of the `whole` batch with nothing trained, since a
        worker must take part."""
        pixels, at, epochs = self.plan.pixels(rows if len(rows) else whole[:1])
        batch = masked_patches(
            pixels,
            at,
            epochs,
            self.plan.seed,
            self.plan.preprocessing,
            self.config.patch_size,
            LEVELS,
        )
        return batch if len(rows) else batch._replace(targets=batch.targets.fill_(IGNORE))

    def objective(self) -> MaskedPatchPrediction:
        return MaskedPatchPrediction(self.run.train.label_smoothing)

    def validate(self, model: nn.Module) -> dict[str, float]:
        """On a corruption that is always the same."""
        preprocessing, size = self.plan.preprocessing, self.config.patch_size
        pixels = self.validation.pixels
        batches = (
            masked_patches(
                pixels[rows], rows, np.full_like(rows, FIXED), 0, preprocessing, size, LEVELS
            )
            for rows in self.held_out_chunks()
        )
        return patch_metrics(cast(ViT, model), batches)


T = TypeVar("T", bound=_Images)


def _prepare(kind: type[T], head: str, run_config: RunConfig, folder: Path, first: bool) -> T:
    setup = read_setup(run_config, folder, head)
    store, validation, trained, held_out = ImageReader(run_config, setup, folder, first).read()
    train = run_config.train
    plan = ImagePlan(
        store=store,
        preprocessing=setup.preprocessing,
        trained=trained,
        seed=train.seed,
        batch_rows=train.batch_rows or max(train.batch_tokens // (1 + setup.config.patches), 1),
        shift=train.shift,
    )
    return kind(
        run=run_config,
        plan=plan,
        validation=validation,
        held_out=held_out,
        config=setup.config,
        pretrained=setup.pretrained,
    )


prepare_images = partial(_prepare, PreparedImages, "labels")
"""Reads labelled images, holds a part out of each label, builds the stores."""
prepare_patches = partial(_prepare, PreparedPatches, "patches")
"""Reads images without their labels, holds a part out, builds the stores."""


class ViTSetup(NamedTuple):
    """A model of images before its labels are known."""

    config: ViTConfig
    """Labels aside."""
    preprocessing: Preprocessing
    pretrained: PretrainedViT | None


@final
class ImageReader:
    """Reads the images of a run into stores, and holds some out for validation."""

    def __init__(self, run_config: RunConfig, setup: ViTSetup, folder: Path, first: bool) -> None:
        self.data, self.seed = run_config.data, run_config.train.seed
        self.labelled = setup.config.head == "labels"
        self.preprocessing, self.folder, self.first = setup.preprocessing, folder, first
        self.fingerprints: list[dict[str, Any]] = []

    def read(self) -> tuple[ImageStore, ImageStore, Rows, Rows]:
        """(training store, validation store, rows to train on, rows to validate on)"""
        data = self.data
        train_files = image_files(data.train, labelled=self.labelled)
        other_files = (
            image_files(data.validation, labelled=self.labelled) if data.validation else []
        )
        self.fingerprints = [fingerprint(path) for path in [*train_files, *other_files]]
        check_same_data(self.folder, self.fingerprints)
        store = self._store(data.train, train_files, "training")
        if self.labelled and len(store.names) < 2:
            raise UsageError(
                f"images must have at least two labels, but all have {printable(repr(store.names[0]))}"
            )
        if other_files:
            validation = self._store(data.validation, other_files, "validation")
            validation = validation.numbered(store.names) if self.labelled else validation
            trained, held_out = np.arange(len(store)), np.arange(len(validation))
        else:
            validation = store
            trained, held_out = self._split(store)
        if self.first:
            if not (self.folder / run_folder.DATA).exists():
                files.write_json(
                    self.folder / run_folder.PREPROCESSOR, self.preprocessing.to_json()
                )
                manifest.add(self.folder, run_folder.PREPROCESSOR)
            counts = {"images": len(trained), "validation_images": len(held_out)}
            record_data(self.folder, self.fingerprints, **counts)
        return store, validation, trained, held_out

    def _store(self, paths: Sequence[str], used: Sequence[str], name: str) -> ImageStore:
        # the paths count as well as the content: a label is the name of a folder
        hashes = [
            [file["path"], file["sha256"]]
            for file in self.fingerprints
            if file["path"] in set(used)
        ]
        identity: dict[str, object] = {"paths": list(paths), "files": hashes}
        if not self.labelled:
            identity["labelled"] = False

        def pictures() -> Iterator[Picture]:
            return log_progress(read_pictures(paths, labelled=self.labelled), "images read")

        store = build_image_store(
            pictures, self.preprocessing, identity, cache_folder(Path(paths[0]))
        )
        for change, number in store.changed.items():
            logger.info(f"{name}: {number:,} of {counted(len(store), 'image')} {change}")
        return store

    def _split(self, store: ImageStore) -> tuple[Rows, Rows]:
        if len(store) < 2:
            raise UsageError(
                "validation needs images of its own, but there is only one; name more data or --validation"
                " files"
            )
        held_out = stratified_split(np.asarray(store.labels), self.seed)
        by_label = ", of each label its share" if self.labelled else ""
        logger.info(split_note(len(held_out), "image", self.seed) + by_label)
        return np.setdiff1d(np.arange(len(store)), held_out), held_out


def read_setup(run_config: RunConfig, folder: Path, head: str) -> ViTSetup:
    """The model of a run with such a head, and the weights that it starts from (`model.from`), which a
    resumed run does not need."""
    model, source, pretrained = run_config.model, None, None
    fields: Mapping[str, Any] = model_fields(model)
    resumed = (folder / run_folder.CONFIG).exists()
    if resumed and ("from" not in model or run_folder.has_weights(folder)):
        source = folder
        fields = {**_encoder_fields(files.read_json_object(folder / run_folder.CONFIG)), **fields}
    elif "from" in model:
        source = run_folder.resolve_folder(model["from"])
        pretrained = pretrained_vit(source, fields)
        fields = pretrained.fields
    config: ViTConfig = model_config(model["name"], model["size"], 0, fields)
    if config.head != head:
        raise UsageError(
            f"model.head must be {head} for {run_config.task}, but is {config.head}; leave it out"
        )
    if run_config.train.shift >= config.image_size:
        raise UsageError(
            f"train.shift must be below model.image_size={config.image_size}, but is {run_config.train.shift}"
        )
    if source is None:
        preprocessing = Preprocessing.published(config.image_size, config.channels)
    else:
        preprocessing = read_preprocessing(base_folder(source), config)
    return ViTSetup(config, dataclasses.replace(preprocessing, size=config.image_size), pretrained)


def pretrained_vit(folder: str | Path, changes: JsonObject = MappingProxyType({})) -> PretrainedViT:
    """The encoder of the ViT in a run folder or a Hugging Face directory, for a model of labels with these
    fields changed. Its head and [mask] are left out (section 3.2: a new head, which starts at 0).

    Raises FolderError if the folder holds no ViT, UsageError for a change that the weights do not allow.
    Positions are interpolated where `image_size` changes.
    """
    opened = run_folder.open_model(folder, "cpu")
    model = opened.model
    if not isinstance(model, ViT):
        kind = printable(str(opened.content["model_type"]))
        raise FolderError(
            f"{printable(str(folder))}: must hold a vit to begin with, but holds a {kind}"
        )
    fields = _encoder_fields(opened.content)
    for name, value in changes.items():
        if name in fields and name not in MAY_CHANGE and value != fields[name]:
            given = f"model.{name}={printable(str(value))}"
            raise UsageError(
                f"{given} cannot be set: the weights of {printable(str(folder))} have {fields[name]}; leave"
                " it out"
            )
    fields |= changes
    tensors = {name: tensor.detach() for name, tensor in model.state_dict().items()}
    for name in ("head.weight", "head.bias", "mask"):
        tensors.pop(name, None)
    size = cast(int, fields["image_size"])
    tensors["positions"] = model.positions_of(size, size).detach()
    return PretrainedViT(fields, tensors, ("head.weight", "head.bias"))


def _encoder_fields(content: JsonObject) -> dict[str, object]:
    """The fields of a ViT in a config.json, but for those of its head."""
    known = {field.name for field in dataclasses.fields(ViTConfig)} - {"labels", "head"}
    return {name: value for name, value in content.items() if name in known}
