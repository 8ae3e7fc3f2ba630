"""Words with tags as the rows of a reader (`reading.py`): a word is asked for at its first token, whatever
the tokenizer.

A text that is longer than the model reads is cut into windows of whole words that overlap; each word is
answered once (`stitching.py`).
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, islice

import numpy as np

from seqloom.data.encoding.encode_texts import CHUNK, EncodingOptions
from seqloom.data.encoding.encoded_dataset import EncodedDataset, RaggedRows, WordCharacters
from seqloom.data.encoding.sliding_windows import Window, word_windows
from seqloom.data.readers.examples import TaggedWords
from seqloom.protocols import Tokenizer
from seqloom.shapes import IGNORE
from seqloom.text.word_characters import character_ids


def tagged_set(
    examples: Iterable[TaggedWords], how: EncodingOptions, number: Callable[[TaggedWords, int], int]
) -> EncodedDataset:
    """`number`: (example, which of its words) -> the number of its tag, IGNORE where it has none that is
    known.

    Raises UsageError where windows would not move on (`data.stride`).
    """
    where: list[tuple[str, int | None]] = []
    cuts: list[list[Window]] = []
    example_of: list[int] = []
    places, targets, words = _Sequences(), _Sequences(), _Sequences()
    known: dict[str, int] = {}
    remaining = iter(examples)
    shift = len(how.layout.before)

    def rows() -> Iterator[list[int]]:
        while some := list(islice(remaining, CHUNK)):
            for example, ids in zip(some, ids_of_words(some, how.tokenizer), strict=True):
                cut = windows_of(ids, how)
                where.append((example.path, example.line))
                cuts.append(cut)
                for begin, end in cut:
                    room = room_of(how)
                    kept = [one if room is None else one[:room] for one in ids[begin:end]]
                    starts = (
                        [shift + before for before in accumulate((len(one) for one in kept[:-1]), initial=0)]
                        if kept
                        else []
                    )
                    example_of.append(len(where) - 1)
                    places.add(starts)
                    targets.add([number(example, at) for at in range(begin, end)])
                    row = how.layout.joined([i for one in kept for i in one]).tokens or [
                        unknown(how.tokenizer)
                    ]
                    if how.alphabet:
                        words.add(
                            _at(
                                starts,
                                [known.setdefault(word, len(known)) for word in example.words[begin:end]],
                                len(row),
                            )
                        )
                    yield row

    tokens = RaggedRows.of(rows())
    spelled = RaggedRows.of(character_ids(list(known), how.alphabet)) if how.alphabet else None
    return EncodedDataset(
        tokens=tokens,
        second=tokens.lengths,
        first_row=np.arange(len(tokens) + 1),
        targets=targets.ragged(),
        places=places.ragged(),
        letters=None if spelled is None else WordCharacters(words=words.ragged(), token_bytes=spelled),
        example=np.array(example_of, np.int64),
        cuts=cuts,
        where=where,
    )


def ids_of_words(examples: Sequence[TaggedWords], tokenizer: Tokenizer) -> Iterator[list[list[int]]]:
    """The ids of each word of each example; a word that no token spells is unknown, so that it keeps its
    place."""
    lead = " " if blank_begins_words(tokenizer) else ""
    ids = iter(tokenizer.encode([lead + word for one in examples for word in one.words]))
    for one in examples:
        yield [next(ids) or [unknown(tokenizer)] for _ in one.words]


def blank_begins_words(tokenizer: Tokenizer) -> bool:
    """Whether a word inside of a text is spelled with the blank before it, as byte-level BPE does."""
    return not tokenizer.space_prefix and any(
        piece.startswith(b" ") and len(piece) > 1 for piece in tokenizer.token_bytes
    )


def unknown(tokenizer: Tokenizer) -> int:
    special_ids = tokenizer.special_ids
    return (
        special_ids.unk
        if special_ids.unk is not None
        else special_ids.suffix[-1]
        if special_ids.suffix
        else 0
    )


def room_of(how: EncodingOptions) -> int | None:
    """Tokens of a window, marks not counted; None where there is no limit."""
    limits = [
        limit for limit in (how.longest and how.longest - how.layout.size(1), how.cut) if limit is not None
    ]
    return min(limits, default=None)


def windows_of(ids: Sequence[Sequence[int]], how: EncodingOptions) -> list[Window]:
    room = room_of(how)
    if room is None:
        return [(0, len(ids))]
    return word_windows([len(one) for one in ids], room, room // 4 if how.stride is None else how.stride)


def tag_numbers(order: Sequence[str]) -> Callable[[TaggedWords, int], int]:
    """The number of a word's tag; IGNORE where it has none, or one that is not in `order`."""
    known = {name: at for at, name in enumerate(order)}
    return lambda example, at: known.get(example.tags[at], IGNORE) if example.tags else IGNORE


def _at(starts: Sequence[int], words: Sequence[int], steps: int) -> list[int]:
    row = [-1] * steps
    for start, word in zip(starts, words, strict=True):
        row[start] = word
    return row


class _Sequences:
    """Sequences that become a `RaggedRows` in the end."""

    def __init__(self) -> None:
        self.values, self.offsets = array("i"), array("q", [0])

    def add(self, sequence: Sequence[int]) -> None:
        self.values.extend(sequence)
        self.offsets.append(len(self.values))

    def ragged(self) -> RaggedRows:
        return RaggedRows(np.asarray(self.values, np.int32), np.asarray(self.offsets, np.int64))
