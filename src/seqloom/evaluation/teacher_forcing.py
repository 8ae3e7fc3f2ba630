"""How likely a model holds given texts to be: loss, perplexity, token accuracy, with the targets fed (teacher
forcing)."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor, nn

from seqloom.packed_weights import packed_weights
from seqloom.shapes import IGNORE

CHUNK = 1024
"""Positions whose logits exist at one time."""


@final
@dataclass(frozen=True)
class Teacher:
    """Sums over the predicted tokens of a corpus, the end marks counted."""

    total: float
    """Σ -log p, in nats."""
    correct: int
    """Tokens that the model ranks first."""
    count: int

    @property
    def loss(self) -> float:
        """Nats a token."""
        return self.total / self.count

    @property
    def perplexity(self) -> float:
        """exp(loss); infinite where that is beyond a float."""
        return math.exp(self.loss) if self.loss < 700 else math.inf

    @property
    def token_accuracy(self) -> float:
        """0 to 100."""
        return 100 * self.correct / self.count


@torch.inference_mode()
@packed_weights()
def teacher_forced(model: nn.Module, batches: Iterable[Any]) -> Teacher:
    """Sums over batches with `source`, `inputs` and `targets`. Summed over the corpus, never a mean of batch
    means."""
    encoder_decoder: Any = model
    total, correct, count = 0.0, 0, 0
    for batch in batches:
        hidden, _ = encoder_decoder.read(batch.inputs, encoder_decoder.encode(batch.source))
        flat: Tensor = batch.targets.reshape(-1)
        trained = (flat != IGNORE).nonzero()[:, 0]
        for start in range(0, len(trained), CHUNK):
            at = trained[start : start + CHUNK]
            logits: Tensor = encoder_decoder.output.logits(hidden.flatten(0, 1)[at]).float()
            targets = flat[at, None]
            total -= float(logits.log_softmax(dim=-1).gather(1, targets).double().sum())
            correct += int((logits.argmax(dim=-1, keepdim=True) == targets).sum())
        count += len(trained)
    return Teacher(total, correct, count)
