"""What a model is trained for: (model, batch) -> Loss(total, count)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, cast, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from seqloom.data.batching.corpus_windows import BidirectionalBatch, TextBatch
from seqloom.data.batching.pair_batches import TranslationBatch
from seqloom.data.images.image_store import ImageBatch
from seqloom.data.images.masked_patches import MaskedPatchBatch
from seqloom.plugins import register
from seqloom.protocols import (
    EncodedBatch,
    Loss,
    MaskedBatch,
    NeuralDecodable,
    Objective,
    OutputLayer,
    State,
    read_source,
)
from seqloom.shapes import IGNORE
from seqloom.training.stream_states import StreamStates

ObjectiveFactory = Callable[[Objective], Objective]
"""The objective of a task -> another one, which may call it."""


class PluginObjective(NamedTuple):
    make: ObjectiveFactory
    special_targets: tuple[int, ...]


OBJECTIVES: dict[str, PluginObjective] = {}
"""Objectives from plugins, which train.objective names."""


def register_objective(
    name: str, make: ObjectiveFactory, *, special_targets: Sequence[int] = ()
) -> None:
    """Makes an objective of one's own known: train.objective=NAME. `special_targets` are special ids that it
    predicts beside `</s>`, such as `<delim>`: a model gives no probability to others. Raises UsageError if
    the name is taken."""
    register("objective", name, PluginObjective(make, tuple(special_targets)), OBJECTIVES)


def chosen_objective(name: str | None, default: Objective) -> Objective:
    """The objective that train.objective names; None is that of the task."""
    return default if name is None else OBJECTIVES[name].make(default)


def special_targets(name: str | None) -> tuple[int, ...]:
    """The special ids that the objective predicts beside `</s>`; None is that of the task."""
    return () if name is None else OBJECTIVES[name].special_targets


@final
@dataclass(frozen=True)
class Translation:
    """Cross-entropy of the target's tokens and `</s>`, given the source and the target before them (teacher
    forcing)."""

    smoothing: float = 0.0

    def __call__(self, model: nn.Module, batch: TranslationBatch) -> Loss:
        decoder = cast(NeuralDecodable, model)
        hidden, _ = decoder.read(batch.inputs, read_source(model, batch.source))
        return decoder.output.loss(hidden, batch.targets, self.smoothing)


@final
@dataclass(frozen=True)
class PairModelling:
    """The same for a language model, which reads each pair as one text, `<s> source <delim> target </s>`.
    With `source_loss` also of the source's tokens but the first; the delimiter is given and never written."""

    pad: int
    """The id at padding."""
    smoothing: float = 0.0
    source_loss: bool = False

    def __call__(self, model: nn.Module, batch: TranslationBatch) -> Loss:
        of_source = torch.full_like(batch.source, IGNORE)
        if self.source_loss:
            following = batch.source[:, 1:]
            of_source[:, :-1] = following.masked_fill(following == self.pad, IGNORE)
        inputs = torch.cat([batch.source, batch.inputs], dim=1)
        targets = torch.cat([of_source, batch.targets], dim=1)
        # the padding between source and target goes to the end, where no row needs most of it
        is_padding = inputs == self.pad
        order = is_padding.byte().argsort(dim=1, stable=True)
        order = order[:, : int((~is_padding).sum(dim=1).max())]
        decoder = cast(NeuralDecodable, model)
        hidden, _ = decoder.read(inputs.gather(1, order), None)
        return decoder.output.loss(hidden, targets.gather(1, order), self.smoothing)


@final
@dataclass(frozen=True)
class LanguageModelling:
    """Cross-entropy of the next token, `</s>` included. With `stream_states` each row continues its stream
    (truncated backpropagation through time)."""

    smoothing: float = 0.0
    stream_states: StreamStates | None = None

    def __call__(self, model: nn.Module, batch: TextBatch) -> Loss:
        language_model = cast(NeuralDecodable, model)
        states = self.stream_states
        if states is None:
            hidden, _ = language_model.read(batch.inputs, None)
        else:
            state = None if bool(batch.begins.all()) else states.get(batch.streams)
            hidden, state = language_model.read(batch.inputs, state)
            # a worker without rows reads a dummy row of no stream
            if int(batch.streams.min()) >= 0:
                states.set(batch.streams, state)
        return language_model.output.loss(hidden, batch.targets, self.smoothing)


