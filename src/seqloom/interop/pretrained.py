"""What a reader begins with where it does not begin anew: an encoder that was trained before, and what fits
of its head."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor, nn

from seqloom.errors import UsageError, printable
from seqloom.interop.checkpoint import ENCODER_WITH_HEAD, read_checkpoint, read_family
from seqloom.interop.families import FAMILIES, Family
from seqloom.interop.hub_origin import HubOrigin, hub_tokenizer
from seqloom.interop.tensor_mapping import check_finite, first_names, listed
from seqloom.models import encoder_families, family_name, model_family
from seqloom.models.encoder_with_head import EncoderWithHead, resolved_head
from seqloom.protocols import StoredTokenizer
from seqloom.run_file import to_plain
from seqloom.training.checkpoints import finite_tensors

ENCODER, HEAD = "encoder.", "head."
STD = 0.02
"""Of new rows of an embedding (Radford et al. 2018, as all its weights)."""


@final
@dataclass(frozen=True, kw_only=True)
class Pretrained:
    """What there is to begin with."""

    encoder_type: str
    """Its family, of ours."""
    encoder_fields: dict[str, Any]
    """Of its configuration."""
    encoder_tensors: dict[str, Tensor]
    """By their names within the encoder; one that is tied stands once."""
    vocabulary_size: int
    """Of the tokenizer; the encoder may have marks beyond."""
    head_tensors: dict[str, Tensor] = field(default_factory=dict)
    """By their names within the head: of a reader's all, of a BERT the pooler as its hidden layer."""
    kind: str | None = None
    """What that head answers; None of a pooler."""
    labels: tuple[str, ...] = ()
    """Of that head."""
    heads: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Kind -> what settings the head of its family has on the hub, such as the activation, and so what "auto"
    should stand for."""
    tokenizer: StoredTokenizer | None = None
    """Of a run folder it is put in where the folder is opened (`bundles.start_of`)."""
    origin: HubOrigin | None = None
    """The files of a Hugging Face directory."""
    notes: tuple[str, ...] = ()
    """What was left of a checkpoint, and what was changed, in words."""


def pretrained_encoder(folder: Path) -> Pretrained:
    """The encoder of a Hugging Face directory, whatever head stands on it. Raises FolderError where the
    directory is damaged or unknown, UsageError where its model does not read for a head."""
    _, family, _ = read_family(folder)
    if family.model_type not in encoder_families():
        raise _no_encoder(str(folder), family.model_type)
    found = read_checkpoint(folder, encoder=True)
    origin = HubOrigin.of(folder)
    tensors = {
        name: tensor for name, tensor in first_names(found.model).items() if isinstance(tensor, nn.Parameter)
    }
    check_finite(tensors, folder)
    if found.model_type == ENCODER_WITH_HEAD:
        started = _of_reader(to_plain(found.config), tensors)
    else:
        started = _of_encoder(family.model_type, to_plain(found.config), tensors)
    size = started.vocabulary_size
    return replace(
        started,
        heads=_heads(family, int(started.encoder_fields["width"])),
        tokenizer=hub_tokenizer(folder, origin.content, size),
        origin=origin,
        notes=tuple(found.notes) + started.notes,
    )


def pretrained_of_run(content: Mapping[str, Any], weights: Path) -> Pretrained:
    """The encoder of a run folder, whose config.json holds `content`: that of a reader, or a model that can
    be one. Raises FolderError where the weights are damaged, UsageError where the model does not read for a
    head."""
    model_type = family_name(str(content.get("model_type")))
    if model_type not in (ENCODER_WITH_HEAD, *encoder_families()):
        raise _no_encoder(str(weights.parent), model_type)
    tensors = finite_tensors(weights)
    hub = content.get("hub")
    family = FAMILIES.get(str(hub["config"].get("model_type"))) if isinstance(hub, dict) else None
    if model_type == ENCODER_WITH_HEAD:
        started = _of_reader(content, tensors)
    else:
        known = set(model_family(model_type)[0].__dataclass_fields__)
        started = _of_encoder(
            model_type, {key: value for key, value in content.items() if key in known}, tensors
        )
    heads = {} if family is None else _heads(family, int(started.encoder_fields["width"]))
    return replace(started, heads=heads)


def _no_encoder(place: str, model_type: str) -> UsageError:
    known = ", ".join(encoder_families())
    return UsageError(
        f"{printable(place)}: an encoder with a head starts from another one, or from one of {known}, but this"
        f" is a {printable(model_type)}"
    )


def _of_reader(content: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Pretrained:
    fields = dict(content["encoder"])
    return Pretrained(
        encoder_type=str(fields.pop("model_type")),
        encoder_fields=fields,
        encoder_tensors=_below(ENCODER, tensors),
        vocabulary_size=content["vocabulary_size"],
        head_tensors=_below(HEAD, tensors),
        kind=content["kind"],
        labels=tuple(content["labels"]),
    )


def _below(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {
        name.removeprefix(prefix): tensor.detach()
        for name, tensor in tensors.items()
        if name.startswith(prefix)
    }


def _of_encoder(model_type: str, fields: dict[str, Any], tensors: Mapping[str, Tensor]) -> Pretrained:
    """Of a model by itself: the heads it was trained with are left behind."""
    read: Mapping[str, Any] = next(
        (one.encoder for one in FAMILIES.values() if one.model_type == model_type), {}
    )
    left = [name for name in tensors if _left(model_type, name)]
    pooler = {
        f"hidden.{part}": tensors[f"pooler.{part}"].detach()
        for part in ("weight", "bias")
        if f"pooler.{part}" in tensors
    }
    said = [name for name in left if not name.startswith("pooler.")]
    return Pretrained(
        encoder_type=model_type,
        encoder_fields={**fields, **read},
        encoder_tensors={name: tensor.detach() for name, tensor in tensors.items() if name not in left},
        vocabulary_size=fields["vocabulary_size"],
        head_tensors=pooler,
        notes=(f"left behind, as a reader has no use for them: {listed(said)}",) if said else (),
    )


def _left(model_type: str, name: str) -> bool:
    """Whether it belongs to a part of a model that an encoder has not got."""
    parts = {
        "bert": ("pooler.", "next_sentence.", "head.", "output.", "replaced."),
        "t5": ("decoder.", "decoder_bias.", "output."),
    }
    return name.startswith(parts.get(model_type, ()))


def _heads(family: Family, width: int) -> dict[str, dict[str, Any]]:
    heads: dict[str, dict[str, Any]] = {}
    for architecture in family.architectures.values():
        if architecture.head is not None and architecture.head.pools:
            fields = architecture.head.settings(width)
            heads |= dict.fromkeys(architecture.head.kinds, fields)
    return heads


def with_special_tokens(
    tensors: Mapping[str, Tensor], fields: Mapping[str, Any], count: int, generator: torch.Generator
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and fields of an encoder whose vocabulary has `count` ids more, at its end: their
    embeddings are N(0, 0.02), and so are their weights in an output that is not tied (Radford et al. 2018:
    start, delimiter and extract)."""
    grown = dict(tensors)
    for name in ("embedding.weight", "output.weight"):
        if name in grown:
            table = grown[name]
            new = torch.randn(count, table.shape[1], generator=generator, dtype=table.dtype) * STD
            grown[name] = torch.cat([table, new])
    return grown, {**fields, "vocabulary_size": fields["vocabulary_size"] + count}


