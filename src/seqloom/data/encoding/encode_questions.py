"""Questions about contexts as the rows of a reader (`reading.py`).

A row is the question joined with a window of its context. The first place of a row is its first step, which
stands for no answer; the others are the tokens of the context. A window is trained to give the answer where
it holds all of it, else none (Devlin et al. 2019).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

import numpy as np

from seqloom.data.encoding.encode_texts import CHUNK, EncodingOptions
from seqloom.data.encoding.encoded_dataset import EncodedDataset, RaggedRows
from seqloom.data.encoding.sliding_windows import Window, windows
from seqloom.data.readers.examples import Question
from seqloom.errors import DataError
from seqloom.protocols import StoredTokenizer
from seqloom.text.offsets import covering, offsets_of

LONGEST_QUESTION = 64
"""Tokens of a question that are read at most (Devlin et al. 2019)."""

Offsets = Sequence[tuple[int, int]]


def question_set(examples: Iterable[Question], how: EncodingOptions) -> EncodedDataset:
    """The first of several answers is the one that is trained. Raises UsageError where windows would not move
    on (`data.stride`), DataError where a question leaves no room for its context."""
    where: list[tuple[str, int | None]] = []
    cuts: list[list[Window]] = []
    offsets: list[Offsets] = []
    example_of, second, places, targets = [], [], [], []
    remaining = iter(examples)

    def rows() -> Iterator[list[int]]:
        while some := list(islice(remaining, CHUNK)):
            for one, question, (context, spans) in zip(
                some, _questions(some, how), contexts(some, how.tokenizer), strict=True
            ):
                cut = windows_of(len(context), len(question), one, how)
                where.append((one.path, one.line))
                cuts.append(cut)
                offsets.append(spans)
                answer = (
                    covering(spans, one.answers[0].start, one.answers[0].start + len(one.answers[0].text))
                    if one.answers
                    else None
                )
                for begin, end in cut:
                    row = how.layout.joined(question, context[begin:end])
                    example_of.append(len(where) - 1)
                    second.append(row.second)
                    places.append([0, *range(row.second, row.second + end - begin)])
                    targets.append(_target(answer, begin, end))
                    yield row.tokens

    tokens = RaggedRows.of(rows())
    return EncodedDataset(
        tokens=tokens,
        second=np.array(second, np.int64),
        first_row=np.arange(len(tokens) + 1),
        targets=np.array(targets, np.int64).reshape(-1, 2),
        places=RaggedRows.of(places),
        example=np.array(example_of, np.int64),
        cuts=cuts,
        offsets=offsets,
        where=where,
    )


def _target(answer: tuple[int, int] | None, begin: int, end: int) -> tuple[int, int]:
    """The first and the last place of the answer in a window; (0, 0) where it is not all there."""
    if answer is None or answer[0] < begin or answer[1] >= end:
        return 0, 0
    return answer[0] - begin + 1, answer[1] - begin + 1


def _questions(examples: Sequence[Question], how: EncodingOptions) -> list[list[int]]:
    found = how.tokenizer.encode([one.question for one in examples])
    for at, ids in enumerate(found):
        if len(ids) > LONGEST_QUESTION:
            how.notes.count(len(ids))
            found[at] = ids[:LONGEST_QUESTION]
    return found


def contexts(examples: Sequence[Question], tokenizer: StoredTokenizer) -> Iterator[tuple[list[int], Offsets]]:
    """The ids of each context, and where they stand in it; one that several questions share is cut up once."""
    texts = list(dict.fromkeys(one.context for one in examples))
    known = dict(
        zip(texts, zip(tokenizer.encode(texts), offsets_of(tokenizer, texts), strict=True), strict=True)
    )
    return (known[one.context] for one in examples)


def windows_of(length: int, question: int, one: Question, how: EncodingOptions) -> list[Window]:
    """Windows over the tokens of a context."""
    limits = [limit for limit in (how.longest, how.cut and how.cut + how.layout.size(2)) if limit is not None]
    if not limits:
        return [(0, length)]
    room = min(limits) - how.layout.size(2) - question
    if room < 1:
        raise DataError(
            "a row must have room for the question and some of its context, but the question alone has"
            f" {question} tokens and {min(limits)} are read; raise data.max_length",
            one.path,
            one.line,
        )
    return windows(length, room, min(room // 4, 128) if how.stride is None else how.stride)
