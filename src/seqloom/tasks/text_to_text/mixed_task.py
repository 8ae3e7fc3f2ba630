"""One of the tasks that a text-to-text model learns: how its files become texts, whatever it is for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, final

from seqloom.config import DataConfig, MixedTaskConfig, RunConfig
from seqloom.data.formats.columns import Record
from seqloom.data.formats.read_report import ReadReport
from seqloom.data.readers.examples import LabelledText, Question, TaggedWords, TextPair
from seqloom.data.readers.records import read_pairs, read_texts
from seqloom.errors import UsageError, printable
from seqloom.json_values import as_text
from seqloom.protocols import Settings, Task
from seqloom.registry import find_task
from seqloom.run_file import to_plain
from seqloom.runs.settings import AS_TRAINED, merge_data_settings
from seqloom.tasks.setting_names import TOKENIZER, data
from seqloom.tasks.text import text_tasks
from seqloom.tasks.text.classification import Classification
from seqloom.tasks.text.head_task import HeadTask
from seqloom.tasks.text.predictor import reading_settings
from seqloom.tasks.text.question_answering import QuestionAnswering
from seqloom.tasks.text.tagging import Tagging
from seqloom.tasks.text.text_tasks import TextTaskSpec
from seqloom.tasks.text_to_text.scores import Form
from seqloom.tasks.text_to_text.text_forms import (
    AnswerForm,
    LabelForm,
    NumberForm,
    PairForm,
    TagForm,
    TextExample,
)
from seqloom.tasks.translation import measures
from seqloom.tasks.translation.measures import Measure
from seqloom.tasks.unused_settings import unused_by_forms

PAIRS: dict[str, Measure] = {
    "translation": measures.TRANSLATION,
    "summarization": measures.SUMMARIZATION,
    "text2text-generation": measures.TRANSLATION,
}
"""Task of pairs -> how its texts are measured."""
LABELLED: dict[str, TextTaskSpec[Any]] = {
    spec.name: spec
    for spec in (
        text_tasks.TEXT_CLASSIFICATION,
        text_tasks.SENTENCE_SIMILARITY,
        text_tasks.TOKEN_CLASSIFICATION,
        text_tasks.QUESTION_ANSWERING,
    )
}
OF_ALL = TOKENIZER | data("max_length", "learn_from")
"""Settings of data that all tasks share."""
OF_ENCODERS = data("stride", "label_separator")


@final
@dataclass(frozen=True, kw_only=True)
class MixedTask:
    """A task with its texts."""

    name: str
    config: MixedTaskConfig
    form: Form
    head_task: HeadTask[Any] | None
    """What reads examples with labels, tags or answers; None of pairs."""

    @property
    def measure(self) -> Measure | None:
        return PAIRS.get(self.config.task)

    def source(self, example: Any) -> str:
        """What is read; nothing if the example is blank."""
        match example:
            case LabelledText(text=text, second=second):
                is_blank = not text.strip() and not (second or "").strip()
            case TaggedWords(words=words):
                is_blank = not words
            case TextPair(source=text) | Question(question=text):
                is_blank = not text.strip()
        return "" if is_blank else self.form.source(example)

    def texts(self, example: Any) -> dict[str, str]:
        """What is read and what is written."""
        return {"source": self.form.source(example), "target": self.form.target(example)}

    def known(self) -> dict[str, object]:
        """What its run folder keeps of the training data, to open it again."""
        if self.head_task is None:
            return {}
        return {
            "labels": list(self.head_task.labels),
            "pairs": self.head_task.pairs,
            "may_be_none": bool(self.head_task.config_fields().get("may_be_none")),
        }

    def reading(
        self, given: Mapping[str, object], paths: Sequence[str], answers: bool
    ) -> DataConfig:
        """How files are read: as is given, else as in the training."""
        saved = to_plain(self.config.data)
        if self.head_task is None:
            return merge_data_settings(saved, given, AS_TRAINED)
        read = reading_settings(LABELLED[self.config.task], saved, given, paths, answers)
        spec = LABELLED[self.config.task]
        if list(paths) == ["-"] and read.format == "auto" and not self.head_task.pairs:
            return replace(read, format=spec.standard_input)
        return read

    def read(
        self, paths: Sequence[str], data: DataConfig, report: ReadReport, answers: bool = True
    ) -> Iterator[TextExample]:
        """The examples of files; without `answers` these need not be known."""
        if self.head_task is not None:
            return self.head_task.read(paths, data, report, answers)
        if answers:
            return map(_pair, read_pairs(paths, data, report))
        return (
            TextPair(text.fields["text"], "", text.path, text.line)
            for path in paths
            for text in read_texts(path, data, report, every_line=True)
        )

    def example(self, plain: object, number: int) -> TextExample:
        """An example from plain strings. Raises UsageError if they do not fit this task."""
        if self.head_task is not None:
            return self.head_task.example(plain, number)  # type: ignore[no-any-return]
        text = as_text(plain)
        if text is None:
            raise UsageError(
                f"{self.name} reads texts, but was given {printable(repr(plain)[:40])}"
            )
        return TextPair(text, "", "text", number)


def _pair(record: Record) -> TextPair:
    return TextPair(record.fields["source"], record.fields["target"], record.path, record.line)


def mixed_task(name: str, config: MixedTaskConfig, head_task: HeadTask[Any] | None) -> MixedTask:
    """`head_task`: what the training data say of it; None for pairs. Without a prefix of its own a task has
    its name."""
    prefix, form = config.prefix, _form(config, head_task)
    if prefix is None:
        pairs = head_task is None or head_task.pairs
        prefix = form.default_prefix(name, pairs=pairs)
    return MixedTask(
        name=name, config=config, form=replace(form, prefix=prefix), head_task=head_task
    )


def _form(config: MixedTaskConfig, head_task: HeadTask[Any] | None) -> Form:
    labels = () if head_task is None else head_task.labels
    match config.task:
        case "text-classification":
            return LabelForm(prefix="", labels=labels)
        case "sentence-similarity":
            return NumberForm(prefix="", step=config.number_step)
        case "token-classification":
            return TagForm(prefix="", labels=labels)
        case "question-answering":
            return AnswerForm(prefix="")
    return PairForm(prefix="")


def reopened_task(name: str, config: MixedTaskConfig, known: Settings) -> MixedTask:
    """A task of a trained model; `known` is what `MixedTask.known` gave."""
    labels, pairs = tuple(known.get("labels", ())), bool(known.get("pairs"))
    head_task: HeadTask[Any] | None = None
    match config.task:
        case "text-classification":
            head_task = Classification(kind="classification", labels=labels, pairs=pairs)
        case "sentence-similarity":
            head_task = Classification(kind="regression", pairs=True)
        case "token-classification":
            head_task = Tagging(labels=labels)
        case "question-answering":
            head_task = QuestionAnswering(may_be_none=bool(known.get("may_be_none")))
    return mixed_task(name, config, head_task)


def check_tasks(run: RunConfig) -> None:
    """Raises UsageError for what a task of a run cannot be or have."""
    for name, config in run.tasks.items():
        if config.task not in {**PAIRS, **LABELLED}:
            able = ", ".join((*PAIRS, *LABELLED))
            raise UsageError(
                f"tasks.{name}.task must be one of {able}, but is {printable(config.task)}"
            )
        task = find_task(config.task)
        assert task is not None
        if not config.data.train:
            raise UsageError(f"tasks.{name}.data.train must name the files of the task")
        _refuse_unread(name, task, config)


def _refuse_unread(name: str, task: Task, config: MixedTaskConfig) -> None:
    default = vars(DataConfig())
    given = [field for field, value in vars(config.data).items() if value != default[field]]
    files = [*config.data.train, *config.data.validation]
    unused = unused_by_forms(task, config.data, files, given)
    for field in given:
        setting = f"data.{field}"
        if setting not in task.settings - OF_ALL - OF_ENCODERS:
            hint = (
                f"; give it to all as {setting}" if setting in OF_ALL else ", and changes nothing"
            )
            raise UsageError(
                f"tasks.{name}.{setting}: {setting} does not belong to one task of several{hint}"
            )
        if setting in unused:
            raise UsageError(f"tasks.{name}: {unused[setting]}; leave it out")
    if config.task != "sentence-similarity" and config.number_step != MixedTaskConfig.number_step:
        raise UsageError(
            f"tasks.{name}.number_step is for sentence-similarity, but its task is {config.task}; leave it"
            " out"
        )
