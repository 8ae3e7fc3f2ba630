"""A GPT that writes with weights in fewer bits: `decode.weights`.

The weights of its linear maps and of its output are read as they are stored; embeddings, norms, biases,
states and all sums are in float32. So it is the float32 model that has the rounded weights.
"""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor, nn

from seqloom.layers.outputs.softmax import (
    CHUNK,
    FullOutput,
    at_positions,
    select_trained,
)
from seqloom.layers.transformer.native_step import why_not
from seqloom.models.gpt import GPT
from seqloom.native.library import library, missing
from seqloom.packed_weights import PackedWeights, Storage
from seqloom.protocols import NextLogProbs, State, WantedTokens


def why_not_compiled(model: object) -> str:
    """Why a step of decoding is not one compiled call, as a clause; empty if it is."""
    if not isinstance(model, GPT):
        return "only a gpt has a compiled step"
    if missing():
        return "the compiled step is missing, which this makes: python -m seqloom.native"
    if library() is None:
        return "SEQLOOM_NATIVE=0 forbids the compiled step"
    reason = why_not(model.stack)
    return f"this model has no compiled step: {reason}" if reason else ""


def why_not_quantised(model: object) -> str:
    """Why this model cannot be decoded from weights in fewer bits, as a clause; empty if it can."""
    if isinstance(model, GPT) and not isinstance(model.output, FullOutput):
        return "only model.output=full can be stored so"
    return why_not_compiled(model)


@final
class QuantisedGPT(nn.Module):
    """A `Decodable` in two halves, for which `why_not_quantised` has no reason. Its weights are packed at its
    first call and must stay as they are."""

    def __init__(self, model: GPT, storage: Storage) -> None:
        super().__init__()
        self.model = model
        self.config = model.config
        self.context = model.context
        self._weights = PackedWeights(storage)
        self.output = QuantisedOutput(model.output, self._weights)

    def read(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        """As `GPT.read`."""
        with self._weights:
            return self.model.read(tokens, state)

    def forward(self, tokens: Tensor, state: State = None) -> tuple[Tensor, State]:
        hidden, state = self.read(tokens, state)
        return self.output.logits(hidden), state


@final
class QuantisedOutput(nn.Module):
    """The output layer of `QuantisedGPT`, for decoding and scoring."""

    def __init__(self, output: nn.Module, weights: PackedWeights) -> None:
        super().__init__()
        assert isinstance(output, FullOutput)
        self._output = output
        self._weights = weights

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden `(..., width)` -> logits `(..., vocabulary)`."""
        with self._weights:
            return self._output.logits(hidden)

    def likeliest(self, hidden: Tensor, wanted: WantedTokens) -> NextLogProbs | None:
        """As that of `FullOutput`."""
        with self._weights:
            return self._output.likeliest(hidden, wanted)

    def log_probs(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """hidden `(..., width)`, targets `(...)` -> log p of each target `(...)`, 0 at IGNORE."""
        places, states, flat = select_trained(hidden, targets)
        parts = [states.new_zeros(0)]
        for first in range(0, len(flat), CHUNK):
            part = slice(first, first + CHUNK)
            logits = self.logits(states[part])
            chosen = logits.gather(1, flat[part, None])[:, 0]
            parts.append(chosen - logits.logsumexp(dim=1))
        return at_positions(torch.cat(parts), places, targets)
