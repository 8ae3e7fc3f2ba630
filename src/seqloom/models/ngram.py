"""The n-gram language model: interpolated modified Kneser-Ney, in sorted arrays.

The probability of a word is that of the longest known n-gram that ends in it, times a weight for each longer
history that is known:

    p(w | h) = p̂(hw)            where hw is known (p̂ is already interpolated with all lower orders)
             = γ(h) p(w | h')   elsewhere; h' = h without its first word; γ(h) = 1 where h is not known

`ngram_counts.py` estimates p̂ and γ, and names the papers. `arpa.py` reads and writes such models as text.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Self, final

import torch
from torch import Tensor, nn

from seqloom.config import STRICT
from seqloom.models.config_checks import Size, field_problems, raise_problems
from seqloom.models.ngram_counts import Estimated, Integers, estimate
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
            len(self.sizes) != self.order or self.sizes[0] != self.vocabulary_size or min(self.sizes) < 0
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


GOLDEN = -0x61C8864680B583EB
"""2^64 divided by the golden ratio, as a signed integer."""


@final
class Grams(nn.Module):
    """All n-grams of one order from 2 on. Each has a number from 1 on; 0 stands for every n-gram that is not
    known.

    They are sorted by their keys: number of the first n-1 words (of a single word: its id) x vocabulary +
    last word. So whatever follows a history stands side by side, and one more word makes the number of an
    n-gram from that of its history. A hash table finds a key; it is made where it is first needed and not
    saved.
    """

    def __init__(self, size: int, vocabulary_size: int, *, highest: bool) -> None:
        super().__init__()
        self.vocabulary_size = vocabulary_size
        self.keys: Tensor
        self.register_buffer("keys", torch.full((1 + size,), -1, dtype=torch.int64))
        self.log_prob: Tensor
        self.register_buffer("log_prob", torch.zeros(1 + size))
        self.backoff: Tensor
        self.register_buffer(
            "backoff", torch.zeros(1 if highest else 1 + size)
        )  # nothing follows an n-gram of the highest order
        self.table: Tensor | None
        self.register_buffer("table", None, persistent=False)
        self.register_load_state_dict_post_hook(_forget_table)  # type: ignore[no-untyped-call]

    def fill(self, grams: Estimated) -> None:
        """Takes the n-grams of this order."""
        self.keys[1:] = torch.from_numpy(grams.keys)
        self.log_prob[1:] = torch.from_numpy(grams.log_prob)
        self.backoff[1:] = torch.from_numpy(grams.backoff)[: len(self.backoff) - 1]

    def find(self, history: Tensor, words: Tensor) -> Tensor:
        """Numbers of the n-grams history + word `(n,)`; the histories `(n,)` are given by their numbers."""
        if self.table is None:
            self.table = self._make_table()
        found = torch.zeros_like(history)
        left = history.nonzero()[:, 0]
        keys = history.index_select(0, left).mul_(self.vocabulary_size).add_(words.index_select(0, left))
        slots = self._homes(keys)
        while len(left):
            number = self.table.index_select(0, slots)
            there = self.keys.index_select(0, number) == keys
            found.index_copy_(0, left, number.where(there, 0).long())
            on = ((number != 0) & ~there).nonzero()[:, 0]
            left, keys, slots = (
                left.index_select(0, on),
                keys.index_select(0, on),
                slots.index_select(0, on).add_(1),
            )
        return found

    def following(self, history: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """What is known to follow histories `(n,)`: (place in `history`, next word, number of the n-gram)."""
        first = torch.searchsorted(self.keys, history * self.vocabulary_size)
        count = torch.searchsorted(self.keys, (history + 1) * self.vocabulary_size) - first
        place = torch.arange(len(history), device=history.device).repeat_interleave(count)
        number = torch.arange(len(place), device=history.device) + (first - count.cumsum(0) + count)[place]
        return place, self.keys[number] % self.vocabulary_size, number

    def _homes(self, keys: Tensor) -> Tensor:
        """The slot where the search for a key begins: the upper bits of what two products make of it."""
        mixed = keys * GOLDEN
        mixed ^= mixed >> 32  # without this keys with equal steps between them share their slots
        mixed *= GOLDEN
        return (mixed >> (64 - self._slot_bits())).bitwise_and_((1 << self._slot_bits()) - 1)

    def _slot_bits(self) -> int:
        return (2 * len(self.keys)).bit_length()  # at least half of the slots are free

    def _make_table(self) -> Tensor:
        """Linear probing: each number stands at its key's home or in the next slot that is free, which 0
        marks."""
        homes, order = self._homes(self.keys[1:]).sort()
        steps = torch.arange(len(homes), device=homes.device)
        slots = (homes - steps).cummax(0).values + steps
        size = max([1 << self._slot_bits(), *(slots[-1:] + 1).tolist()]) + 1
        table = torch.zeros(size, dtype=torch.int32 if size < 2**31 else torch.int64, device=homes.device)
        table[slots] = (order + 1).to(table.dtype)
        return table


def _forget_table(grams: nn.Module, _: object) -> None:
    """The keys have changed."""
    assert isinstance(grams, Grams)
    grams.table = None


class Read(NamedTuple):
    """Tokens in one line, row after row, those of the state before the new ones, without <pad>."""

    words: Tensor
    first: Tensor
    """Whether a row begins here."""
    new: Tensor
    """Where the new tokens are in this line."""
    place: Tensor
    """Where they are among all new tokens and <pad>, `(rows * steps)`."""


@final
class Ngram(nn.Module):
    """An n-gram model. A `Decodable` and a `TargetScorer`; it has no gradient, `fit` makes it from a corpus.

    State: `(rows, order-1)`, the last tokens of each row, the newest last, filled up with <pad> on the left.
    """

    carries = True
    """Trained and scored on a stream: the state goes on."""
    context: int | None = None
    """Of a document it looks at the last order-1 tokens, which the state carries on."""

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
            Grams(size, c.vocabulary_size, highest=n == c.order) for n, size in enumerate(sizes, 2)
        )

    @classmethod
    def fit(cls, config: NgramConfig, ids: Integers) -> Self:
        """Estimates the model from a corpus `u_1 .. u_L </s> u_1 .. </s> ...`, an array that may be mapped
        from a file.

        Raises DataError where the corpus is empty or holds an id that no text has.
        """
        c = config
        predicted = c.predicted.numpy()
        return cls.of(
            c, estimate(ids, order=c.order, bos=c.bos_id, eos=c.eos_id, predicted=predicted, prune=c.prune)
        )

    @classmethod
    def of(cls, config: NgramConfig, orders: Sequence[Estimated]) -> Self:
        """The model of given n-grams; orders at the end may be missing."""
        sizes = [len(one.keys) for one in orders] + [0] * (config.order - len(orders))
        model = cls(replace(config, sizes=tuple(sizes)))
        words, *longer = orders
        model.log_prob.copy_(torch.from_numpy(words.log_prob).masked_fill(~model.predicted, 0))
        model.backoff.copy_(torch.from_numpy(words.backoff))
        for grams, found in zip(model.orders, longer, strict=False):
            grams.fill(found)
        return model

    @property
    def orders(self) -> tuple[Grams, ...]:
        """The n-grams of order 2 and on."""
        return tuple(grams for grams in self.longer if isinstance(grams, Grams))

    def forward(self, tokens: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """tokens `(rows, steps)` -> log p of every next word `(rows, steps, vocabulary)`, -inf where never
        predicted; the state."""
        read, state = self._read(tokens, state)
        histories = [
            (weight[read.new], history[read.new])
            for weight, history, _ in self._walk(read, read.words.roll(-1))
        ]
        rest = torch.stack([*(weight for weight, _ in histories), self.backoff.new_zeros(len(read.place))])
        rest = (
            rest.flip(0).cumsum(0).flip(0)
        )  # rest[n]: the weights of all known histories of more than n words
        logits = self._words() + rest[0][:, None]
        for grams, (_, history), longer in zip(self.orders, histories, rest[1:], strict=True):
            place, word, number = grams.following(history)
            logits[place, word] = grams.log_prob[number] + longer[place]
        if len(read.place) < tokens.numel():
            logits = logits.new_zeros(tokens.numel(), logits.shape[1]).index_copy_(0, read.place, logits)
        return logits.view(*tokens.shape, -1), state

    def log_probs(
        self, tokens: Tensor, targets: Tensor, state: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """log p of each target after its token, `(rows, steps)`, 0 at IGNORE and at <pad>; and the state
        after."""
        read, state = self._read(tokens, state)
        following = read.words.roll(-1)
        following[read.new] = (
            targets.reshape(-1).index_select(0, read.place).clamp_(min=0)
        )  # IGNORE is below 0
        log_p = self._words().index_select(0, following)
        for grams, (weight, _, found) in zip(self.orders, self._walk(read, following), strict=True):
            log_p = torch.where(found > 0, grams.log_prob.index_select(0, found), log_p + weight)
        scored = log_p.new_zeros(tokens.numel()).index_copy_(0, read.place, log_p.index_select(0, read.new))
        return scored.view(tokens.shape).masked_fill(targets == IGNORE, 0), state

    def _words(self) -> Tensor:
        """log p̂ of each single word, -inf where it is never predicted."""
        return self.log_prob.masked_fill(~self.predicted, -torch.inf)

    def _walk(self, read: Read, following: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """For n = 2, 3, ...: of the n-1 words up to each of `read.words` the weight and number, and the
        number of these with the word of `following`. That is mostly the next one in `read.words`, and then it
        is looked up only once."""
        other = ((following.roll(1) != read.words) & ~read.first).nonzero()[:, 0]
        history, weights = read.words, self.backoff
        for grams in self.orders:
            found = grams.find(history, following)
            yield weights.index_select(0, history), history, found
            longer = found.roll(1).masked_fill(read.first, 0)
            longer[other] = grams.find(history[other - 1], read.words[other])
            history, weights = longer, grams.backoff

    def _read(self, tokens: Tensor, state: Tensor | None) -> tuple[Read, Tensor]:
        """The tokens after those of the state, and the next state."""
        held = self.config.order - 1
        if state is None:
            state = tokens.new_full((len(tokens), held), self.config.pad_id)
        both = torch.cat([state, tokens], dim=1)
        real = both != self.config.pad_id
        at = real.view(-1).nonzero()[:, 0]
        row, column = at // both.shape[1], at % both.shape[1]
        first = torch.ones_like(row, dtype=torch.bool)
        first[1:] = row[1:] != row[:-1]
        new = (column >= held).nonzero()[:, 0]
        place = (at - (row + 1) * held).index_select(0, new)
        return Read(both.view(-1).index_select(0, at), first, new, place), self._state_of(both, real)

    def _state_of(self, both: Tensor, real: Tensor) -> Tensor:
        """The last real tokens of each row."""
        held = self.config.order - 1
        last = both[:, both.shape[1] - held :]
        if bool(real[:, both.shape[1] - held :].all()):
            return last.clone()
        age = real.flip(1).cumsum(1).flip(1)  # of the newest: 1
        row, column = (real & (age <= held)).nonzero(as_tuple=True)
        kept = torch.full_like(last, self.config.pad_id)
        kept[row, held - age[row, column]] = both[row, column]
        return kept
