"""Which of several options follows a text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np

from seqloom.config import DataConfig
from seqloom.data.encoding.encode_texts import EncodingOptions, encode_choices
from seqloom.data.encoding.encoded_dataset import EncodedDataset
from seqloom.data.formats.read_report import ReadReport
from seqloom.data.readers.examples import ChoiceQuestion
from seqloom.data.readers.multiple_choice import Base, counted_from, read_choices
from seqloom.errors import DataError, UsageError, printable
from seqloom.evaluation.intervals import wilson_interval
from seqloom.evaluation.predictions import HeadOutputs
from seqloom.models.encoder_with_head import EncoderWithHeadConfig
from seqloom.models.heads import HeadKind
from seqloom.protocols import Answer, Evaluation


@final
@dataclass(frozen=True, kw_only=True)
class MultipleChoice:
    """Options, one of which is right."""

    kind: HeadKind = "choice"
    labels: tuple[str, ...] = ()
    pairs: bool = False
    answers_from: Base | None = None
    """What answers that are numbers count from in the training files; None where that is not known."""

    @classmethod
    def from_examples(cls, examples: Sequence[ChoiceQuestion], data: DataConfig) -> MultipleChoice:
        """The task as the training files define it; they are read once more."""
        return cls(answers_from=counted_from(data.train, data))

    @classmethod
    def from_config(cls, config: EncoderWithHeadConfig) -> MultipleChoice:
        """The task of a trained model."""
        return cls(answers_from=config.answers_from)

    def config_fields(self) -> dict[str, Any]:
        return {"answers_from": self.answers_from}

    def with_labels(self, labels: tuple[str, ...]) -> MultipleChoice:
        return self

    def example(self, plain: Any, number: int) -> ChoiceQuestion:
        """`(text, [option, ...])`."""
        pair = isinstance(plain, tuple | list) and len(plain) == 2
        if not pair or not isinstance(plain[0], str) or isinstance(plain[1], str):
            raise UsageError(
                f"predict takes pairs of a text and a list of options, but was given {printable(repr(plain)[:40])}"
            )
        text, options = plain
        return ChoiceQuestion(text, tuple(options), None, "text", number)

    def read(
        self, paths: Sequence[str], data: DataConfig, report: ReadReport, answers: bool = True
    ) -> Iterator[ChoiceQuestion]:
        if data.answers_from is None:
            data = replace(data, answers_from=self.answers_from)
        return read_choices(paths, data, report, answers=answers)

    def texts(self, examples: Iterable[ChoiceQuestion]) -> Iterator[str]:
        for one in examples:
            yield one.text
            yield from one.options

    def encode(self, examples: Sequence[ChoiceQuestion], options: EncodingOptions) -> EncodedDataset:
        """The rows of choices. Raises DataError where one has fewer than two options."""
        for one in examples:
            if len(one.options) < 2:
                raise DataError(
                    f"a choice needs at least two options, but has {len(one.options)}", one.path, one.line
                )
        return encode_choices(examples, options)

    def evaluate(
        self,
        examples: Sequence[ChoiceQuestion],
        dataset: EncodedDataset,
        outputs: HeadOutputs,
        resamples: int,
    ) -> Evaluation:
        hits = np.array(
            [int(chosen) == one.answer for chosen, one in zip(outputs.predictions, examples, strict=True)],
            np.float64,
        )
        low, high = wilson_interval(hits.sum(), len(hits))
        metrics = {
            "loss": outputs.loss,
            "accuracy": float(hits.mean()),
            "accuracy_low": low,
            "accuracy_high": high,
            "examples": len(hits),
        }
        return Evaluation(metrics, by_example=hits)

    def answers_to(
        self, examples: Sequence[ChoiceQuestion], dataset: EncodedDataset, outputs: HeadOutputs
    ) -> list[Answer]:
        replies = []
        for one, likely in zip(examples, outputs.probabilities, strict=True):
            probabilities = [float(p) for p in likely[: len(one.options)]]
            best = int(np.argmax(probabilities))
            content = {"choice": best, "option": one.options[best], "probabilities": probabilities}
            replies.append(
                Answer(f"{best}\t{probabilities[best]:.4f}\t{printable(one.options[best])}", content)
            )
        return replies
