"""An ELECTRA as the hub has it: a discriminator, and in the folder `generator` within its own the generator
that it was trained with."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from seqloom import files
from seqloom.errors import FolderError, UsageError
from seqloom.interop.checkpoint import CONFIG, Checkpoint, read_checkpoint
from seqloom.models.bert import BertConfig
from seqloom.models.electra import Electra, ElectraConfig

GENERATOR = "generator"
"""The folder of the generator."""
ALIKE = (
    *("vocabulary_size", "context", "embedding_width", "segments", "activation"),
    *("norm_epsilon", "dropout", "attention_dropout"),
)
"""Fields that generator and discriminator share."""


def has_generator(folder: Path) -> bool:
    return files.is_there(folder / GENERATOR / CONFIG)


def joined(discriminator: Checkpoint, folder: Path) -> Checkpoint:
    """Both as one model that is trained together. Raises FolderError if they do not belong together."""
    place = folder / GENERATOR
    generator = read_checkpoint(place, next(discriminator.model.parameters()).dtype)
    if generator.task != "fill-mask":
        raise FolderError(
            f"the generator of an ELECTRA must be a masked language model, but is one of {generator.task}",
            place,
        )
    config = _config(discriminator.config, generator.config, place)
    ours, theirs = discriminator.model.state_dict(), generator.model.state_dict()
    model = Electra(config).to(next(iter(ours.values())).dtype)
    model.discriminator.load_state_dict(ours)
    shared = {id(tensor) for tensor in model.discriminator.parameters()}
    for name, parameter in model.generator.named_parameters():
        if id(parameter) in shared and not torch.equal(parameter, theirs[name]):
            raise FolderError(
                f"generator and discriminator must have the same {name}, as both were trained with it, but"
                " have not; take both from one training",
                place,
            )
    model.generator.load_state_dict(theirs)
    return replace(
        discriminator,
        model_type="electra",
        model=model.eval(),
        config=config,
        task="fill-mask",
        notes=[*discriminator.notes, *generator.notes],
    )


def _config(discriminator: BertConfig, generator: BertConfig, place: Path) -> ElectraConfig:
    fields = {name: vars(discriminator)[name] for name in ALIKE}
    try:
        config = ElectraConfig(
            **fields,
            width=discriminator.width,
            layers=discriminator.layers,
            heads=discriminator.heads,
            feed_forward_width=discriminator.feed_forward_width,
            generator_fraction=generator.width / discriminator.width,
            generator_layers=generator.layers,
        )
    except UsageError as error:
        raise FolderError(str(error), place) from None
    for name, wanted in vars(config.generator).items():
        if (found := vars(generator)[name]) != wanted:
            raise FolderError(
                f"the generator of this discriminator must have {name} {wanted}, but has {found}",
                place,
            )
    return config
