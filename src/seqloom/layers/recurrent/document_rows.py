"""Rows of several documents, cut at each `<s>`: what recurrent layers, which know no documents, run as rows
of their own."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Segments(NamedTuple):
    """The pieces of `(rows, steps)`, row by row: the tokens of each from the left on, padding only after
    them."""

    tokens: Tensor
    """`(segments, longest)`"""
    fresh: Tensor | None
    """`(rows,)`: whether the first piece of a row begins a document, so that nothing is carried into it;
    None: no row's does."""
    first: Tensor | None
    """`(rows,)`: the first piece of each row; None: every row is one piece, and its tokens stand from the
    left on already."""
    last: Tensor
    """`(rows,)`: the last piece of each row."""
    true: Tensor
    """`(true tokens,)`: where they are in rows × steps."""
    places: Tensor
    """`(true tokens,)`: where they are in segments × longest."""

    def put_back(self, outputs: Tensor, shape: torch.Size) -> Tensor:
        """outputs `(segments, longest, width)` -> `(rows, steps, width)` of the `shape` of the rows; padding
        is 0."""
        if self.first is None:
            return outputs
        flat = outputs.new_zeros(shape.numel(), outputs.shape[2])
        return flat.index_copy(0, self.true, outputs.flatten(0, 1).index_select(0, self.places)).view(
            *shape, -1
        )


def cut_rows(tokens: Tensor, pad_id: int, bos_id: int | None) -> Segments:
    """tokens `(rows, steps)`, padded anywhere, cut before each `<s>` but a row's first token; nowhere where
    `bos_id` is None."""
    mask = tokens != pad_id
    begins = torch.zeros_like(mask) if bos_id is None else tokens == bos_id
    number, fresh = begins.cumsum(dim=1), None
    if bool(begins.any()):
        at_first = (
            torch.where(mask, number, tokens.shape[1]).amin(dim=1).minimum(number[:, -1])
        )  # 1 where that token is <s>
        number = (number - at_first[:, None]).clamp(min=0)
        fresh = at_first > 0
    gaps = mask[:, 1:] & ~mask[:, :-1]  # where a token follows padding
    if not bool(gaps.any()) and (fresh is None or not bool(number.any())):
        nothing = tokens.new_zeros(0)
        return Segments(tokens, fresh, None, nothing, nothing, nothing)
    last = (number[:, -1] + 1).cumsum(dim=0) - 1
    first = last - number[:, -1]
    true = mask.flatten().nonzero()[:, 0]
    segment = (number + first[:, None]).flatten()[true]
    lengths = segment.bincount(minlength=int(last[-1]) + 1)
    longest = int(lengths.max())
    places = (
        torch.arange(len(true), device=true.device)
        + (torch.arange(len(lengths), device=true.device) * longest)[segment]
    )
    places -= (lengths.cumsum(dim=0) - lengths)[segment]
    pieces = tokens.new_full((len(lengths) * longest,), pad_id).index_copy_(0, places, tokens.flatten()[true])
    return Segments(pieces.view(len(lengths), longest), fresh, first, last, true, places)
