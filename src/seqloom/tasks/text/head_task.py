"""What the tasks of an encoder with a head have in common: examples, rows, measures and answers."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Generic, Literal, Self, TypedDict, TypeVar

from seqloom.config import DataConfig
from seqloom.data.encoding.encode_texts import EncodingOptions
from seqloom.data.encoding.encoded_dataset import EncodedDataset, RowTemplate, row_template
from seqloom.data.formats.read_report import ReadReport
from seqloom.data.readers.examples import ChoiceQuestion, LabelledText, Question, TaggedWords
from seqloom.errors import DataError, UsageError, printable
from seqloom.evaluation.predictions import HeadOutputs
from seqloom.json_values import as_texts
from seqloom.models.encoder_with_head import EncoderWithHeadConfig
from seqloom.models.heads import HeadKind
from seqloom.protocols import Answer, Evaluation, StoredTokenizer
from seqloom.text.word_characters import TokenSpelling

logger = logging.getLogger(__name__)

E = TypeVar("E", bound=LabelledText | TaggedWords | Question | ChoiceQuestion)
"""The examples of a task."""


class TaskFields(TypedDict, total=False):
    """Fields of `EncoderWithHeadConfig` that only some tasks have."""

    may_be_none: bool
    answers_from: Literal[0, 1] | None


@dataclass(frozen=True, kw_only=True)
class HeadTask(ABC, Generic[E]):
    """A task of an encoder with a head, once its labels are known."""

    kind: HeadKind
    labels: tuple[str, ...] = ()
    pairs: bool = False
    """Whether an example has two texts."""

    def config_fields(self) -> TaskFields:
        """What else the configuration of the model keeps of it."""
        return {}

    def with_label_order(self, labels: tuple[str, ...]) -> Self:
        """The task with its labels in this order, where they are the same labels."""
        return replace(self, labels=labels) if set(labels) == set(self.labels) else self

    def with_all_labels(self) -> Self:
        """The task with the probabilities of every label in its answers, however many there are. Raises
        UsageError if an answer is no label of the whole."""
        raise UsageError(
            f"--probabilities is for models that give a text labels, but this is one of {self.kind}; leave it"
            " out"
        )

    @abstractmethod
    def read(
        self, paths: Sequence[str], data: DataConfig, report: ReadReport, answers: bool = True
    ) -> Iterator[E]:
        """The examples of files; without `answers` their answers need not be known."""

    @abstractmethod
    def example(self, plain: object, number: int) -> E:
        """An example from plain strings and lists. Raises UsageError if it is not one of this task."""

    @abstractmethod
    def texts(self, examples: Iterable[E]) -> Iterator[str]:
        """What the tokenizer is trained on."""

    @abstractmethod
    def encode(self, examples: Sequence[E], options: EncodingOptions) -> EncodedDataset:
        """The rows of examples."""

    @abstractmethod
    def evaluate(
        self, examples: Sequence[E], dataset: EncodedDataset, outputs: HeadOutputs, resamples: int
    ) -> Evaluation:
        """How good the outputs are; without `resamples` there are no intervals."""

    @abstractmethod
    def answers_to(
        self, examples: Sequence[E], dataset: EncodedDataset, outputs: HeadOutputs
    ) -> list[Answer]:
        """The answer to each example."""

    def check_labels(self, examples: Sequence[E], unseen: Literal["error", "ignore"]) -> list[str]:
        """Notices about labels that the model does not have. Raises DataError if these are errors."""
        return []

    def check_leak(self, training: Sequence[E], others: Sequence[E]) -> list[str]:
        """Notices about examples that are in the training data too."""
        return []

    def labels_of(self, example: E) -> Sequence[str]:
        """The known labels of an example, each as often as it occurs."""
        return ()

    def words_of(self, example: E) -> tuple[str, ...]:
        """The words of an example, where a task has words."""
        return ()

    def choices_of(self, example: E) -> Sequence[str]:
        """What an answer to an example is chosen from."""
        return self.labels

    @abstractmethod
    def describe_answer(self, example: E) -> str:
        """The known answer of an example, for people."""

    def encode_checked(
        self, examples: Sequence[E], options: EncodingOptions, data: DataConfig
    ) -> tuple[Sequence[E], EncodedDataset]:
        """The examples that can be read, and their rows. Labels that the model does not have are logged, or
        are errors (`data.unseen_labels`). Raises DataError if all examples are too long."""
        for note in self.check_labels(examples, data.unseen_labels):
            logger.info(note)
        dataset = self.encode(examples, options)
        if examples and not len(dataset):
            raise DataError(
                f"an example must be short enough to be read, but all {len(examples):,} are longer than the"
                f" {options.model_max_length} tokens that the model reads; read the beginning of each: --set"
                f" data.max_length={options.model_max_length}",
                examples[0].path,
            )
        return dataset.kept(examples), dataset


def two_strings(plain: object, what: str) -> tuple[str, str]:
    """A tuple or list of two strings. Raises UsageError for anything else; `what` is expected."""
    texts = as_texts(plain)
    if texts is None or len(texts) != 2:
        raise wrong_input(plain, what)
    first, second = texts
    return first, second


def wrong_input(plain: object, what: str) -> UsageError:
    return UsageError(f"predict takes {what}, but was given {printable(repr(plain)[:40])}")


def encoding_options(
    model: EncoderWithHeadConfig, tokenizer: StoredTokenizer, data: DataConfig
) -> EncodingOptions:
    """How texts become rows for this model."""
    encoder, pair = model.encoder, model.head.pair
    reads_bytes = encoder.get("tokens") == "characters"
    same_size = encoder["vocabulary_size"] == model.vocabulary_size
    if tokenizer.pretrained and encoder["model_type"] == "gpt" and same_size:
        template = RowTemplate(*tokenizer.template)  # the checkpoint came with its head
    else:
        template = row_template(
            tokenizer.special_ids,
            str(encoder["model_type"]),
            not tokenizer.pretrained,
            tokenizer.vocabulary_size,
        )
    spelling = TokenSpelling(tokenizer, encoder["longest_word"]) if reads_bytes else None
    return EncodingOptions(
        tokenizer=tokenizer,
        template=template,
        pair="joined" if pair == "auto" else pair,
        model_max_length=encoder.get("context"),
        max_length=data.max_length,
        skip_too_long=data.on_bad_line == "skip",
        stride=data.stride,
        alphabet=tuple(encoder.get("alphabet") or ()),
        spelling=spelling,
    )
