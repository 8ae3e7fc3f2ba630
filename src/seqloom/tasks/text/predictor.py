"""A trained encoder with a head: labels, tags, answers and choices for texts, and how good they are."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, final

from seqloom.config import DataConfig
from seqloom.errors import DataError, FolderError, UsageError, place, printable
from seqloom.evaluation.classification import RESAMPLES
from seqloom.evaluation.predictions import predict_dataset
from seqloom.models.encoder_with_head import EncoderWithHead
from seqloom.protocols import NO_REQUEST, Answer, Evaluation, Request
from seqloom.runs.progress import chunked, log_progress, logged_report
from seqloom.runs.run_folder import LoadedRun, load_run
from seqloom.runs.settings import merge_data_settings, saved_data_settings
from seqloom.tasks.model import TrainedModel, load, refuse_unread_data, single_path
from seqloom.tasks.text.head_task import encode_examples, encoding_options
from seqloom.tasks.text.text_tasks import TABLES, TextTaskSpec

logger = logging.getLogger(__name__)

CHUNK = 2048
"""Examples that are in memory at one time."""
FORM = ("format", "encoding", "delimiter", "header", "quoting", "on_bad_line", "part", "repair_tags")
"""Settings that say what a file is like."""
COLUMNS = ("text", "second", "label", "score", "options", "columns")
"""Settings that name the columns of a table."""
ROWS = ("tags", "label_separator", "label_until", "max_length", "stride", "unseen_labels", "answers_from")
"""Settings that say what a row is."""


@final
class TextPredictor(TrainedModel):
    """An encoder with a head, ready to be asked.

    model = seqloom.load("runs/reviews")
    model.predict(["A wonderful film."])

    `settings` say how files are read, as in {"text": "review"}; others are as in the training. Raises
    UsageError where the model of a folder has no head.
    """

    reads: ClassVar = {"evaluate": frozenset({"data"}), "predict": frozenset({"data"})}

    def __init__(
        self, text_task: TextTaskSpec, run: LoadedRun, settings: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(run.folder, run.task, run.model, run.model_type)
        if not isinstance(run.model, EncoderWithHead):
            raise UsageError(
                f"{printable(str(run.folder))} is a {run.model_type} without a head for {run.task}; train one"
                " with: seqloom train"
            )
        self.run, self.encoder, self.settings = run, run.model, settings or {}
        self.text_task, self.head_task = text_task, text_task.from_config(run.model.config)
        refuse_unread_data(run.task, self.settings)
        data = self._reading((), answers=True)
        self.options = encoding_options(run.model.config, run.tokenizer, data)

    def _reading(self, paths: Sequence[str], answers: bool) -> DataConfig:
        return reading_settings(self.text_task, self.run.folder, self.settings, paths, answers)

    def with_settings(self, request: Request) -> TextPredictor:
        """The same model, reading files as the request says."""
        changed = {**self.settings, **request.data}
        return TextPredictor(self.text_task, self.run, changed) if request.data else self

    def answer(self, examples: Sequence[Any]) -> list[Answer]:
        """The answer to each example. Raises DataError where a text is longer than the model reads,
        UsageError where a pair is given to a model of single texts."""
        dataset = self.head_task.encode(examples, self.options)
        return self.head_task.answers_to(examples, dataset, predict_dataset(self.encoder, dataset))

    def predict(self, inputs: Iterable[Any]) -> list[Mapping[str, Any]]:
        """The answer to each input: of text-classification and sentence-similarity a text, or a pair of
        texts; of token-classification a list of words; of question-answering (question, context); of
        multiple-choice (text, options).

        Raises UsageError for an input that is none of these, and for one text that is no list.
        """
        if isinstance(inputs, str):
            raise UsageError("predict takes a list of inputs, but was given one text; put it into a list")
        examples = [self.head_task.example(plain, number) for number, plain in enumerate(inputs, start=1)]
        return [answer.content for answer in self.answer(examples)]

    def label(self, texts: Iterable[Any]) -> list[Mapping[str, Any]]:
        """The old name of `predict`; it stays for one release."""
        return self.predict(texts)

    def ask(self, examples: Sequence[Any]) -> list[Answer]:
        """The old name of `answer`; it stays for one release."""
        return self.answer(examples)

    def answers(self, paths: Sequence[str], request: Request = NO_REQUEST) -> Iterator[Answer]:
        """The answers to the examples of files."""
        self.check("predict", request)
        chunk = 1 if request.interactive else CHUNK
        yield from self.with_settings(request).stream([single_path(paths)], chunk)

    def stream(self, paths: Sequence[str | os.PathLike[str]], chunk: int = CHUNK) -> Iterator[Answer]:
        """The answers to the examples of files, in order, each with its line, as rows that are skipped have
        none; memory is bounded by the chunk."""
        if chunk < 1:
            raise UsageError(f"a chunk must be at least 1 example, but is {chunk}")
        paths = _listed(paths)
        data, task = self._reading(paths, answers=False), self.text_task
        if (
            "format" not in self.settings
            and data.format in task.structured
            and task.named_form(paths) is None
        ):
            logger.info(
                f"{place(paths[0])}: read as data.format={data.format}, as in the training; of plain text:"
                " --set data.format=text"
            )
        if paths == ["-"] and data.format == "auto" and not self.head_task.pairs:
            data = replace(data, format=task.standard_input)
        with logged_report() as report:
            for examples in chunked(self.head_task.read(paths, data, report, answers=False), chunk):
                for one, answer in zip(examples, self.answer(examples), strict=True):
                    if one.line is not None:
                        answer = answer._replace(content={"line": one.line, **answer.content})
                    yield answer
        for note in self.options.truncation.notices():
            logger.info(note)

    def evaluate(self, paths: Sequence[str], request: Request = NO_REQUEST) -> Evaluation:
        """How good the answers to the known examples of files are."""
        self.check("evaluate", request)
        return self.with_settings(request).measure(paths)

    def measure(self, paths: Sequence[str | os.PathLike[str]], resamples: int = RESAMPLES) -> Evaluation:
        """The same with the settings that it was opened with. Raises DataError where there is no example, or
        one that has a label of its own (`data.unseen_labels`)."""
        paths = _listed(paths)
        if not paths:
            raise UsageError("evaluate needs data: name its files after the folder")
        data = self._reading(paths, answers=True)
        with logged_report() as report:
            examples = list(log_progress(self.head_task.read(paths, data, report), "examples read"))
        if not examples:
            raise DataError("there must be an example to measure, but there is none", paths[0])
        dataset = encode_examples(self.head_task, examples, self.options, data)
        for note in self.options.truncation.notices():
            logger.info(note)
        outputs = predict_dataset(self.encoder, dataset)
        answers = self.head_task.answers_to(examples, dataset, outputs)
        found = self.head_task.evaluate(examples, dataset, outputs, resamples)
        return replace(found, outputs=[answer.text for answer in answers])


def open_text_task(text_task: TextTaskSpec, folder: Path, device: str) -> TextPredictor:
    """The model of a run folder or of a Hugging Face directory."""
    run = load_run(folder, device)
    for note in run.notes:
        logger.info(note)
    return TextPredictor(text_task, run)


def load_reader(
    folder: str | Path, given: Mapping[str, Any] | None = None, device: str = "auto"
) -> TextPredictor:
    """As `seqloom.load`, for a model with a head; `given` says how files are read. The old name: it stays for
    one release."""
    model: object = load(folder, device)
    if not isinstance(model, TextPredictor):
        raise FolderError(f"{printable(str(folder))}: must hold an encoder with a head, but holds {model!r}")
    return TextPredictor(model.text_task, model.run, given)


def reading_settings(
    text_task: TextTaskSpec, folder: Path, given: Mapping[str, Any], paths: Sequence[str], answers: bool
) -> DataConfig:
    """Settings of reading that are not given are those of the training: what a row is in any case; what a
    file is like and which columns are read where the files have the form of the training's. To be answered, a
    file whose name shows no form is plain text, unless the training's files, whose names showed none either,
    were said to be tables."""
    trained = saved_data_settings(folder)
    if trained is None:
        return merge_data_settings({}, given, ())
    files, told, asked = trained.get("train", ()), trained.get("format", "auto"), given.get("format", "auto")
    before = text_task.form(told, files) or text_task.table_form
    named = text_task.named_form(paths)
    unnamed_alike = told in text_task.structured and list(paths) != ["-"]
    alike = asked == "auto" and named == text_task.named_form(files)
    if alike and (answers or named is not None or unnamed_alike):
        now = before  # a .csv that is a tsv, again
    else:
        now = text_task.form(asked, paths) or (before if answers else "text")
    names = list(ROWS)
    if now == before:
        names += [*FORM, *COLUMNS]
    elif now in TABLES:
        names += COLUMNS
    return merge_data_settings(trained, given, names)


def _listed(paths: Sequence[str | os.PathLike[str]]) -> list[str]:
    """Raises UsageError for one path that stands by itself."""
    if isinstance(paths, str | os.PathLike):
        raise UsageError(
            f"files are given as a list, but this is {printable(repr(paths))}; put it into a list"
        )
    return [os.fspath(path) for path in paths]
