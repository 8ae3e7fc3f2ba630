"""word2vec with negative sampling: a pass over sentences that updates the vectors in place.

    skip-gram   each word i around a word o of a sentence is an input by itself: x = v_i
    CBOW        all of them are one input: x = Σ v_i / n
    loss        -log σ(u_o · x) - Σ_j log σ(-u_j · x)       j: k words from the noise, P ∝ count^0.75
    update      of each word o by gradient descent, from the vectors before it

Mikolov et al.: Distributed Representations of Words and Phrases and their Compositionality, NIPS 2013. As in
their program the word in the middle is the target and the words around it are the inputs; over a text these
are the same pairs as in the paper. As there, too, CBOW adds the gradient of x to each v_i undivided. The
inputs of a word share the words from the noise (Ji et al. 2016), so that a step is a product of matrices.

`native/word2vec.h` has the same compiled.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Literal, NamedTuple, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from seqloom.layers.recurrent.large_pages import fresh
from seqloom.native.library import KINDS, library

MOST_NEGATIVES, WIDEST_WINDOW = 31, 32
"""As in `word2vec.h`."""
ROW = 64
"""Bytes of a vector register: rows are as long as a multiple of it."""
MASK = 2**64 - 1

Floats = NDArray[np.float64]


@final
@dataclass(frozen=True, kw_only=True)
class NegativeSampling:
    """What a pass does, whatever it reads."""

    window: int
    """Words on each side of a target that are its inputs, at most."""
    drawn_window: bool
    """Whether each target has a window of 1 to `window` words, drawn for it."""
    negatives: int
    """k."""
    cbow: bool
    kept: NDArray[np.float32]
    """`(vocabulary,)`: the probability that an occurrence of a word is read at all."""
    noise: NDArray[np.uint32]
    """As `noise_table` makes it."""


def noise_table(weights: Floats) -> NDArray[np.uint32]:
    """A distribution P ∝ weights `(vocabulary,)` as a table `(vocabulary, 2)` (Walker 1977): a column i that
    is drawn evenly is the word i with probability `table[i, 0]` / 2^32, else the word `table[i, 1]`."""
    share = weights * (len(weights) / weights.sum())
    alias = np.arange(len(weights))
    small, large = [*np.flatnonzero(share < 1)], [*np.flatnonzero(share >= 1)]
    while small and large:
        column, giver = small.pop(), large.pop()
        alias[column] = giver
        share[giver] -= 1 - share[column]
        (small if share[giver] < 1 else large).append(giver)
    # what is left differs from 1 by rounding alone, and is its own alias
    thresholds = np.minimum(share * 2.0**32, 2.0**32 - 1)
    return np.stack([thresholds, alias], axis=1).astype(np.uint32)


def kept_probabilities(
    counts: NDArray[np.int64], threshold: float, formula: Literal["paper", "program"]
) -> NDArray[np.float32]:
    """Of each word, by its count: min(1, √(t/f)), as the paper has it, or min(1, √(t/f) + t/f), as its
    program; 1 where the threshold t is 0."""
    if not threshold:
        return np.ones(len(counts), np.float32)
    ratio = threshold * counts.sum() / np.maximum(counts, 1)
    kept = np.sqrt(ratio) if formula == "paper" else np.sqrt(ratio) + ratio
    return np.asarray(np.minimum(kept, 1.0), np.float32)


@final
class SentenceWords(NamedTuple):
    """A piece of text."""

    words: NDArray[np.int32]
    """Of all sentences, one after the other."""
    starts: NDArray[np.int64]
    """`(sentences + 1,)`: where each begins, and where the last ends."""


@final
class Pairs(NamedTuple):
    """What a pass was trained on."""

    loss: float
    """Summed up over the pairs, in nats."""
    count: int  # type: ignore[assignment]  # hides tuple.count
    """Pairs of an input and a target."""


def padded_rows(rows: int, width: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Zeros `(rows, width)` whose rows lie as the compiled pass needs them."""
    numbers = ROW // torch.finfo(dtype).bits * 8
    whole = fresh(torch.empty(0, dtype=dtype), rows, -(-width // numbers) * numbers)
    return whole.zero_()[:, :width]


def train_sentences(
    v: Tensor,
    u: Tensor,
    sentences: SentenceWords,
    options: NegativeSampling,
    *,
    rate: float,
    seed: int,
    threads: int = 1,
) -> Pairs:
    """One pass over the sentences; v, u `(vocabulary, width)`, which may be the same, are updated in place. A
    rate of 0 only measures.

    What is drawn is a function of the seed and the number of the sentence. One thread always gives the same
    result; several write to the same vectors without waiting for each other (Recht et al. 2011).
    """
    compiled = library()
    if compiled is None or v.dtype not in KINDS or not v.is_cpu:
        return PlainPass(v, u, options, rate).over(sentences, seed)
    rows = [_aligned(one) for one in ((v,) if u is v else (v, u))]
    loss, count = np.zeros(threads), np.zeros(threads, np.int64)
    arguments = _Arguments(
        words=sentences.words.ctypes.data,
        sentences=sentences.starts.ctypes.data,
        v=rows[0].data_ptr(),
        u=rows[-1].data_ptr(),
        kept=options.kept.ctypes.data,
        noise=options.noise.ctypes.data,
        loss=loss.ctypes.data,
        pairs=count.ctypes.data,
        rate=rate,
        seed=seed & MASK,
        count=len(sentences.starts) - 1,
        vocabulary=len(v),
        stride=rows[0].stride(0),
        window=options.window,
        negatives=options.negatives,
        is_cbow=options.cbow,
        is_drawn=options.drawn_window,
    )
    compiled[v.dtype].word2vec(ctypes.byref(arguments), threads)
    for given, row in zip((v, u), rows, strict=False):
        if row is not given:
            given.copy_(row)
    return Pairs(float(loss.sum()), int(count.sum()))


class _Arguments(ctypes.Structure):
    """`Word2Vec` in `word2vec.h`."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("words", "sentences", "v", "u")),
        *((name, ctypes.c_void_p) for name in ("kept", "noise", "loss", "pairs")),
        ("rate", ctypes.c_double),
        ("seed", ctypes.c_uint64),
        *((name, ctypes.c_long) for name in ("count", "vocabulary", "stride", "window")),
        *((name, ctypes.c_long) for name in ("negatives", "is_cbow", "is_drawn")),
    ]


def _aligned(vectors: Tensor) -> Tensor:
    """The vectors themselves, or a copy whose rows lie as the compiled pass needs them."""
    bytes_of_row = vectors.stride(0) * vectors.element_size()
    if vectors.stride(1) == 1 and bytes_of_row % ROW == 0:
        return vectors
    rows, width = vectors.shape
    copy = padded_rows(rows, width, vectors.dtype)
    copy.copy_(vectors)
    return copy


@final
class _Random:
    """SplitMix64 (Steele, Lea and Flood 2014)."""

    def __init__(self, state: int) -> None:
        self.state = state & MASK

    def next(self) -> int:
        self.state = z = (self.state + 0x9E3779B97F4A7C15) & MASK
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & MASK
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB & MASK
        return z ^ (z >> 31)

    def uniform(self) -> float:
        return (self.next() >> 40) * 2.0**-24

    def below(self, count: int) -> int:
        return (self.next() >> 32) * count >> 32


@final
class PlainPass:
    """The same as the compiled pass with one thread, word by word."""

    def __init__(self, v: Tensor, u: Tensor, options: NegativeSampling, rate: float) -> None:
        self.v, self.u, self.options, self.rate = v, u, options, rate

    def over(self, sentences: SentenceWords, seed: int) -> Pairs:
        loss, count = 0.0, 0
        for number in range(len(sentences.starts) - 1):
            random = _Random(_Random(seed + number).next())
            words = sentences.words[sentences.starts[number] : sentences.starts[number + 1]]
            kept = [word for word in words.tolist() if self._is_kept(word, random)]
            drawn = self._draw(random) if len(kept) > 1 else []
            for place, word in enumerate(kept if len(kept) > 1 else []):
                reach = self.options.window
                if self.options.drawn_window:
                    reach = 1 + random.below(reach)
                targets, drawn = [word, *drawn], self._draw(random)
                around = kept[max(place - reach, 0) : place] + kept[place + 1 : place + reach + 1]
                more = self.step(around, targets)
                loss, count = loss + more.loss, count + more.count
        return Pairs(loss, count)

    def _is_kept(self, word: int, random: _Random) -> bool:
        kept = self.options.kept[word]
        return bool(kept >= 1 or random.uniform() < kept)

    def _draw(self, random: _Random) -> list[int]:
        drawn = []
        for _ in range(self.options.negatives):
            bits = random.next()
            column = (bits >> 32) * len(self.options.noise) >> 32
            threshold, alias = self.options.noise[column].tolist()
            drawn.append(column if bits & 0xFFFFFFFF < threshold else alias)
        return drawn

    def step(self, around: list[int], targets: list[int]) -> Pairs:
        x, y = self.v[around], self.u[targets]
        if self.options.cbow:
            x = x.mean(dim=0, keepdim=True)
        is_true = torch.zeros(len(targets), dtype=x.dtype)
        is_true[0] = 1
        # a drawn word that is the true one counts for nothing
        counts = torch.tensor([1.0, *(word != targets[0] for word in targets[1:])], dtype=x.dtype)
        products = x @ y.T
        losses = torch.nn.functional.softplus(products * (1 - 2 * is_true)) * counts
        slopes = (is_true - products.sigmoid()) * counts * self.rate
        to_x, to_y = slopes @ y, slopes.T @ x
        self.u.index_put_((torch.tensor(targets),), to_y, accumulate=True)
        self.v.index_put_((torch.tensor(around),), to_x.expand(len(around), -1), accumulate=True)
        return Pairs(float(losses.sum()), len(x))
