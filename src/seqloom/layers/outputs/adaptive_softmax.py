"""The adaptive softmax: rare words are predicted in two steps, and with narrower states.

Grave, Joulin, Cissé, Grangier and Jégou 2017 (Efficient softmax approximation for GPUs). Words by falling
frequency are cut into a head and clusters:

    p(w | h) = p_head(w | h)                                 for the words of the head
    p(w | h) = p_head(cluster c | h) p_c(w | P_c h)          for the words of cluster c = 1, 2, ..
                                                             P_c: width -> width / 4^c

p is a distribution over the whole vocabulary, not an approximation of one: the model itself is cheaper.
Words that can never be a target have the last ranks, so that they are at the end of the last clusters.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, cast, final

import torch
from torch import Tensor, nn

from seqloom.errors import UsageError
from seqloom.layers.outputs.possible_classes import Classes
from seqloom.layers.outputs.softmax import (
    at_positions,
    linear_cross_entropy,
    linear_log_probs,
    select_trained,
)
from seqloom.protocols import Loss

DIVISOR = 4
"""How many times narrower the states of each cluster are than those of the one before."""


def default_cutoffs(vocabulary: int) -> tuple[int, ...]:
    """A sixteenth of the words in the head, which by Zipf's law are three quarters of a text; then a cluster
    up to a quarter of the words, and the rest."""
    return tuple(sorted({max(1, vocabulary // 16), max(1, vocabulary // 4)} - {vocabulary}))


class _ClusterTargets(NamedTuple):
    """The positions whose target is in a cluster."""

    tail: nn.Sequential
    classes: Classes
    places: Tensor
    """`(m,)`"""
    targets: Tensor
    """`(m,)`: counted from the cluster's first word."""


