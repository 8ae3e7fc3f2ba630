"""A trained text-to-text model that knows several tasks: their files and inputs in, their answers out."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, final

from torch import Tensor

from seqloom import files
from seqloom.config import DataConfig, DecodeConfig, MixedTaskConfig
from seqloom.data.formats.forms import form_or
from seqloom.errors import DataError, UsageError, counted, printable
from seqloom.evaluation.intervals import RESAMPLES
from seqloom.protocols import NO_REQUEST, Answer, Evaluation, InputTable, Request, context_of
from seqloom.run_file import parse, read_run_file
from seqloom.runs import run_folder
from seqloom.runs.progress import chunked, logged_report, named_logs
from seqloom.runs.run_folder import LoadedRun
from seqloom.runs.settings import data_config, evaluate_config
from seqloom.tasks.explain.explained_model import ExplainedModel
from seqloom.tasks.explain.look import Look
from seqloom.tasks.explain.model_input import ModelInput
from seqloom.tasks.model import (
    refuse_unread_data,
    refuse_unread_inputs,
    single_path,
)
from seqloom.tasks.prompting.result import PromptResult
from seqloom.tasks.text_to_text.evaluate_tasks import evaluate_task, joined
from seqloom.tasks.text_to_text.mixed_task import MixedTask, reopened_task
from seqloom.tasks.text_to_text.scores import HowToScore
from seqloom.tasks.text_to_text.text_forms import AnswerForm, LabelForm, NumberForm, TagForm
from seqloom.tasks.translation.text_limit import TextLimit
from seqloom.tasks.translation.translate import DecodedText, decode_texts
from seqloom.tasks.translation.translator import CHUNK, Translator

logger = logging.getLogger(__name__)

NO_TAG = "?"
"""What is shown for a word that was given no tag."""


def text_to_text_model(run: LoadedRun) -> Translator | TextToTextModel:
    """A model of several tasks, where its run file has some; else one of pairs of texts."""
    run_folder.check_files(run.folder, run_folder.RUN, run_folder.DATA)
    path = run.folder / run_folder.RUN
    tasks = read_run_file(str(path)).get("tasks") if files.is_there(path) else None
    return TextToTextModel(run, tasks) if tasks else Translator(run)


@final
class TextToTextModel(ExplainedModel):
    """A trained text-to-text model of several tasks, ready to be asked.

    model = seqloom.load("runs/mixture")
    model.predict(["What is the capital of Peru ?"], task="trec")
    model.evaluate(["trec=trec.test.tsv", "stsb=sts-test.csv"])
    """

    reads: ClassVar = {
        "evaluate": frozenset({"data", "decode", "evaluate"}),
        "explain": frozenset({"decode"}),
        "predict": frozenset({"data", "decode"}),
    }
    pictures: ClassVar = Translator.pictures

    def __init__(self, run: LoadedRun, tasks: Mapping[str, Any]) -> None:
        super().__init__(run)
        known = files.read_json(run.folder / run_folder.DATA).get("tasks", {})
        self.tasks: dict[str, MixedTask] = {}
        for name, content in tasks.items():
            config = parse(MixedTaskConfig, content, f"tasks.{name}.")
            self.tasks[name] = reopened_task(name, config, known.get(name, {}))

    def task_called(self, name: str | None) -> MixedTask:
        """The task of this name, which may be left out where there is only one. Raises UsageError for
        another."""
        if name is None and len(self.tasks) == 1:
            (name,) = self.tasks
        if name not in self.tasks:
            given = "is missing" if name is None else f"is {printable(name)}"
            raise UsageError(
                f"{printable(str(self.folder))}: the name of a task must be one of"
                f" {', '.join(self.tasks)}, but {given}"
            )
        return self.tasks[name]

    def _files(self, paths: Sequence[str]) -> dict[str, list[str]]:
        """Task -> its files, each given as TASK=FILE. Raises UsageError if a file has no task."""
        found: dict[str, list[str]] = {}
        for path in paths or ("-",):
            name, equals, file = path.partition("=")
            if equals and name in self.tasks:
                found.setdefault(name, []).append(file)
            elif len(self.tasks) == 1:
                found.setdefault(next(iter(self.tasks)), []).append(path)
            else:
                raise UsageError(
                    f"{printable(str(self.folder))} knows several tasks, so each file must be given as"
                    f" TASK=FILE, where TASK is one of {', '.join(self.tasks)}, but is {printable(path)}"
                )
        return found

    def predict(
        self, inputs: Sequence[object], task: str | None = None, **decode: Any
    ) -> list[str]:
        """The answer to each input of a task: a text, (text, text), (question, context) or a list of words;
        keywords change the settings of decoding."""
        return [answer.text for answer in self.answer(inputs, task, **decode)]

    def answer(
        self, inputs: Sequence[object], task: str | None = None, **decode: Any
    ) -> list[Answer]:
        """The same with all that is known of each answer."""
        asked = self.task_called(task)
        examples = [asked.example(plain, number) for number, plain in enumerate(inputs, 1)]
        return self._answered(asked, examples, self.run.decode_settings(decode), DataConfig())

    def answers(self, paths: Sequence[str], request: Request = NO_REQUEST) -> Iterator[Answer]:
        """The answers to the examples of a file, given as TASK=FILE."""
        ((name, named),) = self._files([single_path(paths)]).items()
        task = self.tasks[name]
        if task.head_task is None:
            refuse_unread_inputs(request.data, named[0])
        else:
            refuse_unread_data(task.config.task, request.data, named)
        self.check("predict", replace(request, data={}))
        data = task.reading(request.data, named, answers=False)
        decode = self.run.decode_settings(request.decode)
        with logged_report() as report:
            examples = task.read(named, data, report, answers=False)
            for chunk in chunked(examples, 1 if request.interactive else CHUNK):
                answers = self._answered(task, chunk, decode, data)
                for example, answer in zip(chunk, answers, strict=True):
                    yield answer._replace(content={"line": example.line, **answer.content})

    def input_table(self, paths: Sequence[str], request: Request) -> InputTable:
        ((name, named),) = self._files([single_path(paths)]).items()
        data = self.tasks[name].reading(request.data, named, answers=False)
        return InputTable(named[0], form_or("text", named[0], data), data)

    def _answered(
        self, task: MixedTask, examples: Sequence[Any], decode: DecodeConfig, data: DataConfig
    ) -> list[Answer]:
        sources = [task.source(example) for example in examples]
        fitting = set(self._limit(data).fitting([(source, "") for source in sources], task.name))
        read = [source if index in fitting else "" for index, source in enumerate(sources)]
        model = self.run.decoder(decode)
        outputs = decode_texts(model, self.run.tokenizer, read, decode)
        how = HowToScore(self.run.tokenizer, evaluate_config(self.folder, {}), 0)
        form: Any = task.form
        meanings = form.read(examples, [candidates[0].text for candidates in outputs], how.written)
        wrong = sum(meaning is None for meaning, text in zip(meanings, read, strict=True) if text)
        if wrong:
            logger.info(
                f"{wrong:,} of {counted(len(read), 'text')} of {task.name} {'are' if wrong > 1 else 'is'} no"
                " answer of that task"
            )
        return [
            _answer(task, example, meaning, candidates)
            for example, meaning, candidates in zip(examples, meanings, outputs, strict=True)
        ]

    def _limit(self, data: DataConfig) -> TextLimit:
        cut = data_config(self.folder, {}).max_length
        return TextLimit(
            context=context_of(self.run.model),
            tokenizer=self.run.tokenizer,
            data=replace(data, max_length=cut),
        )

    def evaluate(self, paths: Sequence[str], request: Request = NO_REQUEST) -> Evaluation:
        """How good it is on files of known examples, each given as TASK=FILE: the metrics of the task; of
        several, those of each under its name, and their means."""
        if not paths:
            raise UsageError("evaluate needs data: name its files after the folder, as TASK=FILE")
        by_task = self._files(paths)
        for name, named in by_task.items():
            refuse_unread_data(self.tasks[name].config.task, request.data, named)
        self.check("evaluate", replace(request, data={}))
        found = {name: self._evaluated(name, named, request) for name, named in by_task.items()}
        if len(found) == 1:
            return next(iter(found.values()))
        return joined([self.tasks[name] for name in found], list(found.values()))

    def _evaluated(self, name: str, paths: Sequence[str], request: Request) -> Evaluation:
        task = self.tasks[name]
        how = HowToScore(
            self.run.tokenizer, evaluate_config(self.folder, request.evaluate), RESAMPLES, True
        )
        with named_logs(name):
            data = task.reading(request.data, paths, answers=True)
            with logged_report() as report:
                examples = list(task.read(paths, data, report))
            if task.head_task is not None:
                for note in task.head_task.check_labels(examples, data.unseen_labels):
                    logger.info(note)
            pairs = [(fields["source"], fields["target"]) for fields in map(task.texts, examples)]
            fitting = self._limit(data).fitting(pairs, paths[0])
            if not fitting:
                raise DataError("there must be an example to measure, but there is none", paths[0])
            kept = [examples[index] for index in fitting]
            decode = self.run.decode_settings(request.decode)
            found = evaluate_task(self.run.decoder(decode), task, kept, decode, how)
        sizes = {"vocabulary": self.run.tokenizer.vocabulary_size}
        return replace(found, metrics=found.metrics | sizes)

    def text_vector(self, text: str) -> Tensor:
        return Translator(self.run).text_vector(text)

    def model_input(self, texts: Sequence[str], look: Look, request: Request) -> ModelInput:
        """A text begins with the prefix of its task."""
        return Translator(self.run).model_input(texts, look, request)

    def prompt(
        self, paths: Sequence[str], request: Request = NO_REQUEST, **options: Any
    ) -> PromptResult:
        """As a model of pairs does it: the prompt says the task, whatever the model was trained for."""
        return Translator(self.run).prompt(paths, request, **options)


def _answer(task: MixedTask, example: Any, meaning: Any, outputs: Sequence[DecodedText]) -> Answer:
    text = outputs[0].text
    content: dict[str, object] = {"task": task.name}
    match task.form:
        case LabelForm():
            content["label"] = meaning
            text = text if meaning is None else meaning
        case NumberForm():
            content["score"] = meaning
        case AnswerForm():
            content["answer"] = meaning
        case TagForm():
            content |= {"words": list(example.words), "tags": list(meaning or ())}
            text = " ".join(tag or NO_TAG for tag in meaning or ())
    cells = {**content, "output": outputs[0].text}
    del cells["task"]
    return Answer(text, {**content, "outputs": [output._asdict() for output in outputs]}, cells)
