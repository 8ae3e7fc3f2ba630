"""A tag for each word."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from seqloom.config import DataConfig
from seqloom.data.encoding.encode_texts import EncodingOptions
from seqloom.data.encoding.encode_words import encode_tagged, tag_ids
from seqloom.data.encoding.encoded_dataset import EncodedDataset
from seqloom.data.encoding.sliding_windows import merge_windows
from seqloom.data.formats.read_report import ReadReport
from seqloom.data.readers.examples import TaggedWords
from seqloom.data.readers.labels import label_order
from seqloom.data.readers.tag_scheme import scheme_of
from seqloom.data.readers.tagged import read_tagged
from seqloom.errors import DataError, UsageError, printable
from seqloom.evaluation.classification import LabelPredictions, confusion, label_metrics, per_label
from seqloom.evaluation.entity_f1 import SpanCounts
from seqloom.evaluation.predictions import HeadOutputs
from seqloom.models.encoder_with_head import EncoderWithHeadConfig
from seqloom.models.heads import HeadKind
from seqloom.protocols import Answer, Evaluation


@final
@dataclass(frozen=True, kw_only=True)
class Tagging:
    """Tags of words."""

    labels: tuple[str, ...]
    kind: HeadKind = "tagging"
    pairs: bool = False

    @classmethod
    def from_examples(cls, examples: Sequence[TaggedWords], data: DataConfig) -> Tagging:
        labels = label_order(tag for one in examples for tag in one.tags)
        if len(labels) < 2:
            raise DataError(
                "there must be at least two different tags to train on, but all are"
                f" {printable(labels[0])!r}",
                examples[0].path,
            )
        return cls(labels=labels)

    @classmethod
    def from_config(cls, config: EncoderWithHeadConfig) -> Tagging:
        """The task of a trained model."""
        return cls(labels=config.labels)

    def config_fields(self) -> dict[str, Any]:
        return {}

    def with_labels(self, labels: tuple[str, ...]) -> Tagging:
        return replace(self, labels=labels)

    def example(self, plain: Any, number: int) -> TaggedWords:
        """A list of words, or a text whose words are separated by spaces."""
        words = plain.split() if isinstance(plain, str) else plain
        if not isinstance(words, tuple | list) or not all(isinstance(word, str) for word in words):
            raise UsageError(
                f"predict takes lists of words, or texts, but was given {printable(repr(plain)[:40])}"
            )
        return TaggedWords(tuple(words), (), "text", number)

    def read(
        self, paths: Sequence[str], data: DataConfig, report: ReadReport, answers: bool = True
    ) -> Iterator[TaggedWords]:
        return read_tagged(paths, data, report, answers=answers)

    def texts(self, examples: Iterable[TaggedWords]) -> Iterator[str]:
        """What the tokenizer is trained on."""
        return (" ".join(one.words) for one in examples)

    def encode(self, examples: Sequence[TaggedWords], options: EncodingOptions) -> EncodedDataset:
        return encode_tagged(examples, options, tag_ids(self.labels))

    def evaluate(
        self, examples: Sequence[TaggedWords], dataset: EncodedDataset, outputs: HeadOutputs, resamples: int
    ) -> Evaluation:
        """accuracy and the like over words, and f1: of entities where the tags are spans, else of words,
        which is the accuracy."""
        numbers = {name: at for at, name in enumerate(self.labels)}
        true = np.array([numbers.get(tag, -1) for one in examples for tag in one.tags], np.int64)
        likely = np.concatenate(self._likely(examples, dataset, outputs))
        tags = self._tags(examples, dataset, outputs)
        chosen = np.array([tag for some in tags for tag in some], np.int64)
        confidence = likely[np.arange(len(chosen)), chosen].astype(np.float64)
        answers = LabelPredictions.from_probabilities(true, likely)._replace(
            predicted=chosen, confidence=confidence
        )
        metrics = label_metrics(answers, len(self.labels), "words", resamples)
        details: dict[str, Any] = {}
        if resamples:
            scores = per_label(confusion(true, chosen, len(self.labels)), self.labels)
            details["labels"] = {name: score._asdict() for name, score in scores.items()}
        metrics |= {
            name.replace("accuracy", "f1"): value
            for name, value in metrics.items()
            if name.startswith("accuracy")
        }
        metrics["sentences"] = len(examples)
        if scheme_of(self.labels) != "plain":
            given = [[self.labels[tag] for tag in some] for some in tags]
            spans = SpanCounts([one.tags for one in examples], given)
            metrics, details = metrics | spans.metrics(resamples), details | {"entities": spans.by_kind()}
        lengths = np.array([len(one.words) for one in examples])
        hits = np.add.reduceat(
            (chosen == true).astype(np.float64), np.concatenate([[0], lengths.cumsum()[:-1]])
        )
        return Evaluation(metrics, details=details, by_example=hits / lengths)

    def _tags(
        self, examples: Sequence[TaggedWords], dataset: EncodedDataset, outputs: HeadOutputs
    ) -> list[list[int]]:
        """The numbers of the tags of each example, as many as it has words."""
        return [[int(tag) for tag in tags] for tags in self._stitched(examples, dataset, outputs.predictions)]

    def _likely(
        self, examples: Sequence[TaggedWords], dataset: EncodedDataset, outputs: HeadOutputs
    ) -> list[NDArray[Any]]:
        """`(words, labels)` of each example."""
        whole = self._stitched(examples, dataset, outputs.probabilities)
        return [np.stack(rows) if rows else np.zeros((0, len(self.labels)), np.float32) for rows in whole]

    def _stitched(
        self, examples: Sequence[TaggedWords], dataset: EncodedDataset, answers: Sequence[Any]
    ) -> list[list[Any]]:
        whole, first = [], 0
        for one, cut in zip(examples, dataset.windows, strict=True):
            whole.append(merge_windows(cut, answers[first : first + len(cut)], len(one.words)))
            first += len(cut)
        return whole

    def answers_to(
        self, examples: Sequence[TaggedWords], dataset: EncodedDataset, outputs: HeadOutputs
    ) -> list[Answer]:
        """The tags of each example, with blanks between them."""
        replies = []
        for one, tags, likely in zip(
            examples,
            self._tags(examples, dataset, outputs),
            self._likely(examples, dataset, outputs),
            strict=True,
        ):
            names = [self.labels[tag] for tag in tags]
            probabilities = [float(row[tag]) for row, tag in zip(likely, tags, strict=True)]
            content = {"words": list(one.words), "tags": names, "probabilities": probabilities}
            replies.append(Answer(" ".join(map(printable, names)), content))
        return replies
