"""A linear-chain conditional random field: tags that know their neighbours.

    s(x, y) = a(y_1) + Σ_t e_t(y_t) + Σ_{t>1} A(y_{t-1}, y_t) + z(y_n)
    p(y | x) = exp(s(x, y)) / Σ_y' exp(s(x, y'))

    Lafferty, McCallum and Pereira: Conditional Random Fields, ICML 2001
    Lample et al.: Neural Architectures for Named Entity Recognition, NAACL 2016, section 2.2: e from a neural
    network

Rows run side by side. A place where the mask is false does not happen, wherever it is. A row without places
has one sequence of tags, the empty one, with the score 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, final

import torch
from torch import Tensor, nn

from seqloom.shapes import IGNORE

FORBIDDEN = -1e4
"""Added to the score of a forbidden transition. Finite, so that there is an answer even where nothing is
allowed."""


@final
class CRF(nn.Module):
    """Scores of tags at the start and at the end, and of transitions between tags. With `names` of tags,
    decoding leaves out some transitions (`forbidden_transitions`); the loss is over all sequences, as
    published."""

    forbidden_start: Tensor
    forbidden_between: Tensor
    forbidden_end: Tensor

    def __init__(self, labels: int, names: Sequence[str] = ()) -> None:
        super().__init__()
        self.between = nn.Parameter(torch.zeros(labels, labels))
        """A: `(the tag before, the tag after)`."""
        self.start = nn.Parameter(torch.zeros(labels))
        """a: `(labels,)`."""
        self.end = nn.Parameter(torch.zeros(labels))
        """z: `(labels,)`."""
        for part, never in forbidden_transitions(names or [""] * labels)._asdict().items():
            self.register_buffer(f"forbidden_{part}", never * FORBIDDEN, persistent=False)

    def losses(self, emissions: Tensor, mask: Tensor, tags: Tensor) -> Tensor:
        """emissions e `(rows, places, labels)`, mask and tags `(rows, places)` -> -log p of the tags of each
        row `(rows,)`, in nats.

        A tag that is IGNORE may be any: the probabilities are added (Täckström et al. 2013).
        """
        known = mask & (tags != IGNORE)
        labels = torch.arange(emissions.shape[-1], device=emissions.device)
        others = known[..., None] & (tags[..., None] != labels)
        # the log-sums of all sequences and of those with the given tags, in one run over twice the rows
        both = torch.cat([emissions, emissions.masked_fill(others, -torch.inf)])
        scores = self._total(
            self._sums(both, mask.repeat(2, 1), self.start, self.between), self.end
        )
        every, these = scores.masked_fill(~mask.any(dim=1).repeat(2), 0).chunk(2)
        return every - these

    def decode(self, emissions: Tensor, mask: Tensor) -> Tensor:
        """emissions `(rows, places, labels)`, mask `(rows, places)` -> the best allowed tags of each row
        (Viterbi) `(rows, places)`, -1 where the mask is not true."""
        start, between, end = self._allowed()
        scores = emissions.new_zeros(emissions.shape[0], emissions.shape[2])
        same = torch.arange(emissions.shape[2], device=emissions.device).expand_as(scores)
        backpointers: list[Tensor] = []
        for e, is_real, is_first in _steps(emissions, mask):
            best, previous = (scores[:, :, None] + between).max(dim=1)
            backpointers.append(previous.where(is_real, same))
            scores = (best.where(~is_first, start) + e).where(is_real, scores)
        tag = (scores + end).argmax(dim=1, keepdim=True)
        tags = [tag]
        for previous in backpointers[:0:-1]:
            tag = previous.gather(1, tag)
            tags.append(tag)
        return torch.cat(tags[::-1], dim=1)[:, : mask.shape[1]].where(mask, -1)

    def marginals(self, emissions: Tensor, mask: Tensor) -> Tensor:
        """The probability of each tag at each place, among sequences that are allowed, `(rows, places,
        labels)`; 0 where the mask is not true (forward-backward)."""
        start, between, end = self._allowed()
        forward = self._sums(emissions, mask, start, between)
        backward = self._sums(emissions.flip(1), mask.flip(1), end, between.T).flip(1)
        return (forward + backward - emissions).softmax(dim=-1).where(mask[..., None], 0)

    def _allowed(self) -> tuple[Tensor, Tensor, Tensor]:
        return (
            self.start + self.forbidden_start,
            self.between + self.forbidden_between,
            self.end + self.forbidden_end,
        )

    @staticmethod
    def _sums(emissions: Tensor, mask: Tensor, start: Tensor, between: Tensor) -> Tensor:
        """log Σ exp(s) over all prefixes that end at a place with a tag, without z, `(rows, places,
        labels)`."""
        sums = emissions.new_zeros(emissions.shape[0], emissions.shape[2])
        largest, least = between.detach().amax(), torch.finfo(sums.dtype).tiny
        factors = (between - largest).exp()
        every = []
        with torch.autocast(emissions.device.type, enabled=False):
            for e, is_real, is_first in _steps(emissions, mask):
                # a matrix product of exponentials is faster than logsumexp of all pairs
                most = sums.detach().amax(dim=1, keepdim=True)
                incoming = ((sums - most).exp() @ factors).clamp(min=least).log() + (most + largest)
                sums = (incoming.where(~is_first, start) + e).where(is_real, sums)
                every.append(sums)
        return torch.stack(every, dim=1) if every else emissions

    @staticmethod
    def _total(sums: Tensor, end: Tensor) -> Tensor:
        """log Z `(rows,)` of what `_sums` gave."""
        if not sums.shape[1]:
            return sums.new_zeros(len(sums))
        return (sums[:, -1] + end).logsumexp(dim=-1)


def _steps(emissions: Tensor, mask: Tensor) -> list[tuple[Tensor, Tensor, Tensor]]:
    """For each place: emissions `(rows, labels)`, whether it is real `(rows, 1)`, and whether it is the first
    of its row `(rows, 1)`."""
    is_first = mask & (mask.cumsum(dim=1) == 1)
    columns = emissions.unbind(1), mask[..., None].unbind(1), is_first[..., None].unbind(1)
    return list(zip(*columns, strict=True))


class ForbiddenTransitions(NamedTuple):
    """1 where a transition is forbidden, else 0."""

    start: Tensor
    """`(labels,)`"""
    between: Tensor
    """`(the tag before, the tag after)`"""
    end: Tensor
    """`(labels,)`"""


def forbidden_transitions(names: Sequence[str]) -> ForbiddenTransitions:
    """Which tags of these names may not be first, follow another, or be last.

    I-x and E-x continue a span of the type x that B-x or I-x has opened. Where there is a tag E-x (BIOES), an
    open span must also be closed: after B-x and I-x comes I-x or E-x. Other names are free.
    """
    split = [_prefix_and_type(name) for name in names]
    types = [kind for _, kind in split]
    closed = {kind for prefix, kind in split if prefix == "E"}
    same_type = torch.tensor([[kind == other for other in types] for kind in types])
    opens = torch.tensor([prefix in "BI" for prefix, _ in split])
    inside = torch.tensor([prefix in "IE" for prefix, _ in split])
    must_close = opens & torch.tensor([kind in closed for kind in types])
    continues = opens[:, None] & inside & same_type
    between = (inside | must_close[:, None]) & ~continues
    return ForbiddenTransitions(inside.float(), between.float(), must_close.float())


def _prefix_and_type(name: str) -> tuple[str, str]:
    """B-x -> (B, x); ("O", "") for a name without a prefix of a span."""
    prefix, dash, kind = name.partition("-")
    return (prefix, kind) if dash and prefix in ("B", "I", "E") else ("O", "")
