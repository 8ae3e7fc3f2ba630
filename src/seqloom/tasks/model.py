"""A trained model of any task: what all of them have in common, and how one is opened."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, cast

from torch import nn

from seqloom.config import DataConfig
from seqloom.data.formats.form_settings import BY_FORM, INPUTS, LINES
from seqloom.data.formats.forms import TABLES, form_or
from seqloom.errors import FolderError, UsageError, printable
from seqloom.protocols import InputTable, LoadedModel, Request
from seqloom.registry import all_tasks, find_task, task_names
from seqloom.run_file import parse
from seqloom.runs.progress import log_notes
from seqloom.runs.run_folder import LoadedRun, load_run, open_model, resolve_folder, task_of
from seqloom.runs.settings import data_config
from seqloom.tasks.unused_settings import unused_by_forms

logger = logging.getLogger(__name__)

VERBS = (
    "predict",
    "vectors",
    "fill_masks",
    "evaluate",
    "generate",
    "score",
    "complete",
    "explain",
    "prompt",
    "n_best",
    "stream",
)
"""Methods that some models have and others do not."""


class NoSuchVerb(UsageError, AttributeError):
    """A model was asked for what its task gives no meaning to."""


class TrainedModel:
    """The base of what `seqloom.load` returns. It knows its task, and refuses what that gives no meaning
    to."""

    reads: ClassVar[Mapping[str, frozenset[str]]] = {}
    """verb -> the parts of a `Request` that it reads: data, or lines where each line of a file is a text;
    decode or decode.NAME, evaluate, stride, trace, labels."""

    def __init__(self, folder: Path, task: str, model: nn.Module, model_type: str) -> None:
        self.folder, self.task, self.model, self.model_type = folder, task, model, model_type

    def __repr__(self) -> str:
        parameters = sum(parameter.numel() for parameter in self.model.parameters())
        verbs = ", ".join(name for name in VERBS if name in dir(type(self)))
        folder = printable(str(self.folder))
        return f"<{self.task}: {self.model_type} of {parameters:,} parameters in {folder}; {verbs}>"

    def shows(self) -> list[str]:
        """The pictures that there are of it, the default one first."""
        return []

    def decoder(self) -> nn.Module:
        """What writes its texts."""
        return self.model

    if not TYPE_CHECKING:  # a type checker shall still find a wrong name

        def __getattr__(self, name: str) -> Any:
            if name in (*VERBS, "answers"):
                verb = "predict" if name == "answers" else name
                raise no_such_verb(self.folder, self.task, verb, self.model_type)
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")

    def input_table(self, paths: Sequence[str], request: Request) -> InputTable | None:
        """The file of inputs, where each of its rows or lines is one."""
        if "lines" not in self.reads["predict"]:
            return None
        path, data = single_path(paths), data_config(self.folder, request.data)
        return InputTable(path, form_or("text", path, data), data)

    def check(self, verb: str, request: Request, paths: Sequence[str] = ()) -> None:
        """Raises UsageError if something of a request would change nothing. `paths`: the files, in
        whatever form, of which it is asked."""
        reads = self.reads[verb]
        if "lines" in reads:
            refuse_unread_inputs(request.data, next(iter(paths), "-"))
        else:
            refuse_unread_data(self.task, request.data, paths)
        unread = [
            f"decode.{name}" for name in request.decode if not {"decode", f"decode.{name}"} & reads
        ]
        if request.data and not {"data", "lines"} & reads:
            unread.append(f"data.{next(iter(request.data))}")
        task = find_task(self.task)
        measured = task.settings if task is not None and "evaluate" in reads else frozenset[str]()
        unread += [
            f"evaluate.{name}" for name in request.evaluate if f"evaluate.{name}" not in measured
        ]
        if request.stride is not None and "stride" not in reads:
            unread.append("--stride")
        if request.all_labels and "labels" not in reads:
            unread.append("--probabilities")
        for name in ("trace", "target"):
            if vars(request)[name] is not None and name not in reads:
                unread.append(f"--{name}")
        if unread:
            folder = printable(str(self.folder))
            raise UsageError(
                f"{unread[0]} changes nothing in {verb} of {folder}, a model of {self.task}; leave it out"
            )


def single_path(paths: Sequence[str]) -> str:
    """The one file of inputs; standard input where none is named. Raises UsageError for several."""
    if len(paths) > 1:
        raise UsageError(
            f"predict takes FOLDER and one FILE, but {len(paths)} files are given; ask for one after the"
            " other"
        )
    return paths[0] if paths else "-"


class TextModel(TrainedModel):
    """A trained model with a tokenizer."""

    def __init__(self, run: LoadedRun) -> None:
        super().__init__(run.folder, run.task, run.model, run.model_type)
        self.run = run

    def check(self, verb: str, request: Request, paths: Sequence[str] = ()) -> None:
        super().check(verb, request, paths)
        if request.decode:
            self.run.decode_settings(request.decode)

    def decoder(self) -> nn.Module:
        return self.run.decoder(self.run.decode_settings({}))


M = TypeVar("M")


def open_text_model(make: Callable[[LoadedRun], M], folder: str | Path, device: str) -> M:
    """The model of a run folder or of a Hugging Face directory."""
    run = load_run(folder, device)
    log_notes(run.notes)
    return make(run)


NO_LANGUAGE_MODEL = {
    "elmo": "each direction of an ELMo sees the tokens on one side only, so it has no probability of a text"
}
"""Family -> why it neither generates nor scores, though it predicts tokens."""


def no_such_verb(folder: str | Path, task: str, verb: str, model_type: str = "") -> NoSuchVerb:
    """The error of a verb that means nothing to a model."""
    place, known = printable(str(folder)), find_task(task)
    hint = (
        f"; use: seqloom {known.verb} {place}" if known is not None and known.verb != verb else ""
    )
    because = f": {NO_LANGUAGE_MODEL[model_type]}" if model_type in NO_LANGUAGE_MODEL else ""
    return NoSuchVerb(f"{place}: a model of {printable(task)} cannot {verb}{because}{hint}")


def refuse_unread_inputs(given: Mapping[str, object], path: str) -> None:
    """Raises UsageError if a setting of reading is given that changes nothing for a file of texts, which
    are lines, or rows of a table."""
    form = form_or("text", path, parse(DataConfig, given, "data."))
    read = LINES | (BY_FORM.get(form, frozenset()) & INPUTS) | {"format"}
    if any("," in str(given.get(name)) for name in ("text", "source")):
        read |= {"join"}
    part = "row" if form in TABLES else "line"
    for name, value in given.items():
        if name not in read and value != vars(DataConfig())[name]:
            raise UsageError(
                f"data.{name} changes nothing here, where each {part} of a file is a text; leave it out"
            )


def refuse_unread_data(name: str, given: Mapping[str, object], paths: Sequence[str] = ()) -> None:
    """Raises UsageError if a setting of reading is given that changes nothing for this task, or for these
    files of it."""
    config, task = parse(DataConfig, given, "data."), find_task(name)
    data = vars(config)
    if task is None:
        return
    unused = unused_by_forms(task, config, paths, given)
    for field in fields(DataConfig):
        if field.name not in given or data[field.name] == field.default:
            continue
        setting = f"data.{field.name}"
        if setting in task.reading and setting in unused:
            raise UsageError(f"{unused[setting]}; leave it out")
        if setting in task.settings - task.reading:
            raise UsageError(
                f"{setting} is a setting of training and changes nothing here; leave it out"
            )
        if setting not in task.reading:
            raise UsageError(unread_setting(setting, name))


def unread_setting(setting: str, task: str) -> str:
    """The error line of a setting that changes nothing for a task."""
    readers = ", ".join(other.name for other in all_tasks() if setting in other.settings)
    hint = f" (it is for {readers})" if readers else ""
    return f"{setting} changes nothing for {task}{hint}; leave it out"


def load(folder: str | Path, device: str = "auto") -> LoadedModel:
    """Opens a run folder, a Hugging Face directory or hf://NAME: the model of whatever task it is for.

    Raises FolderError if it is neither, is damaged, or is of a task that is not known here.
    """
    place = resolve_folder(folder)
    name = task_of(place)
    task = None if name is None else find_task(name)
    if task is None:
        open_model(place, "cpu")  # raises where the folder is damaged
        raise FolderError(
            f"{printable(str(place))}: its task must be one of {', '.join(task_names())}, but is"
            f" {printable(repr(name))}; a task of one's own is made known with --plugin"
        )
    return cast(LoadedModel, task.open(place, device))
