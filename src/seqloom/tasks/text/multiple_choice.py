"""Which of several options follows a text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import final

import numpy as np

from seqloom.config import DataConfig
from seqloom.data.encoding.encode_texts import EncodingOptions, encode_choices
from seqloom.data.encoding.encoded_dataset import EncodedDataset
from seqloom.data.formats.read_report import ReadReport
from seqloom.data.readers.examples import ChoiceQuestion
from seqloom.data.readers.multiple_choice import Base, counted_from, read_choices
from seqloom.errors import DataError, printable
from seqloom.evaluation.intervals import wilson_interval
from seqloom.evaluation.predictions import HeadOutputs
from seqloom.models.encoder_with_head import EncoderWithHeadConfig
from seqloom.models.heads import HeadKind
from seqloom.protocols import Answer, Evaluation
from seqloom.tasks.text.head_task import HeadTask, TaskFields, wrong_input


@final
@dataclass(frozen=True, kw_only=True)
class MultipleChoice(HeadTask[ChoiceQuestion]):
    """Options, one of which is right."""

    kind: HeadKind = "choice"
    answers_from: Base | None = None
    """What answers that are numbers count from in the training files; None if that is not known."""

    @classmethod
    def from_examples(cls, examples: Sequence[ChoiceQuestion], data: DataConfig) -> MultipleChoice:
        """The task as the training files define it; they are read once more."""
        return cls(answers_from=counted_from(data.train, data))

    @classmethod
    def from_config(cls, config: EncoderWithHeadConfig) -> MultipleChoice:
        """The task of a trained model."""
        return cls(answers_from=config.answers_from)

    def config_fields(self) -> TaskFields:
        return {"answers_from": self.answers_from}

    def example(self, plain: object, number: int) -> ChoiceQuestion:
        """`(text, [option, ...])`."""
        match plain:
            case (str(), str()):
                pass
            case (str(text), Iterable() as options):
                return ChoiceQuestion(text, tuple(options), None, "text", number)
        raise wrong_input(plain, "pairs of a text and a list of options")

    def choices_of(self, example: ChoiceQuestion) -> Sequence[str]:
        return example.options

    def read(
        self, paths: Sequence[str], data: DataConfig, report: ReadReport, answers: bool = True
    ) -> Iterator[ChoiceQuestion]:
        if data.answers_from is None:
            data = replace(data, answers_from=self.answers_from)
        return read_choices(paths, data, report, answers=answers)

    def texts(self, examples: Iterable[ChoiceQuestion]) -> Iterator[str]:
        for example in examples:
            yield example.text
            yield from example.options

    def describe_answer(self, example: ChoiceQuestion) -> str:
        return str(example.answer)

    def encode(
        self, examples: Sequence[ChoiceQuestion], options: EncodingOptions
    ) -> EncodedDataset:
        """The rows of choices. Raises DataError if one has fewer than two options."""
        for example in examples:
            if len(example.options) < 2:
                raise DataError(
                    f"a choice needs at least two options, but has {len(example.options)}",
                    example.path,
                    example.line,
                )
        return encode_choices(examples, options)

    def evaluate(
        self,
        examples: Sequence[ChoiceQuestion],
        dataset: EncodedDataset,
        outputs: HeadOutputs,
        resamples: int,
    ) -> Evaluation:
        chosen = [int(option) for option in outputs.predictions]
        hits = np.array(chosen) == np.array([example.answer for example in examples])
        low, high = wilson_interval(hits.sum(), len(hits))
        metrics = {
            "loss": outputs.loss,
            "accuracy": float(hits.mean()),
            "accuracy_low": low,
            "accuracy_high": high,
            "examples": len(hits),
        }
        return Evaluation(metrics, by_example=hits.astype(np.float64))

    def answers_to(
        self, examples: Sequence[ChoiceQuestion], dataset: EncodedDataset, outputs: HeadOutputs
    ) -> list[Answer]:
        answers = []
        for example, scores in zip(examples, outputs.probabilities, strict=True):
            probabilities = [float(p) for p in scores[: len(example.options)]]
            best = int(np.argmax(probabilities))
            option = example.options[best]
            content = {"choice": best, "option": option, "probabilities": probabilities}
            cells = {"choice": best, "probability": probabilities[best], "option": option}
            line = f"{best}\t{probabilities[best]:.4f}\t{printable(option)}"
            answers.append(Answer(line, content, cells))
        return answers
