"""The tasks of readers, in one dict: how their training data are read and split, and the work that this
makes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from seqloom.config import DataConfig
from seqloom.data.batching.splits import group_ids, split_labelled, stratified_split
from seqloom.data.formats.read_report import ReadReport
from seqloom.data.readers.labelled import read_labelled
from seqloom.data.readers.multiple_choice import read_choices
from seqloom.data.readers.squad import read_questions
from seqloom.data.readers.tagged import read_tagged
from seqloom.models.encoder_with_head import EncoderWithHeadConfig
from seqloom.tasks.text.classification import Classification
from seqloom.tasks.text.head_task import HeadTask
from seqloom.tasks.text.multiple_choice import MultipleChoice
from seqloom.tasks.text.question_answering import QuestionAnswering
from seqloom.tasks.text.tagging import Tagging


@final
class TaskData(NamedTuple):
    """How a task begins."""

    read: Callable[[Sequence[str], DataConfig, ReadReport], Iterator[Any]]
    """Training files -> examples."""
    of: Callable[[Sequence[Any], DataConfig], HeadTask]
    """What the training examples say of the work."""
    again: Callable[[EncoderWithHeadConfig], HeadTask]
    """The work that a trained model was trained for."""
    split: Callable[[Sequence[Any], int], NDArray[np.int64]]
    """(examples, seed) -> the numbers of those that are held out."""


def split_by(*keys: Callable[[Any], str]) -> Callable[[Sequence[Any], int], NDArray[np.int64]]:
    """A split that keeps together what has one of these in common."""

    def split(examples: Sequence[Any], seed: int) -> NDArray[np.int64]:
        first, *more = keys
        groups = [more[0](one) for one in examples] if more else None
        return stratified_split(
            np.zeros(len(examples), np.int64), seed, group_ids([first(one) for one in examples], groups)
        )

    return split


TASK_DATA: dict[str, TaskData] = {
    "text-classification": TaskData(
        read_labelled, partial(Classification.of, "text-classification"), Classification.again, split_labelled
    ),
    "sentence-similarity": TaskData(
        partial(read_labelled, number=True, pairs=True),
        partial(Classification.of, "sentence-similarity"),
        Classification.again,
        partial(split_labelled, stratified=False),
    ),
    "token-classification": TaskData(
        read_tagged, Tagging.of, Tagging.again, split_by(lambda one: " ".join(one.words))
    ),
    "question-answering": TaskData(
        read_questions,
        QuestionAnswering.of,
        QuestionAnswering.again,
        split_by(lambda one: one.context, lambda one: one.group),
    ),
    "multiple-choice": TaskData(
        read_choices, MultipleChoice.of, MultipleChoice.again, split_by(lambda one: one.text)
    ),
}
"""task -> how it begins."""
