"""An objective, a decoding rule and a metric from outside."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

from torch import Tensor

import seqloom
from seqloom.decoding.hypotheses import LiveHypotheses
from seqloom.decoding.logits_processors import LogitsProcessor, forbid
from seqloom.protocols import Loss, Objective, Tokenizer
from seqloom.shapes import IGNORE

BETA = 0.1


@final
@dataclass(frozen=True)
class ConfidencePenalty:
    """The objective of the task, less β times the entropy of what is predicted: a translation model that is
    sure of itself pays (Pereyra et al. 2017, arXiv:1701.06548, equation 2)."""

    default: Objective

    def __call__(self, model: Any, batch: Any) -> Loss:
        loss = self.default(model, batch)
        hidden, _ = model.read(batch.inputs, model.encode(batch.source))
        log_probs = model.output.logits(hidden[batch.targets != IGNORE]).log_softmax(dim=-1)
        # -inf where something can never be a target, such as <pad>; there p log p would be NaN
        log_probs = log_probs.clamp(min=-1e9)
        return Loss(loss.total + BETA * (log_probs.exp() * log_probs).sum(), loss.count)


@final
@dataclass(frozen=True)
class Louder:
    """decode.processors=[louder=2]: log-probabilities times a number."""

    factor: float

    def __call__(self, live: LiveHypotheses, log_probs: Tensor) -> Tensor:
        return self.factor * log_probs


def avoid(setting: str, tokenizer: Tokenizer) -> LogitsProcessor:
    """decode.processors=[avoid=e]: a lipogram, a text without this letter."""
    letter = setting.encode()
    return forbid([id for id, spelled in enumerate(tokenizer.token_bytes) if letter in spelled])


def length_ratio(answers: Sequence[str], references: Sequence[str]) -> float:
    """How near the lengths of answers are to those of references, 0 to 100."""
    pairs = [
        (len(answer), len(reference)) for answer, reference in zip(answers, references, strict=True)
    ]
    return sum(100 * min(pair) / max(*pair, 1) for pair in pairs) / len(pairs)


seqloom.register_objective("confidence_penalty", ConfidencePenalty)
seqloom.register_logits_processor("avoid", avoid)
seqloom.register_logits_processor("louder", lambda setting, tokenizer: Louder(setting))
seqloom.register_metric("length_ratio", length_ratio)
