"""A tag for each word."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar, final

import numpy as np
from numpy.typing import NDArray

from seqloom.config import DataConfig
from seqloom.data.encoding.encode_texts import EncodingOptions
from seqloom.data.encoding.encode_words import encode_tagged, tag_ids
from seqloom.data.encoding.encoded_dataset import EncodedDataset
from seqloom.data.encoding.sliding_windows import merge_windows
from seqloom.data.formats.read_report import ReadReport
from seqloom.data.readers.examples import TaggedWords
from seqloom.data.readers.labels import check_known, label_order
from seqloom.data.readers.tag_scheme import scheme_of
from seqloom.data.readers.tagged import read_tagged
from seqloom.errors import DataError, printable
from seqloom.evaluation.classification import LabelPredictions, confusion, label_metrics, per_label
from seqloom.evaluation.entity_f1 import SpanCounts
from seqloom.evaluation.predictions import HeadOutputs
from seqloom.json_values import as_text, as_texts
from seqloom.models.encoder_with_head import EncoderWithHeadConfig
from seqloom.models.heads import HeadKind
from seqloom.protocols import Answer, Evaluation
from seqloom.tasks.text.classification import score_table
from seqloom.tasks.text.head_task import HeadTask, wrong_input

MOST_TAGS = 16
"""Shown of an example."""
T = TypeVar("T")


@final
@dataclass(frozen=True, kw_only=True)
class Tagging(HeadTask[TaggedWords]):
    """Tags of words."""

    kind: HeadKind = "tagging"

    @classmethod
    def from_examples(cls, examples: Sequence[TaggedWords], data: DataConfig) -> Tagging:
        labels = label_order(tag for example in examples for tag in example.tags)
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

    def example(self, plain: object, number: int) -> TaggedWords:
        """A list of words, or a text whose words are separated by spaces."""
        text = as_text(plain)
        words = as_texts(plain) if text is None else text.split()
        if words is None:
            raise wrong_input(plain, "lists of words, or texts")
        return TaggedWords(tuple(words), (), "text", number)

    def read(
        self, paths: Sequence[str], data: DataConfig, report: ReadReport, answers: bool = True
    ) -> Iterator[TaggedWords]:
        return read_tagged(paths, data, report, answers=answers)

    def words_of(self, example: TaggedWords) -> tuple[str, ...]:
        return example.words

    def texts(self, examples: Iterable[TaggedWords]) -> Iterator[str]:
        return (" ".join(example.words) for example in examples)

    def check_labels(
        self, examples: Sequence[TaggedWords], unseen: Literal["error", "ignore"]
    ) -> list[str]:
        return check_known(examples, self.labels, unseen)

    def labels_of(self, example: TaggedWords) -> Sequence[str]:
        return example.tags

    def describe_answer(self, example: TaggedWords) -> str:
        more = " ..." if len(example.tags) > MOST_TAGS else ""
        return " ".join(example.tags[:MOST_TAGS]) + more

    def encode(self, examples: Sequence[TaggedWords], options: EncodingOptions) -> EncodedDataset:
        return encode_tagged(examples, options, tag_ids(self.labels))

    def evaluate(
        self,
        examples: Sequence[TaggedWords],
        dataset: EncodedDataset,
        outputs: HeadOutputs,
        resamples: int,
    ) -> Evaluation:
        """accuracy and the like over words, and f1: of entities where the tags are spans, else of words,
        which is the accuracy."""
        ids = {name: label for label, name in enumerate(self.labels)}
        true = np.array(
            [ids.get(tag, -1) for example in examples for tag in example.tags], np.int64
        )
        tags = merge_examples(examples, dataset, outputs.predictions)
        chosen = np.array([int(tag) for example_tags in tags for tag in example_tags], np.int64)
        probabilities = np.concatenate(self._probabilities(examples, dataset, outputs))
        confidence = probabilities[np.arange(len(chosen)), chosen].astype(np.float64)
        # the Viterbi path of a CRF need not have the most likely tag of each word
        predictions = LabelPredictions.from_probabilities(true, probabilities)
        predictions = predictions._replace(predicted=chosen, confidence=confidence)
        metrics = label_metrics(predictions, len(self.labels), "words", resamples)
        details: dict[str, object] = {}
        if resamples:
            counts = confusion(true, chosen, len(self.labels))
            details["labels"] = score_table(per_label(counts, self.labels))
        accuracies = [name for name in metrics if name.startswith("accuracy")]
        metrics |= {name.replace("accuracy", "f1"): metrics[name] for name in accuracies}
        metrics["sentences"] = len(examples)
        if scheme_of(self.labels) != "plain":
            predicted_tags = [self._names(example_tags) for example_tags in tags]
            spans = SpanCounts([example.tags for example in examples], predicted_tags)
            metrics |= spans.metrics(resamples)
            details["entities"] = spans.by_kind()
        lengths = np.array([len(example.words) for example in examples])
        starts = np.concatenate([[0], lengths.cumsum()[:-1]])
        hits = np.add.reduceat((chosen == true).astype(np.float64), starts)
        return Evaluation(metrics, details=details, by_example=hits / lengths)

    def _names(self, tags: Iterable[NDArray[np.int64]]) -> list[str]:
        return [self.labels[int(tag)] for tag in tags]

    def _probabilities(
        self, examples: Sequence[TaggedWords], dataset: EncodedDataset, outputs: HeadOutputs
    ) -> list[NDArray[np.float32]]:
        """`(words, labels)` of each example."""
        none = np.zeros((0, len(self.labels)), np.float32)
        merged = merge_examples(examples, dataset, outputs.probabilities)
        return [np.stack(rows) if rows else none for rows in merged]

    def answers_to(
        self, examples: Sequence[TaggedWords], dataset: EncodedDataset, outputs: HeadOutputs
    ) -> list[Answer]:
        """The tags of each example, separated by spaces."""
        answers = []
        all_tags = merge_examples(examples, dataset, outputs.predictions)
        all_probabilities = self._probabilities(examples, dataset, outputs)
        for example, tags, rows in zip(examples, all_tags, all_probabilities, strict=True):
            names = self._names(tags)
            probabilities = [float(row[int(tag)]) for row, tag in zip(rows, tags, strict=True)]
            content = {"words": list(example.words), "tags": names, "probabilities": probabilities}
            cells = {"tags": " ".join(names), "words": " ".join(example.words)}
            answers.append(Answer(" ".join(map(printable, names)), content, cells))
        return answers


def merge_examples(
    examples: Sequence[TaggedWords], dataset: EncodedDataset, outputs: Sequence[Iterable[T]]
) -> list[list[T]]:
    """One output for each word of each example: the windows over a long example are merged."""
    merged, first = [], 0
    for example, windows in zip(examples, dataset.windows, strict=True):
        rows = [list(row) for row in outputs[first : first + len(windows)]]
        merged.append(merge_windows(windows, rows, len(example.words)))
        first += len(windows)
    return merged
