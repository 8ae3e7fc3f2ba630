"""What a model is trained for: (model, batch) -> Loss(total, count)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

from torch import nn
from torch.nn import functional as F

from seqloom.data.batching.corpus_windows import TextBatch
from seqloom.data.batching.pair_batches import TranslationBatch
from seqloom.data.images.image_store import ImageBatch
from seqloom.data.images.masked_patches import MaskedPatchBatch
from seqloom.protocols import EncodedBatch, Loss
from seqloom.shapes import IGNORE
from seqloom.training.stream_states import StreamStates


@final
@dataclass(frozen=True)
class Translation:
    """Cross-entropy of the target's tokens and `</s>`, given the source and the target before them (teacher
    forcing)."""

    smoothing: float = 0.0

    def __call__(self, model: nn.Module, batch: TranslationBatch) -> Loss:
        encoder_decoder: Any = model
        hidden, _ = encoder_decoder.read(batch.inputs, encoder_decoder.encode(batch.source))
        loss: Loss = encoder_decoder.output.loss(hidden, batch.targets, self.smoothing)
        return loss


@final
@dataclass(frozen=True)
class LanguageModelling:
    """Cross-entropy of the next token, `</s>` included. With a `carry` the rows go on from where their
    streams were (truncated backpropagation through time)."""

    smoothing: float = 0.0
    carry: StreamStates | None = None

    def __call__(self, model: nn.Module, batch: TextBatch) -> Loss:
        language_model: Any = model
        carry = self.carry
        goes_on = carry is not None and not bool(batch.begins.all())
        hidden, state = language_model.read(
            batch.inputs, carry.take(batch.lanes) if carry is not None and goes_on else None
        )
        if carry is not None and int(batch.lanes.min()) >= 0:  # a worker without rows reads what is no stream
            carry.put(batch.lanes, state)
        loss: Loss = language_model.output.loss(hidden, batch.targets, self.smoothing)
        return loss


@final
@dataclass(frozen=True)
class HeadObjective:
    """What the head of a reader is trained for (`models/heads.py`)."""

    smoothing: float = 0.0

    def __call__(self, model: nn.Module, batch: EncodedBatch) -> Loss:
        reader: Any = model
        loss: Loss = reader.loss(batch, self.smoothing)
        return loss


@final
@dataclass(frozen=True)
class ImageClassification:
    """Cross-entropy of an image's label."""

    smoothing: float = 0.0

    def __call__(self, model: nn.Module, batch: ImageBatch) -> Loss:
        logits = model(batch.images)
        total = F.cross_entropy(
            logits.float(), batch.labels, ignore_index=IGNORE, reduction="sum", label_smoothing=self.smoothing
        )
        return Loss(total, (batch.labels != IGNORE).sum())


@final
@dataclass(frozen=True)
class MaskedPatchPrediction:
    """Cross-entropy of the mean colour of each corrupted patch, given the image with these corrupted
    (Dosovitskiy et al. 2021, B.1.2)."""

    smoothing: float = 0.0

    def __call__(self, model: nn.Module, batch: MaskedPatchBatch) -> Loss:
        logits, targets = model(batch.images, batch.sources).float().flatten(0, 1), batch.targets.flatten()
        total = F.cross_entropy(
            logits, targets, ignore_index=IGNORE, reduction="sum", label_smoothing=self.smoothing
        )
        return Loss(total, (targets != IGNORE).sum())
