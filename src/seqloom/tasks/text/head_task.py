"""What the tasks of readers have in common: how their examples are read, laid out, measured and answered."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

from numpy.typing import NDArray

from seqloom.config import DataConfig
from seqloom.data.encoding.encode_texts import EncodingOptions
from seqloom.data.encoding.encoded_dataset import EncodedDataset, RowTemplate, row_template
from seqloom.data.formats.read_report import ReadReport
from seqloom.data.readers.labels import check_known
from seqloom.evaluation.predictions import HeadOutputs
from seqloom.models.encoder_with_head import EncoderWithHeadConfig
from seqloom.models.heads import HeadKind
from seqloom.protocols import StoredTokenizer

logger = logging.getLogger(__name__)


class Answer(NamedTuple):
    """An answer."""

    text: str
    """On one line."""
    content: dict[str, Any]
    """All of it, for a program."""


class TaskReport(NamedTuple):
    """How good answers are."""

    metrics: dict[str, float]
    details: dict[str, Any]
    """What is too long for a table."""
    by_example: NDArray[Any] | None = None
    """`(examples,)`: how right each answer is, the larger the better; for tests of two models on the same
    examples."""


class HeadTask(Protocol):
    """A task of readers."""

    @property
    def kind(self) -> HeadKind: ...

    @property
    def labels(self) -> tuple[str, ...]: ...

    @property
    def pairs(self) -> bool: ...

    def read(
        self, paths: Sequence[str], data: DataConfig, tally: ReadReport, answers: bool = True
    ) -> Iterator[Any]:
        """Examples of this work; without `answers` they need not be known."""
        ...

    def texts(self, examples: Iterable[Any]) -> Iterator[str]:
        """What the tokenizer learns from."""
        ...

    def encode(self, examples: Sequence[Any], how: EncodingOptions) -> EncodedDataset: ...

    def report(
        self, examples: Sequence[Any], items: EncodedDataset, found: HeadOutputs, resamples: int
    ) -> TaskReport: ...

    def replies(self, examples: Sequence[Any], items: EncodedDataset, found: HeadOutputs) -> list[Answer]: ...


def encoding_options(
    configured: EncoderWithHeadConfig, tokenizer: StoredTokenizer, data: DataConfig
) -> EncodingOptions:
    """How the texts of a reader become rows."""
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
    work: HeadTask, examples: Sequence[Any], how: EncodingOptions, data: DataConfig
) -> EncodedDataset:
    """The rows of these examples. Labels that the model has not got are said, or are errors
    (`data.unseen_labels`)."""
    if work.labels:
        for note in check_known(examples, work.labels, data.unseen_labels):
            logger.info(note)
    return work.encode(examples, how)
