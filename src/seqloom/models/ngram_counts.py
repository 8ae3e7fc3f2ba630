"""Interpolated modified Kneser-Ney estimation, in arrays.

    Chen and Goodman 1999: An empirical study of smoothing techniques for language modeling, section 3 and
        equation 26
    Heafield, Pouzyrevsky, Clark and Koehn 2013: Scalable modified Kneser-Ney language model estimation (KenLM's
        lmplz)

With h' = h without its first word, a = the adjusted counts and D(0) = 0, D(1), D(2), D(3) = D(4) = ... of the
order of hw:

    p(w | h) = (a(hw) - D(a(hw))) / Σ_v a(hv) + γ(h) p(w | h'),      γ(h) = Σ_v D(a(hv)) / Σ_v a(hv)
    p(w)     = (a(w) - D(a(w))) / Σ_v a(v) + γ / (all words that can be predicted)
    a(g)     = how often g occurs, for the highest order and where g begins with <s>; elsewhere how many words
               occur before g
    D(k)     = k - (k + 1) n_{k+1} / n_k · n_1 / (n_1 + 2 n_2),      n_k = how many g of the order have a(g) = k

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

from seqloom.errors import DataError

Integers = NDArray[np.integer[Any]]
Floats = NDArray[np.float64]

FALLBACK = (0.5, 1.0, 1.5)
"""D(1), D(2), D(3) where counts of counts do not give them (lmplz --discount_fallback)."""


class Counted(NamedTuple):
    """All n-grams of one order, sorted by prefix, then by last word; a number is a place in this order."""

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


class Estimated(NamedTuple):
    """What is kept of one order."""

    keys: NDArray[np.int64]
    """prefix x vocabulary + last word, ascending. Prefix: of a word its id, of longer n-grams their place in
    their order + 1. Order 1: the word."""
    log_prob: NDArray[np.float32]
    """In nats. Of order 1: -inf for what is never predicted."""
    backoff: NDArray[np.float32]
    """log γ of the n-gram as a history; 0 where nothing follows it."""


def with_starts(ids: Integers, *, bos: int, eos: int, predicted: NDArray[np.bool_]) -> NDArray[np.int32]:
    """The stream of ids `u_1 .. u_L </s> ...` with <s> before each document. Raises DataError for an id that
    no text has."""
    if ids.ndim != 1 or not len(ids):
        raise DataError(
            f"n-grams are counted in a row of at least one id, but its shape is {ids.shape}; give a text that"
            " is not empty"
        )
    low, high = int(ids.min()), int(ids.max())
    if low < 0 or high >= len(predicted) or np.bincount(ids, minlength=len(predicted))[~predicted].any():
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


def count_orders(stream: NDArray[np.int32], order: int, vocabulary_size: int, bos: int) -> list[Counted]:
    """Orders 1 to `order`, fewer where no document is as long. The number of a single word is its id."""
    small: type[np.signedinteger[Any]] = (
        np.int32 if len(stream) < 2**31 else np.int64
    )  # holds every number and count
    words = np.arange(vocabulary_size, dtype=small)
    counted = [
        Counted(
            words * 0,
            words,
            words,
            np.bincount(stream, minlength=vocabulary_size).astype(small),
            words == bos,
        )
    ]
    # the number of the n-gram that ends at each position; -1: it would hold <s> within, or begin before it
    ending: Integers = stream
    for _ in range(1, order):
        ends = np.flatnonzero((ending[:-1] >= 0) & (stream[1:] != bos)).astype(small) + 1
        if not len(ends):
            break
        keys = ending[ends - 1] * np.int64(vocabulary_size) + stream[ends]
        ordered = torch.sort(torch.from_numpy(keys))
        keys, ends = ordered.values.numpy(), ends[ordered.indices.numpy()]
        del ordered  # its memory is needed
        new = np.concatenate(([True], keys[1:] != keys[:-1]))
        firsts = np.flatnonzero(new)
        prefix, word = (part.astype(small) for part in np.divmod(keys[firsts], vocabulary_size))
        suffix = ending[ends[firsts]]
        ending = np.full(len(stream), -1, small)
        ending[ends] = np.cumsum(new, dtype=small) - 1
        times = np.diff(firsts, append=len(keys)).astype(small)
        counted.append(Counted(prefix, word, suffix, times, counted[-1].at_start[prefix]))
    return counted


def adjusted_counts(counted: Sequence[Counted], bos: int) -> list[Integers]:
    """a(g) of every order; 0 for <s>, which is never predicted."""
    adjusted: list[Integers] = [
        np.where(one.at_start, one.times, np.bincount(longer.suffix, minlength=len(one.times)))
        for one, longer in itertools.pairwise(counted)
    ]
    adjusted.append(counted[-1].times.copy())
    adjusted[0][bos] = 0
    return adjusted


def discounts(adjusted: Integers) -> Floats:
    """D(0) to D(3) from counts of counts (Chen and Goodman, equation 26), or the fallback where these are
    missing or give D(k) <= 0."""
    n = np.bincount(np.minimum(adjusted, 5), minlength=6).astype(np.float64)
    k = np.arange(1, 4)
    if n[k].all():
        found = k - (k + 1) * n[k + 1] / n[k] * n[1] / (n[1] + 2 * n[2])
        if (found > 0).all():
            return np.concatenate(([0.0], found))
    return np.array((0.0, *FALLBACK))


def estimate(
    ids: Integers, *, order: int, bos: int, eos: int, predicted: NDArray[np.bool_], prune: Sequence[int] = ()
) -> list[Estimated]:
    """The model of a corpus `u_1 .. u_L </s> u_1 ..`, order by order; fewer orders where no document is as
    long.

    `predicted`: `(vocabulary,)`, which ids are a word, <unk> or </s>. `prune`: n-grams of order k that occur
        at most
    `prune[k-1]` times are dropped; the last value holds for all higher orders. Raises DataError for an id
    that no text has.
    """
    stream = with_starts(ids, bos=bos, eos=eos, predicted=predicted)
    counted = count_orders(stream, order, len(predicted), bos)
    adjusted = adjusted_counts(counted, bos)
    del stream
    estimated: list[Estimated] = []
    numbers: Integers = np.arange(
        1
    )  # of the order before: number among all -> number among the kept, -1 if dropped
    below: Floats = np.where(predicted, 1 / predicted.sum(), 0)  # p(w | h') of each n-gram, at first uniform
    for k in range(len(counted)):
        one, a = counted.pop(0), adjusted.pop(0)  # gives their memory back
        kept = one.times > (prune[min(k, len(prune) - 1)] if prune and k else -1)  # words always
        discount = discounts(a)[np.minimum(a, 3)]
        total = np.bincount(one.prefix, a, len(numbers))
        gamma = np.bincount(one.prefix, np.where(kept, discount, a), len(numbers))
        gamma = np.divide(gamma, total, out=np.ones_like(gamma), where=total > 0)
        if k:
            estimated[-1].backoff[:] = np.log(gamma[numbers >= 0])
            below = below[numbers[one.suffix[kept]]]
        prefix = one.prefix[kept]
        below = (a - discount)[kept] / total[prefix] + gamma[prefix] * below
        with np.errstate(divide="ignore"):
            log_prob = np.log(below).astype(np.float32)  # -inf for <s> and its like
        keys = (numbers[prefix] + (k > 1)) * np.int64(len(predicted)) + one.word[kept]
        estimated.append(Estimated(keys, log_prob, np.zeros(len(keys), np.float32)))
        numbers = np.where(kept, np.cumsum(kept) - 1, -1).astype(one.prefix.dtype)
    return estimated
