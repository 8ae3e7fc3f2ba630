"""The adaptive softmax: rare words are predicted in two steps, and with narrower states.

Grave, Joulin, Cissé, Grangier and Jégou 2017 (Efficient softmax approximation for GPUs). Words by falling
frequency are cut into a head and clusters:

    p(w | h) = p_head(w | h)                                 for the words of the head
    p(w | h) = p_head(cluster c | h) p_c(w | P_c h)          for the words of cluster c = 1, 2, ..;  P_c: width -> width / 4^c

p is a distribution over the whole vocabulary, not an approximation of one: what is cheaper is the model.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, final

import torch
from torch import Tensor, nn

from seqloom.errors import UsageError
from seqloom.layers.outputs.softmax import asked, linear_cross_entropy, linear_log_probs, placed
from seqloom.protocols import Loss

DIVISOR = 4
"""Each cluster's states are so many times narrower than those of the one before."""


def default_cutoffs(vocabulary: int) -> tuple[int, ...]:
    """A sixteenth of the words in the head, which by Zipf's law are three quarters of a text; up to a
    quarter, and the rest."""
    return tuple(sorted({max(1, vocabulary // 16), max(1, vocabulary // 4)} - {vocabulary}))


class _Hit(NamedTuple):
    """The positions whose target is in a cluster."""

    tail: nn.Sequential
    places: Tensor
    """`(m,)`"""
    targets: Tensor
    """Of those, counted from the cluster's first word `(m,)`."""


@final
class AdaptiveOutput(nn.Module):
    """An `Output`; a new one takes the ids as they are for ranks by frequency, until `set_counts`.

    `cutoffs` are the ranks at which the clusters begin, () for the default.
    """

    rank: Tensor

    def __init__(self, width: int, vocabulary: int, cutoffs: Sequence[int] = ()) -> None:
        super().__init__()
        cutoffs = tuple(cutoffs) or default_cutoffs(vocabulary)
        if list(cutoffs) != sorted({*cutoffs}) or not 0 < cutoffs[0] <= cutoffs[-1] < vocabulary:
            raise UsageError(
                f"the cutoffs must rise from at least 1 to less than the vocabulary of {vocabulary}, but are"
                f" {[*cutoffs]}"
            )
        self.cutoffs = (*cutoffs, vocabulary)
        self.head = nn.Linear(width, cutoffs[0] + len(cutoffs), bias=False)
        self.tails = nn.ModuleList()
        for number, (low, high) in enumerate(zip(self.cutoffs[:-1], self.cutoffs[1:], strict=True), start=1):
            narrow = max(1, width // DIVISOR**number)
            self.tails.append(
                nn.Sequential(nn.Linear(width, narrow, bias=False), nn.Linear(narrow, high - low, bias=False))
            )
        for matrix in self.parameters():
            nn.init.normal_(matrix, std=matrix.shape[1] ** -0.5)
        self.register_buffer("rank", torch.arange(vocabulary))

    def set_counts(self, counts: Tensor) -> None:
        """counts `(vocabulary,)` of each id in the training text: the frequent words go to the head. Before
        training only."""
        order = counts.argsort(descending=True, stable=True)
        self.rank[order] = torch.arange(len(order), device=self.rank.device)

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden `(..., width)` -> log p of each word, `(..., vocabulary)`, in float32 or better."""
        exact = torch.promote_types(hidden.dtype, torch.float32)
        head = self.head(hidden).to(exact).log_softmax(dim=-1)
        parts = [head[..., : self.cutoffs[0]]]
        for number, tail in enumerate(self.tails):
            parts.append(
                tail(hidden).to(exact).log_softmax(dim=-1) + head[..., self.cutoffs[0] + number, None]
            )
        return torch.cat(parts, dim=-1).index_select(-1, self.rank)

    def loss(self, hidden: Tensor, targets: Tensor, smoothing: float = 0.0) -> Loss:
        """hidden `(..., width)`, targets `(...)` with IGNORE where nothing is trained -> cross-entropy in
        nats.

        Raises UsageError where `smoothing` is not 0: its sum over all words would touch every cluster at
        every position.
        """
        if smoothing:
            raise UsageError(
                "label smoothing needs all words at every position: it must be 0 with output=adaptive, but"
                f" is {smoothing}"
            )
        _, hidden, flat = asked(hidden, targets)
        first, hits = self._split(flat)
        total = linear_cross_entropy(hidden, self.head.weight, None, first)
        for (
            tail,
            places,
            within,
        ) in hits:  # also where none is hit: every weight has a gradient in every worker
            total = total + linear_cross_entropy(tail[0](hidden[places]), tail[1].weight, None, within)  # type: ignore[arg-type]
        return Loss(total, torch.tensor(len(flat), device=total.device))

    @torch.no_grad()
    def log_probs(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """hidden `(..., width)`, targets `(...)` -> log p of each target `(...)` in nats, 0 at IGNORE;
        float32 or better, no gradient."""
        where, hidden, flat = asked(hidden, targets)
        first, hits = self._split(flat)
        found = linear_log_probs(hidden, self.head.weight, None, first)
        for tail, places, within in hits:
            found[places] += linear_log_probs(tail[0](hidden[places]), tail[1].weight, None, within)  # type: ignore[arg-type]
        return placed(found, where, targets)

    def _split(self, targets: Tensor) -> tuple[Tensor, Iterator[_Hit]]:
        """targets `(n,)` -> what the head has to say for each `(n,)`, and the rest of it, cluster by
        cluster."""
        ranks = self.rank[targets]
        cluster = torch.bucketize(ranks, ranks.new_tensor(self.cutoffs[:-1]), right=True)  # 0: the head
        first = torch.where(cluster == 0, ranks, self.cutoffs[0] + cluster - 1)

        def hits() -> Iterator[_Hit]:
            for number, tail in enumerate(self.tails):
                places = (cluster == number + 1).nonzero()[:, 0]
                yield _Hit(tail, places, ranks[places] - self.cutoffs[number])  # type: ignore[arg-type]

        return first, hits()
