"""Labels or numbers of a text, or of a pair of texts."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, final

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
from seqloom.data.readers.labels import check_labels, check_numbers, label_order
from seqloom.errors import DataError, UsageError, printable
from seqloom.evaluation.classification import (
    LabelPredictions,
    confusion,
    label_metrics,
    multi_label_metrics,
    per_label,
    per_label_multi,
)
from seqloom.evaluation.correlation import number_metrics
from seqloom.evaluation.predictions import HeadOutputs
from seqloom.evaluation.text_metrics import registered_metrics
from seqloom.models.encoder_with_head import EncoderWithHeadConfig
from seqloom.models.heads import HeadKind
from seqloom.protocols import Answer, Evaluation
from seqloom.shapes import IGNORE

logger = logging.getLogger(__name__)

MOST_LABELS = 2000
"""Labels of which a table of who is taken for whom is made, at most."""
LIKELIEST = 10
"""Labels that are told of each text, at most."""


@final
@dataclass(frozen=True, kw_only=True)
class Classification:
    """Labels (one each, or any number) or numbers of texts."""

    kind: HeadKind
    labels: tuple[str, ...]
    pairs: bool
    either: bool = False
    """Whether it reads two texts as it reads one: joined. What a file holds decides then."""

    @classmethod
    def from_examples(cls, task: str, examples: Sequence[LabelledText], data: DataConfig) -> Classification:
        """The task as the training examples define it."""
        pairs = any(one.second is not None for one in examples)
        if task == "sentence-similarity":
            check_numbers(examples)
            return cls(kind="regression", labels=(), pairs=pairs)
        for note in check_labels(examples):
            logger.info(note)
        several = data.label_separator is not None or any(len(one.labels) != 1 for one in examples)
        order = label_order(label for one in examples for label in one.labels)
        return cls(kind="multi-label" if several else "classification", labels=order, pairs=pairs)

    @classmethod
    def from_config(cls, config: EncoderWithHeadConfig) -> Classification:
        """The task of a trained model."""
        return cls(
            kind=config.kind, labels=config.labels, pairs=config.pairs, either=config.head.pair == "joined"
        )

    def config_fields(self) -> dict[str, Any]:
        return {}

    def with_labels(self, labels: tuple[str, ...]) -> Classification:
        return replace(self, labels=labels)

    def example(self, plain: Any, number: int) -> LabelledText:
        """A text, or a pair of texts."""
        if isinstance(plain, str):
            if self.pairs and not self.either:
                raise UsageError(
                    "this model was trained on pairs of texts, but was given one by itself; give tuples of two"
                )
            return LabelledText(plain, None, (), None, "text", number)
        if not isinstance(plain, tuple | list) or [type(part) for part in plain] != [str, str]:
            raise UsageError(
                f"predict takes texts, or pairs of texts, but was given {printable(repr(plain)[:40])}"
            )
        return LabelledText(plain[0], plain[1], (), None, "text", number)

    def read(
        self, paths: Sequence[str], data: DataConfig, report: ReadReport, answers: bool = True
    ) -> Iterator[LabelledText]:
        """Examples of files; those of pairs have two texts."""
        if answers and self.kind == "multi-label" and data.label_separator is None:
            raise UsageError(
                "this model gives a text any number of labels, so say what stands between them: --set"
                " data.label_separator=,"
            )
        return read(
            paths,
            data,
            report,
            number=self.kind == "regression",
            pairs=self.pairs or (None if self.either else False),
            answers=answers,
        )

    def texts(self, examples: Iterable[LabelledText]) -> Iterator[str]:
        """What the tokenizer is trained on."""
        for one in examples:
            yield one.text
            if one.second is not None:
                yield one.second

    def encode(self, examples: Sequence[LabelledText], options: EncodingOptions) -> EncodedDataset:
        if not self.pairs and not self.either and any(one.second is not None for one in examples):
            raise UsageError(
                "this model was trained on single texts, but was given a pair of them; give one text each"
            )
        if self.kind == "regression":
            return encode_labelled(examples, options, scores_of)
        numbers = label_ids if self.kind == "classification" else multi_hot_labels
        return encode_labelled(examples, options, numbers(self.labels))

    def evaluate(
        self, examples: Sequence[LabelledText], dataset: EncodedDataset, outputs: HeadOutputs, resamples: int
    ) -> Evaluation:
        """How good the answers are."""
        if self.kind == "regression":
            return self._numbers(examples, outputs, resamples)
        true, likely = np.asarray(dataset.targets), np.stack(outputs.probabilities)
        if self.kind == "multi-label":
            known = set(self.labels)
            unseen = np.array([sum(label not in known for label in one.labels) for one in examples])
            metrics = multi_label_metrics(true, likely, unseen=unseen, resamples=resamples)
            metrics = self._registered(examples, [np.flatnonzero(one > 0.5) for one in likely]) | metrics
            metrics |= {
                "accuracy": metrics["exact_match"],
                "loss": outputs.loss,
            }  # of the scores: exact where a probability is not
            exact = ((likely > 0.5) == true.astype(bool)).all(axis=1) & (unseen == 0)
            return Evaluation(
                metrics,
                details={"labels": _plain(per_label_multi(true, likely > 0.5, self.labels))},
                by_example=exact.astype(np.float64),
            )
        true = np.where(true == IGNORE, -1, true)
        metrics = label_metrics(
            LabelPredictions.from_probabilities(true, likely), len(self.labels), resamples=resamples
        )
        metrics = self._registered(examples, likely.argmax(axis=1)[:, None]) | metrics
        hits = (likely.argmax(axis=1) == true).astype(np.float64)
        if not resamples or len(self.labels) > MOST_LABELS:
            return Evaluation(metrics, by_example=hits)
        counts = confusion(true, likely.argmax(axis=1), len(self.labels))
        details = {
            "labels": _plain(per_label(counts, self.labels)),
            "confusion": {"order": list(self.labels), "counts": counts.tolist()},
        }
        return Evaluation(metrics, details=details, by_example=hits)

    def _registered(
        self, examples: Sequence[LabelledText], chosen: Iterable[NDArray[np.int64]]
    ) -> dict[str, float]:
        """The metrics of plugins; several labels of a text are joined by commas."""
        answers = [", ".join(self.labels[at] for at in labels) for labels in chosen]
        return registered_metrics(answers, [", ".join(one.labels) for one in examples])

    def _numbers(self, examples: Sequence[LabelledText], outputs: HeadOutputs, resamples: int) -> Evaluation:
        true = scores_of(examples).astype(np.float64)
        predicted = np.array([float(one) for one in outputs.probabilities])
        metrics = number_metrics(true, predicted, resamples)
        return Evaluation(
            {"loss": metrics["mean_squared_error"]} | metrics, by_example=-np.abs(predicted - true)
        )

    def answers_to(
        self, examples: Sequence[LabelledText], dataset: EncodedDataset, outputs: HeadOutputs
    ) -> list[Answer]:
        """The answer to each example."""
        return [
            Answer("", NOTHING[self.kind]) if blank(one) else self._reply(likely)
            for one, likely in zip(examples, outputs.probabilities, strict=True)
        ]

    def _reply(self, likely: Any) -> Answer:
        if self.kind == "regression":
            return Answer(f"{float(likely):.4f}", {"score": float(likely)})
        order = np.argsort(-likely, kind="stable")
        probabilities = {self.labels[at]: float(likely[at]) for at in order[:LIKELIEST]}
        if self.kind == "multi-label":
            chosen = [self.labels[at] for at in np.flatnonzero(likely > 0.5)]
            return Answer(
                ", ".join(map(printable, chosen)), {"labels": chosen, "probabilities": probabilities}
            )
        best = self.labels[order[0]]
        return Answer(
            f"{printable(best)}\t{likely[order[0]]:.4f}",
            {"label": best, "probability": float(likely[order[0]]), "probabilities": probabilities},
        )


def read(
    paths: Sequence[str],
    data: DataConfig,
    report: ReadReport,
    *,
    number: bool,
    pairs: bool | None,
    answers: bool,
) -> Iterator[LabelledText]:
    for one in read_labelled(paths, data, report, pairs=pairs, answers=answers, number=number):
        if pairs and one.second is None:
            raise DataError(
                "must hold two texts as in the training, but holds one; name the other's column: --set"
                " data.second=NAME",
                one.path,
                one.line,
            )
        yield one


NOTHING: dict[str, dict[str, Any]] = {
    "classification": {"label": None, "probabilities": {}},
    "multi-label": {"labels": [], "probabilities": {}},
    "regression": {"score": None},
}
"""What is said of a blank text."""


def blank(example: LabelledText) -> bool:
    """Whether there is nothing to be read."""
    return not example.text.strip() and not (example.second or "").strip()


def _plain(scores: Any) -> dict[str, dict[str, float]]:
    return {name: score._asdict() for name, score in scores.items()}
