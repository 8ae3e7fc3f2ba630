"""The order of the data: a function of (seed, epoch, position), not a state that has to be saved.

`permute` is a keyed permutation of 0..n-1 that needs no table (a Feistel network over pairs of digits, walked
until the value falls inside: Black and Rogaway 2002), so the order of ten rows or of ten thousand million
costs the same memory: none.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from seqloom.protocols import Rows

ROUNDS = 6


def permute(positions: Rows, count: int, seed: int, *context: int) -> Rows:
    """Where each position of 0..count-1 goes, under the key (seed, *context). A bijection of 0..count-1."""
    if count <= 1:
        return positions.copy()
    side = math.isqrt(count - 1) + 1  # the least with side² >= count
    keys = _keys(seed, *context)
    moved = _feistel(positions.astype(np.uint64), side, keys)
    outside = np.flatnonzero(moved >= count)
    while outside.size:  # a few times at most, for side² is hardly larger than count
        moved[outside] = _feistel(moved[outside], side, keys)
        outside = outside[moved[outside] >= count]
    return moved.astype(np.int64)


def order(seed: int, epoch: int, start: int, stop: int, count: int) -> Rows:
    """The rows at positions start..stop-1 of an epoch over `count` rows."""
    return permute(np.arange(start, stop, dtype=np.int64), count, seed, epoch)


def _keys(seed: int, *context: int) -> list[np.uint64]:
    return list(np.random.SeedSequence([seed, *context]).generate_state(ROUNDS, np.uint64))


def _feistel(values: NDArray[np.uint64], side: int, keys: list[np.uint64]) -> NDArray[np.uint64]:
    """A balanced Feistel network on pairs of digits to base `side`: a bijection of 0..side²-1."""
    base = np.uint64(side)
    left, right = values // base, values % base
    for key in keys:
        left, right = right, (left + _mix(right ^ key)) % base
    return left * base + right


def _mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finaliser of SplitMix64 (Steele, Lea and Flood 2014): each output bit depends on each input bit."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    # Below 2^48, so that the sum with a digit cannot overflow.
    return (values ^ (values >> np.uint64(31))) >> np.uint64(16)
