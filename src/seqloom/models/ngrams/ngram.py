"""The n-gram language model: interpolated Kneser-Ney, modified or plain, in sorted arrays.

The probability of a word is that of the longest known n-gram that ends in it, times a weight for each longer
history that is known:

    p(w | h) = p̂(hw)            where hw is known (p̂ is already interpolated with all lower orders)
             = γ(h) p(w | h')   elsewhere; h' = h without its first word; γ(h) = 1 where h is not known

`ngram_counts.py` estimates p̂ and γ, and names the papers. `arpa.py` reads such models as text,
and `arpa_writer.py` writes them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, NamedTuple, Self, cast, final

import torch
from torch import Tensor, nn

from seqloom.arrays import Integers
from seqloom.config import STRICT
from seqloom.layers.ngram_table import NgramTable
from seqloom.models.config_checks import Size, field_problems, one_of, raise_problems
from seqloom.models.ngrams.ngram_counts import DISCOUNTS, EstimatedOrder, estimate
from seqloom.models.sizes import named_sizes
from seqloom.shapes import IGNORE


@final
@dataclass(frozen=True, kw_only=True)
class NgramConfig:
    """The order of an n-gram model, what is pruned, and how many n-grams it holds."""

    __pydantic_config__ = STRICT
    vocabulary_size: int
    """Entries of the vocabulary."""
    order: Size = 5
    """The longest n-gram: a word and the order-1 words before it."""
    prune: tuple[int, ...] = ()
    """For each order, n-grams that occur at most this often are dropped; the last value holds for all higher
    orders. Words are never dropped."""
    smoothing: Annotated[str, one_of(DISCOUNTS)] = "modified_kneser_ney"
    """modified_kneser_ney: discounts for words that were seen once, twice and more often (Chen and Goodman
    1999). kneser_ney: one discount for each order."""
    sizes: tuple[int, ...] = ()
    """The number of n-grams of each order, first the vocabulary; comes from training."""
    pad_id: int = 0
    """The id of <pad>."""
    bos_id: int = 1
    """The id of <s>."""
    eos_id: int = 2
    """The id of </s>."""
    unk_id: int = 3
    """The id of <unk>."""
    first_word_id: int = 16
    """The smallest id of a word; of smaller ids only </s> and <unk> are ever predicted."""

    def __post_init__(self) -> None:
        problems = field_problems(self)
        if self.vocabulary_size <= max(self.pad_id, self.bos_id, self.eos_id, self.unk_id):
            problems.append(
                f"model.vocabulary_size must be greater than every special id, but is {self.vocabulary_size}"
            )
        if (
            list(self.prune) != sorted(self.prune)
            or any(times < 0 for times in self.prune)
            or any(self.prune[:1])
        ):
            problems.append(
                f"model.prune must begin with 0 and never fall, but is {', '.join(map(str, self.prune))}"
            )
        if len(self.prune) > self.order:
            problems.append(
                f"model.prune must have at most one value for each of {self.order} orders, but has"
                f" {len(self.prune)}"
            )
        if self.sizes and (
            len(self.sizes) != self.order
            or self.sizes[0] != self.vocabulary_size
            or min(self.sizes) < 0
        ):
            problems.append(
                f"model.sizes must hold the vocabulary's size and {self.order - 1} counts, but is"
                f" {self.sizes}"
            )
        if self.pad_id != 0:
            problems.append(
                f"model.pad_id must be 0, the number of the n-gram that is not known, but is {self.pad_id}"
            )
        raise_problems(problems)

    @property
    def predicted(self) -> Tensor:
        """`(vocabulary_size,)`: true where an id can be predicted."""
        ids = torch.arange(self.vocabulary_size)
        return (ids >= self.first_word_id) | (ids == self.eos_id) | (ids == self.unk_id)


SIZES, ABOUT = named_sizes("ngram")


IMPOSSIBLE = -1e30
"""log p that is stored in the place of minus infinity, so that what is infinite in a file is damage."""


class FlatTokens(NamedTuple):
    """The tokens of all rows, row after row, those of the state before the new ones, without <pad>."""

    words: Tensor
    first: Tensor
    """Whether a token is the first of its row."""
    new: Tensor
    """Indices of the new tokens."""
    place: Tensor
    """Their indices among the new tokens with <pad>, `(rows * steps)`."""


@final
class Ngram(nn.Module):
    """An n-gram model: a `Decodable`, a `TargetScorer` and a `FittedModel`.

    State: `(rows, order-1)`, the last tokens of each row, the newest last, with <pad> on the left.
    """

    carries = True
    """Trained and scored on a stream: the state carries over."""
    context: int | None = None
    """A document may have any length: the state carries the last order-1 tokens over."""

    def __init__(self, config: NgramConfig) -> None:
        super().__init__()
        self.config = c = config
        self.log_prob: Tensor  # of single words; 0 where never predicted
        self.register_buffer("log_prob", torch.zeros(c.vocabulary_size))
        self.backoff: Tensor
        self.register_buffer("backoff", torch.zeros(c.vocabulary_size))
        self.predicted: Tensor
        self.register_buffer("predicted", c.predicted, persistent=False)
        sizes = c.sizes[1:] or (0,) * (c.order - 1)
        self.longer = nn.ModuleList(
            NgramTable(size, c.vocabulary_size, highest=n == c.order)
            for n, size in enumerate(sizes, 2)
        )

    @classmethod
    def fit(cls, config: NgramConfig, ids: Integers) -> Self:
        """Estimates the model from a corpus `u_1 .. u_L </s> u_1 .. </s> ...`, an array that may be
        memory-mapped.

        Raises DataError if the corpus is empty or holds an id that no text has.
        """
        c, predicted = config, config.predicted.numpy()
        orders = estimate(
            ids,
            order=c.order,
            bos=c.bos_id,
            eos=c.eos_id,
            predicted=predicted,
            prune=c.prune,
            smoothing=c.smoothing,
        )
        return cls.of(c, orders)

    @classmethod
    def of(cls, config: NgramConfig, orders: Sequence[EstimatedOrder]) -> Self:
        """The model of given n-grams; orders at the end may be missing."""
        sizes = [len(order.keys) for order in orders] + [0] * (config.order - len(orders))
        model = cls(replace(config, sizes=tuple(sizes)))
        words, *longer = orders
        model.log_prob.copy_(torch.from_numpy(words.log_prob).masked_fill(~model.predicted, 0))
        model.backoff.copy_(torch.from_numpy(words.backoff))
        for grams, found in zip(model.orders, longer, strict=False):
            grams.fill(found.keys, found.log_prob, found.backoff)
        return model

    @property
    def orders(self) -> tuple[NgramTable, ...]:
        """The n-grams of order 2 and on."""
        return cast(tuple[NgramTable, ...], tuple(self.longer))

    def forward(self, tokens: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """tokens `(rows, steps)` -> log p of every next word `(rows, steps, vocabulary)`, -inf where never
        predicted; the state."""
        read, state = self._flatten(tokens, state)
        histories, weights = [], []
        for weight, history, _ in self._walk(read, read.words.roll(-1)):
            histories.append(history[read.new])
            weights.append(weight[read.new])
        weights.append(self.backoff.new_zeros(len(read.place)))
        # rest[n]: of all known histories of more than n words
        rest = torch.stack(weights).flip(0).cumsum(0).flip(0)
        logits = self._words() + rest[0][:, None]
        for grams, history, longer in zip(self.orders, histories, rest[1:], strict=True):
            index, word, number = grams.following(history)
            logits[index, word] = grams.log_prob[number] + longer[index]
        logits = logits.masked_fill_(logits < IMPOSSIBLE / 2, -torch.inf)
        if len(read.place) < tokens.numel():
            logits = logits.new_zeros(tokens.numel(), logits.shape[1]).index_copy_(
                0, read.place, logits
            )
        return logits.view(*tokens.shape, -1), state

    def log_probs(
        self, tokens: Tensor, targets: Tensor, state: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """log p of each target after its token, `(rows, steps)`, 0 at IGNORE and at <pad>; and the state
        after."""
        read, state = self._flatten(tokens, state)
        following = read.words.roll(-1)
        wanted = targets.reshape(-1).index_select(0, read.place)
        following[read.new] = wanted.clamp_(min=0)  # IGNORE is below 0, and masked at the end
        # in float64, where a sum of large and small numbers keeps the digits of the small ones
        log_p = self._words().double().index_select(0, following)
        for grams, (weight, _, found) in zip(self.orders, self._walk(read, following), strict=True):
            log_p = torch.where(found > 0, grams.log_prob.index_select(0, found), log_p + weight)
        scored = log_p.new_zeros(tokens.numel()).index_copy_(
            0, read.place, log_p.index_select(0, read.new)
        )
        scored = scored.masked_fill(scored < IMPOSSIBLE / 2, -torch.inf).view(tokens.shape)
        return scored.masked_fill(targets == IGNORE, 0), state

    def _words(self) -> Tensor:
        """log p̂ of each single word, -inf where it is never predicted."""
        return self.log_prob.masked_fill(~self.predicted, -torch.inf)

    def _walk(self, read: FlatTokens, following: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """For n = 2, 3, ...: the history of n-1 words that ends at each of `read.words`, as its weight and
        its number; and the number of the n-gram of this history and the word of `following`."""
        # Mostly the following word is also the next one in `read.words`. Then the n-gram at a word is the
        # longer history at the next word, and is looked up only once; `other` are all other words.
        other = ((following.roll(1) != read.words) & ~read.first).nonzero()[:, 0]
        history, weights = read.words, self.backoff
        for grams in self.orders:
            found = grams.find(history, following)
            yield weights.index_select(0, history), history, found
            longer = found.roll(1).masked_fill(read.first, 0)
            longer[other] = grams.find(history[other - 1], read.words[other])
            history, weights = longer, grams.backoff

    def _flatten(self, tokens: Tensor, state: Tensor | None) -> tuple[FlatTokens, Tensor]:
        """The tokens after those of the state, and the next state."""
        size = self.config.order - 1
        if state is None:
            state = tokens.new_full((len(tokens), size), self.config.pad_id)
        both = torch.cat([state, tokens], dim=1)
        real = both != self.config.pad_id
        index = real.view(-1).nonzero()[:, 0]
        row, column = index // both.shape[1], index % both.shape[1]
        first = torch.ones_like(row, dtype=torch.bool)
        first[1:] = row[1:] != row[:-1]
        new = (column >= size).nonzero()[:, 0]
        place = (index - (row + 1) * size).index_select(0, new)
        return FlatTokens(both.view(-1).index_select(0, index), first, new, place), self._state_of(
            both, real
        )

    def _state_of(self, both: Tensor, real: Tensor) -> Tensor:
        """The last real tokens of each row."""
        size = self.config.order - 1
        last = both[:, both.shape[1] - size :]
        if bool(real[:, both.shape[1] - size :].all()):
            return last.clone()
        age = real.flip(1).cumsum(1).flip(1)  # 1 for the newest
        row, column = (real & (age <= size)).nonzero(as_tuple=True)
        state = torch.full_like(last, self.config.pad_id)
        state[row, size - age[row, column]] = both[row, column]
        return state
