"""Images to what a training reads: a store, a part held out, a plan of batches; with labels for
classification, without for masked patch prediction. And what a ViT that was trained before gives to one that
begins with it."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, final

import numpy as np
from torch import Tensor, nn

from seqloom import files
from seqloom.config import RunConfig
from seqloom.data.batching.splits import stratified_split
from seqloom.data.batching.token_store import cache_folder, fingerprint
from seqloom.data.images.image_files import Picture, image_files, read_pictures
from seqloom.data.images.image_store import ImageBatch, ImagePlan, ImageStore, build_image_store
from seqloom.data.images.masked_patches import FIXED, MaskedPatchBatch, masked_patches
from seqloom.data.images.preprocessing import Preprocessing
from seqloom.errors import FolderError, UsageError, printable
from seqloom.evaluation.classification import label_metrics
from seqloom.models.vit import LEVELS, ViT, ViTConfig
from seqloom.protocols import NewModel, Rows
from seqloom.runs import run_folder
from seqloom.runs.progress import log_progress, split_note
from seqloom.runs.settings import model_fields
from seqloom.shapes import IGNORE
from seqloom.tasks.images.classify import CHUNK, classify, patch_metrics, read_preprocessing
from seqloom.tasks.training_data import check_same_data
from seqloom.training.objectives import ImageClassification, MaskedPatchPrediction

logger = logging.getLogger(__name__)

MAY_CHANGE = ("image_size", "dropout", "attention_dropout")
"""Fields that may be set when a ViT begins with the weights of another."""


class PretrainedViT(NamedTuple):
    """What a ViT begins with that was trained before."""

    fields: dict[str, Any]
    """Of its configuration, labels aside."""
    tensors: dict[str, Tensor]
    """Of its weights, by name."""
    new: tuple[str, ...]
    """Names of the weights that are not among these, and begin as those of a new model do."""


@dataclass(frozen=True, kw_only=True)
class _Images:
    """Images turned into what the loop reads, whatever is trained with them."""

    run: RunConfig
    plan: ImagePlan
    validation: ImageStore
    held_out: Rows
    """The rows of `validation` that are validated on."""
    config: ViTConfig
    """Of the model, labels aside."""
    begun: PretrainedViT | None
    """What the model begins with."""
    tokenizer: None = None

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the classes, in order; none where nothing is classified."""
        return self.plan.store.names

    def build(self) -> NewModel:
        """A new model, with the weights that it begins with."""
        config = dataclasses.replace(self.config, labels=self.labels)
        model = ViT(config)
        if self.begun is not None:
            model.load_state_dict({**model.state_dict(), **self.begun.tensors})
            logger.info(f"new, and to be trained: {', '.join(self.begun.new)}")
        return NewModel(model, config, "vit")

    def batches(self, epoch: int, start: int) -> Iterator[Rows]:
        return self.plan.epoch(epoch, start)

    def batches_an_epoch(self) -> int:
        return self.plan.count()

    def describe(self, rows: Rows) -> str:
        return self.plan.describe(rows)

    def initialise(self, model: nn.Module) -> None:
        pass

    def fit(self, model_class: Any, config: Any) -> nn.Module:
        raise UsageError(f"a {model_class.__name__} cannot be made of images")

    def held_in_chunks(self) -> Iterator[Rows]:
        return (self.held_out[at : at + CHUNK] for at in range(0, len(self.held_out), CHUNK))


@final
@dataclass(frozen=True, kw_only=True)
class PreparedImages(_Images):
    """For classification."""

    def about(self) -> str:
        return (
            f"{len(self.plan.trained):,} images of {len(self.labels):,} labels ({len(self.held_out):,} for"
            " validation)"
        )

    def load(self, rows: Rows, whole: Rows) -> ImageBatch:
        return self.plan.load(rows, whole)

    def objective(self) -> ImageClassification:
        return ImageClassification(self.run.train.label_smoothing)

    def validate(self, model: nn.Module) -> dict[str, float]:
        batches = (
            (self.validation.pixels[rows], np.asarray(self.validation.labels[rows]))
            for rows in self.held_in_chunks()
        )
        return label_metrics(classify(model, batches, self.plan.preprocessing), len(self.labels), "images")