@torch.no_grad()
def load_pretrained(reader: EncoderWithHead, started: Pretrained) -> list[str]:
    """Gives a new reader what there is, in place; the rest stays as it was made. Returns what is to be said:
    what is new is named.

    The head's tensors are taken where what it answers and its labels are the same; a pooler wherever a hidden
    layer is like it. Raises UsageError where the encoder is another.
    """
    tensors = first_names(reader)
    parameters = {name: one for name, one in tensors.items() if isinstance(one, nn.Parameter)}
    config = reader.config
    same = started.kind == config.kind and started.labels == config.labels
    settled = resolved_head(config.head, config.kind, reader.traits)
    pooler = started.kind is None and (settled.pooling, settled.activation) == ("first", "tanh")
    head = started.head_tensors if same or pooler else {}
    given = {f"{ENCODER}{name}": tensor for name, tensor in started.encoder_tensors.items()}
    wrong = [name for name, tensor in given.items() if not fits(tensors.get(name), tensor)]
    wrong += [name for name in parameters if name.startswith(ENCODER) and name not in given]
    if wrong:
        raise UsageError(
            f"the encoder must have the sizes of what it begins with, but differs in {listed(sorted(wrong))}"
        )
    given |= {
        f"{HEAD}{name}": tensor
        for name, tensor in head.items()
        if fits(parameters.get(f"{HEAD}{name}"), tensor)
    }
    for name, tensor in given.items():
        tensors[name].copy_(tensor)
    said = []
    if new := [name for name, one in parameters.items() if name not in given and one.requires_grad]:
        said.append(f"new, and to be trained: {listed(new)}")
    if left := [f"{HEAD}{name}" for name in started.head_tensors if f"{HEAD}{name}" not in given]:
        said.append(f"left behind, as this reader answers otherwise: {listed(left)}")
    return said


def fits(parameter: Tensor | None, tensor: Tensor) -> bool:
    """Whether there is such a parameter, of the same shape."""
    return parameter is not None and parameter.shape == tensor.shape
