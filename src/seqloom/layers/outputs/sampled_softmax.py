"""Outputs that train on the target and a sample of the other words, and are a full softmax in evaluation.

    importance   Jean et al. 2015; Jozefowicz et al. 2016
                 a_j = z_j - log π_j,  π_j = 1 - (1 - Q_j)^S: the probability that S draws from Q hold word j
                 loss = -log softmax(a)_target, over the target and the different words drawn
    blackout     Ji et al. 2016
                 a_j = z_j - log Q_j,  p~_j = exp(a_j) / Σ exp(a), over the target and the S draws
                 loss = -log p~_target - Σ_draws log(1 - p~_j)

Q_j ~ count_j^α. All positions of a call share the draws. A draw that equals a position's target (an
accidental hit) is left out there. With all words drawn for certain (π = 1), importance is the exact
cross-entropy; with fewer its gradient is biased, less so with more draws.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from seqloom.errors import UsageError
from seqloom.layers.outputs.softmax import FullOutput, chunked_loss, select_trained, softmax_
from seqloom.protocols import Loss, NextLogProbs, WantedTokens

Kind = Literal["importance", "blackout"]

ALPHA: dict[Kind, float] = {"importance": 1.0, "blackout": 0.4}
"""The power of the counts where none is given."""

NEVER = -1e30
"""A logit whose probability is 0; unlike -inf it can be subtracted from itself."""

SURE = 1 - 1e-6
"""The largest p~ of a draw: float32 cannot represent log(1 - p~) for p~ close to 1."""


class Draws(NamedTuple):
    """The different words of a sample."""

    ids: Tensor
    """Rising, `(u,)`."""
    times: Tensor
    """How often each was drawn, `(u,)`."""


@final
class SampledOutput(nn.Module):
    """An `OutputLayer`; in evaluation it is the `FullOutput` in it. Q is uniform until `set_counts`."""

    cumulative: Tensor

    def __init__(
        self,
        kind: Kind,
        width: int,
        vocabulary: int,
        tied: Tensor | None = None,
        *,
        bias: bool = True,
        samples: int = 4096,
        alpha: float | None = None,
        suppressed: Sequence[int] = (),
    ) -> None:
        """`samples`: S; `alpha`: the power of the counts, None for the kind's own."""
        super().__init__()
        if samples < 1:
            raise UsageError(
                f"a sampled output must draw at least 1 word, but samples is {samples}"
            )
        self.kind, self.samples, self.alpha = kind, samples, ALPHA[kind] if alpha is None else alpha
        self.full = FullOutput(width, vocabulary, tied, bias=bias, suppressed=suppressed)
        self.register_buffer("cumulative", torch.empty(vocabulary, dtype=torch.float64))
        self.set_counts(torch.ones(vocabulary))

    def set_counts(self, counts: Tensor) -> None:
        """counts `(vocabulary,)` of each id in the training text; one that never occurs counts once, so that
        it can be drawn, unless it can never be a target."""
        raised = counts.to(self.cumulative).clamp(min=1) ** self.alpha
        for part in self.full.classes.suppressed:
            raised[part] = 0
        total = raised.cumsum(0)
        # by the last sum: no draw may lie beyond the last id that can be drawn
        self.cumulative.copy_(total / total[-1])

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden `(..., width)` -> logits `(..., vocabulary)`."""
        return self.full.logits(hidden)

    def likeliest(self, hidden: Tensor, wanted: WantedTokens) -> NextLogProbs | None:
        """As that of `FullOutput`."""
        return self.full.likeliest(hidden, wanted)

    def log_probs(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """hidden `(..., width)`, targets `(...)` -> log p of each target `(...)` in nats, 0 at IGNORE;
        float32 or better, no gradient."""
        return self.full.log_probs(hidden, targets)

    def loss(self, hidden: Tensor, targets: Tensor, smoothing: float = 0.0) -> Loss:
        """hidden `(..., width)`, targets `(...)` with IGNORE where nothing is trained -> in training the
        sampled loss, else cross-entropy.

        Draws from torch's global stream. Raises UsageError if `smoothing` is not 0 in training.
        """
        if not self.training:
            return self.full.loss(hidden, targets, smoothing)
        if smoothing:
            raise UsageError(
                f"label smoothing needs all words at every position, so it must be 0 with output={self.kind},"
                f" but is {smoothing}"
            )
        _, hidden, flat = select_trained(hidden, targets)
        total = self.sampled_loss(hidden, flat, self.draw())
        return Loss(total, torch.tensor(len(flat), device=total.device))

    def draw(self) -> Draws:
        """S draws from Q, with replacement, by the inverse of its cumulative distribution."""
        u = torch.rand(self.samples, dtype=self.cumulative.dtype, device=self.cumulative.device)
        drawn = torch.searchsorted(self.cumulative, u, right=True).clamp_(
            max=len(self.cumulative) - 1
        )
        return Draws(*torch.unique(drawn, return_counts=True))

    def sampled_loss(self, hidden: Tensor, targets: Tensor, draws: Draws) -> Tensor:
        """hidden `(n, width)`, targets `(n,)` -> Σ loss given the draws."""
        both = torch.cat([targets, draws.ids])
        weight = F.embedding(both, self.full.weight)  # its gradient is a sum over these rows
        corrected = -self._log_chance(both).to(weight.dtype)
        if self.full.bias is not None:
            corrected = corrected + self.full.bias[both]
        n = len(targets)
        wanted = (hidden * weight[:n]).sum(dim=1) + corrected[:n]
        hits = _AccidentalHits.of(targets, draws.ids)
        times = draws.times.to(weight.dtype)

        def score(rows: slice, logits: Tensor) -> tuple[Tensor, Tensor]:
            logits[hits.within(rows)] = NEVER
            if self.kind == "importance":
                return _importance_(logits, wanted[rows].detach())
            return _blackout_(logits, wanted[rows].detach(), times)

        return chunked_loss(score, hidden, weight[n:], corrected[n:], wanted)

    def _log_chance(self, ids: Tensor) -> Tensor:
        """log π (importance) or log Q (blackout) of ids `(k,)`."""
        below = torch.where(ids > 0, self.cumulative[ids - 1], 0.0)
        q = self.cumulative[ids] - below
        return (
            torch.log(-torch.expm1(self.samples * torch.log1p(-q)))
            if self.kind == "importance"
            else q.log()
        )


class _AccidentalHits(NamedTuple):
    """Where a position's target is among the draws."""

    position: Tensor
    """Rising, `(k,)`."""
    draw: Tensor
    """`(k,)`"""

    @classmethod
    def of(cls, targets: Tensor, ids: Tensor) -> _AccidentalHits:
        at = torch.searchsorted(ids, targets).clamp_(max=len(ids) - 1)
        position = (ids[at] == targets).nonzero()[:, 0]
        return cls(position, at[position])

    def within(self, rows: slice) -> tuple[Tensor, Tensor]:
        """The index of the hits among the logits of those rows."""
        inside = (self.position >= rows.start) & (self.position < rows.stop)
        return self.position[inside] - rows.start, self.draw[inside]


