"""An example as an encoder with a head reads it, for its pictures: the words of its texts, and how much the
model prefers one answer to another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from seqloom.data.encoding.encode_texts import EncodingOptions
from seqloom.data.encoding.encoded_dataset import EncodedDataset
from seqloom.data.readers.examples import ChoiceQuestion, LabelledText, Question
from seqloom.errors import UsageError, printable
from seqloom.models.encoder_with_head import EncoderWithHead
from seqloom.protocols import EncodedBatch, device_of
from seqloom.shapes import on_device
from seqloom.tasks.explain.look import Look
from seqloom.tasks.explain.model_input import ModelInput, Score, Word, merged_words, words_of
from seqloom.tasks.text.head_task import E, HeadTask


class ReadText(NamedTuple):
    """A text in a row."""

    part: str
    text: str
    begin: int
    end: int
    """Its steps."""
    skipped: int = 0
    """Tokens of it before those."""


def plain_example(head_task: HeadTask[E], texts: Sequence[str]) -> E:
    """The example of texts from the command line: one, the two of a pair, a question and its context, or a
    text and its options."""
    plain: object = texts[0] if len(texts) == 1 else tuple(texts)
    if head_task.kind == "choice":
        plain = (texts[0], list(texts[1:]))
    return head_task.example(plain, 1)


def explained_input(
    model: EncoderWithHead, head_task: HeadTask[E], options: EncodingOptions, example: E, look: Look
) -> ModelInput:
    """Of a text that is read in several windows the first one."""
    dataset = head_task.encode([example], options)
    batch = on_device(dataset.batch(np.arange(1)), device_of(model))
    with torch.inference_mode():
        scores = model(batch)
    question = _Asked(model, head_task, example, batch, scores.float().cpu())
    rows = [row[row >= 0].tolist() for row in batch.tokens.cpu()]
    row = question.best_option() if head_task.kind == "choice" else 0
    pieces = options.tokenizer.pieces
    sides = {
        "self": _with_marks(options, rows[row], pieces),
        "pooled": ["text"],
    }
    sides["encoder"] = sides["self"]
    return ModelInput(
        model=model,
        tokenizer=options.tokenizer,
        batch=batch,
        sides=sides,
        read=lambda: model(batch),
        words=lambda: _words(head_task, example, batch, dataset, options),
        score=lambda: question.score(look),
        answer=question.answer(),
        row=row,
    )


def pooled_state(
    model: EncoderWithHead, head_task: HeadTask[E], options: EncodingOptions, example: E
) -> Tensor:
    """The one state of a text that a head reads, or the mean over its tokens: `(width,)`."""
    batch = head_task.encode([example], options).batch(np.arange(1))
    batch = on_device(batch, device_of(model))
    hidden, mask = model.read(batch), batch.tokens >= 0
    return model.head.pooled(hidden, mask)[0]


def _with_marks(
    options: EncodingOptions, ids: Sequence[int], pieces: Callable[[Sequence[int]], list[str]]
) -> list[str]:
    """An encoder may have special tokens beyond the vocabulary."""
    size = options.tokenizer.vocabulary_size
    known = iter(pieces([token_id for token_id in ids if token_id < size]))
    return [next(known) if token_id < size else f"<{token_id}>" for token_id in ids]


def _words(
    head_task: HeadTask[E],
    example: E,
    batch: EncodedBatch,
    dataset: EncodedDataset,
    options: EncodingOptions,
) -> list[Word]:
    if head_task.kind == "tagging":
        return _tagged_words(head_task.words_of(example), batch, dataset, options)
    found: list[Word] = []
    for row, tokens in enumerate(batch.tokens):
        length = int((tokens >= 0).sum())
        second = length - int(batch.segments[row].sum())
        for read in _texts_in_row(example, row, second, length, dataset, options):
            found += words_of(
                options.tokenizer,
                read.text,
                read.end - read.begin,
                first=read.begin,
                row=row,
                part=read.part,
                skipped=read.skipped,
            )
    return merged_words(found)


def _texts_in_row(
    example: object,
    row: int,
    second: int,
    length: int,
    dataset: EncodedDataset,
    options: EncodingOptions,
) -> list[ReadText]:
    """The texts that a row holds, of which the second begins at `second`."""
    template = options.template
    begin, end = len(template.prefix), length - len(template.suffix)
    first_end = end if second == length else second - len(template.separator)
    match example:
        case LabelledText(text=text, second=None):
            return [ReadText("", text, begin, end)]
        case LabelledText(text=text, second=str(other)):
            texts = [("first", text), ("second", other)]
            if row:
                texts.reverse()
            skipped = 0
        case Question(question=question, context=context):
            texts = [("question", question), ("context", context)]
            skipped = dataset.windows[0][row][0]
        case ChoiceQuestion(text=text, options=choices):
            texts, skipped = [("text", text), (f"option {row}", choices[row])], 0
        case _:
            raise UsageError(f"words of {type(example).__name__} are not known")
    if second == length:
        return [ReadText(*texts[0], begin, end)]
    return [
        ReadText(*texts[0], begin, first_end),
        ReadText(*texts[1], second, end, skipped),
    ]


def _tagged_words(
    given: Sequence[str], batch: EncodedBatch, dataset: EncodedDataset, options: EncodingOptions
) -> list[Word]:
    begin, end = dataset.windows[0][0]
    starts = batch.places[0].tolist()
    starts = [step for step in starts if step >= 0]
    length = int((batch.tokens[0] >= 0).sum()) - len(options.template.suffix)
    words = []
    for text, start, stop in zip(given[begin:end], starts, [*starts[1:], length], strict=True):
        words.append(Word(text, "", tuple((0, step) for step in range(start, stop))))
    return words


class _Asked(NamedTuple):
    """What a head answers to an example, and what may be asked of it."""

    model: EncoderWithHead
    head_task: HeadTask[Any]
    example: object
    batch: EncodedBatch
    scores: Tensor
    """Of the head (`models/heads.py`)."""

    def best_option(self) -> int:
        return int(self.scores[0].argmax())

    def answer(self) -> str:
        """On one line."""
        head, batch = self.model.head, EncodedBatch(*(part.cpu() for part in self.batch))
        kind = self.head_task.kind
        if kind in ("tagging", "span", "regression"):
            return f"{float(self.scores[0]):.4f}" if kind == "regression" else ""
        probabilities = head.probabilities(self.scores, batch)[0]
        best = int(probabilities.argmax())
        return f"{printable(self._names()[best])}\t{float(probabilities[best]):.4f}"

    def _names(self) -> Sequence[str]:
        """Of what there is to choose from."""
        return self.head_task.choices_of(self.example)

    def score(self, look: Look) -> Score:
        kind = self.head_task.kind
        if kind in ("regression", "span") and (look.target or look.foil):
            raise UsageError(
                f"--target and --foil choose among answers, but a {kind} has none to name; leave them out"
            )
        if kind == "regression":
            return Score("the number", self._scores)
        if kind == "span":
            return self._span()
        if kind == "tagging":
            return self._tag(look)
        target, foil = self._pair(self.scores[0], look)
        if kind == "multi-label":
            if look.foil is not None:
                raise UsageError(
                    "--foil is for one label of several, but a text may have all; leave it out"
                )
            return Score(
                f"logit of {self._names()[target]}", lambda batch: self._scores(batch)[:, target]
            )
        return self._difference(target, foil, lambda scores: scores)

    def _scores(self, batch: EncodedBatch) -> Tensor:
        scores: Tensor = self.model(batch)
        return scores

    def _difference(self, target: int, foil: int, of: Callable[[Tensor], Tensor]) -> Score:
        """The difference of two logits, which the scores `(examples, names)` hold."""
        names = self._names()

        def difference(batch: EncodedBatch) -> Tensor:
            scores = of(self._scores(batch))
            return scores[:, target] - scores[:, foil]

        return Score(f"logit of {names[target]} - logit of {names[foil]}", difference)

    def _pair(self, scores: Tensor, look: Look) -> tuple[int, int]:
        """Numbers of target and foil, by default the best and the next best of the scores `(names,)`."""
        order = scores.argsort(descending=True).tolist()
        target = order[0] if look.target is None else self._number(look.target)
        others = [number for number in order if number != target]
        foil = (others or [target])[0] if look.foil is None else self._number(look.foil)
        return target, foil

    def _number(self, name: str) -> int:
        names = list(self._names())
        if name not in names:
            shown = ", ".join(map(printable, names[:20]))
            raise UsageError(f"the answer must be one of {shown}, but is {printable(name)}")
        return names.index(name)

    def _tag(self, look: Look) -> Score:
        """Of one word, by default the first with another tag than the most frequent."""
        words = self.head_task.words_of(self.example)
        best = self.scores[0].argmax(dim=-1)
        read = int((self.batch.places[0] >= 0).sum())
        number = look.word
        if number is None:
            usual = best[:read].bincount().argmax()
            number = int((best[:read] != usual).int().argmax()) + 1
        if not 1 <= number <= read:
            raise UsageError(f"--word must be 1 to {read}, but is {number}")
        place = number - 1
        target, foil = self._pair(self.scores[0, place], look)
        score = self._difference(target, foil, lambda scores: scores[:, place])
        return score._replace(asked=f"{score.asked}, at word {number} ({words[place]})")

    def _span(self) -> Score:
        (places,) = self.model.head.predictions(
            self.scores, EncodedBatch(*(part.cpu() for part in self.batch))
        ).tolist()
        first, last = places

        def of(batch: EncodedBatch) -> Tensor:
            scores = self._scores(batch)
            return scores[:, first, 0] + scores[:, last, 1]

        which = "no answer" if (first, last) == (0, 0) else "the answer"
        return Score(f"logit of the start + logit of the end of {which}", of)
