"""Ask a reader: labels, tags, answers and choices for texts; and how good they are on examples that are known.

reader = load_reader("runs/sentiment")
reader.label(["A wonderful film."])
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, final

from seqloom.bundles import Bundle, load_bundle
from seqloom.config import DataConfig
from seqloom.data.examples import Labelled
from seqloom.data.records import FORMS
from seqloom.errors import DataError, FolderError, UsageError, printable
from seqloom.evaluation.labels import RESAMPLES
from seqloom.evaluation.reading import answered
from seqloom.models.reader import Reader
from seqloom.workflows.labelling import Labelling
from seqloom.workflows.reading import Say, counted, in_chunks, silent, tallied
from seqloom.workflows.settings import kept, trained_on
from seqloom.workflows.work import Reply, Report, laid_out, laying_out
from seqloom.workflows.works import BEGINNINGS

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
ROWS = ("tags", "label_separator", "label_until", "max_length", "stride", "unseen_labels")
"""Settings that say what a row is."""
TABLES = frozenset(FORMS.values())
ENDINGS = {".json": "json", ".conllu": "conllu", ".conll": "conll", ".iob2": "conll", ".zip": "folder"}


@final
class TextReader:
    """A reader that is ready to be asked; `given` are settings of `DataConfig`. Raises UsageError where the model of a folder is none."""

    def __init__(self, bundle: Bundle, given: Mapping[str, Any] | None = None, say: Say = silent) -> None:
        if not isinstance(bundle.model, Reader):
            raise UsageError(f"{printable(str(bundle.folder))} is a {bundle.model_type} and no reader; make one with: seqloom train")
        self.bundle, self.model, self.say = bundle, bundle.model, say
        self.given = given or {}
        if bundle.task not in BEGINNINGS:
            raise FolderError(
                f"{printable(str(bundle.folder))}: the task of a reader must be one of {', '.join(BEGINNINGS)}, but is another"
            )
        self.work = BEGINNINGS[bundle.task].again(bundle.model.config)
        self.how = laying_out(bundle.model.config, bundle.tokenizer, read_as_trained(bundle.folder, self.given, (), True))

    def ask(self, examples: Sequence[Any]) -> list[Reply]:
        """The answer to each example. Raises DataError where a text is longer than the model reads."""
        items = self.work.lay_out(examples, self.how)
        return self.work.replies(examples, items, answered(self.model, items))

    def label(self, texts: Iterable[str | tuple[str, str]]) -> list[dict[str, Any]]:
        """The labels of texts, or of pairs of them; of sentence-similarity their scores. Raises UsageError for other tasks, for one text
        that is no list, and for texts where the model reads pairs."""
        if not isinstance(self.work, Labelling):
            raise UsageError(
                f"label is for text-classification and sentence-similarity, but this reader is one of {self.bundle.task}; use ask"
            )
        if isinstance(texts, str):
            raise UsageError("label takes a list of texts, but was given one text; put it into a list")
        pairs = [(one, None) if isinstance(one, str) else one for one in texts]
        if self.work.pairs and not self.work.either and any(second is None for _, second in pairs):
            raise UsageError("this reader was trained on pairs of texts, but was given one by itself; give tuples of two")
        examples = [Labelled(text, second, (), None, "text", at) for at, (text, second) in enumerate(pairs, start=1)]
        return [reply.content for reply in self.ask(examples)]

    def stream(self, paths: Sequence[str], chunk: int = CHUNK) -> Iterator[Reply]:
        """The answers to the examples of files, in order, each with its line, as rows that are skipped have none; memory is bounded by the
        chunk."""
        data = read_as_trained(self.bundle.folder, self.given, paths, answers=False)
        if list(paths) == ["-"] and data.format == "auto" and not self.work.pairs:
            data = replace(data, format=PLAIN.get(self.bundle.task, "auto"))
        with tallied(self.say) as tally:
            for some in in_chunks(self.work.read(paths, data, tally, answers=False), chunk):
                for one, reply in zip(some, self.ask(some), strict=True):
                    yield reply if one.line is None else reply._replace(content={"line": one.line, **reply.content})
        for note in self.how.notes.said():
            self.say(note)

    def report(self, paths: Sequence[str], resamples: int = RESAMPLES) -> tuple[Report, list[Reply]]:
        """How good the answers to known examples are, and the answers. Raises DataError where there is no example, or one that has a
        label of its own (`data.unseen_labels`)."""
        if not paths:
            raise UsageError("evaluate needs data: name its files after the folder")
        data = read_as_trained(self.bundle.folder, self.given, paths, answers=True)
        with tallied(self.say) as tally:
            examples = list(counted(self.work.read(paths, data, tally), "examples read", self.say))
        if not examples:
            raise DataError("there must be an example to measure, but there is none", paths[0])
        items = laid_out(self.work, examples, self.how, data, self.say)
        for note in self.how.notes.said():
            self.say(note)
        found = answered(self.model, items)
        return self.work.report(examples, items, found, resamples), self.work.replies(examples, items, found)


def load_reader(folder: str | Path, given: Mapping[str, Any] | None = None, device: str = "auto", say: Say = silent) -> TextReader:
    """The reader of a run folder or of a Hugging Face directory; `given` says how files are read, as in {"text": "review"}."""
    return TextReader(load_bundle(folder, device), given, say)


def read_as_trained(folder: Path, given: Mapping[str, Any], paths: Sequence[str], answers: bool) -> DataConfig:
    """Settings of reading that are not given are those of the training: what a row is in any case; what a file is like and which columns
    are read where the files have the form of the training's. To be answered, a file whose name says nothing is plain text."""
    trained = trained_on(folder)
    if trained is None:
        return kept({}, given, ())
    files, asked = trained.get("train", ()), given.get("format", "auto")
    before, named = _form(trained.get("format", "auto"), files), _form("auto", paths)
    alike = asked == "auto" and named == _form("auto", files) and (answers or named is not None)
    now = before if alike else _form(asked, paths) or (before if answers else "text")  # alike: a .csv that is a tsv, again
    return kept(trained, given, [*ROWS, *((*FORM, *COLUMNS) if now == before else COLUMNS if now in TABLES else ())])


def _form(asked: str, paths: Sequence[str]) -> str | None:
    """The form that is asked for, or that the name of the first file says; None where neither does."""
    if asked != "auto":
        return asked
    name = next(iter(paths), "").removesuffix(".gz").lower()
    return FORMS.get(os.path.splitext(name)[1]) or next((form for end, form in ENDINGS.items() if name.endswith(end)), None)
