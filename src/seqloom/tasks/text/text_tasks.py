"""How the files of each task of an encoder with a head become examples, and how these are split."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Generic, Literal, final

import numpy as np
from numpy.typing import NDArray

from seqloom.config import DataConfig
from seqloom.data.batching.splits import group_ids, split_labelled, stratified_split
from seqloom.data.formats.forms import FORMS
from seqloom.data.formats.read_report import ReadReport
from seqloom.data.readers import tagged
from seqloom.data.readers.labelled import read_labelled
from seqloom.data.readers.multiple_choice import read_choices
from seqloom.data.readers.squad import read_questions
from seqloom.data.readers.tagged import read_tagged
from seqloom.models.encoder_with_head import EncoderWithHeadConfig
from seqloom.tasks.text.classification import Classification
from seqloom.tasks.text.head_task import E, HeadTask
from seqloom.tasks.text.multiple_choice import MultipleChoice
from seqloom.tasks.text.question_answering import QuestionAnswering
from seqloom.tasks.text.tagging import Tagging

TABLES = frozenset(FORMS.values())
"""Forms of files that have columns."""


@final
@dataclass(frozen=True, kw_only=True)
class TextTaskSpec(Generic[E]):
    """A task of an encoder with a head, before its labels are known."""

    name: str
    read: Callable[[Sequence[str], DataConfig, ReadReport], Iterator[E]]
    """Training files -> examples."""
    from_examples: Callable[[Sequence[E], DataConfig], HeadTask[E]]
    """The task as the training examples define it."""
    from_config: Callable[[EncoderWithHeadConfig], HeadTask[E]]
    """The task of a trained model."""
    split: Callable[[Sequence[E], int], NDArray[np.int64]]
    """(examples, seed) -> the indices of those that are held out."""
    endings: Mapping[str, str] = field(default_factory=lambda: {**FORMS, ".zip": "folder"})
    """Ending of a file's name -> its form."""
    table_form: str | None = None
    """The form of any table, where it is one of its own."""
    standard_input: Literal["auto", "text", "jsonl"] = "auto"
    """The form of standard input where no setting names one."""

    @property
    def structured(self) -> frozenset[str]:
        """Forms that are not plain text."""
        return TABLES | {*TAGGED_ENDINGS.values()}

    def form(self, setting: str, paths: Sequence[str]) -> str | None:
        """The form that a setting names, or the name of the first file shows; None if neither does."""
        if setting != "auto":
            return self.table_form if self.table_form and setting == "tsv" else setting
        return self.named_form(paths)

    def forms(self, paths: Sequence[str], options: DataConfig) -> set[str]:
        """The forms of these files."""
        others = self.table_form or "text"
        return {self.form(options.format, [path]) or others for path in paths}

    def named_form(self, paths: Sequence[str]) -> str | None:
        name = next(iter(paths), "").removesuffix(".gz").lower()
        return self.endings.get(os.path.splitext(name)[1])


def split_by(
    key: Callable[[E], str], group: Callable[[E], str | None] | None = None
) -> Callable[[Sequence[E], int], NDArray[np.int64]]:
    """A split that keeps examples with the same key, or in the same group, together."""

    def split(examples: Sequence[E], seed: int) -> NDArray[np.int64]:
        groups = None if group is None else [group(example) for example in examples]
        units = group_ids([key(example) for example in examples], groups)
        return stratified_split(np.zeros(len(examples), np.int64), seed, units)

    return split


TAGGED_ENDINGS = {**tagged.FORMS, **dict.fromkeys(tagged.COLUMNS, "conll")}
TEXT_CLASSIFICATION = TextTaskSpec(
    name="text-classification",
    read=read_labelled,
    from_examples=partial(Classification.from_examples, "text-classification"),
    from_config=Classification.from_config,
    split=split_labelled,
    standard_input="text",
)
SENTENCE_SIMILARITY = TextTaskSpec(
    name="sentence-similarity",
    read=partial(read_labelled, number=True, pairs=True),
    from_examples=partial(Classification.from_examples, "sentence-similarity"),
    from_config=Classification.from_config,
    split=partial(split_labelled, stratified=False),
)
TOKEN_CLASSIFICATION = TextTaskSpec(
    name="token-classification",
    read=read_tagged,
    from_examples=Tagging.from_examples,
    from_config=Tagging.from_config,
    split=split_by(lambda example: " ".join(example.words)),
    endings=TAGGED_ENDINGS,
    table_form="conll",
    standard_input="text",
)
QUESTION_ANSWERING = TextTaskSpec(
    name="question-answering",
    read=read_questions,
    from_examples=QuestionAnswering.from_examples,
    from_config=QuestionAnswering.from_config,
    split=split_by(lambda example: example.context, lambda example: example.group),
    standard_input="jsonl",
)
MULTIPLE_CHOICE = TextTaskSpec(
    name="multiple-choice",
    read=read_choices,
    from_examples=MultipleChoice.from_examples,
    from_config=MultipleChoice.from_config,
    split=split_by(lambda example: example.text),
)
