"""What a model is trained for: (model, batch) -> Loss(total, count)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

from torch import nn

from seqloom.data.batches import TranslationBatch
from seqloom.protocols import Loss


@final
@dataclass(frozen=True)
class Translation:
    """Cross-entropy of the target's tokens and `</s>`, given the source and the target before them (teacher forcing)."""

    smoothing: float = 0.0

    def __call__(self, model: nn.Module, batch: TranslationBatch) -> Loss:
        encoder_decoder: Any = model
        hidden, _ = encoder_decoder.read(batch.inputs, encoder_decoder.encode(batch.source))
        loss: Loss = encoder_decoder.output.loss(hidden, batch.targets, self.smoothing)
        return loss
