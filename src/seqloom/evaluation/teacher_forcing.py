"""Loss, perplexity and token accuracy of given targets, each token predicted after the true ones before it
(teacher forcing)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import cast, final

import torch
from torch import nn

from seqloom.data.batching.pair_batches import TranslationBatch
from seqloom.evaluation.perplexity import perplexity_of
from seqloom.packed_weights import packed_weights
from seqloom.protocols import NeuralDecodable, read_source
from seqloom.shapes import IGNORE

CHUNK = 1024
"""Positions whose logits are in memory at a time."""


@final
@dataclass(frozen=True)
class TeacherForcingScore:
    """Sums over the predicted tokens of a corpus, end marks included."""

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
        return perplexity_of(self.loss)

    @property
    def token_accuracy(self) -> float:
        """0 to 100."""
        return 100 * self.correct / self.count


@torch.inference_mode()
@packed_weights()
def teacher_forcing_score(
    model: nn.Module, batches: Iterable[TranslationBatch]
) -> TeacherForcingScore:
    """Summed over all batches, never a mean of batch means."""
    decoder = cast(NeuralDecodable, model)
    total, correct, count = 0.0, 0, 0
    for batch in batches:
        hidden, _ = decoder.read(batch.inputs, read_source(model, batch.source))
        flat = batch.targets.reshape(-1)
        trained = (flat != IGNORE).nonzero()[:, 0]
        for start in range(0, len(trained), CHUNK):
            positions = trained[start : start + CHUNK]
            logits = decoder.output.logits(hidden.flatten(0, 1)[positions]).float()
            targets = flat[positions, None]
            total -= float(logits.log_softmax(dim=-1).gather(1, targets).double().sum())
            correct += int((logits.argmax(dim=-1, keepdim=True) == targets).sum())
        count += len(trained)
    return TeacherForcingScore(total, correct, count)
