"""Starts a model with a task head from a pretrained encoder, and from what fits of its head."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor

from seqloom.errors import UsageError, listed, printable
from seqloom.interop.checkpoint import ENCODER_WITH_HEAD, read_checkpoint, read_family
from seqloom.interop.config_options import Fields
from seqloom.interop.families import FAMILIES
from seqloom.interop.families.family import HubFamily
from seqloom.interop.hub_origin import HubOrigin, hub_tokenizer
from seqloom.interop.tensor_mapping import unique_tensors
from seqloom.json_values import field_of
from seqloom.models import READS_FOR_HEADS, encoder_families, family_name, model_family
from seqloom.models.electra import ElectraConfig
from seqloom.models.encoder_with_head import EncoderWithHead, resolved_head
from seqloom.protocols import StoredTokenizer
from seqloom.run_file import parse, to_plain
from seqloom.training.checkpoints import read_tensors

ENCODER, HEAD = "encoder.", "head."
STD = 0.02
"""Of new rows of an embedding (Radford et al. 2018, as all its weights)."""
NOT_ENCODER = {
    "bert": ("pooler.", "next_sentence.", "head.", "output.", "replaced."),
    "t5": ("decoder.", "decoder_bias.", "output."),
    "elmo": ("output.",),
}
"""Model type -> beginnings of the names of tensors that do not belong to its encoder."""
NEW_IN_TASKS = {"elmo": ("mix.", "embedding.")}
"""Model type -> beginnings of the names of tensors that its encoder may lack before it has a task."""


ConfigFields = Mapping[str, Any]
"""Of a configuration of ours, whose class checks their types."""


@final
@dataclass(frozen=True, kw_only=True)
class Pretrained:
    """What a new model starts from."""

    encoder_type: str
    """Its family, of ours."""
    encoder_fields: Fields
    """Of its configuration."""
    encoder_tensors: dict[str, Tensor]
    """By their names within the encoder; a tied one under its first name."""
    vocabulary_size: int
    """Of the tokenizer; the encoder may have special tokens beyond."""
    head_tensors: dict[str, Tensor] = field(default_factory=dict)
    """By their names within the head: all of a task head, or the pooler of a BERT as its hidden layer."""
    kind: str | None = None
    """Of that head; None for a pooler."""
    labels: tuple[str, ...] = ()
    """Of that head."""
    heads: Mapping[str, ConfigFields] = field(default_factory=dict)
    """Kind -> the settings that the head of its family has on the hub, such as the activation: what "auto"
    stands for."""
    tokenizer: StoredTokenizer | None = None
    """Of a run folder it is read where the folder is opened (`runs/run_folder.py`)."""
    origin: HubOrigin | None = None
    """The files of a checkpoint of the hub."""
    notes: tuple[str, ...] = ()
    """What of a checkpoint was not read, and what was changed, in words."""


def pretrained_encoder(folder: Path) -> Pretrained:
    """The encoder of a checkpoint of the hub, whatever its head is. Raises FolderError if the directory is
    damaged or unknown, UsageError if its model takes no task head."""
    _, family, _ = read_family(folder)
    if family.model_type not in encoder_families():
        raise _no_encoder(folder, family.model_type)
    checkpoint = read_checkpoint(folder, encoder=True)
    origin = HubOrigin.of(folder)
    tensors = dict(checkpoint.model.named_parameters())
    pretrained = _pretrained(checkpoint.model_type, to_plain(checkpoint.config), tensors)
    return replace(
        pretrained,
        heads=_hub_heads(family, pretrained.encoder_fields),
        tokenizer=hub_tokenizer(folder, origin.content, pretrained.vocabulary_size),
        origin=origin,
        notes=(*checkpoint.notes, *pretrained.notes),
    )


def pretrained_of_run(content: ConfigFields, weights: Path) -> Pretrained:
    """The encoder of a run folder, whose config.json holds `content`: that below a task head, or a model that
    takes one. Raises FolderError if the weights are damaged, UsageError if the model takes no task
    head."""
    _type_with_encoder(content, weights.parent)
    return pretrained_of_model(content, read_tensors(weights), weights.parent)


def _type_with_encoder(content: ConfigFields, folder: Path) -> str:
    name = family_name(str(content.get("model_type")))
    model_type = READS_FOR_HEADS.get(name, name)
    if model_type not in (ENCODER_WITH_HEAD, *encoder_families()):
        raise _no_encoder(folder, model_type)
    return model_type


def pretrained_of_model(
    content: ConfigFields, tensors: Mapping[str, Tensor], folder: Path
) -> Pretrained:
    """The same of a model that was read from a folder; of an ELECTRA it is the discriminator, and its heads
    are by default those that it has on the hub."""
    hub_type = str(field_of(field_of(content.get("hub"), "config"), "model_type"))
    if content.get("model_type") == "electra":
        fields = {
            name: content[name] for name in ElectraConfig.__dataclass_fields__ if name in content
        }
        config = parse(ElectraConfig, fields, "model.")
        content = {**content, "model_type": "bert", **to_plain(config.discriminator)}
        tensors, hub_type = _below("discriminator.", tensors), "electra"
    model_type = _type_with_encoder(content, folder)
    if model_type != ENCODER_WITH_HEAD:
        known = model_family(model_type)[0].__dataclass_fields__.keys()
        content_of_model = {key: value for key, value in content.items() if key in known}
    else:
        content_of_model = dict(content)
    pretrained = _pretrained(model_type, content_of_model, tensors)
    family = FAMILIES.get(hub_type)
    if family is None:
        return pretrained
    return replace(pretrained, heads=_hub_heads(family, pretrained.encoder_fields))


def _no_encoder(place: Path, model_type: str) -> UsageError:
    return UsageError(
        f"{printable(str(place))}: an encoder with a head starts from another one, or from one of"
        f" {', '.join(encoder_families())}, but this is a {printable(model_type)}"
    )


def _pretrained(model_type: str, fields: ConfigFields, tensors: Mapping[str, Tensor]) -> Pretrained:
    tensors = {name: tensor.detach() for name, tensor in tensors.items()}
    if model_type != ENCODER_WITH_HEAD:
        return _of_encoder(model_type, fields, tensors)
    encoder_fields = dict(fields["encoder"])
    return Pretrained(
        encoder_type=str(encoder_fields.pop("model_type")),
        encoder_fields=encoder_fields,
        encoder_tensors=_below(ENCODER, tensors),
        vocabulary_size=fields["vocabulary_size"],
        head_tensors=_below(HEAD, tensors),
        kind=fields["kind"],
        labels=tuple(fields["labels"]),
    )


def _below(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {
        name.removeprefix(prefix): tensor
        for name, tensor in tensors.items()
        if name.startswith(prefix)
    }


def _of_encoder(model_type: str, fields: ConfigFields, tensors: Mapping[str, Tensor]) -> Pretrained:
    """Of a model without a task head: the heads that it was trained with are left out."""
    families = [family for family in FAMILIES.values() if family.model_type == model_type]
    below_head = families[0].encoder_fields if families else {}
    left = [name for name in tensors if name.startswith(NOT_ENCODER.get(model_type, ()))]
    pooler = _below("pooler.", tensors) if model_type == "bert" else {}
    heads = [name for name in left if not name.startswith("pooler.")]
    notes = (f"not used, as the task head replaces them: {listed(heads)}",) if heads else ()
    return Pretrained(
        encoder_type=model_type,
        encoder_fields={**fields, **below_head},
        encoder_tensors={name: tensor for name, tensor in tensors.items() if name not in left},
        vocabulary_size=fields["vocabulary_size"],
        head_tensors={f"hidden.{name}": tensor for name, tensor in pooler.items()},
        notes=notes,
    )


def _hub_heads(family: HubFamily, encoder_fields: ConfigFields) -> dict[str, Fields]:
    heads: dict[str, Fields] = {}
    for architecture in family.architectures.values():
        if architecture.head is not None and architecture.head.pools:
            settings = architecture.head.settings(int(encoder_fields["width"]))
            heads |= dict.fromkeys(architecture.head.kinds, settings)
    return heads


def with_special_tokens(
    tensors: Mapping[str, Tensor], fields: ConfigFields, count: int, generator: torch.Generator
) -> tuple[dict[str, Tensor], Fields]:
    """The tensors and fields of an encoder whose vocabulary has `count` more ids at its end: their embeddings
    are N(0, 0.02), and so are their weights in an output that is not tied (Radford et al. 2018: start,
    delimiter and extract)."""
    grown = dict(tensors)
    for name in ("embedding.weight", "output.weight"):
        if name in grown:
            table = grown[name]
            new = torch.randn(count, table.shape[1], generator=generator, dtype=table.dtype) * STD
            grown[name] = torch.cat([table, new])
    return grown, {**fields, "vocabulary_size": fields["vocabulary_size"] + count}


VOCABULARY_TENSORS = {
    *("embedding.weight", "source_embedding.weight", "target_embedding.weight"),
    "bilm.embedding.weight",
    *("output.weight", "output.bias"),
}
"""Names of tensors, in models and encoders, with a row for each id."""


def with_added_rows(tensors: Mapping[str, Tensor], added: range, size: int) -> dict[str, Tensor]:
    """The tensors of a model or an encoder, whose vocabulary gets the `added` ids and has `size` then: their
    rows are the mean of those before."""
    grown = dict(tensors)
    if added:
        for name in tensors:
            if (
                name.removeprefix("generator.").removeprefix("discriminator.")
                not in VOCABULARY_TENSORS
            ):
                continue
            old = tensors[name]
            new = old.new_zeros(size, *old.shape[1:])
            new[: len(old)] = old
            new[added.start : added.stop] = old[: added.start].mean(dim=0)
            grown[name] = new
    return grown


@torch.no_grad()
def load_pretrained(model: EncoderWithHead, pretrained: Pretrained) -> list[str]:
    """Copies the pretrained tensors into a new model, in place; the rest stays as it was initialised. Returns
    notices, which name what is new.

    The tensors of the head are taken where its kind and its labels are the same; a pooler wherever the hidden
    layer is like it. Raises UsageError if the encoder is another.
    """
    tensors = unique_tensors(model)
    parameters = dict(model.named_parameters())
    config = model.config
    same_head = (pretrained.kind, pretrained.labels) == (config.kind, config.labels)
    head = resolved_head(config.head, config.kind, model.traits)
    pooler = pretrained.kind is None and (head.pooling, head.activation) == ("first", "tanh")
    given = {f"{ENCODER}{name}": tensor for name, tensor in pretrained.encoder_tensors.items()}
    wrong = [name for name, tensor in given.items() if not _fits(tensors.get(name), tensor)]
    may_be_new = tuple(f"{ENCODER}{name}" for name in NEW_IN_TASKS.get(model.model_type, ()))
    for name in parameters:
        if name.startswith(ENCODER) and name not in given and not name.startswith(may_be_new):
            wrong.append(name)
    if wrong:
        raise UsageError(
            f"the encoder must have the sizes of what it begins with, but differs in {listed(sorted(wrong))}"
        )
    left = []
    for suffix, tensor in pretrained.head_tensors.items():
        name = f"{HEAD}{suffix}"
        if (same_head or pooler) and _fits(parameters.get(name), tensor):
            given[name] = tensor
        else:
            left.append(name)
    for name, tensor in given.items():
        tensors[name].copy_(tensor)
    notes = []
    if new := [
        name
        for name, parameter in parameters.items()
        if name not in given and parameter.requires_grad
    ]:
        notes.append(f"new, and to be trained: {listed(new)}")
    if left:
        notes.append(f"not used, as the new head is another: {listed(left)}")
    return notes


def _fits(parameter: Tensor | None, tensor: Tensor) -> bool:
    """Whether there is such a parameter, of the same shape."""
    return parameter is not None and parameter.shape == tensor.shape
