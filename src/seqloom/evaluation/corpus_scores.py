"""Scores of a corpus as functions of sums over its texts: what intervals and paired tests are computed from.

BLEU and chrF are sacreBLEU's, from the statistics that it counts for each text (`CorpusScore.statistics`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from seqloom.arrays import Floats, Numbers
from seqloom.evaluation.word_errors import bleu_of_sums

BETA = 2.0
"""Of chrF2: recall counts BETA² times as much as precision."""


def chrf_of_sums(sums: Numbers) -> Floats:
    """sums `(..., 18)`: for each length of character n-grams how many the output has, the reference has, and
    both have -> chrF2 `(...)`, 0 to 100 (Popović 2015; sacreBLEU's effective order)."""
    counts = np.asarray(sums, np.float64)
    written, wanted, both = (counts[..., start::3] for start in range(3))
    known = (written > 0) & (wanted > 0)
    orders = np.maximum(known.sum(axis=-1), 1)
    precision = np.where(known, both / np.maximum(written, 1), 0).sum(axis=-1) / orders
    recall = np.where(known, both / np.maximum(wanted, 1), 0).sum(axis=-1) / orders
    below = BETA**2 * precision + recall
    scores = (1 + BETA**2) * precision * recall / np.where(below > 0, below, 1)
    return np.asarray(100 * scores, np.float64)


def ratio_of_sums(sums: Numbers) -> Floats:
    """sums `(..., 2)` -> the first for each of the second, such as bits a byte."""
    return np.asarray(sums[..., 0] / np.maximum(sums[..., 1], 1), np.float64)


def _perplexity_of_sums(sums: Numbers) -> Floats:
    with np.errstate(over="ignore"):  # infinite where that is beyond a float
        return np.exp(ratio_of_sums(sums))


OF_SUMS: Mapping[str, Callable[[Numbers], Floats]] = {
    "bleu": bleu_of_sums,
    "chrf": chrf_of_sums,
    "bits_per_byte": ratio_of_sums,
    "loss": ratio_of_sums,
    "perplexity": _perplexity_of_sums,
}
"""Metric -> its value for sums over texts."""
LOWER_IS_BETTER = frozenset({"loss", "bits_per_byte", "perplexity", "word_perplexity"})
