"""Interpolated Kneser-Ney estimation, modified or plain, in arrays.

    Kneser and Ney 1995: Improved backing-off for m-gram language modeling
    Chen and Goodman 1999: An empirical study of smoothing techniques for language modeling, section 3 and
        equation 26
    Heafield, Pouzyrevsky, Clark and Koehn 2013: Scalable modified Kneser-Ney language model estimation
        (lmplz of KenLM)

With h' = h without its first word, a = the adjusted counts and D(0) = 0, D(1), D(2), D(3) = D(4) = ... of the
order of hw:

    p(w | h) = (a(hw) - D(a(hw))) / Σ_v a(hv) + γ(h) p(w | h'),      γ(h) = Σ_v D(a(hv)) / Σ_v a(hv)
    p(w)     = (a(w) - D(a(w))) / Σ_v a(v) + γ / (all words that can be predicted)
    a(g)     = how often g occurs, for the highest order and where g begins with <s>; elsewhere how many words
               occur before g
    D(k)     = k - (k + 1) n_{k+1} / n_k · n_1 / (n_1 + 2 n_2),   n_k = the number of g with a(g) = k
    plain:     D(k) = n_1 / (n_1 + 2 n_2) for every k, one discount an order

An n-gram that was pruned gives its whole count to γ(h).

An n-gram is identified by its number: the rank of (number of its first n-1 words, last word) among all of its
order, which one sort computes. So the n-grams of an order are sorted by their first n-1 words, and those that
continue the same words are neighbours.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from seqloom.arrays import Floats, Integers
from seqloom.errors import DataError

FALLBACK = (0.5, 1.0, 1.5)
"""D(1), D(2), D(3) where they do not follow from counts of counts (lmplz --discount_fallback)."""
PLAIN_FALLBACK = 0.75
"""The one discount where it does not follow."""


class CountedOrder(NamedTuple):
    """All n-grams of one order, sorted by prefix, then by last word; the number of an n-gram is its index."""

    prefix: Integers
    """Number of the first n-1 words."""
    word: Integers
    """The last word."""
    suffix: Integers
    """Number of the last n-1 words (order 1: of the word itself)."""
    times: Integers
    """How often it occurs."""
    at_start: NDArray[np.bool_]
    """Whether it begins with <s>."""


class EstimatedOrder(NamedTuple):
    """The n-grams of one order that were not pruned."""

    keys: NDArray[np.int64]
    """prefix x vocabulary + last word, ascending. The prefix is the id of a word, or 1 + the index of a
    longer n-gram in its order. For order 1: the word."""
    log_prob: NDArray[np.float32]
    """In nats; -inf for words that are never predicted."""
    backoff: NDArray[np.float32]
    """log γ of the n-gram as a history; 0 where nothing follows it."""


def with_bos(
    ids: Integers, *, bos: int, eos: int, predicted: NDArray[np.bool_]
) -> NDArray[np.int32]:
    """The stream of ids `u_1 .. u_L </s> ...` with <s> before each document. Raises DataError for an id that
    no text has."""
    if ids.ndim != 1 or not len(ids):
        raise DataError(
            f"n-grams are counted in a row of at least one id, but its shape is {ids.shape}; give a text that"
            " is not empty"
        )
    low, high = int(ids.min()), int(ids.max())
    if (
        low < 0
        or high >= len(predicted)
        or np.bincount(ids, minlength=len(predicted))[~predicted].any()
    ):
        raise DataError(
            f"ids of a text must be words, <unk> or </s> of {len(predicted)} entries, but some from {low} to"
            f" {high} are not; encode the text with the tokenizer of this model"
        )
    begins = np.flatnonzero(ids == eos) + 1
    begins = np.concatenate(([0], begins[begins < len(ids)]))
    starts = begins + np.arange(len(begins))
    text = np.ones(len(ids) + len(begins), np.bool_)
    text[starts] = False
    stream = np.full(len(text), bos, np.int32)
    stream[text] = ids
    return stream


def count_orders(
    stream: NDArray[np.int32], order: int, vocabulary_size: int, bos: int
) -> list[CountedOrder]:
    """Orders 1 to `order`, fewer where no document is as long. The number of a single word is its id."""
    # The smaller type if it holds every number and count: memory is what limits the corpus.
    small: type[np.signedinteger[Any]] = np.int32 if len(stream) < 2**31 else np.int64
    words = np.arange(vocabulary_size, dtype=small)
    times = np.bincount(stream, minlength=vocabulary_size).astype(small)
    counted = [CountedOrder(words * 0, words, words, times, words == bos)]
    # The number of the n-gram that ends at each position; -1 if an <s> would not be its first word.
    ending: Integers = stream
    for _ in range(1, order):
        ends = np.flatnonzero((ending[:-1] >= 0) & (stream[1:] != bos)).astype(small) + 1
        if not len(ends):
            break
        keys = ending[ends - 1] * np.int64(vocabulary_size) + stream[ends]
        ordered = torch.sort(torch.from_numpy(keys))
        keys, ends = ordered.values.numpy(), ends[ordered.indices.numpy()]
        del ordered  # frees its memory
        is_new = np.concatenate(([True], keys[1:] != keys[:-1]))
        firsts = np.flatnonzero(is_new)
        prefix, word = (part.astype(small) for part in np.divmod(keys[firsts], vocabulary_size))
        suffix = ending[ends[firsts]]
        ending = np.full(len(stream), -1, small)
        ending[ends] = np.cumsum(is_new, dtype=small) - 1
        times = np.diff(firsts, append=len(keys)).astype(small)
        counted.append(CountedOrder(prefix, word, suffix, times, counted[-1].at_start[prefix]))
    return counted


def adjusted_counts(counted: Sequence[CountedOrder], bos: int) -> list[Integers]:
    """a(g) of every order; 0 for <s>, which is never predicted."""
    adjusted: list[Integers] = [
        np.where(
            order.at_start, order.times, np.bincount(longer.suffix, minlength=len(order.times))
        )
        for order, longer in itertools.pairwise(counted)
    ]
    adjusted.append(counted[-1].times.copy())
    adjusted[0][bos] = 0
    return adjusted


def modified_discounts(adjusted: Integers) -> Floats:
    """D(0) to D(3) from counts of counts (Chen and Goodman, equation 26); the fallback where one of these is
    0, or some D(k) <= 0."""
    n = _counts_of_counts(adjusted)
    k = np.arange(1, 4)
    if n[k].all():
        discount = k - (k + 1) * n[k + 1] / n[k] * n[1] / (n[1] + 2 * n[2])
        if (discount > 0).all():
            return np.concatenate(([0.0], discount))
    return np.array((0.0, *FALLBACK))


def plain_discounts(adjusted: Integers) -> Floats:
    """D(0) to D(3), of which all but D(0) are one (Kneser and Ney); the fallback where n_1 or n_2 is 0."""
    n = _counts_of_counts(adjusted)
    discount = n[1] / (n[1] + 2 * n[2]) if n[1] and n[2] else PLAIN_FALLBACK
    return np.array((0.0, discount, discount, discount))


def _counts_of_counts(adjusted: Integers) -> Floats:
    """n_0 to n_4, and n_5 for all that are larger."""
    return np.bincount(np.minimum(adjusted, 5), minlength=6).astype(np.float64)


DISCOUNTS = {"modified_kneser_ney": modified_discounts, "kneser_ney": plain_discounts}


def estimate(
    ids: Integers,
    *,
    order: int,
    bos: int,
    eos: int,
    predicted: NDArray[np.bool_],
    prune: Sequence[int] = (),
    smoothing: str = "modified_kneser_ney",
) -> list[EstimatedOrder]:
    """The model of a corpus `u_1 .. u_L </s> u_1 ..`, order by order; fewer orders where no document is as
    long.

    `predicted`: `(vocabulary,)`, which ids are a word, <unk> or </s>. `prune`: n-grams of order k that occur
    at most `prune[k-1]` times are dropped; the last value holds for all higher orders. `smoothing` is one of
    DISCOUNTS. Raises DataError for an id that no text has.
    """
    stream = with_bos(ids, bos=bos, eos=eos, predicted=predicted)
    counted = count_orders(stream, order, len(predicted), bos)
    adjusted = adjusted_counts(counted, bos)
    del stream
    estimated: list[EstimatedOrder] = []
    # Of the order below: number among all n-grams -> number among those kept, -1 where dropped.
    numbers: Integers = np.arange(1)
    # p(w | h') of each n-gram, at first uniform
    lower: Floats = np.where(predicted, 1 / predicted.sum(), 0)
    for k in range(len(counted)):
        order_k, a = counted.pop(0), adjusted.pop(0)  # which frees their memory after this step
        most_pruned = prune[min(k, len(prune) - 1)] if prune and k else -1  # words are never pruned
        kept = order_k.times > most_pruned
        discount = DISCOUNTS[smoothing](a)[np.minimum(a, 3)]
        total = np.bincount(order_k.prefix, a, len(numbers))
        gamma = np.bincount(order_k.prefix, np.where(kept, discount, a), len(numbers))
        gamma = np.divide(gamma, total, out=np.ones_like(gamma), where=total > 0)
        if k:
            estimated[-1].backoff[:] = np.log(gamma[numbers >= 0])
            lower = lower[numbers[order_k.suffix[kept]]]
        prefix = order_k.prefix[kept]
        lower = (a - discount)[kept] / total[prefix] + gamma[prefix] * lower
        with np.errstate(divide="ignore"):
            # -inf for <s> and all else that is never predicted
            log_prob = np.log(lower).astype(np.float32)
        keys = (numbers[prefix] + (k > 1)) * np.int64(len(predicted)) + order_k.word[kept]
        estimated.append(EstimatedOrder(keys, log_prob, np.zeros(len(keys), np.float32)))
        numbers = np.where(kept, np.cumsum(kept) - 1, -1).astype(order_k.prefix.dtype)
    return estimated
