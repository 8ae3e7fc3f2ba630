"""Work of a reader: the part of a context that answers a question."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import final

from seqloom.config import DataConfig
from seqloom.data.encoding.encode_questions import encode_questions
from seqloom.data.encoding.encode_texts import EncodingOptions
from seqloom.data.encoding.encoded_dataset import EncodedDataset
from seqloom.data.formats.read_report import ReadReport
from seqloom.data.readers.examples import Question
from seqloom.data.readers.squad import read_questions
from seqloom.decoding.answer_spans import Answers, best_answers
from seqloom.errors import DataError, printable
from seqloom.evaluation.answer_f1 import answer_metrics, answer_scores
from seqloom.evaluation.predictions import HeadOutputs
from seqloom.models.encoder_with_head import EncoderWithHeadConfig
from seqloom.models.heads import HeadKind
from seqloom.tasks.text.head_task import Answer, TaskReport

logger = logging.getLogger(__name__)

N_BEST = 5
"""Answers that are told of each question."""


@final
@dataclass(frozen=True, kw_only=True)
class QuestionAnswering:
    """Spans of contexts."""

    may_be_none: bool
    """Whether some questions have no answer."""
    kind: HeadKind = "span"
    labels: tuple[str, ...] = ()
    pairs: bool = False

    @classmethod
    def of(cls, examples: Sequence[Question], data: DataConfig) -> QuestionAnswering:
        without = sum(not one.answers for one in examples)
        if without == len(examples):
            raise DataError(
                f"some question must have an answer, but none of the {without:,} has one; is there a column"
                " `answers`?",
                examples[0].path,
            )
        if without:
            logger.info(f"{without:,} of {len(examples):,} questions have no answer, and that is learned too")
        return cls(may_be_none=without > 0)

    @classmethod
    def again(cls, config: EncoderWithHeadConfig) -> QuestionAnswering:
        """The work of a trained model."""
        return cls(may_be_none=config.may_be_none)

    def read(
        self, paths: Sequence[str], data: DataConfig, tally: ReadReport, answers: bool = True
    ) -> Iterator[Question]:
        return read_questions(paths, data, tally, answers=answers)

    def texts(self, examples: Iterable[Question]) -> Iterator[str]:
        """What the tokenizer learns from: a context that many questions share counts once."""
        before = None
        for one in examples:
            yield one.question
            if one.context != before:
                yield one.context
            before = one.context

    def encode(self, examples: Sequence[Question], how: EncodingOptions) -> EncodedDataset:
        return encode_questions(examples, how)

    def report(
        self, examples: Sequence[Question], items: EncodedDataset, found: HeadOutputs, resamples: int
    ) -> TaskReport:
        told = [self._told(answers) for answers in self._answers(examples, items, found)]
        right = [[answer.text for answer in one.answers] for one in examples]
        metrics = {"loss": found.loss, **answer_metrics(told, right, resamples)}
        return TaskReport(metrics, {}, answer_scores(told, right)[:, 1])

    def replies(
        self, examples: Sequence[Question], items: EncodedDataset, found: HeadOutputs
    ) -> list[Answer]:
        """The best answer to each question; nothing where there is none."""
        replies = []
        for one, answers in zip(examples, self._answers(examples, items, found), strict=True):
            content = {
                "id": one.name,
                "answer": self._told(answers),
                "answers": [span._asdict() for span in answers.spans],
                "no_answer_score": answers.no_answer,
                "no_answer_probability": answers.no_answer_probability,
            }
            replies.append(Answer(printable(self._told(answers)), content))
        return replies

    def _told(self, answers: Answers) -> str:
        best = answers.best() if self.may_be_none else next(iter(answers.spans), None)
        return "" if best is None else best.text

    def _answers(
        self, examples: Sequence[Question], items: EncodedDataset, found: HeadOutputs
    ) -> Iterator[Answers]:
        first = 0
        for one, cut, offsets in zip(examples, items.windows, items.offsets, strict=True):
            scores = found.probabilities[first : first + len(cut)]
            first += len(cut)
            windows = [offsets[begin:end] for begin, end in cut]
            yield best_answers(
                [s[:, 0] for s in scores], [s[:, 1] for s in scores], windows, one.context, n_best=N_BEST
            )
