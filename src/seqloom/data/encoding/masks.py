"""Masks of a masked language model: ids of a row -> what it reads, and what it is to predict.

    "my dog is hairy", of which "hairy" is chosen              Devlin et al. 2019, section 3.1

    in 80 %   my dog is M
    in 10 %   my dog is apple       a token that is drawn from the vocabulary
    in 10 %   my dog is hairy
    (of ELECTRA's generator 85, 0 and 15 %, as in the authors' program)

The loss is taken at all chosen tokens, the unchanged ones too. What is chosen:

    tokens   each by itself
    words    all pieces of a word                              whole word masking of the authors' program
    spans    several words in a row, their number geometric    Joshi et al. 2020, section 3.1

A share of the units (tokens or words) of a row is chosen, at least one of them; what the share leaves of a
unit is rounded up or down at random, so that it holds on average. A protected id, such as a special token or
`<unk>`, is never chosen and never drawn. All functions are pure: the same ids and the same state of the
generator give the same result.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, final

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from seqloom.protocols import Tokenizer
from seqloom.shapes import IGNORE

Ids = NDArray[np.int64]
Flags = NDArray[np.bool_]
Units = Literal["tokens", "words", "spans"]

AS_MASK, AS_RANDOM = 0.8, 0.1
"""Shares of the chosen tokens that become the mask, and a random token; the others stay."""
LONGEST_SPAN = 10
"""Words of a span at most (Joshi et al. 2020)."""


@final
class MaskedRow(NamedTuple):
    """A row with masks."""

    inputs: Ids
    targets: Ids
    """IGNORE where nothing was chosen."""


@final
@dataclass(frozen=True, kw_only=True)
class MaskOptions:
    """What masks need beside the row."""

    density: float
    """Share of the tokens, or words, that are chosen."""
    units: Units
    span: float
    """1 / p of the geometric distribution of a span's words: their mean, but that none has more than
    LONGEST_SPAN."""
    mask: int
    protected: Flags
    """`(vocabulary,)`: ids that are never chosen and never drawn."""
    drawn: Ids
    """The others."""
    begins_inside: Flags
    """`(vocabulary,)`: ids that continue a word whose piece before them is in `ends_inside`."""
    ends_inside: Flags
    as_mask: float = AS_MASK
    as_random: float = AS_RANDOM

    @classmethod
    def of(cls, tokenizer: Tokenizer, density: float, units: Units, span: float) -> MaskOptions:
        mask = tokenizer.special_ids.mask
        assert mask is not None
        spelled = tokenizer.token_bytes
        special = {*tokenizer.special_ids.forbidden, mask}
        protected = np.array([not token or i in special for i, token in enumerate(spelled)])
        # a tokenizer that puts a space between all tokens has whole words
        whole = bool(tokenizer.text_separator)
        begins_inside = np.array([_is_in_word(token[:1]) and not whole for token in spelled])
        ends_inside = np.array([_is_in_word(token[-1:]) and not whole for token in spelled])
        return cls(
            density=density,
            units=units,
            span=span,
            mask=mask,
            protected=protected,
            drawn=np.flatnonzero(~protected),
            begins_inside=begins_inside,
            ends_inside=ends_inside,
        )


def _is_in_word(byte: bytes) -> bool:
    """Whether a byte is of a letter or a digit, or of a character beyond ASCII; False if there is none."""
    return byte.isalnum() or byte >= b"\x80"


def apply_masks(ids: Ids, options: MaskOptions, random: Generator) -> MaskedRow:
    """The row with masks; with none where all its ids are protected."""
    free = np.flatnonzero(~options.protected[ids])
    if not len(free):
        return MaskedRow(ids, np.full_like(ids, IGNORE))
    units = np.arange(len(free)) if options.units == "tokens" else word_numbers(ids, free, options)
    number = int(units[-1]) + 1
    # of the 18.9 of 126 tokens 18 or 19
    wanted = min(max(int(options.density * number + random.random()), 1), number)
    if options.units == "spans":
        spans = draw_spans(number, wanted, options.span, random)[units]
        is_chosen = spans >= 0
        # a span is masked, replaced or kept as a whole
        draws = random.random(wanted)[spans[is_chosen]]
    else:
        is_unit = np.zeros(number, bool)
        is_unit[random.permutation(number)[:wanted]] = True
        is_chosen = is_unit[units]
        draws = random.random(int(is_chosen.sum()))
    chosen = free[is_chosen]
    targets = np.full_like(ids, IGNORE)
    targets[chosen] = ids[chosen]
    inputs = ids.copy()
    inputs[chosen[draws < options.as_mask]] = options.mask
    kept = options.as_mask + options.as_random
    replaced = chosen[(draws >= options.as_mask) & (draws < kept)]
    inputs[replaced] = options.drawn[random.integers(len(options.drawn), size=len(replaced))]
    return MaskedRow(inputs, targets)


def word_numbers(ids: Ids, free: Ids, options: MaskOptions) -> Ids:
    """`(free,)`: the number of the word of each place in `free`, from 0. A word is a run of letters and
    digits, or another sign."""
    continues = np.zeros(len(ids), bool)
    continues[1:] = options.ends_inside[ids[:-1]] & options.begins_inside[ids[1:]]
    continues[free[0]] = False
    numbers: Ids = np.cumsum(~continues[free]) - 1
    return numbers


def draw_spans(words: int, wanted: int, mean: float, random: Generator) -> Ids:
    """`(words,)`: the number of the span that each word is in, -1 for none; `wanted` words are in one.

    Lengths are geometric, given that they are at most LONGEST_SPAN; the last is cut. All ways to place the
    spans among the other words are equally likely.
    """
    lengths: list[int] = []
    longer = 1 - 1 / mean
    while (rest := wanted - sum(lengths)) > 0:
        # the inverse of the distribution function
        share = 1 - random.random() * (1 - longer**LONGEST_SPAN)
        length = 1 + int(math.log(share) / math.log(longer)) if longer else 1
        lengths.append(min(length, LONGEST_SPAN, rest))
    places = np.full(words - wanted + len(lengths), -1)
    places[: len(lengths)] = np.arange(len(lengths))
    random.shuffle(places)
    repeats = np.where(places >= 0, np.asarray(lengths)[places], 1)
    return np.repeat(places, repeats)


def joined_row(
    texts: Sequence[Ids], prefix: Sequence[int], separator: Sequence[int], suffix: Sequence[int]
) -> tuple[Ids, Ids]:
    """One text or two with the special tokens around them; and the segment of each id, 1 in the second text
    and after it."""
    first, *others = texts
    parts, sizes = [np.asarray(prefix, np.int64), first], [len(prefix) + len(first)]
    for other in others:
        parts += [np.asarray(separator, np.int64), other]
        sizes = [sizes[0] + len(separator), len(other)]
    parts.append(np.asarray(suffix, np.int64))
    sizes[-1] += len(suffix)
    return np.concatenate(parts), np.repeat(np.arange(len(sizes)), sizes)
