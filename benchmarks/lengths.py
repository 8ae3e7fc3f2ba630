"""Lengths of sequences, as batches have them."""

from __future__ import annotations

import math

import numpy as np

POOL = 8192
"""Sentences that are sorted by length together, as in `seqloom.data.batching.pair_batches`."""

# Sentences of 0, 1, 2 ... words among the 29,000 of Multi30k's English training text (words: what white space
# separates). fmt: off
WORDS = (
    0,
    0,
    0,
    3,
    21,
    171,
    741,
    1719,
    2489,
    3199,
    3490,
    3340,
    2940,
    2552,
    2126,
    1619,
    1245,
    947,
    700,
    528,
    362,
    227,
    195,
    117,
    81,
    57,
    43,
    23,
    10,
    15,
    9,
    10,
    7,
    6,
    4,
    0,
    3,
    1,
)
# fmt: on
PIECES_A_WORD = 1.15
"""About what byte-pair encoding with 8,000 pieces makes of that text: full stops and the endings of rare
words."""


def spread(rows: int, low: int, high: int) -> list[int]:
    """`rows` lengths in no order, evenly from `low` to `high`: uniform, and the same for all who measure."""
    return [
        round(length)
        for length in np.random.default_rng(0).permutation(np.linspace(low, high, rows))
    ]


def captions(rows: int, batches: int, *, bucketed: bool) -> list[list[int]]:
    """Batches of sentences as long as Multi30k's: drawn at random, or neighbours in a pool that is sorted by
    length (every n-th batch of the pool)."""
    counts = np.array(WORDS) / sum(WORDS)
    words = np.random.default_rng(0).choice(len(WORDS), size=POOL, p=counts)
    pieces = [max(1, round(PIECES_A_WORD * int(count))) for count in words]
    if not bucketed:
        return [pieces[at * rows : (at + 1) * rows] for at in range(batches)]
    pieces.sort()
    every = math.floor(POOL / rows / batches)
    return [pieces[at * rows : (at + 1) * rows] for at in range(every // 2, every * batches, every)]
