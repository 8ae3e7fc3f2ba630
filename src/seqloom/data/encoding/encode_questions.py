"""Questions about contexts as encoded rows (`encoded_dataset.py`).

A row is the question joined with a window of its context. The first place of a row is its first step, which
stands for no answer; the others are the tokens of the context. A window is trained to give the answer where
it holds all of it, else none (Devlin et al. 2019).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from seqloom.data.batching.token_store import chunked
from seqloom.data.encoding.encode_texts import CHUNK, EncodingOptions, truncated
from seqloom.data.encoding.encoded_dataset import EncodedDataset, Origin, SequenceBuilder
from seqloom.data.encoding.sliding_windows import Window
from seqloom.data.encoding.sliding_windows import windows as sliding_windows
from seqloom.data.readers.examples import Question
from seqloom.errors import DataError
from seqloom.text.offsets import covering, offsets_of

LONGEST_QUESTION = 64
"""Tokens of a question that are read at most (Devlin et al. 2019)."""

Offsets = Sequence[tuple[int, int]]


def encode_questions(examples: Iterable[Question], options: EncodingOptions) -> EncodedDataset:
    """The first of several answers is the one that is trained. Raises UsageError if windows would not move
    on (`data.stride`), DataError if a question leaves no room for its context."""
    origins: list[Origin] = []
    cuts: list[list[Window]] = []
    offsets: list[Offsets] = []
    tokens, places = SequenceBuilder(), SequenceBuilder()
    example_of, second_start, targets = [], [], []
    left_out: set[int] = set()
    number = 0
    for chunk in chunked(examples, CHUNK):
        questions = options.encode([example.question for example in chunk])
        contexts = encode_contexts(chunk, options)
        for example, encoded in zip(chunk, questions, strict=True):
            question = truncated(encoded, LONGEST_QUESTION, options)
            context, spans = contexts[example.context]
            number += 1
            windows = windows_of(len(context), len(question), example, options)
            if windows is None:
                left_out.add(number - 1)
                continue
            cuts.append(windows)
            origins.append((example.path, example.line))
            offsets.append(spans)
            answer = _answer_tokens(example, spans)
            for begin, end in cuts[-1]:
                row = options.template.joined(question, context[begin:end])
                tokens.add(row.tokens)
                places.add([0, *range(row.second_start, row.second_start + end - begin)])
                example_of.append(len(origins) - 1)
                second_start.append(row.second_start)
                targets.append(_target(answer, begin, end))
    rows = tokens.build()
    dataset = EncodedDataset(
        tokens=rows,
        second_start=np.array(second_start, np.int64),
        row_offsets=np.arange(len(rows) + 1),
        targets=np.array(targets, np.int64).reshape(-1, 2),
        places=places.build(),
        example_of=np.array(example_of, np.int64),
        windows=cuts,
        offsets=offsets,
        origins=origins,
        left_out=frozenset(left_out),
    )
    return options.spelled(dataset)


def _answer_tokens(question: Question, spans: Offsets) -> tuple[int, int] | None:
    """The first and the last token of the first answer, in the context."""
    if not question.answers:
        return None
    start, text = question.answers[0]
    return covering(spans, start, start + len(text))


def _target(answer: tuple[int, int] | None, begin: int, end: int) -> tuple[int, int]:
    """The first and the last place of the answer in a window; (0, 0) where it is not all there."""
    if answer is None or answer[0] < begin or answer[1] >= end:
        return 0, 0
    return answer[0] - begin + 1, answer[1] - begin + 1


def encode_contexts(
    examples: Sequence[Question], options: EncodingOptions
) -> dict[str, tuple[list[int], Offsets]]:
    """The ids of each context, and their code points; one that several questions share is encoded once."""
    texts = list(dict.fromkeys(example.context for example in examples))
    encoded = zip(options.encode(texts), offsets_of(options.tokenizer, texts), strict=True)
    return dict(zip(texts, encoded, strict=True))


def windows_of(
    context_length: int, question_length: int, question: Question, options: EncodingOptions
) -> list[Window] | None:
    """Windows over the tokens of a context; None if the question leaves no room for it and is skipped."""
    most = options.room(texts=2)
    if most is None:
        return [(0, context_length)]
    room = most - question_length
    if room < 1 and options.skip_too_long:
        options.truncation.too_long.append((question_length, (question.path, question.line)))
        return None
    if room < 1:
        raise DataError(
            "a row must have room for the question and some of its context, but the question alone has"
            f" {question_length} tokens and {most + options.template.size(2)} are read; leave such questions"
            " out: --set data.on_bad_line=skip",
            question.path,
            question.line,
        )
    return sliding_windows(context_length, room, options.stride_or(min(room // 4, 128)))