def _importance_(logits: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
    """logits of the draws `(n, u)`, turned into gradients in place, and those of the targets `(n,)` -> Σ
    loss, and the gradients of the latter `(n,)`."""
    of_draws = softmax_(logits)
    total = torch.logaddexp(of_draws, wanted)
    p_draws = (of_draws - total).exp()
    logits.mul_(p_draws[:, None])
    return (total - wanted).sum(), -p_draws


def _blackout_(logits: Tensor, wanted: Tensor, times: Tensor) -> tuple[Tensor, Tensor]:
    """The same, for draws that were drawn `times` `(u,)`.

    With n the times, p = p~ and r_j = p_j / (1 - p_j):  d a_k = n_k (r_k - p_k G),  d a_target = -1 -
    p_target G,  G = Σ n_j r_j - 1.
    """
    of_draws = softmax_(logits.add_(times.log()))
    total = torch.logaddexp(of_draws, wanted)
    p = logits.mul_((of_draws - total).exp()[:, None]).div_(times).clamp_(max=SURE)
    odds = p / (1 - p)
    loss = (total - wanted).sum() - torch.log1p(-p).sum(dim=0).dot(times)
    gain = odds @ times - 1
    torch.addcmul(odds, p, gain[:, None], value=-1, out=logits).mul_(times)
    return loss, -1 - (wanted - total).exp() * gain
