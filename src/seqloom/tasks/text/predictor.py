"""Ask a reader: labels, tags, answers and choices for texts; and how good they are on examples that are
known.

reader = load_reader("runs/sentiment")
reader.label(["A wonderful film."])
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, final

from seqloom.config import DataConfig
from seqloom.data.formats.forms import FORMS
from seqloom.data.readers import tagged
from seqloom.data.readers.examples import LabelledText
from seqloom.errors import DataError, FolderError, UsageError, place, printable
from seqloom.evaluation.classification import RESAMPLES
from seqloom.evaluation.predictions import predict_dataset
from seqloom.models.encoder_with_head import EncoderWithHead
from seqloom.run_file import parse
from seqloom.runs.progress import counted, in_chunks, tallied
from seqloom.runs.run_folder import LoadedRun, load_run
from seqloom.runs.settings import kept, refuse_unread, trained_on
from seqloom.tasks.text.classification import Classification
from seqloom.tasks.text.head_task import Answer, TaskReport, encode_examples, encoding_options
from seqloom.tasks.text.text_tasks import TASK_DATA

logger = logging.getLogger(__name__)

PLAIN: dict[str, Literal["text", "jsonl"]] = {
    "text-classification": "text",
    "token-classification": "text",
    "question-answering": "jsonl",
}
"""What standard input is where nothing says it."""
CHUNK = 2048
"""Examples that are in memory at one time."""
FORM = ("format", "encoding", "delimiter", "header", "quoting", "on_bad_line", "part", "repair_tags")
"""Settings that say what a file is like."""
COLUMNS = ("text", "second", "label", "score", "options", "columns")
"""Settings that say where things stand in a table."""
ROWS = ("tags", "label_separator", "label_until", "max_length", "stride", "unseen_labels", "answers_from")
"""Settings that say what a row is."""
TABLES = frozenset(FORMS.values())
TAGS = "token-classification"
ENDINGS = {**FORMS, ".json": "json", ".zip": "folder"}
OF_TAGS = {**tagged.FORMS, **dict.fromkeys(tagged.COLUMNS, "conll")}
"""The same for files of words with tags."""
TOLD = TABLES | {"json", *OF_TAGS.values()}
"""Forms that plain text can not be taken for."""


@final
class TextPredictor:
    """A reader that is ready to be asked; `given` are settings of `DataConfig`. Raises UsageError where the
    model of a folder is none."""

    def __init__(self, bundle: LoadedRun, given: Mapping[str, Any] | None = None) -> None:
        if not isinstance(bundle.model, EncoderWithHead):
            raise UsageError(
                f"{printable(str(bundle.folder))} is a {bundle.model_type} and no reader; make one with:"
                " seqloom train"
            )
        self.bundle, self.model = bundle, bundle.model
        self.given = given or {}
        if bundle.task not in TASK_DATA:
            raise FolderError(
                f"{printable(str(bundle.folder))}: the task of a reader must be one of"
                f" {', '.join(TASK_DATA)}, but is another"
            )
        refuse_unread(bundle.task, parse(DataConfig, dict(self.given), "data."))
        self.work = TASK_DATA[bundle.task].again(bundle.model.config)
        self.how = encoding_options(bundle.model.config, bundle.tokenizer, self._reading((), answers=True))

    def _reading(self, paths: Sequence[str], answers: bool) -> DataConfig:
        return read_as_trained(self.bundle.folder, self.bundle.task, self.given, paths, answers)

    def ask(self, examples: Sequence[Any]) -> list[Answer]:
        """The answer to each example. Raises DataError where a text is longer than the model reads,
        UsageError where a pair is given to a reader of single texts."""
        items = self.work.encode(examples, self.how)
        return self.work.replies(examples, items, predict_dataset(self.model, items))

    def label(self, texts: Iterable[str | tuple[str, str]]) -> list[dict[str, Any]]:
        """The labels of texts, or of pairs of them; of sentence-similarity their scores. Raises UsageError
        for other tasks, for one text that is no list, and for texts where the model reads pairs."""
        if not isinstance(self.work, Classification):
            raise UsageError(
                "label is for text-classification and sentence-similarity, but this reader is one of"
                f" {self.bundle.task}; use ask"
            )
        if isinstance(texts, str):
            raise UsageError("label takes a list of texts, but was given one text; put it into a list")
        pairs: list[tuple[str, str | None]] = []
        for one in texts:
            if not isinstance(one, str) and not (
                isinstance(one, tuple | list) and [type(part) for part in one] == [str, str]
            ):
                raise UsageError(
                    f"label takes texts, or pairs of texts, but was given {printable(repr(one)[:40])}"
                )
            pairs.append((one, None) if isinstance(one, str) else (one[0], one[1]))
        if self.work.pairs and not self.work.either and any(second is None for _, second in pairs):
            raise UsageError(
                "this reader was trained on pairs of texts, but was given one by itself; give tuples of two"
            )
        examples = [
            LabelledText(text, second, (), None, "text", at)
            for at, (text, second) in enumerate(pairs, start=1)
        ]
        return [reply.content for reply in self.ask(examples)]

    def stream(self, paths: Sequence[str | os.PathLike[str]], chunk: int = CHUNK) -> Iterator[Answer]:
        """The answers to the examples of files, in order, each with its line, as rows that are skipped have
        none; memory is bounded by the chunk."""
        if chunk < 1:
            raise UsageError(f"a chunk must be at least 1 example, but is {chunk}")
        paths = _listed(paths)
        data = self._reading(paths, answers=False)
        if "format" not in self.given and data.format in TOLD and _named(self.bundle.task, paths) is None:
            logger.info(
                f"{place(paths[0])}: read as data.format={data.format}, as in the training; of plain text:"
                " --set data.format=text"
            )
        if paths == ["-"] and data.format == "auto" and not self.work.pairs:
            data = replace(data, format=PLAIN.get(self.bundle.task, "auto"))
        with tallied() as tally:
            for some in in_chunks(self.work.read(paths, data, tally, answers=False), chunk):
                for one, reply in zip(some, self.ask(some), strict=True):
                    yield (
                        reply
                        if one.line is None
                        else reply._replace(content={"line": one.line, **reply.content})
                    )
        for note in self.how.truncation.notices():
            logger.info(note)

    def report(
        self, paths: Sequence[str | os.PathLike[str]], resamples: int = RESAMPLES
    ) -> tuple[TaskReport, list[Answer]]:
        """How good the answers to known examples are, and the answers. Raises DataError where there is no
        example, or one that has a label of its own (`data.unseen_labels`)."""
        paths = _listed(paths)
        if not paths:
            raise UsageError("evaluate needs data: name its files after the folder")
        data = self._reading(paths, answers=True)
        with tallied() as tally:
            examples = list(counted(self.work.read(paths, data, tally), "examples read"))
        if not examples:
            raise DataError("there must be an example to measure, but there is none", paths[0])
        items = encode_examples(self.work, examples, self.how, data)
        for note in self.how.truncation.notices():
            logger.info(note)
        found = predict_dataset(self.model, items)
        return self.work.report(examples, items, found, resamples), self.work.replies(examples, items, found)


def load_reader(
    folder: str | Path, given: Mapping[str, Any] | None = None, device: str = "auto"
) -> TextPredictor:
    """The reader of a run folder or of a Hugging Face directory; `given` says how files are read, as in
    {"text": "review"}."""
    return TextPredictor(load_run(folder, device), given)


def read_as_trained(
    folder: Path, task: str, given: Mapping[str, Any], paths: Sequence[str], answers: bool
) -> DataConfig:
    """Settings of reading that are not given are those of the training: what a row is in any case; what a
    file is like and which columns are read where the files have the form of the training's. To be answered, a
    file whose name says nothing is plain text, unless the training's, whose names said nothing either, were
    told to be tables."""
    trained = trained_on(folder)
    if trained is None:
        return kept({}, given, ())
    files, told, asked = trained.get("train", ()), trained.get("format", "auto"), given.get("format", "auto")
    before = _form(task, told, files) or ("conll" if task == TAGS else None)
    named = _named(task, paths)
    silent_alike = answers or named is not None or (told in TOLD and list(paths) != ["-"])
    alike = asked == "auto" and named == _named(task, files) and silent_alike
    now = (
        before if alike else _form(task, asked, paths) or (before if answers else "text")
    )  # alike: a .csv that is a tsv, again
    return kept(
        trained, given, [*ROWS, *((*FORM, *COLUMNS) if now == before else COLUMNS if now in TABLES else ())]
    )


def _form(task: str, asked: str, paths: Sequence[str]) -> str | None:
    """The form that is asked for, or that the name of the first file says; None where neither does."""
    if asked != "auto":
        return "conll" if task == TAGS and asked == "tsv" else asked
    return _named(task, paths)


def _named(task: str, paths: Sequence[str]) -> str | None:
    name = next(iter(paths), "").removesuffix(".gz").lower()
    return (OF_TAGS if task == TAGS else ENDINGS).get(os.path.splitext(name)[1])


def _listed(paths: Sequence[str | os.PathLike[str]]) -> list[str]:
    """Raises UsageError for one path that stands by itself."""
    if isinstance(paths, str | os.PathLike):
        raise UsageError(
            f"files are given as a list, but this is {printable(repr(paths))}; put it into a list"
        )
    return [os.fspath(path) for path in paths]
