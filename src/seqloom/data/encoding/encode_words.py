"""Words with tags as encoded rows (`encoded_dataset.py`): a word is tagged at its first token, whatever the
tokenizer.

A text that is longer than the model reads is cut into windows of whole words that overlap; each word is
answered once (`sliding_windows.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain

import numpy as np

from seqloom.data.batching.token_store import chunked
from seqloom.data.encoding.encode_texts import CHUNK, EncodingOptions
from seqloom.data.encoding.encoded_dataset import (
    EncodedDataset,
    Origin,
    SequenceArray,
    SequenceBuilder,
    WordCharacters,
)
from seqloom.data.encoding.sliding_windows import Window, word_windows
from seqloom.data.readers.examples import TaggedWords
from seqloom.protocols import Tokenizer
from seqloom.shapes import IGNORE
from seqloom.text.word_characters import character_ids


def encode_tagged(
    examples: Iterable[TaggedWords],
    options: EncodingOptions,
    tag_id: Callable[[TaggedWords, int], int],
) -> EncodedDataset:
    """`tag_id`: (example, number of the word) -> the id of its tag, IGNORE where it has none that is known.

    Raises UsageError if windows would not move on (`data.stride`).
    """
    origins: list[Origin] = []
    windows: list[list[Window]] = []
    example_of: list[int] = []
    tokens, places, targets, words = (SequenceBuilder() for _ in range(4))
    word_numbers: dict[str, int] = {}
    room = options.room()
    for chunk in chunked(examples, CHUNK):
        for example, ids in zip(chunk, ids_of_words(chunk, options), strict=True):
            windows.append(windows_of(ids, options))
            origins.append((example.path, example.line))
            for word_ids in ids:
                if room is not None and len(word_ids) > room:
                    options.truncation.count(len(word_ids))
            for begin, end in windows[-1]:
                kept = [word_ids[:room] for word_ids in ids[begin:end]]
                starts = _first_tokens(kept, len(options.template.prefix))
                row = options.template.joined(list(chain.from_iterable(kept))).tokens
                row = row or [unknown_id(options.tokenizer)]
                example_of.append(len(origins) - 1)
                tokens.add(row)
                places.add(starts)
                targets.add([tag_id(example, word) for word in range(begin, end)])
                if options.alphabet:
                    at_steps = [-1] * len(row)
                    for start, word in zip(starts, example.words[begin:end], strict=True):
                        at_steps[start] = word_numbers.setdefault(word, len(word_numbers))
                    words.add(at_steps)
    characters = None
    if options.alphabet:
        ids_of_characters = SequenceArray.of(character_ids(list(word_numbers), options.alphabet))
        characters = WordCharacters(words=words.build(), characters=ids_of_characters)
    rows = tokens.build()
    dataset = EncodedDataset(
        tokens=rows,
        second_start=rows.lengths,
        row_offsets=np.arange(len(rows) + 1),
        targets=targets.build(),
        places=places.build(),
        characters=characters,
        example_of=np.array(example_of, np.int64),
        windows=windows,
        origins=origins,
    )
    return options.spelled(dataset)


def _first_tokens(words: Sequence[Sequence[int]], start: int) -> list[int]:
    """The step of the first token of each word, of words that begin at `start`."""
    steps = []
    for word in words:
        steps.append(start)
        start += len(word)
    return steps


def ids_of_words(
    examples: Sequence[TaggedWords], options: EncodingOptions
) -> Iterator[list[list[int]]]:
    """The ids of each word of each example; a word without tokens is unknown, so that it keeps its place."""
    tokenizer = options.tokenizer
    lead = " " if space_begins_words(tokenizer) else ""
    ids = iter(options.encode([lead + word for tagged in examples for word in tagged.words]))
    for example in examples:
        yield [next(ids) or [unknown_id(tokenizer)] for _ in example.words]


def space_begins_words(tokenizer: Tokenizer) -> bool:
    """Whether the tokens of a word inside of a text include the space before it, as in byte-level BPE."""
    return not tokenizer.space_prefix and any(
        piece.startswith(b" ") and len(piece) > 1 for piece in tokenizer.token_bytes
    )


def unknown_id(tokenizer: Tokenizer) -> int:
    special_ids = tokenizer.special_ids
    if special_ids.unk is not None:
        return special_ids.unk
    return special_ids.suffix[-1] if special_ids.suffix else 0


def windows_of(ids: Sequence[Sequence[int]], options: EncodingOptions) -> list[Window]:
    room = options.room()
    if room is None:
        return [(0, len(ids))]
    return word_windows([len(word_ids) for word_ids in ids], room, options.stride_or(room // 4))


def tag_ids(order: Sequence[str]) -> Callable[[TaggedWords, int], int]:
    """The id of a word's tag; IGNORE where it has none, or one that is not in `order`."""
    ids = {name: index for index, name in enumerate(order)}
    return lambda example, word: ids.get(example.tags[word], IGNORE) if example.tags else IGNORE
