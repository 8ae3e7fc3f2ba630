"""The part of a context that answers a question."""

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
from seqloom.decoding.answer_spans import Answers, AnswerSpan, best_answers
from seqloom.errors import DataError, printable
from seqloom.evaluation.answer_f1 import answer_metrics, answer_scores
from seqloom.evaluation.predictions import HeadOutputs
from seqloom.models.encoder_with_head import EncoderWithHeadConfig
from seqloom.models.heads import HeadKind
from seqloom.protocols import Answer, Evaluation
from seqloom.tasks.text.head_task import HeadTask, TaskFields, two_strings

logger = logging.getLogger(__name__)

N_BEST = 5
"""Answers given to each question, at most."""


@final
@dataclass(frozen=True, kw_only=True)
class QuestionAnswering(HeadTask[Question]):
    """Spans of contexts."""

    kind: HeadKind = "span"
    may_be_none: bool
    """Whether some questions have no answer."""

    @classmethod
    def from_examples(cls, examples: Sequence[Question], data: DataConfig) -> QuestionAnswering:
        without = sum(not example.answers for example in examples)
        if without == len(examples):
            raise DataError(
                f"some question must have an answer, but none of the {without:,} has one; is there a column"
                " `answers`?",
                examples[0].path,
            )
        if without:
            logger.info(
                f"{without:,} of {len(examples):,} questions have no answer, and that is learned too"
            )
        return cls(may_be_none=without > 0)

    @classmethod
    def from_config(cls, config: EncoderWithHeadConfig) -> QuestionAnswering:
        """The task of a trained model."""
        return cls(may_be_none=config.may_be_none)

    def config_fields(self) -> TaskFields:
        return {"may_be_none": self.may_be_none}

    def example(self, plain: object, number: int) -> Question:
        """(question, context), or a mapping with these keys."""
        match plain:
            case {"question": question, "context": context, **others} if not others:
                plain = (question, context)
        question, context = two_strings(plain, "pairs of question and context")
        return Question(str(number), question, context, (), None, "text", number)

    def read(
        self, paths: Sequence[str], data: DataConfig, report: ReadReport, answers: bool = True
    ) -> Iterator[Question]:
        return read_questions(paths, data, report, answers=answers)

    def texts(self, examples: Iterable[Question]) -> Iterator[str]:
        """A context that many questions in a row share counts once."""
        previous = None
        for example in examples:
            yield example.question
            if example.context != previous:
                yield example.context
            previous = example.context

    def describe_answer(self, example: Question) -> str:
        return example.answers[0].text if example.answers else "(no answer)"

    def encode(self, examples: Sequence[Question], options: EncodingOptions) -> EncodedDataset:
        return encode_questions(examples, options)

    def evaluate(
        self,
        examples: Sequence[Question],
        dataset: EncodedDataset,
        outputs: HeadOutputs,
        resamples: int,
    ) -> Evaluation:
        predicted = [
            self._best_text(answers) for answers in best_of_each(examples, dataset, outputs)
        ]
        references = [[answer.text for answer in example.answers] for example in examples]
        metrics = {"loss": outputs.loss, **answer_metrics(predicted, references, resamples)}
        return Evaluation(metrics, by_example=answer_scores(predicted, references)[:, 1])

    def answers_to(
        self, examples: Sequence[Question], dataset: EncodedDataset, outputs: HeadOutputs
    ) -> list[Answer]:
        """The best answer to each question; an empty one if there is none."""
        replies = []
        for example, answers in zip(
            examples, best_of_each(examples, dataset, outputs), strict=True
        ):
            best = self._best_text(answers)
            content = {
                "id": example.name,
                "answer": best,
                "answers": [span._asdict() for span in answers.spans],
                "no_answer_score": answers.no_answer,
                "no_answer_probability": answers.no_answer_probability,
            }
            span = self._best(answers)
            cells = {
                "answer": best,
                "start": None if span is None else span.start,
                "end": None if span is None else span.end,
                "probability": answers.no_answer_probability if span is None else span.probability,
            }
            replies.append(Answer(printable(best), content, cells))
        return replies

    def _best(self, answers: Answers) -> AnswerSpan | None:
        return answers.best() if self.may_be_none else next(iter(answers.spans), None)

    def _best_text(self, answers: Answers) -> str:
        best = self._best(answers)
        return "" if best is None else best.text


def best_of_each(
    examples: Sequence[Question], dataset: EncodedDataset, outputs: HeadOutputs
) -> Iterator[Answers]:
    """The answers to each question, over all windows of its context."""
    first = 0
    for example, windows, offsets in zip(examples, dataset.windows, dataset.offsets, strict=True):
        scores = outputs.probabilities[first : first + len(windows)]
        first += len(windows)
        starts, ends = [score[:, 0] for score in scores], [score[:, 1] for score in scores]
        places = [offsets[begin:end] for begin, end in windows]
        yield best_answers(starts, ends, places, example.context, n_best=N_BEST)
