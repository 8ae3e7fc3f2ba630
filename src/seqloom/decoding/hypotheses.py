"""Hypotheses of the decoding loop: those that live, their next tokens, those that have ended."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

NAN_LOGITS = "logits must be numbers, but the model gave NaN: its weights or its state are broken"
"""The message about a broken model."""

NO_TOKEN = -1
"""Fills the left of shorter prompts where no id may stand, not even that of `<pad>`."""


class Hypothesis(NamedTuple):
    """One output for one input."""

    score: float
    """Σ log p / length^α; of a sample Σ log p."""
    log_probability: float
    """Σ log p of its tokens, in nats, with that of the end mark. Of a sample it is that of the model before
    any logits processor."""
    tokens: list[int]
    """The new tokens, without the prompt and the end mark."""
    finished: bool
    """False where the maximum length cut it off."""
    sample: int = 0
    """Its number among the samples of its prompt; in a diverse beam search the number of its group."""


class LiveHypotheses(NamedTuple):
    """One row for each live hypothesis, ordered by input. A logits processor may look at all of it."""

    input_index: Tensor
    """`(rows,)`: the input of each row."""
    sample_index: Tensor
    """`(rows,)`: its number among the samples of its input, or its group in a diverse beam search."""
    generated_before: Tensor
    """`(rows,)`: how many tokens at the end of its prompt were generated too; 0 unless a text is
    continued."""
    sum_log_probs: Tensor
    """`(rows,)`: Σ log p."""
    tokens: Tensor
    """`(rows, steps)`: the new tokens so far."""
    prompts: Tensor
    """`(inputs, longest)`: what precedes the new tokens, with NO_TOKEN on the left of shorter ones."""

    @property
    def sequences(self) -> Tensor:
        """`(rows, longest + steps)`: prompts and new tokens, with NO_TOKEN on the left of shorter ones."""
        return torch.cat([self.prompts[self.input_index], self.tokens], dim=1)

    @property
    def new_length(self) -> Tensor:
        """`(rows,)`: how many tokens at the end of `sequences` are generated."""
        return self.generated_before + self.tokens.shape[1]

    def select(self, rows: Tensor) -> LiveHypotheses:
        """These rows `(n,)` in this order."""
        selected = [field.index_select(0, rows) for field in self[:-1]]
        return LiveHypotheses._make([*selected, self.prompts])

    def extended(self, following: NextTokens) -> LiveHypotheses:
        """The hypotheses with their next tokens."""
        rows = self if following.parents is None else self.select(following.parents)
        tokens = torch.cat([rows.tokens, following.ids[:, None]], dim=1)
        return LiveHypotheses(
            rows.input_index,
            rows.sample_index,
            rows.generated_before,
            following.sum_log_probs,
            tokens,
            rows.prompts,
        )

    @classmethod
    def initial(cls, prompts: Tensor) -> LiveHypotheses:
        """One row for each input `(inputs, longest)`, before any new token."""
        zeros = torch.zeros(len(prompts), dtype=torch.long, device=prompts.device)
        index = torch.arange(len(prompts), device=prompts.device)
        return cls(index, zeros, zeros, zeros.double(), prompts[:, :0], prompts)


class NextTokens(NamedTuple):
    """The tokens that a strategy has chosen, ordered by input."""

    parents: Tensor | None
    """`(new rows,)`: the row that each continues (beam indices); None where each continues itself."""
    ids: Tensor
    """`(new rows,)`"""
    sum_log_probs: Tensor
    """`(new rows,)`: Σ log p with the new token."""


class DecodingStep(NamedTuple):
    """One step of the loop, for an observer."""

    live: LiveHypotheses
    """The hypotheses before it."""
    log_probs: Tensor
    """`(rows, vocabulary)`: the model's."""
    processed: Tensor
    """`(rows, vocabulary)`: after the logits processors."""
    next_tokens: NextTokens
    extended: LiveHypotheses
    """The hypotheses with their new tokens, those that end here included."""
    ended: Tensor
    """`(new rows,)`: those that end here,"""
    finished: Tensor
    """`(new rows,)`: and of these the ones that are complete, not just at their maximum length."""
    kept: Tensor
    """`(new rows,)`: those that live on. What neither ends nor lives on was pruned."""


StoppingCriterion = Callable[[LiveHypotheses], Tensor]
"""hypotheses -> `(rows,)`: whether the new text of each, its last token included, is complete."""
