"""Rows of several documents, cut before each `<s>`.

Recurrent layers know no documents: they run each segment as a row of its own.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Segments(NamedTuple):
    """The segments of `(rows, steps)`, row by row: the tokens of each at its left, padding only after
    them."""

    tokens: Tensor
    """`(segments, longest)`"""
    starts_document: Tensor | None
    """`(rows,)`: whether the first segment of a row begins a document, so that no state is carried into it;
    None if no row's does."""
    first: Tensor | None
    """`(rows,)`: the first segment of each row; None if every row is one segment with its tokens at the
    left."""
    last: Tensor
    """`(rows,)`: the last segment of each row."""
    row_index: Tensor
    """`(tokens that are no padding,)`: where they are in rows × steps."""
    segment_index: Tensor
    """The same in segments × longest."""

    def to_rows(self, outputs: Tensor, shape: torch.Size) -> Tensor:
        """outputs `(segments, longest, width)` -> `(rows, steps, width)` with the `shape` of the rows;
        padding is 0."""
        if self.first is None:
            return outputs
        flat = outputs.new_zeros(shape.numel(), outputs.shape[2])
        values = outputs.flatten(0, 1).index_select(0, self.segment_index)
        return flat.index_copy(0, self.row_index, values).view(*shape, -1)


def cut_rows(tokens: Tensor, pad_id: int, bos_id: int | None) -> Segments:
    """tokens `(rows, steps)`, padded anywhere, cut before each `<s>` except a row's first token; nowhere
    where `bos_id` is None."""
    mask = tokens != pad_id
    is_bos = torch.zeros_like(mask) if bos_id is None else tokens == bos_id
    number, starts_document = is_bos.cumsum(dim=1), None  # of each token's segment in its row
    if bool(is_bos.any()):
        # a row's first token has the number 1 where it is <s>, and begins no further segment
        of_first = torch.where(mask, number, tokens.shape[1]).amin(dim=1).minimum(number[:, -1])
        number = (number - of_first[:, None]).clamp(min=0)
        starts_document = of_first > 0
    padded_before = mask[:, 1:] & ~mask[:, :-1]  # a token follows padding
    if not bool(padded_before.any()) and (starts_document is None or not bool(number.any())):
        nothing = tokens.new_zeros(0)
        return Segments(tokens, starts_document, None, nothing, nothing, nothing)
    # number the segments of all rows in one sequence
    last = (number[:, -1] + 1).cumsum(dim=0) - 1
    first = last - number[:, -1]
    row_index = mask.flatten().nonzero()[:, 0]
    segment = (number + first[:, None]).flatten()[row_index]
    # a token goes to its segment's row of the new matrix, at its distance from the segment's first token
    lengths = segment.bincount(minlength=int(last[-1]) + 1)
    longest = int(lengths.max())
    position = (
        torch.arange(len(row_index), device=tokens.device)
        - (lengths.cumsum(dim=0) - lengths)[segment]
    )
    segment_index = segment * longest + position
    flat = tokens.new_full((len(lengths) * longest,), pad_id)
    flat.index_copy_(0, segment_index, tokens.flatten()[row_index])
    return Segments(
        flat.view(len(lengths), longest), starts_document, first, last, row_index, segment_index
    )
