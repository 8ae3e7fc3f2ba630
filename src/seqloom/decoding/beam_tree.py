"""What a beam search looked at: the hypotheses of every step, which of them went on, and which fell."""

from __future__ import annotations

import math
from typing import Literal, NamedTuple, final

from seqloom.decoding.hypotheses import DecodingStep
from seqloom.decoding.logits_processors import most_likely

Fate = Literal["goes on", "ends", "is cut", "falls"]


class TreeNode(NamedTuple):
    """A hypothesis, as its last token and the one that it continues."""

    step: int
    """From 1."""
    parent: int | None
    """The number of the node that it continues; None at the first step."""
    token: int
    log_prob: float
    """log p of the token under the model, before any rule."""
    total: float
    """Σ log p, by which hypotheses of a step are compared."""
    fate: Fate
    """`is cut`: it is as long as it may be."""


@final
class BeamTree:
    """An observer of a search for one input. At each step it keeps what was taken, and as many of the next
    best as the beam is wide."""

    def __init__(self, width: int) -> None:
        self._width = width
        self._rows: list[int | None] = [None]
        """The node of each live row."""
        self._steps = 0
        self.nodes: list[TreeNode] = []

    def __call__(self, step: DecodingStep) -> None:
        self._steps += 1
        ids = step.next_tokens.ids.tolist()
        rows = len(step.log_probs)
        parents = (
            list(range(rows))
            if step.next_tokens.parents is None
            else step.next_tokens.parents.tolist()
        )
        totals = step.next_tokens.sum_log_probs.tolist()
        children = []
        for child, (row, token, total) in enumerate(zip(parents, ids, totals, strict=True)):
            number = self._add(step, row, token, total, fate_of(step, child))
            if step.kept[child]:
                children.append(number)
        taken = set(zip(parents, ids, strict=True))
        for row, token, total in self._next_best(step, len(taken)):
            if (row, token) not in taken:
                self._add(step, row, token, total, "falls")
        self._rows = list(children)

    def _next_best(self, step: DecodingStep, taken: int) -> list[tuple[int, int, float]]:
        """Row, token and Σ log p of the best continuations, as many as are taken and the width together."""
        totals = step.live.sum_log_probs[:, None] + step.processed.double()
        size = totals.shape[1]
        flat = totals.reshape(1, -1)
        values, places = most_likely(flat, min(taken + self._width, flat.shape[1]))
        found = zip(places[0].tolist(), values[0].tolist(), strict=True)
        return [(place // size, place % size, total) for place, total in found if total > -math.inf]

    def _add(self, step: DecodingStep, row: int, token: int, total: float, fate: Fate) -> int:
        log_prob = float(step.log_probs[row, token])
        self.nodes.append(TreeNode(self._steps, self._rows[row], token, log_prob, total, fate))
        return len(self.nodes) - 1


def fate_of(step: DecodingStep, child: int) -> Fate:
    if step.finished[child]:
        return "ends"
    if step.ended[child]:
        return "is cut"
    return "goes on" if step.kept[child] else "falls"