@final
class AdaptiveOutput(nn.Module):
    """An `OutputLayer`. Until `set_counts`, ids are taken as ranks by frequency.

    `cutoffs` are the ranks at which the clusters begin; () for the default. `suppressed`: ids that can never
    be a target.
    """

    rank: Tensor

    def __init__(
        self,
        width: int,
        vocabulary: int,
        cutoffs: Sequence[int] = (),
        suppressed: Sequence[int] = (),
    ) -> None:
        super().__init__()
        Classes.without(vocabulary, suppressed)  # a check
        self.suppressed = tuple(suppressed)
        cutoffs = tuple(cutoffs) or default_cutoffs(vocabulary)
        if list(cutoffs) != sorted({*cutoffs}) or not 0 < cutoffs[0] <= cutoffs[-1] < vocabulary:
            raise UsageError(
                f"the cutoffs must rise from at least 1 to less than the vocabulary of {vocabulary}, but are"
                f" {[*cutoffs]}"
            )
        self.cutoffs = (*cutoffs, vocabulary)
        self.head = nn.Linear(width, cutoffs[0] + len(cutoffs), bias=False)
        self.tails = nn.ModuleList()
        for number, (low, high) in enumerate(
            zip(self.cutoffs[:-1], self.cutoffs[1:], strict=True), start=1
        ):
            narrow = max(1, width // DIVISOR**number)
            self.tails.append(
                nn.Sequential(
                    nn.Linear(width, narrow, bias=False), nn.Linear(narrow, high - low, bias=False)
                )
            )
        for matrix in self.parameters():
            nn.init.normal_(matrix, std=matrix.shape[1] ** -0.5)
        self.register_buffer("rank", torch.empty(vocabulary, dtype=torch.long))
        self.set_counts(torch.zeros(vocabulary))
        self.register_load_state_dict_post_hook(  # type: ignore[no-untyped-call]
            AdaptiveOutput._after_loading
        )

    def _after_loading(self, _: object) -> None:
        self._find_possible()

    def _find_possible(self) -> None:
        """Which classes of the head and of each cluster are possible, by the ranks of the suppressed words. A
        cluster without a possible word is not possible in the head; its own classes do not matter."""
        # without values there is only a shape to look at
        ranks = [] if self.rank.is_meta else self.rank[list(self.suppressed)].tolist()
        words = self.cutoffs[0]
        never = [rank for rank in ranks if rank < words]
        self.tail_classes: list[Classes] = []
        for low, high in zip(self.cutoffs[:-1], self.cutoffs[1:], strict=True):
            within = [rank - low for rank in ranks if low <= rank < high]
            if len(within) == high - low:
                never.append(words + len(self.tail_classes))
                within = []
            self.tail_classes.append(Classes.without(high - low, within))
        self.head_classes = Classes.without(words + len(self.tail_classes), never)

    def set_counts(self, counts: Tensor) -> None:
        """counts `(vocabulary,)` of each id in the training text: the frequent words go to the head. Before
        training only."""
        counts = counts.clone()
        # no training text has them, so they come last
        counts[list(self.suppressed)] = -1
        order = counts.argsort(descending=True, stable=True)
        self.rank[order] = torch.arange(len(order), device=self.rank.device)
        self._find_possible()

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden `(..., width)` -> log p of each word, `(..., vocabulary)`, in float32 or better."""
        exact = torch.promote_types(hidden.dtype, torch.float32)
        head = self.head_classes.suppress_(self.head(hidden).to(exact)).log_softmax(dim=-1)
        parts = [head[..., : self.cutoffs[0]]]
        for number, (tail, classes) in enumerate(zip(self.tails, self.tail_classes, strict=True)):
            of_cluster = head[..., self.cutoffs[0] + number, None]
            within = classes.suppress_(tail(hidden).to(exact)).log_softmax(dim=-1)
            parts.append(within + of_cluster)
        return torch.cat(parts, dim=-1).index_select(-1, self.rank)

    def loss(self, hidden: Tensor, targets: Tensor, smoothing: float = 0.0) -> Loss:
        """hidden `(..., width)`, targets `(...)` with IGNORE where nothing is trained -> cross-entropy in
        nats.

        Raises UsageError if `smoothing` is not 0: its sum over all words would touch every cluster at
        every position.
        """
        if smoothing:
            raise UsageError(
                "label smoothing needs all words at every position: it must be 0 with output=adaptive, but"
                f" is {smoothing}"
            )
        _, hidden, flat = select_trained(hidden, targets)
        in_head, clusters = self._split(flat)
        total = linear_cross_entropy(
            hidden, self.head.weight, None, in_head, classes=self.head_classes
        )
        # also over clusters without a target, so that every weight has a gradient in every worker
        for tail, classes, places, within in clusters:
            total = total + linear_cross_entropy(
                tail[0](hidden[places]), _weight(tail), None, within, classes=classes
            )
        return Loss(total, torch.tensor(len(flat), device=total.device))

    @torch.no_grad()
    def log_probs(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """hidden `(..., width)`, targets `(...)` -> log p of each target `(...)` in nats, 0 at IGNORE;
        float32 or better, no gradient."""
        positions, hidden, flat = select_trained(hidden, targets)
        in_head, clusters = self._split(flat)
        log_probs = linear_log_probs(hidden, self.head.weight, None, in_head, self.head_classes)
        for tail, classes, places, within in clusters:
            log_probs[places] += linear_log_probs(
                tail[0](hidden[places]), _weight(tail), None, within, classes
            )
        return at_positions(log_probs, positions, targets)

    def _split(self, targets: Tensor) -> tuple[Tensor, Iterator[_ClusterTargets]]:
        """targets `(n,)` -> the target of the head at each position `(n,)`, a word or a cluster; and the
        targets within each cluster."""
        ranks = self.rank[targets]
        # 0: the head
        cluster = torch.bucketize(ranks, ranks.new_tensor(self.cutoffs[:-1]), right=True)
        in_head = torch.where(cluster == 0, ranks, self.cutoffs[0] + cluster - 1)

        def clusters() -> Iterator[_ClusterTargets]:
            for number, (tail, classes) in enumerate(
                zip(self.tails, self.tail_classes, strict=True)
            ):
                places = (cluster == number + 1).nonzero()[:, 0]
                within = ranks[places] - self.cutoffs[number]
                yield _ClusterTargets(cast(nn.Sequential, tail), classes, places, within)

        return in_head, clusters()


def _weight(tail: nn.Sequential) -> Tensor:
    return cast(nn.Linear, tail[1]).weight
