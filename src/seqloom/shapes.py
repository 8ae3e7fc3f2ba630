"""Legend of shapes, and the small tensors that speak of padding.

    rows      sequences that are read or decoded together (a beam has several rows for one input)
    steps     positions of `tokens`
    source    positions of the input of an encoder
    width     features of a hidden state
    layers    stacked layers
    vocabulary  entries of the output

A tensor is always row first: `(rows, steps, width)`. A mask is boolean and true where there is a real token.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor

IGNORE = -100
"""The target that trains nothing (torch's own default)."""
B = TypeVar("B", bound=tuple[Tensor, ...])


def on_device(batch: B, device: torch.device) -> B:
    """A NamedTuple of tensors, on this device."""
    make: Callable[..., B] = type(batch)
    return make(*(part.to(device) for part in batch))


def mask_of(lengths: Tensor, steps: int) -> Tensor:
    """Lengths `(rows,)` to a mask `(rows, steps)`, true at the first `lengths[row]` steps."""
    return torch.arange(steps, device=lengths.device) < lengths[:, None]


def prefix_mask(prefixes: Tensor, steps: int) -> Tensor:
    """Lengths of prefixes `(rows,)` to what each of `steps` tokens sees, `(rows, 1, steps, steps)`: the whole
    prefix, and what stands before it (Liu et al. 2018; Raffel et al. 2020, figure 3). A prefix of 1 is
    causal, of all steps an encoder."""
    causal = torch.ones(steps, steps, dtype=torch.bool, device=prefixes.device).tril()
    return (causal | mask_of(prefixes, steps)[:, None])[:, None]


def reverse_each(sequences: Tensor, mask: Tensor) -> Tensor:
    """Each row of `sequences` `(rows, steps, ...)` with its true steps in reverse order; padding stays where
    it is."""
    return sequences.gather(
        1, reversal(mask).view(*mask.shape, *[1] * (sequences.dim() - 2)).expand_as(sequences)
    )


def reversal(mask: Tensor) -> Tensor:
    """`(rows, steps)` index that reverses the true steps of each row; its own inverse.

    Padding may lie left, right or between: the k-th true step changes places with the k-th from the end.
    """
    steps = mask.shape[1]
    positions = torch.arange(steps, device=mask.device).expand_as(mask)
    # the true positions, then `steps`
    true_first = positions.masked_fill(~mask, steps).sort(dim=1).values
    lengths = mask.sum(dim=1, keepdim=True)
    rank = mask.cumsum(dim=1) - 1  # of each true step among the true steps
    opposite = (lengths - 1 - rank).clamp(0, steps - 1)
    return torch.where(mask, true_first.gather(1, opposite).clamp(max=steps - 1), positions)
