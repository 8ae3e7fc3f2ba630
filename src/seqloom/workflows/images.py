"""Labelled images to what a training reads: a store, a part held out of each label, a plan of batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
from torch import nn

from seqloom import bundles, files
from seqloom.config import RunConfig
from seqloom.data.image_store import ImageBatch, ImagePlan, ImageStore, build_image_store
from seqloom.data.images import Picture, image_files, read_pictures
from seqloom.data.order import Rows
from seqloom.data.pixels import Preprocessing
from seqloom.data.splits import held_out_evenly
from seqloom.data.store import cache_folder, fingerprint
from seqloom.errors import UsageError, printable
from seqloom.training.objectives import ImageClassification
from seqloom.workflows.classify import CHUNK, classified
from seqloom.workflows.prepare import check_same_data
from seqloom.workflows.reading import Say, counted
from seqloom.workflows.settings import model_fields


@final
@dataclass(frozen=True, kw_only=True)
class PreparedImages:
    """Images turned into what the loop reads."""

    run: RunConfig
    plan: ImagePlan
    validation: ImageStore
    held_out: Rows
    """The rows of `validation` that are validated on."""
    tokenizer: None = None

    @property
    def labels(self) -> tuple[str, ...]:
        return self.plan.store.names

    def about(self) -> str:
        return f"{len(self.plan.trained):,} images of {len(self.labels):,} labels ({len(self.held_out):,} for validation)"

    def batches(self, epoch: int, start: int) -> Iterator[Rows]:
        return self.plan.epoch(epoch, start)

    def batches_an_epoch(self) -> int:
        return self.plan.count()

    def load(self, rows: Rows, whole: Rows) -> ImageBatch:
        return self.plan.load(rows, whole)

    def describe(self, rows: Rows) -> str:
        return self.plan.describe(rows)

    def objective(self) -> ImageClassification:
        return ImageClassification(self.run.train.label_smoothing)

    def introduce(self, model: nn.Module) -> None:
        pass

    def fit(self, model_class: Any, config: Any, say: Say) -> nn.Module:
        raise UsageError(f"a {model_class.__name__} cannot be made of images")

    def validate(self, model: nn.Module) -> dict[str, float]:
        chunks = (self.held_out[at : at + CHUNK] for at in range(0, len(self.held_out), CHUNK))
        batches = ((self.validation.pixels[rows], np.asarray(self.validation.labels[rows])) for rows in chunks)
        return classified(model, batches, self.plan.preprocessing, len(self.labels)).metrics("images")


def prepare_images(run_config: RunConfig, folder: Path, first: bool, say: Say) -> PreparedImages:
    """Reads the images, holds a part out of each label, makes the stores."""
    data, model, train = run_config.data, run_config.model, run_config.train
    config = bundles.model_config(model["name"], model["size"], 0, model_fields(model))
    if train.shift >= config.image_size:
        raise UsageError(f"train.shift must be below model.image_size={config.image_size}, but is {train.shift}")
    preprocessing = Preprocessing.published(config.image_size, config.channels)
    used = image_files(data.train)
    others = image_files(data.validation) if data.validation else []
    prints = [fingerprint(path) for path in [*used, *others]]
    check_same_data(folder, prints)

    def build(paths: Sequence[str], part: Sequence[str], what: str) -> ImageStore:
        files_of = [[one["path"], one["sha256"]] for one in prints if one["path"] in set(part)]  # a label is the name of a folder
        identity = {"paths": list(paths), "files": files_of}

        def pictures() -> Iterator[Picture]:
            return counted(read_pictures(paths), "images read", say)

        store = build_image_store(pictures, preprocessing, identity, cache_folder(Path(paths[0])))
        for how, number in store.changed.items():
            say(f"{what}: {number:,} of {len(store):,} images {how}")
        return store

    store = build(data.train, used, "training")
    if len(store.names) < 2:
        raise UsageError(f"images must have at least two labels, but all have {printable(repr(store.names[0]))}")
    if others:
        validation = build(data.validation, others, "validation").numbered(store.names)
        trained, held = np.arange(len(store)), np.arange(len(validation))
    else:
        validation, held = store, held_out_evenly(np.asarray(store.labels), train.seed)
        trained = np.setdiff1d(np.arange(len(store)), held)
        say(f"no validation data given: {len(held):,} images split off by seed {train.seed}, of each label its share")
    if first and not (folder / bundles.DATA).exists():
        files.write_json(folder / bundles.PREPROCESSOR, preprocessing.to_json())
        files.write_json(folder / bundles.DATA, {"files": prints, "images": len(trained), "validation_images": len(held)})
    plan = ImagePlan(
        store=store,
        preprocessing=preprocessing,
        trained=trained,
        seed=train.seed,
        batch_rows=train.batch_rows or max(train.batch_tokens // (1 + config.patches), 1),
        shift=train.shift,
    )
    return PreparedImages(run=run_config, plan=plan, validation=validation, held_out=held)