@final
@dataclass(frozen=True, kw_only=True)
class PreparedPatches(_Images):
    """For masked patch prediction."""

    def about(self) -> str:
        return (
            f"{len(self.plan.trained):,} images of {self.config.patches:,} patches ({len(self.held_out):,}"
            " for validation)"
        )

    def load(self, rows: Rows, whole: Rows) -> MaskedPatchBatch:
        """The batch of these rows. No rows: the first of the `whole` batch with nothing trained, since a
        worker must take part."""
        pixels, at, epochs = self.plan.pixels(rows if len(rows) else whole[:1])
        batch = masked_patches(
            pixels, at, epochs, self.plan.seed, self.plan.preprocessing, self.config.patch_size, LEVELS
        )
        return batch if len(rows) else batch._replace(targets=batch.targets.fill_(IGNORE))

    def objective(self) -> MaskedPatchPrediction:
        return MaskedPatchPrediction(self.run.train.label_smoothing)

    def validate(self, model: nn.Module) -> dict[str, float]:
        """On a corruption that is always the same."""
        how, size = self.plan.preprocessing, self.config.patch_size
        chunks = self.held_in_chunks()
        batches = (
            masked_patches(self.validation.pixels[at], at, np.full_like(at, FIXED), 0, how, size, LEVELS)
            for at in chunks
        )
        return patch_metrics(model, batches)


def prepare_images(run_config: RunConfig, folder: Path, first: bool) -> PreparedImages:
    """Reads labelled images, holds a part out of each label, makes the stores."""
    return PreparedImages(**_read(run_config, folder, first, "labels"))


def prepare_patches(run_config: RunConfig, folder: Path, first: bool) -> PreparedPatches:
    """Reads images without their labels, holds a part out, makes the stores."""
    return PreparedPatches(**_read(run_config, folder, first, "patches"))


