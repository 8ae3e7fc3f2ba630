"""The models that a server has open, by name."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import final

from seqloom.errors import UsageError, printable
from seqloom.runs.run_folder import LoadedRun
from seqloom.serving.chat_prompt import template_of
from seqloom.serving.engine import Engine, EngineLimits
from seqloom.serving.http_errors import RequestError
from seqloom.serving.limits import ServerLimits
from seqloom.tasks.encoders.elmo_vectors import ElmoVectors
from seqloom.tasks.encoders.sentence_vectors import SentenceEncoder
from seqloom.tasks.fill_mask.mask_filler import MaskFiller
from seqloom.tasks.language_modeling.language_model import LanguageModel
from seqloom.tasks.model import TextModel, TrainedModel, load

NAME = re.compile(r"[\w.:-]+(?:/[\w.:-]+)*", re.ASCII)
"""Names of models; "/" may stand between their parts."""


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class ServedModel:
    """A model, the name under which it is asked, and the engine that owns it."""

    name: str
    model: TrainedModel
    task: str
    run: LoadedRun | None
    """None for a model that reads no text."""
    engine: Engine
    pictures: tuple[str, ...] = ()
    """What /api/explain can show of it, the default one first."""
    created: int = field(default_factory=lambda: int(time.time()))

    @property
    def folders(self) -> dict[str, str]:
        """Its folder, which no client needs to know, and its name."""
        return {str(self.model.folder): self.name}

    @property
    def text_run(self) -> LoadedRun:
        """Raises RequestError for a model that reads no text."""
        if self.run is None:
            raise RequestError(400, f"model {self.name} reads no text", "model")
        return self.run

    @property
    def language_model(self) -> LanguageModel:
        """Raises RequestError for a model of another task."""
        if not isinstance(self.model, LanguageModel):
            raise RequestError(
                400,
                f"model {self.name} is one of {self.task}, and this asks for text-generation; post"
                f' {{"inputs": ...}} to /models/{self.name}',
                "model",
            )
        return self.model

    @cached_property
    def chat_template(self) -> str | None:
        """What writes the turns of a talk as a prompt; None for most models."""
        return (
            template_of(self.model.run.tokenizer) if isinstance(self.model, LanguageModel) else None
        )

    @cached_property
    def encoder(self) -> SentenceEncoder | ElmoVectors:
        """What turns texts into vectors. Raises RequestError for a model that has none."""
        match self.model:
            case SentenceEncoder() | ElmoVectors() as encoder:
                return encoder
            case MaskFiller() as filler:
                return SentenceEncoder(filler.run)
        raise RequestError(
            400, f"model {self.name} is one of {self.task} and has no vectors of texts", "model"
        )


@final
class ServedModels:
    """All of them."""

    def __init__(self, models: Sequence[ServedModel]) -> None:
        self.by_name = {served.name: served for served in models}

    def named(self, name: str | None) -> ServedModel:
        """The model of this name; the only one where none is given. Raises RequestError where there is
        none."""
        if name is None and len(self.by_name) == 1:
            return next(iter(self.by_name.values()))
        if name is None:
            known = ", ".join(self.by_name)
            raise RequestError(400, f"model must be one of {known}, but is missing", "model")
        if name not in self.by_name:
            raise RequestError(
                404,
                f"there is no model {printable(name[:100])}; GET /v1/models lists them",
                "model",
                "model_not_found",
            )
        return self.by_name[name]

    @property
    def folders(self) -> dict[str, str]:
        return {str(served.model.folder): served.name for served in self.by_name.values()}

    @property
    def alive(self) -> bool:
        return all(served.engine.alive for served in self.by_name.values())

    def stop(self) -> None:
        for served in self.by_name.values():
            served.engine.stop()


def named_folders(places: Sequence[str]) -> dict[str, str]:
    """The folder of each name, of FOLDER or NAME=FOLDER each. Raises UsageError for a name that cannot be, or
    stands twice."""
    named: dict[str, str] = {}
    for place in places:
        name, folder = name_and_folder(place)
        if not NAME.fullmatch(name) or name in named:
            problem = (
                "stands twice" if name in named else "must be of letters, digits and _ . : - /"
            )
            raise UsageError(
                f"the name {printable(name)} of a model {problem}; name it: NAME={printable(folder)}"
            )
        named[name] = folder
    if not named:
        raise UsageError("serve needs a folder of a model; name one, or several")
    return named


def open_models(places: Sequence[str], limits: ServerLimits, device: str) -> ServedModels:
    """Opens each of the places. Raises UsageError as `named_folders` does, and where one is no model."""
    models = []
    for name, folder in named_folders(places).items():
        model: object = load(folder, device)
        if not isinstance(model, TrainedModel):
            raise UsageError(f"{printable(folder)}: a model of a plugin's task cannot be served")
        # before the thread of the engine owns the model
        pictures = model.shows()
        engine_limits = EngineLimits(
            rows=limits.rows, queue=limits.queue, batch_tokens=limits.batch_tokens
        )
        models.append(
            ServedModel(
                name=name,
                model=model,
                task=model.task,
                run=model.run if isinstance(model, TextModel) else None,
                engine=Engine(model.decoder(), engine_limits, name),
                pictures=tuple(pictures),
            )
        )
    return ServedModels(models)


def name_and_folder(place: str) -> tuple[str, str]:
    """NAME=FOLDER; by default the name is that of the folder, or of the repository of hf://NAME."""
    name, equals, folder = place.partition("=")
    if equals and NAME.fullmatch(name) and not Path(place).exists():
        return name, folder
    if place.startswith("hf://"):
        return place.removeprefix("hf://").partition("@")[0], place
    return Path(place).resolve().name, place
