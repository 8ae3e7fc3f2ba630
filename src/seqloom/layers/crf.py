"""A linear-chain conditional random field: tags that know their neighbours.

    s(x, y) = a(y_1) + Σ_t e_t(y_t) + Σ_{t>1} A(y_{t-1}, y_t) + z(y_n)
    p(y | x) = exp(s(x, y)) / Σ_y' exp(s(x, y'))

    Lafferty, McCallum and Pereira: Conditional Random Fields, ICML 2001
    Lample et al.: Neural Architectures for Named Entity Recognition, NAACL 2016, section 2.2: e from a neural
    network

Rows are read side by side. A place that is not true does not happen, wherever it stands; a row of no places
has one sequence of tags, the empty one, of score 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, final

import torch
from torch import Tensor, nn

from seqloom.shapes import IGNORE

FORBIDDEN = -1e4
"""Added to the score of what may not follow. Finite: where nothing is allowed, something is answered still.
"""


@final
class CRF(nn.Module):
    """Scores of tags at the start and at the end, and of one after another. With `names` of tags some may not
    follow in what is decoded (`forbidden`); the loss is that of all sequences, as published."""

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
        for part, never in forbidden(names or [""] * labels)._asdict().items():
            self.register_buffer(f"forbidden_{part}", never * FORBIDDEN, persistent=False)

    def losses(self, emissions: Tensor, mask: Tensor, tags: Tensor) -> Tensor:
        """emissions e `(rows, places, labels)`, mask and tags `(rows, places)` -> -log p of the tags of each
        row `(rows,)`, in nats.

        A tag that is IGNORE may be any: the probabilities are added (Täckström et al. 2013).
        """
        known = mask & (tags != IGNORE)
        labels = torch.arange(emissions.shape[-1], device=emissions.device)
        others = known[..., None] & (tags[..., None] != labels)
        both = torch.cat([emissions, emissions.masked_fill(others, -torch.inf)])
        scores = self._total(self._sums(both, mask.repeat(2, 1), self.start, self.between), self.end)
        every, these = scores.masked_fill(~mask.any(dim=1).repeat(2), 0).chunk(2)
        return every - these

    def decode(self, emissions: Tensor, mask: Tensor) -> Tensor:
        """emissions `(rows, places, labels)`, mask `(rows, places)` -> the best allowed tags of each row
        (Viterbi) `(rows, places)`, -1 where the mask is not true."""
        start, between, end = self._allowed()
        scores = emissions.new_zeros(emissions.shape[0], emissions.shape[2])
        stay = torch.arange(emissions.shape[2], device=emissions.device).expand_as(scores)
        come: list[Tensor] = []
        for e, there, first in _steps(emissions, mask):
            best, before = (scores[:, :, None] + between).max(dim=1)
            come.append(before.where(there, stay))
            scores = (best.where(~first, start) + e).where(there, scores)
        tag = (scores + end).argmax(dim=1, keepdim=True)
        tags = [tag]
        for before in come[:0:-1]:
            tag = before.gather(1, tag)
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
        """log Σ exp(s) of all beginnings that end at a place with a tag, z left out, `(rows, places,
        labels)`."""
        sums = emissions.new_zeros(emissions.shape[0], emissions.shape[2])
        largest, least = between.detach().amax(), torch.finfo(sums.dtype).tiny
        factors = (between - largest).exp()
        every = []
        with torch.autocast(emissions.device.type, enabled=False):
            for e, there, first in _steps(emissions, mask):
                most = sums.detach().amax(dim=1, keepdim=True)
                come = ((sums - most).exp() @ factors).clamp(min=least).log() + (
                    most + largest
                )  # faster than logsumexp of all pairs
                sums = (come.where(~first, start) + e).where(there, sums)
                every.append(sums)
        return torch.stack(every, dim=1) if every else emissions

    @staticmethod
    def _total(sums: Tensor, end: Tensor) -> Tensor:
        """log Z `(rows,)` of what `_sums` gave."""
        if not sums.shape[1]:
            return sums.new_zeros(len(sums))
        return (sums[:, -1] + end).logsumexp(dim=-1)


def _steps(emissions: Tensor, mask: Tensor) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Of each place: emissions `(rows, labels)`, whether it is there `(rows, 1)`, and whether it is the first
    of its row `(rows, 1)`."""
    first = mask & (mask.cumsum(dim=1) == 1)
    return list(zip(emissions.unbind(1), mask[..., None].unbind(1), first[..., None].unbind(1), strict=True))


class Never(NamedTuple):
    """1 at what never happens, else 0."""

    start: Tensor
    """`(labels,)`"""
    between: Tensor
    """`(the tag before, the tag after)`"""
    end: Tensor
    """`(labels,)`"""


def forbidden(names: Sequence[str]) -> Never:
    """Which tags of these names may not be first, follow another, or be last.

    I-x and E-x go on with what B-x or I-x of the same type began. Where there is a tag E-x (BIOES) it must
    also be finished: after B-x and I-x comes I-x or E-x. Other names are free.
    """
    special_ids = [
        (name[0], name[2:]) if name[1:2] == "-" and name[0] in "BIE" else ("O", "") for name in names
    ]
    numbers = {kind: number for number, kind in enumerate(dict.fromkeys(kind for _, kind in special_ids))}
    ends = {kind for mark, kind in special_ids if mark == "E"}
    kinds = torch.tensor([numbers[kind] for _, kind in special_ids])
    opens = torch.tensor([mark in "BI" for mark, _ in special_ids])
    inside = torch.tensor([mark in "IE" for mark, _ in special_ids])
    unfinished = opens & torch.tensor([kind in ends for _, kind in special_ids])
    goes_on = opens[:, None] & inside & (kinds[:, None] == kinds)
    between = (inside & ~goes_on) | (unfinished[:, None] & ~goes_on)
    return Never(inside.float(), between.float(), unfinished.float())