class BidirectionalModel(Protocol):
    """A language model of each direction, with one output."""

    output: OutputLayer

    def read_direction(
        self, tokens: Tensor, characters: Tensor, state: State, *, backward: bool
    ) -> tuple[Tensor, State]: ...


@final
@dataclass(frozen=True)
class BidirectionalModelling:
    """Cross-entropy of the next token, `</s>` included, and of the one before, `<s>` included (Peters et al.
    2018). With `stream_states` each row continues its stream, in each direction."""

    smoothing: float = 0.0
    stream_states: StreamStates | None = None

    def __call__(self, model: nn.Module, batch: BidirectionalBatch) -> Loss:
        both, states = cast(BidirectionalModel, model), self.stream_states
        before: State = None
        if states is not None and not bool(batch.begins.all()):
            before = states.get(batch.streams)
        ahead, back = before or (None, None)
        hidden, ahead = both.read_direction(batch.inputs, batch.characters, ahead, backward=False)
        forward = both.output.loss(hidden, batch.targets, self.smoothing)
        hidden, back = both.read_direction(
            batch.backward_inputs, batch.backward_characters, back, backward=True
        )
        backward = both.output.loss(hidden, batch.backward_targets, self.smoothing)
        # a worker without rows reads a dummy row of no stream
        if states is not None and int(batch.streams.min()) >= 0:
            states.set(batch.streams, (ahead, back))
        return Loss(forward.total + backward.total, forward.count + backward.count)


class ModelWithHead(Protocol):
    """A model that computes the loss of its task head."""

    def loss(self, batch: EncodedBatch, smoothing: float) -> Loss: ...


@final
@dataclass(frozen=True)
class HeadObjective:
    """The loss of a task head (`models/heads.py`)."""

    smoothing: float = 0.0

    def __call__(self, model: nn.Module, batch: EncodedBatch) -> Loss:
        return cast(ModelWithHead, model).loss(batch, self.smoothing)


class MaskedModel(Protocol):
    """An encoder that is trained on masks."""

    def masked_loss(self, batch: MaskedBatch, smoothing: float) -> Loss: ...


@final
@dataclass(frozen=True)
class MaskedLanguageModelling:
    """Cross-entropy of the true token at each chosen place; and of whether the second text follows the first,
    where there are two (Devlin et al. 2019)."""

    smoothing: float = 0.0

    def __call__(self, model: nn.Module, batch: MaskedBatch) -> Loss:
        return cast(MaskedModel, model).masked_loss(batch, self.smoothing)


@final
@dataclass(frozen=True)
class ImageClassification:
    """Cross-entropy of an image's label."""

    smoothing: float = 0.0

    def __call__(self, model: nn.Module, batch: ImageBatch) -> Loss:
        logits = model(batch.images)
        total = F.cross_entropy(
            logits.float(),
            batch.labels,
            ignore_index=IGNORE,
            reduction="sum",
            label_smoothing=self.smoothing,
        )
        return Loss(total, (batch.labels != IGNORE).sum())


@final
@dataclass(frozen=True)
class MaskedPatchPrediction:
    """Cross-entropy of the mean colour of each corrupted patch, given the corrupted image
    (Dosovitskiy et al. 2021, B.1.2)."""

    smoothing: float = 0.0

    def __call__(self, model: nn.Module, batch: MaskedPatchBatch) -> Loss:
        logits = model(batch.images, batch.sources).float().flatten(0, 1)
        targets = batch.targets.flatten()
        total = F.cross_entropy(
            logits, targets, ignore_index=IGNORE, reduction="sum", label_smoothing=self.smoothing
        )
        return Loss(total, (targets != IGNORE).sum())
