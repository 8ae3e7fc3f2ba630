"""What the decoding loop holds: the live rows, what they become, what has ended."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

NOT_NUMBERS = "logits must be numbers, but the model gave NaN: its weights or its state are broken"
"""What is said of a broken model."""


NOTHING = -1
"""In the place of an id: nothing stands there."""


class Hypothesis(NamedTuple):
    """One output for one input."""

    score: float
    """Σ log p / length^α; of a sample Σ log p."""
    log_probability: float
    """Σ log p of its tokens, in nats, the end mark's too where it has one. Of a sample it is that of the
    model before any rule."""
    tokens: list[int]
    """The new tokens, without the prompt and without the end mark."""
    finished: bool
    """False where the maximum length cut it off."""
    sample: int = 0
    """Its number among the samples of its prompt; in a beam its group, 0 where there is one."""


class Live(NamedTuple):
    """The live rows, grouped by input in order. A rule may look at all of it."""

    owner: Tensor
    """`(rows,)`: the input of each row."""
    sample: Tensor
    """`(rows,)`: its number among the samples of its input, or its group in a beam."""
    drawn: Tensor
    """`(rows,)`: how many random numbers were drawn for it before its prompt ended; 0 but for a text that is
    gone on with."""
    total: Tensor
    """`(rows,)`: Σ log p."""
    tokens: Tensor
    """`(rows, steps)`: the new tokens so far."""
    given: Tensor
    """`(inputs, longest)`: what stood before these, with NOTHING on the left of what is shorter. The last
    `drawn` of it are new too."""

    @property
    def text(self) -> Tensor:
        """`(rows, longest + steps)`: all that stands before the next token, with NOTHING on the left of what
        is shorter."""
        return torch.cat([self.given[self.owner], self.tokens], dim=1)

    @property
    def new(self) -> Tensor:
        """`(rows,)`: how many tokens at the end of `text` are new."""
        return self.drawn + self.tokens.shape[1]

    def select(self, rows: Tensor) -> Live:
        """These rows `(n,)` in this order."""
        return Live(
            self.owner[rows],
            self.sample[rows],
            self.drawn[rows],
            self.total[rows],
            self.tokens[rows],
            self.given,
        )

    @classmethod
    def first(cls, given: Tensor) -> Live:
        """One row for each input, given `(inputs, longest)`, before any new token."""
        zeros = torch.zeros(len(given), dtype=torch.long, device=given.device)
        return cls(
            torch.arange(len(given), device=given.device), zeros, zeros, zeros.double(), given[:, :0], given
        )


class Chosen(NamedTuple):
    """What comes next, in the order of the inputs."""

    parents: Tensor | None
    """`(new rows,)`: the live row that each goes on from; None where each goes on from itself."""
    ids: Tensor
    """`(new rows,)`: its next token."""
    totals: Tensor
    """`(new rows,)`: Σ log p with that token."""


class Step(NamedTuple):
    """One step of the loop, for somebody who looks on."""

    live: Live
    """The rows before it."""
    log_probs: Tensor
    """`(rows, vocabulary)`: the model's."""
    allowed: Tensor
    """`(rows, vocabulary)`: what the rules left."""
    chosen: Chosen
    going: Live
    """The rows with their new tokens; those that end here are still among them."""
    over: Tensor
    """`(new rows,)`: those that end here."""
    finished: Tensor
    """`(new rows,)`: those that end by themselves, and not because they are as long as they may be."""
    kept: Tensor
    """`(new rows,)`: those that live on; what neither ends nor lives on could not become better than what has
    ended."""


Stop = Callable[[Live], Tensor]
"""rows -> `(rows,)`: whether the new text of each, its last token counted, ends it."""
