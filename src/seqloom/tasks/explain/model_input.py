"""One input as a model reads it, with what its pictures need: the words and their tokens, a call of the
model, and a number that says how much the model prefers an answer."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, final

import torch
from torch import Tensor, nn

from seqloom.data.batching.pair_batches import encoder_ids, pad
from seqloom.models.bert import Bert
from seqloom.protocols import EncodedBatch, StoredTokenizer, device_of
from seqloom.text.offsets import offsets_of

WHOLE_TOKENS = ("words", "whitespace", "characters", "bytes")
"""Kinds of tokenizers whose pieces are not parts of words."""
_WORDS = re.compile(r"[\u2e80-\u9fff\uac00-\ud7af]|[^\W\u2e80-\u9fff\uac00-\ud7af]+|[^\w\s]")
"""A word, a punctuation mark, or a character of a script without spaces."""


class Word(NamedTuple):
    """A word of an input, and the tokens that it is read as."""

    text: str
    part: str
    """Which text it is of, such as `question`; empty if there is only one."""
    places: tuple[tuple[int, int], ...]
    """(row, step) of each of its tokens, in all rows that have it."""


class Score(NamedTuple):
    """A number that says how much a model prefers an answer."""

    asked: str
    """What it is, such as `logit of positive - logit of negative`."""
    of: Callable[[EncodedBatch], Tensor]
    """Rows of several variants of the input -> `(variants,)`, with a gradient."""


class Predictions(NamedTuple):
    """What a model that writes says of each next token."""

    side: str
    """Which side its tokens are: self or decoder."""
    log_probs: Callable[[], Tensor]
    """log p of what follows each token `(steps, vocabulary)`."""
    following: Sequence[int]
    """`(steps,)`: the id that does follow each token, IGNORE where none does."""


@final
@dataclass(frozen=True, kw_only=True)
class ModelInput:
    """What a model reads of one input."""

    model: nn.Module
    tokenizer: StoredTokenizer
    batch: EncodedBatch
    """Its rows: one, or several as a reader has them (`EncodedBatch`)."""
    sides: Mapping[str, Sequence[str]]
    """The tokens by side: self, or encoder and decoder (what it reads of what it writes), and written (what
    it writes)."""
    read: Callable[[], object]
    """Calls the model for the whole input."""
    answer: str = ""
    """What the model answers, on one line."""
    words: Callable[[], Sequence[Word]] = tuple
    """The words that it is read as."""
    score: Callable[[], Score] | None = None
    """What attributions explain; None if there is no answer."""
    next_tokens: Predictions | None = None
    row: int = 0
    """The row that is shown where there are several."""
    numbers: Mapping[str, object] = field(default_factory=dict)
    """What else a program may want to know of the input."""

    @property
    def has_pieces(self) -> bool:
        """Whether a token may be a part of a word."""
        return self.tokenizer.kind not in WHOLE_TOKENS


def single_row(ids: Sequence[int], device: torch.device) -> EncodedBatch:
    """One row without places."""
    return EncodedBatch.of_tokens(pad([ids], -1).to(device))


def encoder_input(model: Bert, tokenizer: StoredTokenizer, text: str) -> ModelInput:
    """A text as an encoder of texts reads it, which answers nothing."""
    (ids,) = tokenizer.encode([text])
    row = encoder_ids(ids, tokenizer.special_ids)
    batch = single_row(row, device_of(model))
    return ModelInput(
        model=model,
        tokenizer=tokenizer,
        batch=batch,
        sides={"self": tokenizer.pieces(row)},
        read=lambda: model.encode_batch(batch),
    )


def words_of(
    tokenizer: StoredTokenizer,
    text: str,
    tokens: int,
    *,
    first: int,
    row: int = 0,
    part: str = "",
    skipped: int = 0,
) -> list[Word]:
    """The words of a text of which `tokens` tokens stand at `first` and on in a row, after `skipped` others
    that are not read. What no token is read of is left out."""
    (offsets,) = offsets_of(tokenizer, [text])
    read = offsets[skipped : skipped + tokens]
    spans = [match.span() for match in _WORDS.finditer(text)]
    places: dict[tuple[int, int], list[tuple[int, int]]] = {span: [] for span in spans}
    at = 0
    for step, (begin, end) in enumerate(read):
        while at + 1 < len(spans) and spans[at][1] <= begin:
            at += 1
        if spans and begin < end:
            places[spans[at]].append((row, first + step))
    return [
        Word(text[begin:end], part, tuple(found)) for (begin, end), found in places.items() if found
    ]


def merged_words(words: Sequence[Word]) -> list[Word]:
    """The words that several rows have in common, each once: the same part and number."""
    merged: dict[tuple[str, int], Word] = {}
    numbers: dict[tuple[int, str], int] = {}
    for word in words:
        of_row = (word.places[0][0], word.part)
        numbers[of_row] = number = numbers.get(of_row, -1) + 1
        known = merged.get((word.part, number))
        places = word.places if known is None else known.places + word.places
        merged[word.part, number] = word._replace(places=places)
    return list(merged.values())
