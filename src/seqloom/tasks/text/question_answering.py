"""The part of a context that answers a question."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

from seqloom.config import DataConfig
from seqloom.data.encoding.encode_questions import encode_questions
from seqloom.data.encoding.encode_texts import EncodingOptions
from seqloom.data.encoding.encoded_dataset import EncodedDataset
from seqloom.data.formats.read_report import ReadReport
from seqloom.data.readers.examples import Question
from seqloom.data.readers.squad import read_questions
from seqloom.decoding.answer_spans import Answers, best_answers
from seqloom.errors import DataError, UsageError, printable
from seqloom.evaluation.answer_f1 import answer_metrics, answer_scores
from seqloom.evaluation.predictions import HeadOutputs
from seqloom.models.encoder_with_head import EncoderWithHeadConfig
from seqloom.models.heads import HeadKind
from seqloom.protocols import Answer, Evaluation

logger = logging.getLogger(__name__)

N_BEST = 5
"""Answers given to each question, at most."""


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
    def from_examples(cls, examples: Sequence[Question], data: DataConfig) -> QuestionAnswering:
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
    def from_config(cls, config: EncoderWithHeadConfig) -> QuestionAnswering:
        """The task of a trained model."""
        return cls(may_be_none=config.may_be_none)

    def config_fields(self) -> dict[str, Any]:
        return {"may_be_none": self.may_be_none}

    def with_labels(self, labels: tuple[str, ...]) -> QuestionAnswering:
        return self

    def example(self, plain: Any, number: int) -> Question:
        """`(question, context)`, or {"question": ..., "context": ...}."""
        if isinstance(plain, Mapping) and plain.keys() == {"question", "context"}:
            plain = (plain["question"], plain["context"])
        if not isinstance(plain, tuple | list) or [type(part) for part in plain] != [str, str]:
            raise UsageError(
                f"predict takes pairs of question and context, but was given {printable(repr(plain)[:40])}"
            )
        question, context = plain
        return Question(str(number), question, context, (), None, "text", number)

    def read(
        self, paths: Sequence[str], data: DataConfig, report: ReadReport, answers: bool = True
    ) -> Iterator[Question]:
        return read_questions(paths, data, report, answers=answers)

    def texts(self, examples: Iterable[Question]) -> Iterator[str]:
        """What the tokenizer is trained on: a context that many questions share counts once."""
        before = None
        for one in examples:
            yield one.question
            if one.context != before:
                yield one.context
            before = one.context

    def encode(self, examples: Sequence[Question], options: EncodingOptions) -> EncodedDataset:
        return encode_questions(examples, options)

    def evaluate(
        self, examples: Sequence[Question], dataset: EncodedDataset, outputs: HeadOutputs, resamples: int
    ) -> Evaluation:
        told = [self._told(answers) for answers in self._answers(examples, dataset, outputs)]
        right = [[answer.text for answer in one.answers] for one in examples]
        metrics = {"loss": outputs.loss, **answer_metrics(told, right, resamples)}
        return Evaluation(metrics, by_example=answer_scores(told, right)[:, 1])

    def answers_to(
        self, examples: Sequence[Question], dataset: EncodedDataset, outputs: HeadOutputs
    ) -> list[Answer]:
        """The best answer to each question; nothing where there is none."""
        replies = []
        for one, answers in zip(examples, self._answers(examples, dataset, outputs), strict=True):
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
        self, examples: Sequence[Question], dataset: EncodedDataset, outputs: HeadOutputs
    ) -> Iterator[Answers]:
        first = 0
        for one, cut, offsets in zip(examples, dataset.windows, dataset.offsets, strict=True):
            scores = outputs.probabilities[first : first + len(cut)]
            first += len(cut)
            windows = [offsets[begin:end] for begin, end in cut]
            yield best_answers(
                [s[:, 0] for s in scores], [s[:, 1] for s in scores], windows, one.context, n_best=N_BEST
            )
