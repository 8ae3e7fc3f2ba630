"""Noise for denoising objectives: ids of a text -> what a model reads, and what it is to write.

    T5 (Raffel et al. 2020, table 3), each of "Thank you for inviting me to your party last week .":

    prefix-lm      Thank you for inviting                      me to your party last week .
    bert           Thank you M M me to your party apple week . the text
    deshuffling    party me for your to . last fun you ...     the text
    mass           Thank you M M me to your party M week .     the text
    iid-spans      Thank you X me to your party Y week .       X for inviting Y last Z
    iid-drop       Thank you me to your party week .           for inviting last
    random-spans   Thank you X to Y week .                     X for inviting me Y your party last Z

    BART (Lewis et al. 2020, section 2.2), which may follow each other; the target is the text:

    infilling             spans of Poisson(3) tokens, none too, become one M each
    sentence-permutation  sentences in random order
    document-rotation     the text from a random token on, and then its beginning
    deletion, masking     tokens are left out, or become M

X, Y, Z are the sentinels in their order, M is the mask, or the first sentinel if there is none. In `bert`
a tenth of the corrupted tokens becomes a random one. A protected id, such as `<unk>`, is never corrupted.
All functions are pure: the same ids and the same state of the generator give the same result.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, final

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from seqloom.errors import UsageError

Ids = NDArray[np.int64]
Mask = NDArray[np.bool_]

RANDOM_WORD = 0.1
"""Share of the tokens corrupted by `bert` that become a random word and not the mask."""


@final
class Denoising(NamedTuple):
    """A text with noise, and what it is to be turned into."""

    source: Ids
    target: Ids
    corrupted: Mask
    """Which ids of the text were corrupted; all False where only their order was changed."""


@final
@dataclass(frozen=True, kw_only=True)
class NoiseOptions:
    """What noise needs beside the text."""

    density: float
    """Share of the tokens that are corrupted."""
    span: float
    """Mean length of a corrupted span."""
    sentinels: Ids
    """The ids of X, Y, Z, ..."""
    mask: int
    protected: Mask
    """`(vocabulary,)`: ids that are never corrupted and never a random word."""
    ends_sentence: Mask
    """`(vocabulary,)`: ids that end a sentence."""


Noise = Callable[[Ids, NoiseOptions, Generator], Denoising]


def prefix_lm(ids: Ids, options: NoiseOptions, random: Generator) -> Denoising:
    """The place of the cut is uniform; both parts have at least a token."""
    cut = int(random.integers(1, len(ids))) if len(ids) > 1 else len(ids)
    corrupted = np.arange(len(ids)) >= cut
    return Denoising(ids[:cut], ids[cut:], corrupted)


def bert(ids: Ids, options: NoiseOptions, random: Generator) -> Denoising:
    corrupted = _independent(ids, options, random)
    source = np.where(corrupted, options.mask, ids)
    words = np.flatnonzero(~options.protected)
    replaced = corrupted & (random.random(len(ids)) < RANDOM_WORD)
    source[replaced] = words[random.integers(len(words), size=int(replaced.sum()))]
    return Denoising(source, ids, corrupted)


def deshuffling(ids: Ids, options: NoiseOptions, random: Generator) -> Denoising:
    return Denoising(ids[random.permutation(len(ids))], ids, np.zeros(len(ids), bool))


def mass(ids: Ids, options: NoiseOptions, random: Generator) -> Denoising:
    corrupted = _independent(ids, options, random)
    return Denoising(np.where(corrupted, options.mask, ids), ids, corrupted)


def iid_spans(ids: Ids, options: NoiseOptions, random: Generator) -> Denoising:
    return _with_sentinels(ids, _independent(ids, options, random), options)


def iid_drop(ids: Ids, options: NoiseOptions, random: Generator) -> Denoising:
    corrupted = _independent(ids, options, random)
    return Denoising(ids[~corrupted], ids[corrupted], corrupted)


def random_spans(ids: Ids, options: NoiseOptions, random: Generator) -> Denoising:
    """Spans of random lengths between stretches of random lengths; the text begins clean and ends corrupted,
    so a text that is too short for two spans has its only one at its end."""
    noise, spans = noise_counts(len(ids), options.density, options.span)
    if not spans:
        return _with_sentinels(ids, np.zeros(len(ids), bool), options)
    lengths = np.empty(2 * spans, np.int64)
    lengths[0::2] = _partition(len(ids) - noise, spans, random)
    lengths[1::2] = _partition(noise, spans, random)
    corrupted = np.repeat(np.arange(2 * spans) % 2 == 1, lengths)
    return _with_sentinels(ids, corrupted & ~options.protected[ids], options)


def infilling(ids: Ids, options: NoiseOptions, random: Generator) -> Denoising:
    """Spans are drawn until they cover the share, the last one cut to it, and placed at random without
    overlap."""
    budget = round(len(ids) * options.density)
    lengths: list[int] = []
    while budget > 0:
        lengths.append(min(int(random.poisson(options.span)), budget))
        budget -= lengths[-1]
    # the places of the spans among the tokens that stay: all arrangements are equally likely
    places = np.zeros(len(ids) - sum(lengths) + len(lengths), bool)
    places[: len(lengths)] = True
    random.shuffle(places)
    source: list[int] = []
    corrupted = np.zeros(len(ids), bool)
    at, remaining = 0, iter(lengths)
    for is_span in places:
        if not is_span:
            source.append(int(ids[at]))
            at += 1
            continue
        end = at + next(remaining)
        kept = options.protected[ids[at:end]]
        source += [options.mask, *ids[at:end][kept].tolist()]
        corrupted[at:end] = ~kept
        at = end
    return Denoising(np.asarray(source, np.int64), ids, corrupted)


def sentence_permutation(ids: Ids, options: NoiseOptions, random: Generator) -> Denoising:
    """A sentence goes up to a token that ends one; what follows the last of them is one too."""
    ends = np.flatnonzero(options.ends_sentence[ids]) + 1
    sentences = [part for part in np.split(ids, ends) if len(part)]
    shuffled = [sentences[i] for i in random.permutation(len(sentences))]
    source = np.concatenate(shuffled) if shuffled else ids
    return Denoising(source, ids, np.zeros(len(ids), bool))


def document_rotation(ids: Ids, options: NoiseOptions, random: Generator) -> Denoising:
    first = int(random.integers(max(len(ids), 1)))
    return Denoising(np.roll(ids, -first), ids, np.zeros(len(ids), bool))


def deletion(ids: Ids, options: NoiseOptions, random: Generator) -> Denoising:
    corrupted = _independent(ids, options, random)
    return Denoising(ids[~corrupted], ids, corrupted)


T5_NOISE: dict[str, Noise] = {
    "random-spans": random_spans,
    "iid-spans": iid_spans,
    "iid-drop": iid_drop,
    "bert": bert,
    "mass": mass,
    "deshuffling": deshuffling,
    "prefix-lm": prefix_lm,
}
"""Each stands alone."""
BART_NOISE: dict[str, Noise] = {
    "infilling": infilling,
    "sentence-permutation": sentence_permutation,
    "document-rotation": document_rotation,
    "deletion": deletion,
    "masking": mass,
}
"""Several may follow each other."""


def check_noise(names: tuple[str, ...]) -> None:
    """Raises UsageError if these cannot follow each other."""
    known = ", ".join((*T5_NOISE, *BART_NOISE))
    for name in names:
        if name not in T5_NOISE and name not in BART_NOISE:
            raise UsageError(f"train.noise must be of {known}, but is {name!r}")
    alone = [name for name in names if name in T5_NOISE]
    if not names or (alone and len(names) > 1) or len(set(names)) < len(names):
        raise UsageError(
            f"train.noise must be one of {', '.join(T5_NOISE)}, or one or more of {', '.join(BART_NOISE)},"
            f" each once, but is {', '.join(names) or 'nothing'}"
        )


def apply_noise(
    names: tuple[str, ...], ids: Ids, options: NoiseOptions, random: Generator
) -> Denoising:
    """Several follow each other: each is given what the one before it made of the text."""
    if names[0] in T5_NOISE:
        return T5_NOISE[names[0]](ids, options, random)
    first, *others = names
    result = BART_NOISE[first](ids, options, random)
    source, corrupted = result.source, result.corrupted
    for name in others:
        source, _, more = BART_NOISE[name](source, options, random)
        # the places of a changed text are not those of the text itself
        corrupted = more if not corrupted.any() else corrupted
    return Denoising(source, ids, corrupted)


def noise_counts(length: int, density: float, span: float) -> tuple[int, int]:
    """(corrupted tokens, spans) of `random-spans` in a text of so many tokens: at least one of each where
    there are two tokens, and as many clean tokens as spans."""
    if length < 2:
        return 0, 0
    noise = min(max(round(length * density), 1), length - 1)
    spans = min(max(round(noise / span), 1), noise, length - noise)
    return noise, spans


def lengths_with_noise(length: int, density: float, span: float) -> tuple[int, int]:
    """(ids of the source, ids of the target) of `random-spans`, sentinels and `</s>` counted."""
    noise, spans = noise_counts(length, density, span)
    return length - noise + spans + 1, noise + spans + 2


def text_length(source: int, density: float, span: float) -> int:
    """The longest text whose source under `random-spans` has at most so many ids: then no place of a row is
    wasted (Raffel et al. 2020, section 3.1.4: 512 ids are 568 tokens of text)."""
    length = max(source - 2, 1)
    while lengths_with_noise(length + 1, density, span)[0] <= source:
        length += 1
    return length


def sentinels_needed(names: tuple[str, ...], length: int, density: float, span: float) -> int:
    """How many sentinels a text of so many tokens may need, the one that closes the target counted."""
    if names == ("random-spans",):
        return noise_counts(length, density, span)[1] + 1
    if names == ("iid-spans",):
        return math.ceil(length / 2) + 1
    return 1


def _independent(ids: Ids, options: NoiseOptions, random: Generator) -> Mask:
    """Each token is corrupted with the same probability, whatever the others are."""
    corrupted: Mask = random.random(len(ids)) < options.density
    return corrupted & ~options.protected[ids]


def _partition(total: int, parts: int, random: Generator) -> Ids:
    """`(parts,)` lengths of at least 1 that sum to `total`; all ways to do so are equally likely."""
    cuts = np.sort(random.choice(total - 1, parts - 1, replace=False)) + 1
    return np.diff(np.concatenate([[0], cuts, [total]]))


def _with_sentinels(ids: Ids, corrupted: Mask, options: NoiseOptions) -> Denoising:
    """Neighbours share a sentinel; the target closes with the next one. Spans beyond the last sentinel stay
    as they are."""
    begins = corrupted & ~np.concatenate([[False], corrupted[:-1]])
    number = begins.cumsum() - 1
    corrupted = corrupted & (number < len(options.sentinels) - 1)
    begins &= corrupted
    source, target = ids.copy(), list[int]()
    source[begins] = options.sentinels[number[begins]]
    for place in np.flatnonzero(corrupted):
        if begins[place]:
            target.append(int(options.sentinels[number[place]]))
        target.append(int(ids[place]))
    target.append(int(options.sentinels[int(begins.sum())]))
    return Denoising(source[~corrupted | begins], np.asarray(target, np.int64), corrupted)
