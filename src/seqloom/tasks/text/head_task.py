"""What the tasks of an encoder with a head have in common: examples, rows, measures and answers."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol

from seqloom.config import DataConfig
from seqloom.data.encoding.encode_texts import EncodingOptions
from seqloom.data.encoding.encoded_dataset import EncodedDataset, RowTemplate, row_template
from seqloom.data.formats.read_report import ReadReport
from seqloom.data.readers.labels import check_known
from seqloom.evaluation.predictions import HeadOutputs
from seqloom.models.encoder_with_head import EncoderWithHeadConfig
from seqloom.models.heads import HeadKind
from seqloom.protocols import Answer, Evaluation, StoredTokenizer

logger = logging.getLogger(__name__)


class HeadTask(Protocol):
    """A task of an encoder with a head, once its labels are known."""

    @property
    def kind(self) -> HeadKind: ...

    @property
    def labels(self) -> tuple[str, ...]: ...

    @property
    def pairs(self) -> bool:
        """Whether an example has two texts."""
        ...

    def config_fields(self) -> dict[str, Any]:
        """What the configuration of the model keeps of it, beside kind, labels and pairs."""
        ...

    def with_labels(self, labels: tuple[str, ...]) -> HeadTask:
        """The same task with its labels in this order."""
        ...

    def read(
        self, paths: Sequence[str], data: DataConfig, report: ReadReport, answers: bool = True
    ) -> Iterator[Any]:
        """Examples of files; without `answers` these need not be known."""
        ...

    def example(self, plain: Any, number: int) -> Any:
        """An example from plain strings and lists. Raises UsageError where it is not of this task."""
        ...

    def texts(self, examples: Iterable[Any]) -> Iterator[str]:
        """What the tokenizer is trained on."""
        ...

    def encode(self, examples: Sequence[Any], options: EncodingOptions) -> EncodedDataset: ...

    def evaluate(
        self, examples: Sequence[Any], dataset: EncodedDataset, outputs: HeadOutputs, resamples: int
    ) -> Evaluation:
        """How good the outputs are; without `resamples` without intervals."""
        ...

    def answers_to(
        self, examples: Sequence[Any], dataset: EncodedDataset, outputs: HeadOutputs
    ) -> list[Answer]: ...


def encoding_options(
    configured: EncoderWithHeadConfig, tokenizer: StoredTokenizer, data: DataConfig
) -> EncodingOptions:
    """How texts become rows for this model."""
    encoder = configured.encoder
    if (
        tokenizer.pretrained
        and encoder["model_type"] == "gpt"
        and encoder["vocabulary_size"] == configured.vocabulary_size
    ):
        template = RowTemplate(*tokenizer.template)  # it came with its head
    else:
        own = not tokenizer.pretrained
        template = row_template(
            tokenizer.special_ids, str(encoder["model_type"]), own, tokenizer.vocabulary_size
        )
    pair = configured.head.pair
    return EncodingOptions(
        tokenizer=tokenizer,
        template=template,
        pair="joined" if pair == "auto" else pair,
        model_max_length=encoder.get("context"),
        max_length=data.max_length,
        stride=data.stride,
        alphabet=tuple(encoder.get("alphabet") or ()),
    )


def encode_examples(
    task: HeadTask, examples: Sequence[Any], options: EncodingOptions, data: DataConfig
) -> EncodedDataset:
    """The rows of these examples. Labels that the model does not have are logged, or are errors
    (`data.unseen_labels`)."""
    if task.labels:
        for note in check_known(examples, task.labels, data.unseen_labels):
            logger.info(note)
    return task.encode(examples, options)
