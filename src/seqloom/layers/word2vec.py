"""word2vec: a pass over sentences that updates the vectors in place.

    skip-gram   each word i around a word o of a sentence is an input by itself: x = v_i
    CBOW        all of them are one input: x = Σ v_i / n
    loss        -log σ(u_o · x) - Σ_j log σ(-u_j · x)       j: k words from the noise, P ∝ count^0.75
                -log softmax(u · x)_o                       the full softmax, for small vocabularies
    update      of each word o by gradient descent, in CBOW of 8 words at a time, from the vectors before it

Mikolov et al.: Distributed Representations of Words and Phrases and their Compositionality, NIPS 2013. As in
their program the word in the middle is the target and the words around it are the inputs; over a text these
are the same pairs as in the paper. As there, too, CBOW adds the gradient of x to each v_i undivided. The
inputs of an update share the words from the noise (Ji et al. 2016), so that it is a product of matrices. In
CBOW its words come from 8 streams of sentences, one of each: words beside each other have nearly the same x,
and a word from the noise would be moved 8 times as far in one direction (analogies: 7.9 % right instead of
9.3 %).

With pieces (fastText; Bojanowski et al.: Enriching Word Vectors with Subword Information, TACL 2017) the
vector v_i of a word is the mean of several rows: its own and those of the n-grams of its characters. It is
read when the first window comes to the word, and each of its rows has the gradient of all windows added,
undivided as in the original program, when the last has left it. In CBOW x is the mean of all these rows.

`native/word2vec.h` has the same compiled (`compiled_word2vec.py`), except for the full softmax.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Literal, NamedTuple, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from seqloom.arrays import Floats

MOST_NEGATIVES, WIDEST_WINDOW = 31, 32
TOGETHER = 8
"""Words of an update of CBOW, each of a stream of sentences. All three as in `word2vec.h`."""
MASK = 2**64 - 1


@final
class WordPieces(NamedTuple):
    """The rows of v that make up each word, its own first."""

    firsts: NDArray[np.int64]
    """`(vocabulary + 1,)`: where those of each word begin, and where those of the last end."""
    rows: NDArray[np.int32]

    def of(self, word: int) -> list[int]:
        rows: list[int] = self.rows[self.firsts[word] : self.firsts[word + 1]].tolist()
        return rows


@final
@dataclass(frozen=True, kw_only=True)
class WindowSampling:
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
    softmax: bool = False
    """Whether the loss is that of the full softmax: nothing is drawn from the noise then."""
    pieces: WordPieces | None = None
    """None: each word is its own row alone."""


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


@final
class Random:
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
    """The same as the compiled pass with one thread, step by step."""

    def __init__(self, v: Tensor, u: Tensor, options: WindowSampling, rate: float) -> None:
        self.v, self.u, self.options, self.rate = v, u, options, rate

    def over(self, sentences: SentenceWords, seed: int) -> Pairs:
        count = TOGETHER if self.options.cbow else 1
        borders = [(len(sentences.starts) - 1) * part // count for part in range(count + 1)]
        streams = [
            _Stream(self, sentences, range(first, end), seed)
            for first, end in itertools.pairwise(borders)
        ]
        noise = Random(~seed)
        loss, pairs = 0.0, 0
        while reading := [stream for stream in streams if stream.words]:
            windows = [stream.window() for stream in reading]
            more = self.step(windows, self.draw(noise))
            for stream in reading:
                stream.advance()
            loss, pairs = loss + more.loss, pairs + more.count
        return Pairs(loss, pairs)

    def is_kept(self, word: int, random: Random) -> bool:
        kept = self.options.kept[word]
        return bool(kept >= 1 or random.uniform() < kept)

    def draw(self, random: Random) -> list[int]:
        drawn = []
        for _ in range(0 if self.options.softmax else self.options.negatives):
            bits = random.next()
            column = (bits >> 32) * len(self.options.noise) >> 32
            threshold, alias = self.options.noise[column].tolist()
            drawn.append(column if bits & 0xFFFFFFFF < threshold else alias)
        return drawn

    def step(self, windows: list[Window], drawn: list[int]) -> Pairs:
        """An update of one word, in CBOW of several."""
        targets = [window.target for window in windows]
        if self.options.cbow:
            x = torch.stack([window.pieces.mean(window.places) for window in windows])
            own = targets
        else:
            x = windows[0].pieces.vectors(windows[0].places)
            own = targets * len(x)
        slope = self._softmax if self.options.softmax else self._negative_sampling
        loss, to_x, to_u = slope(x, own, drawn)
        if self.rate:
            for rows, gradient in to_u:
                self.u.index_put_(
                    (torch.tensor(rows, dtype=torch.long),), gradient, accumulate=True
                )
            if self.options.cbow:
                for window, gradient in zip(windows, to_x, strict=True):
                    window.pieces.add(window.places, gradient.expand(len(window.places), -1))
            else:
                windows[0].pieces.add(windows[0].places, to_x)
        return Pairs(loss, len(x))

    def _negative_sampling(self, x: Tensor, own: list[int], drawn: list[int]) -> _Slopes:
        true, others = self.u[own], self.u[drawn]
        own_products, products = (x * true).sum(dim=1), x @ others.T
        # a drawn word that is the true one counts for nothing
        counts = (torch.tensor(own)[:, None] != torch.tensor(drawn)).to(x.dtype)
        losses = torch.nn.functional.softplus(products) * counts
        loss = float(torch.nn.functional.softplus(-own_products).sum() + losses.sum())
        own_slopes = self.rate * (-own_products).sigmoid()[:, None]
        slopes = -self.rate * products.sigmoid() * counts
        to_u = [(own, own_slopes * x), (drawn, slopes.T @ x)]
        return _Slopes(loss, own_slopes * true + slopes @ others, to_u)

    def _softmax(self, x: Tensor, own: list[int], drawn: list[int]) -> _Slopes:
        log_p = (x @ self.u.T).log_softmax(dim=1)
        places = torch.arange(len(own)), torch.tensor(own)
        slopes = -self.rate * log_p.exp()
        slopes[places] += self.rate
        rows = list(range(len(self.u)))
        return _Slopes(-float(log_p[places].sum()), slopes @ self.u, [(rows, slopes.T @ x)])


class _Slopes(NamedTuple):
    """A loss, and the steps down it."""

    loss: float
    to_x: Tensor
    """`(inputs, width)`"""
    to_u: list[tuple[list[int], Tensor]]
    """Rows of u, and what is added to each."""


class Window(NamedTuple):
    """A word, and the places around it."""

    pieces: SentencePieces
    places: list[int]
    target: int


@final
class _Stream:
    """Sentences that are read one after the other, word by word."""

    words: list[int]
    """Of the sentence; none after the last."""
    place: int
    """Of the next word."""
    pieces: SentencePieces

    def __init__(
        self, sampling: PlainPass, sentences: SentenceWords, numbers: range, seed: int
    ) -> None:
        self.sampling, self.sentences, self.seed = sampling, sentences, seed
        self.numbers = iter(numbers)
        self.begin()

    def begin(self) -> None:
        """Comes to the next sentence with two words. What is random in it depends on its number alone."""
        self.words, self.place = [], 0
        for number in self.numbers:
            self.random = Random(Random(self.seed + number).next())
            start, end = self.sentences.starts[number : number + 2]
            words: list[int] = self.sentences.words[start:end].tolist()
            kept = [word for word in words if self.sampling.is_kept(word, self.random)]
            if len(kept) > 1:
                self.words = kept
                self.pieces = SentencePieces(self.sampling.v, self.sampling.options, kept)
                return

    def window(self) -> Window:
        """Around the next word."""
        reach = self.sampling.options.window
        self.pieces.arrive(self.place + reach + 1)
        if self.sampling.options.drawn_window:
            reach = 1 + self.random.below(reach)
        before = range(max(self.place - reach, 0), self.place)
        after = range(self.place + 1, min(self.place + reach + 1, len(self.words)))
        return Window(self.pieces, [*before, *after], self.words[self.place])

    def advance(self) -> None:
        self.place += 1
        is_over = self.place == len(self.words)
        self.pieces.leave(len(self.words) if is_over else self.place - self.sampling.options.window)
        if is_over:
            self.begin()


@final
class SentencePieces:
    """The input vectors of the places of a sentence. Without pieces they are rows of v, and changed at
    once."""

    def __init__(self, v: Tensor, options: WindowSampling, words: list[int]) -> None:
        self.v, self.words, self.pieces = v, words, options.pieces
        self.written = 0
        self.sums: list[Tensor] = []
        self.gradients: list[Tensor] = []

    def rows(self, place: int) -> list[int]:
        word = self.words[place]
        return [word] if self.pieces is None else self.pieces.of(word)

    def arrive(self, end: int) -> None:
        """Reads the vectors of places before `end`."""
        for place in range(len(self.sums), min(end, len(self.words)) if self.pieces else 0):
            self.sums.append(self.v[self.rows(place)].sum(dim=0))
            self.gradients.append(torch.zeros_like(self.sums[-1]))

    def leave(self, end: int) -> None:
        """No step reads places before `end` any more."""
        for place in range(self.written, max(end, self.written) if self.pieces else 0):
            rows = self.rows(place)
            gradient = self.gradients[place].expand(len(rows), -1)
            self.v.index_put_((torch.tensor(rows, dtype=torch.long),), gradient, accumulate=True)
            self.written = place + 1

    def _sum(self, place: int) -> Tensor:
        return self.sums[place] if self.pieces else self.v[self.words[place]]

    def vectors(self, places: list[int]) -> Tensor:
        """`(places, width)`: the mean of each."""
        return torch.stack([self._sum(place) / len(self.rows(place)) for place in places])

    def mean(self, places: list[int]) -> Tensor:
        """`(width,)`: the mean of all rows of them."""
        count = sum(len(self.rows(place)) for place in places)
        return torch.stack([self._sum(place) for place in places]).sum(dim=0) / count

    def add(self, places: list[int], steps: Tensor) -> None:
        if self.pieces is None:
            rows = torch.tensor([self.words[place] for place in places])
            self.v.index_put_((rows,), steps, accumulate=True)
            return
        for place, step in zip(places, steps, strict=True):
            self.gradients[place] += step
