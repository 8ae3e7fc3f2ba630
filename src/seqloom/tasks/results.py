"""What a model says of its inputs, and how good that is: the same for every task."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, final

from numpy.typing import NDArray


@final
@dataclass(frozen=True)
class Evaluation:
    """What came out."""

    metrics: dict[str, float]
    """loss (nats a token), perplexity, token_accuracy, pairs, tokens; where decoded also bleu, chrf,
    exact_match, unfinished."""
    signatures: dict[str, str]
    """How sacreBLEU computed its scores."""
    outputs: list[str]
    """The model's texts, in the order of the pairs, or labels; empty where nothing was decoded."""
    details: dict[str, Any] = field(default_factory=dict)
    """What is too long for a table: of labels the scores of each and the counts of each confusion."""
    by_example: NDArray[Any] | None = None
    """`(examples,)`: how right each answer of a reader is, the larger the better."""