def _read(run_config: RunConfig, folder: Path, first: bool, head: str) -> dict[str, Any]:
    """The parts of `_Images`, for a model with such a head."""
    data, train, labelled = run_config.data, run_config.train, head == "labels"
    config, preprocessing, begun = _read_as(run_config, folder, head)
    used = image_files(data.train, labelled=labelled)
    others = image_files(data.validation, labelled=labelled) if data.validation else []
    prints = [fingerprint(path) for path in [*used, *others]]
    check_same_data(folder, prints)

    def build(paths: Sequence[str], part: Sequence[str], what: str) -> ImageStore:
        files_of = [
            [one["path"], one["sha256"]] for one in prints if one["path"] in set(part)
        ]  # a label is the name of a folder
        identity = {"paths": list(paths), "files": files_of} | ({} if labelled else {"labelled": False})

        def pictures() -> Iterator[Picture]:
            return log_progress(read_pictures(paths, labelled=labelled), "images read")

        store = build_image_store(pictures, preprocessing, identity, cache_folder(Path(paths[0])))
        for how, number in store.changed.items():
            logger.info(f"{what}: {number:,} of {len(store):,} images {how}")
        return store

    store = build(data.train, used, "training")
    if labelled and len(store.names) < 2:
        raise UsageError(
            f"images must have at least two labels, but all have {printable(repr(store.names[0]))}"
        )
    if others:
        validation = build(data.validation, others, "validation")
        validation = validation.numbered(store.names) if labelled else validation
        trained, held = np.arange(len(store)), np.arange(len(validation))
    elif len(store) < 2:
        raise UsageError(
            "validation needs images of its own, but there is only one; name more data or --validation files"
        )
    else:
        validation, held = store, stratified_split(np.asarray(store.labels), train.seed)
        trained = np.setdiff1d(np.arange(len(store)), held)
        how = ", of each label its share" if labelled else ""
        logger.info(split_note(len(held), "image", train.seed) + how)
    if first and not (folder / run_folder.DATA).exists():
        files.write_json(folder / run_folder.PREPROCESSOR, preprocessing.to_json())
        files.write_json(
            folder / run_folder.DATA,
            {"files": prints, "images": len(trained), "validation_images": len(held)},
        )
    rows = train.batch_rows or max(train.batch_tokens // (1 + config.patches), 1)
    plan = ImagePlan(
        store=store,
        preprocessing=preprocessing,
        trained=trained,
        seed=train.seed,
        batch_rows=rows,
        shift=train.shift,
    )
    return {
        "run": run_config,
        "plan": plan,
        "validation": validation,
        "held_out": held,
        "config": config,
        "begun": begun,
    }


def _read_as(
    run_config: RunConfig, folder: Path, head: str
) -> tuple[ViTConfig, Preprocessing, PretrainedViT | None]:
    """The configuration of the model, labels aside; how a picture becomes what it reads; and what it begins
    with (`model.from`), which is not needed where a run is gone on with."""
    model, kept, begun = run_config.model, None, None
    fields = model_fields(model)
    if (folder / run_folder.CONFIG).exists() and (
        "from" not in model or run_folder.has_weights(folder)
    ):  # killed before: begins again
        kept = folder
        fields = _fields(files.read_json(folder / run_folder.CONFIG)) | fields
    elif "from" in model:
        kept = run_folder.resolve_folder(model["from"])
        begun = pretrained_vit(kept, fields)
        fields = begun.fields
    config: ViTConfig = run_folder.model_config(model["name"], model["size"], 0, fields)
    if config.head != head:
        raise UsageError(
            f"model.head must be {head} for {run_config.task}, but is {config.head}; leave it out"
        )
    if run_config.train.shift >= config.image_size:
        raise UsageError(
            f"train.shift must be below model.image_size={config.image_size}, but is {run_config.train.shift}"
        )
    how = (
        Preprocessing.published(config.image_size, config.channels)
        if kept is None
        else read_preprocessing(kept, config)
    )
    return config, dataclasses.replace(how, size=config.image_size), begun


def pretrained_vit(folder: str | Path, changes: Mapping[str, Any] = MappingProxyType({})) -> PretrainedViT:
    """The encoder of the ViT in a run folder or a Hugging Face directory, for a model of labels with these
    fields changed. The head that it was trained with is left behind, and [mask] (section 3.2: a new head,
    which begins at 0).

    Raises FolderError where the folder holds no ViT, UsageError for a change that the weights do not allow.
    Positions are interpolated where `image_size` changes.
    """
    opened = run_folder.open_model(folder, "cpu")
    model = opened.model
    if not isinstance(model, ViT):
        kind = printable(str(opened.content["model_type"]))
        raise FolderError(f"{printable(str(folder))}: must hold a vit to begin with, but holds a {kind}")
    fields = _fields(opened.content)
    for name, value in changes.items():
        if name in fields and name not in MAY_CHANGE and value != fields[name]:
            given = f"model.{name}={printable(str(value))}"
            raise UsageError(
                f"{given} cannot be set: the weights of {printable(str(folder))} have {fields[name]}; leave"
                " it out"
            )
    fields |= changes
    tensors = {
        name: tensor.detach()
        for name, tensor in model.state_dict().items()
        if name not in ("head.weight", "head.bias", "mask")
    }
    tensors["positions"] = model.positions_of(fields["image_size"], fields["image_size"]).detach()
    return PretrainedViT(fields, tensors, ("head.weight", "head.bias"))


def _fields(content: Mapping[str, Any]) -> dict[str, Any]:
    """Of a config.json the fields of a ViT but for those of its head."""
    known = {field.name for field in dataclasses.fields(ViTConfig)} - {"labels", "head"}
    return {name: value for name, value in content.items() if name in known}
