"""A trained encoder with a head: labels, tags, answers and choices for texts, and how good they are."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, Generic, final

import numpy as np
from torch import Tensor

from seqloom.config import DataConfig
from seqloom.data.encoding.encode_texts import TOO_LONG, EncodingOptions, Truncation
from seqloom.data.encoding.encoded_dataset import EncodedDataset
from seqloom.errors import DataError, FolderError, UsageError, place, printable
from seqloom.evaluation.classification import RESAMPLES
from seqloom.evaluation.predictions import HeadOutputs, predict_dataset
from seqloom.json_values import as_text
from seqloom.long_work import LongWork, log_progress
from seqloom.packed_weights import Storage
from seqloom.protocols import (
    NO_REQUEST,
    Answer,
    EncodedBatch,
    EvaluatedExample,
    Evaluation,
    InputTable,
    Request,
    Settings,
)
from seqloom.runs.progress import chunked, log_notes, logged_report
from seqloom.runs.run_folder import LoadedRun
from seqloom.runs.settings import merge_data_settings, saved_data_settings
from seqloom.tasks.explain.explained_model import ExplainedModel
from seqloom.tasks.explain.look import Look
from seqloom.tasks.explain.model_input import ModelInput
from seqloom.tasks.model import load, refuse_unread_data, single_path
from seqloom.tasks.text.explained_input import explained_input, plain_example, pooled_state
from seqloom.tasks.text.head_task import E, encoding_options
from seqloom.tasks.text.text_tasks import TABLES, TextTaskSpec

logger = logging.getLogger(__name__)

CHUNK = 2048
"""Examples that are in memory at one time."""
FORM = (
    "format",
    "encoding",
    "delimiter",
    "header",
    "quoting",
    "skip_initial_space",
    "join",
    "on_bad_line",
    "part",
    "repair_tags",
)
"""Settings that say what a file is like."""
COLUMNS = ("text", "second", "label", "score", "options", "columns")
"""Settings that name the columns of a table."""
ROWS = (
    "tags",
    "label_separator",
    "label_until",
    "no_label",
    "max_length",
    "stride",
    "unseen_labels",
    "answers_from",
)
"""Settings that say what a row of the model is."""


@final
class TextPredictor(ExplainedModel, Generic[E]):
    """An encoder with a head, ready to be asked.

    model = seqloom.load("runs/reviews")
    model.predict(["A wonderful film."])

    `settings` say how files are read, as in {"text": "review"}; others are as in the training. Raises
    UsageError if the model of a folder has no head.
    """

    reads: ClassVar = {
        "evaluate": frozenset({"data", "decode.weights"}),
        "explain": frozenset(),
        "predict": frozenset({"data", "labels", "decode.weights"}),
    }

    def __init__(
        self,
        text_task: TextTaskSpec[E],
        run: LoadedRun,
        settings: Mapping[str, object] | None = None,
    ) -> None:
        super().__init__(run)
        if run.with_head is None:
            raise UsageError(
                f"{printable(str(run.folder))} is a {run.model_type} without a head for {run.task}; train one"
                " with: seqloom train"
            )
        self.encoder, self.settings = run.with_head, settings or {}
        config = self.encoder.config
        self.text_task, self.head_task = text_task, text_task.from_config(config)
        refuse_unread_data(run.task, self.settings)
        data = self.data_settings((), answers=True)
        self.options = encoding_options(config, run.tokenizer, data)
        self.storage: Storage = "float32"

    def data_settings(self, paths: Sequence[str], answers: bool) -> DataConfig:
        saved = saved_data_settings(self.run.folder)
        return reading_settings(self.text_task, saved, self.settings, paths, answers)

    def with_settings(self, request: Request) -> TextPredictor[E]:
        """The same model, reading files with weights as the request says."""
        if not request.data and not request.all_labels and not request.decode:
            return self
        model = TextPredictor(self.text_task, self.run, {**self.settings, **request.data})
        model.storage = self.run.decode_settings(request.decode).weights
        if request.all_labels:
            model.head_task = model.head_task.with_all_labels()
        return model

    def input_table(self, paths: Sequence[str], request: Request) -> InputTable:
        path = single_path(paths)
        data = self.with_settings(request).data_settings([path], answers=False)
        return InputTable(path, self.text_task.form(data.format, [path]) or "text", data)

    def answer(self, examples: Sequence[E]) -> list[Answer]:
        """The answer to each example. Raises DataError if a text is longer than the model reads,
        UsageError if a pair is given to a model of single texts."""
        dataset = self.head_task.encode(examples, replace(self.options, skip_too_long=False))
        return self.head_task.answers_to(examples, dataset, self._outputs(dataset))

    def _outputs(self, dataset: EncodedDataset, work: LongWork | None = None) -> HeadOutputs:
        with self.run.kept_weights.of(self.storage):
            return predict_dataset(self.encoder, dataset, work)

    def _answered(
        self,
        examples: Sequence[E],
        options: EncodingOptions,
        left_out: dict[int, str] | None = None,
    ) -> Iterator[tuple[E, Answer]]:
        """The examples that can be read, with their answers. Raises DataError at the first that is too long,
        after those before it, where these are not skipped."""
        dataset = self.head_task.encode(examples, replace(options, skip_too_long=True))
        if dataset.left_out and not options.skip_too_long:
            first = min(dataset.left_out)
            yield from self._answered(examples[:first], options)
            self.head_task.encode(examples[first:], options)
        for number in dataset.left_out:
            line = examples[number].line
            if left_out is not None and line is not None:
                left_out[line] = TOO_LONG
        kept = dataset.kept(examples)
        if kept:
            outputs = self._outputs(dataset)
            yield from zip(kept, self.head_task.answers_to(kept, dataset, outputs), strict=True)

    def _encoding_options(self, data: DataConfig) -> EncodingOptions:
        return replace(
            self.options, skip_too_long=data.on_bad_line == "skip", truncation=Truncation()
        )

    def predict(self, inputs: Iterable[object]) -> list[Mapping[str, Any]]:
        """The answer to each input: of text-classification and sentence-similarity a text, or a pair of
        texts; of token-classification a list of words; of question-answering (question, context); of
        multiple-choice (text, options).

        Raises UsageError for an input that is none of these, and for one text that is no list.
        """
        if as_text(inputs) is not None:
            raise UsageError(
                "predict takes a list of inputs, but was given one text; put it into a list"
            )
        examples = [
            self.head_task.example(plain, number) for number, plain in enumerate(inputs, start=1)
        ]
        return [answer.content for answer in self.answer(examples)]

    def label(self, texts: Iterable[object]) -> list[Mapping[str, Any]]:
        """The old name of `predict`; it stays for one release."""
        return self.predict(texts)

    def ask(self, examples: Sequence[E]) -> list[Answer]:
        """The old name of `answer`; it stays for one release."""
        return self.answer(examples)

    def answers(self, paths: Sequence[str], request: Request = NO_REQUEST) -> Iterator[Answer]:
        """The answers to the examples of files."""
        self.check("predict", request)
        chunk = 1 if request.interactive else CHUNK
        chosen = self.with_settings(request)
        yield from chosen.stream([single_path(paths)], chunk, request.left_out)

    def stream(
        self,
        paths: Sequence[str | os.PathLike[str]],
        chunk: int = CHUNK,
        left_out: dict[int, str] | None = None,
    ) -> Iterator[Answer]:
        """The answers to the examples of files, in order, each with its line, as rows that are skipped have
        none: `left_out` says why. Memory is bounded by the chunk."""
        if chunk < 1:
            raise UsageError(f"a chunk must be at least 1 example, but is {chunk}")
        names = as_list(paths)
        data, task = self.data_settings(names, answers=False), self.text_task
        from_training = "format" not in self.settings and data.format in task.structured
        if from_training and task.named_form(names) is None:
            logger.info(
                f"{place(names[0])}: read as data.format={data.format}, as in the training; of plain text:"
                " --set data.format=text"
            )
        if names == ["-"] and data.format == "auto" and not self.head_task.pairs:
            data = replace(data, format=task.standard_input)
        options = self._encoding_options(data)
        with logged_report(left_out=left_out) as report:
            for examples in chunked(self.head_task.read(names, data, report, answers=False), chunk):
                for example, answer in self._answered(examples, options, left_out):
                    if example.line is not None:
                        answer = answer._replace(content={"line": example.line, **answer.content})
                    yield answer
        log_notes(options.truncation.notices())

    def first_batch(self, paths: Sequence[str], request: Request, count: int) -> EncodedBatch:
        """The first examples of files as one batch, with their answers. Raises DataError if there is
        none."""
        chosen = self.with_settings(request)
        data = chosen.data_settings(paths, answers=True)
        with logged_report() as report:
            first = list(islice(chosen.head_task.read(paths, data, report), count))
        if not first:
            raise DataError("there must be an example, but there is none", paths[0])
        _, dataset = chosen.head_task.encode_checked(first, chosen._encoding_options(data), data)
        return dataset.batch(np.arange(len(dataset)))

    def default_show(self) -> str:
        return "attribution"

    def text_vector(self, text: str) -> Tensor:
        """The state that its head reads; the mean over the tokens where it reads them all."""
        example = plain_example(self.head_task, [text])
        return pooled_state(self.encoder, self.head_task, self.options, example)

    def model_input(self, texts: Sequence[str], look: Look, request: Request) -> ModelInput:
        example = plain_example(self.head_task, texts)
        options = replace(self.options, skip_too_long=False)
        return explained_input(self.encoder, self.head_task, options, example, look)

    def evaluate(self, paths: Sequence[str], request: Request = NO_REQUEST) -> Evaluation:
        """How good the answers to the known examples of files are."""
        self.check("evaluate", request, paths)
        return self.with_settings(request).measure(paths)

    def measure(
        self, paths: Sequence[str | os.PathLike[str]], resamples: int = RESAMPLES
    ) -> Evaluation:
        """The same with the settings that it was opened with. Raises DataError if there is no example, or
        one that has a label of its own (`data.unseen_labels`)."""
        names = as_list(paths)
        if not names:
            raise UsageError("evaluate needs data: name its files after the folder")
        data = self.data_settings(names, answers=True)
        with logged_report() as report:
            examples = list(log_progress(self.head_task.read(names, data, report), "examples read"))
        if not examples:
            raise DataError("there must be an example to measure, but there is none", names[0])
        options = self._encoding_options(data)
        kept, dataset = self.head_task.encode_checked(examples, options, data)
        log_notes(options.truncation.notices())
        work = LongWork("examples answered", len(dataset))
        outputs = self._outputs(dataset, work)
        answers = self.head_task.answers_to(kept, dataset, outputs)
        evaluation = self.head_task.evaluate(kept, dataset, outputs, resamples)
        return replace(
            evaluation,
            outputs=[answer.text for answer in answers],
            examples=self._with_answers(kept, answers, evaluation),
        )

    def _with_answers(
        self, examples: Sequence[E], answers: Sequence[Answer], evaluation: Evaluation
    ) -> list[EvaluatedExample]:
        assert evaluation.by_example is not None
        found = []
        for example, answer, right in zip(
            examples, answers, evaluation.by_example.tolist(), strict=True
        ):
            row = answer.row()
            found.append(
                EvaluatedExample(
                    place(example.path, example.line),
                    example.shown,
                    self.head_task.describe_answer(example),
                    str(next(iter(row.values()))),
                    right,
                    row.get("probability"),
                )
            )
        return found


def load_reader(
    folder: str | Path, given: Mapping[str, object] | None = None, device: str = "auto"
) -> TextPredictor[Any]:
    """As `seqloom.load`, for a model with a head; `given` says how files are read. The old name: it stays for
    one release."""
    model: object = load(folder, device)
    if not isinstance(model, TextPredictor):
        raise FolderError(
            f"{printable(str(folder))}: must hold an encoder with a head, but holds {model!r}"
        )
    return TextPredictor(model.text_task, model.run, given)


def reading_settings(
    task: TextTaskSpec[E],
    saved: Settings | None,
    given: Mapping[str, object],
    paths: Sequence[str],
    answers: bool,
) -> DataConfig:
    """The settings that are given; others are those of the training (`saved`, if there are any). What a row
    is (ROWS) always is. What a file is like (FORM) and the names of columns (COLUMNS) are where the files
    have the form of the training files.

    A file that is to be answered (not `answers`) and whose name shows no form is plain text. It is a table
    only where the names of the training files showed no form either, and a setting said that they are tables.
    """
    if saved is None:
        return merge_data_settings({}, given, ())
    trained_files, trained_format = saved.get("train", ()), saved.get("format", "auto")
    trained_form = task.form(trained_format, trained_files) or task.table_form
    form_setting, named_form = str(given.get("format", "auto")), task.named_form(paths)
    trained_without_name = trained_format in task.structured and list(paths) != ["-"]
    same_kind = form_setting == "auto" and named_form == task.named_form(trained_files)
    if same_kind and (answers or named_form is not None or trained_without_name):
        form = trained_form  # a .csv with tabs is again one
    else:
        form = task.form(form_setting, paths) or (trained_form if answers else "text")
    names = list(ROWS)
    if form == trained_form:
        names += [*FORM, *COLUMNS]
    elif form in TABLES:
        names += COLUMNS
    return merge_data_settings(saved, given, names)


def as_list(paths: Sequence[str | os.PathLike[str]]) -> list[str]:
    """Raises UsageError for a single path."""
    if isinstance(paths, str | os.PathLike):
        raise UsageError(
            f"files are given as a list, but this is {printable(repr(paths))}; put it into a list"
        )
    return [os.fspath(path) for path in paths]
