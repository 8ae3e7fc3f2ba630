"""Labels or numbers of a text, or of a pair of texts."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, final

import numpy as np
from numpy.typing import NDArray

from seqloom.config import DataConfig
from seqloom.data.encoding.encode_texts import (
    EncodingOptions,
    encode_labelled,
    label_ids,
    multi_hot_labels,
    scores_of,
)
from seqloom.data.encoding.encoded_dataset import EncodedDataset
from seqloom.data.formats.read_report import ReadReport
from seqloom.data.readers.examples import LabelledText
from seqloom.data.readers.labelled import read_labelled
from seqloom.data.readers.labels import (
    check_known,
    check_labels,
    check_leak,
    check_numbers,
    label_order,
)
from seqloom.errors import DataError, UsageError, printable
from seqloom.evaluation.classification import (
    LabelPredictions,
    LabelScore,
    confusion,
    label_metrics,
    multi_label_metrics,
    per_label,
    per_label_multi,
)
from seqloom.evaluation.correlation import number_metrics
from seqloom.evaluation.predictions import HeadOutputs
from seqloom.evaluation.text_metrics import registered_metrics
from seqloom.json_values import as_text
from seqloom.models.encoder_with_head import EncoderWithHeadConfig
from seqloom.protocols import Answer, Evaluation
from seqloom.shapes import IGNORE
from seqloom.tasks.text.head_task import HeadTask, two_strings

logger = logging.getLogger(__name__)

MOST_LABELS = 2000
"""Labels up to which the confusion of labels is counted."""
NO_ANSWER: dict[str, dict[str, object]] = {
    "classification": {"label": None, "probabilities": {}},
    "multi-label": {"labels": [], "probabilities": {}},
    "regression": {"score": None},
}
"""The answer to a blank text."""


@final
@dataclass(frozen=True, kw_only=True)
class Classification(HeadTask[LabelledText]):
    """Labels (one each, or any number) or numbers of texts."""

    either: bool = False
    """Whether it reads two texts as it reads one: joined. The files decide then."""
    most_likely: int | None = 10
    """Labels in the answer to a text, at most; None: all, and in its row too."""

    def with_all_labels(self) -> Classification:
        if not self.labels:
            return super().with_all_labels()
        return replace(self, most_likely=None)

    @classmethod
    def from_examples(
        cls, task: str, examples: Sequence[LabelledText], data: DataConfig
    ) -> Classification:
        """The task as the training examples define it."""
        pairs = any(example.second is not None for example in examples)
        if task == "sentence-similarity":
            check_numbers(examples)
            return cls(kind="regression", labels=(), pairs=pairs)
        for note in check_labels(examples):
            logger.info(note)
        several = data.label_separator is not None or any(
            len(example.labels) != 1 for example in examples
        )
        order = label_order(label for example in examples for label in example.labels)
        return cls(kind="multi-label" if several else "classification", labels=order, pairs=pairs)

    @classmethod
    def from_config(cls, config: EncoderWithHeadConfig) -> Classification:
        """The task of a trained model."""
        return cls(
            kind=config.kind,
            labels=config.labels,
            pairs=config.pairs,
            either=config.head.pair == "joined",
        )

    def example(self, plain: object, number: int) -> LabelledText:
        """A text, or a pair of texts."""
        text = as_text(plain)
        if text is None:
            first, second = two_strings(plain, "texts, or pairs of texts")
            return LabelledText(first, second, (), None, "text", number)
        if self.pairs and not self.either:
            raise UsageError(
                "this model was trained on pairs of texts, but was given one by itself; give tuples of two"
            )
        return LabelledText(text, None, (), None, "text", number)

    def read(
        self, paths: Sequence[str], data: DataConfig, report: ReadReport, answers: bool = True
    ) -> Iterator[LabelledText]:
        """Examples of files; those of pairs have two texts."""
        if answers and self.kind == "multi-label" and data.label_separator is None:
            raise UsageError(
                "this model gives a text any number of labels, so say what stands between them: --set"
                " data.label_separator=,"
            )
        number, pairs = self.kind == "regression", self.pairs or (None if self.either else False)
        for example in read_labelled(
            paths, data, report, pairs=pairs, answers=answers, number=number
        ):
            if pairs and example.second is None:
                raise DataError(
                    "must hold two texts as in the training, but holds one; name the other's column: --set"
                    " data.second=NAME",
                    example.path,
                    example.line,
                )
            yield example

    def texts(self, examples: Iterable[LabelledText]) -> Iterator[str]:
        for example in examples:
            yield example.text
            if example.second is not None:
                yield example.second

    def check_labels(
        self, examples: Sequence[LabelledText], unseen: Literal["error", "ignore"]
    ) -> list[str]:
        return check_known(examples, self.labels, unseen) if self.labels else []

    def check_leak(
        self, training: Sequence[LabelledText], others: Sequence[LabelledText]
    ) -> list[str]:
        return check_leak(training, others)

    def labels_of(self, example: LabelledText) -> Sequence[str]:
        return example.labels

    def describe_answer(self, example: LabelledText) -> str:
        return ", ".join(example.labels)

    def encode(self, examples: Sequence[LabelledText], options: EncodingOptions) -> EncodedDataset:
        takes_pairs = self.pairs or self.either
        if not takes_pairs and any(example.second is not None for example in examples):
            raise UsageError(
                "this model was trained on single texts, but was given a pair of them; give one text each"
            )
        if self.kind == "regression":
            return encode_labelled(examples, options, scores_of)
        targets = label_ids if self.kind == "classification" else multi_hot_labels
        return encode_labelled(examples, options, targets(self.labels))

    def evaluate(
        self,
        examples: Sequence[LabelledText],
        dataset: EncodedDataset,
        outputs: HeadOutputs,
        resamples: int,
    ) -> Evaluation:
        if self.kind == "regression":
            return self._evaluate_numbers(examples, outputs, resamples)
        true, probabilities = np.asarray(dataset.targets), np.stack(outputs.probabilities)
        if self.kind == "multi-label":
            has_label = true.astype(bool)
            return self._evaluate_label_sets(
                examples, has_label, probabilities, outputs.loss, resamples
            )
        true = np.where(true == IGNORE, -1, true)
        predictions = LabelPredictions.from_probabilities(true, probabilities)
        metrics = label_metrics(predictions, len(self.labels), resamples=resamples)
        metrics = self._registered_metrics(examples, predictions.predicted[:, None]) | metrics
        hits = (predictions.predicted == true).astype(np.float64)
        if not resamples or len(self.labels) > MOST_LABELS:
            return Evaluation(metrics, by_example=hits)
        counts = confusion(true, predictions.predicted, len(self.labels))
        details = {
            "labels": score_table(per_label(counts, self.labels)),
            "confusion": {"order": list(self.labels), "counts": counts.tolist()},
        }
        return Evaluation(metrics, details=details, by_example=hits)

    def _evaluate_label_sets(
        self,
        examples: Sequence[LabelledText],
        true: NDArray[np.bool_],
        probabilities: NDArray[np.float32],
        loss: float,
        resamples: int,
    ) -> Evaluation:
        known, chosen = set(self.labels), probabilities > 0.5
        unseen = np.array([_unseen_labels(example, known) for example in examples])
        metrics = multi_label_metrics(true, probabilities, unseen=unseen, resamples=resamples)
        metrics = (
            self._registered_metrics(examples, [np.flatnonzero(row) for row in chosen]) | metrics
        )
        # the loss comes from the scores: exact where a probability is not
        metrics |= {"accuracy": metrics["exact_match"], "loss": loss}
        exact = (chosen == true).all(axis=1) & (unseen == 0)
        details = {"labels": score_table(per_label_multi(true, chosen, self.labels))}
        return Evaluation(metrics, details=details, by_example=exact.astype(np.float64))

    def _registered_metrics(
        self, examples: Sequence[LabelledText], chosen: Iterable[NDArray[np.int64]]
    ) -> dict[str, float]:
        """The metrics of plugins. Several labels of a text are joined by commas."""
        answers = [", ".join([self.labels[label] for label in labels]) for labels in chosen]
        return registered_metrics(answers, [", ".join(example.labels) for example in examples])

    def _evaluate_numbers(
        self, examples: Sequence[LabelledText], outputs: HeadOutputs, resamples: int
    ) -> Evaluation:
        true = scores_of(examples).astype(np.float64)
        predicted = np.array([float(number) for number in outputs.probabilities])
        metrics = number_metrics(true, predicted, resamples)
        errors = np.abs(predicted - true)
        return Evaluation({"loss": metrics["mean_squared_error"]} | metrics, by_example=-errors)

    def answers_to(
        self, examples: Sequence[LabelledText], dataset: EncodedDataset, outputs: HeadOutputs
    ) -> list[Answer]:
        answers = []
        for example, probabilities in zip(examples, outputs.probabilities, strict=True):
            if example.text.strip() or (example.second or "").strip():
                answers.append(self._answer(probabilities))
            else:
                answers.append(Answer("", NO_ANSWER[self.kind], {"label": None}))
        return answers

    def _answer(self, outputs: NDArray[np.float32]) -> Answer:
        """The answer for probabilities `(labels,)`, or for a number `()`."""
        if self.kind == "regression":
            return Answer(f"{float(outputs):.4f}", {"score": float(outputs)})
        order = np.argsort(-outputs, kind="stable")
        probabilities = {
            self.labels[label]: float(outputs[label]) for label in order[: self.most_likely]
        }
        if self.kind == "multi-label":
            chosen = [self.labels[label] for label in np.flatnonzero(outputs > 0.5)]
            content = {"labels": chosen, "probabilities": probabilities}
            cells = {"labels": ", ".join(chosen), **self._of_all(outputs)}
            return Answer(", ".join(map(printable, chosen)), content, cells)
        best, probability = self.labels[order[0]], float(outputs[order[0]])
        best_label: dict[str, object] = {"label": best, "probability": probability}
        return Answer(
            f"{printable(best)}\t{probability:.4f}",
            best_label | {"probabilities": probabilities},
            best_label | self._of_all(outputs),
        )

    def _of_all(self, outputs: NDArray[np.float32]) -> dict[str, float]:
        """The probability of each label in a row, where that is asked for."""
        if self.most_likely is not None:
            return {}
        return {
            f"probability_{name}": float(p) for name, p in zip(self.labels, outputs, strict=True)
        }


def score_table(scores: Mapping[str, LabelScore]) -> dict[str, dict[str, float]]:
    return {name: score._asdict() for name, score in scores.items()}


def _unseen_labels(example: LabelledText, known: Collection[str]) -> int:
    return sum(label not in known for label in example.labels)
