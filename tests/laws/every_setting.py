"""Each setting of a training, tried on each task and family: it changes the run, or it is refused.

    nice python -m tests.laws.every_setting [TASK ...]     all of them: many minutes
    python -m tests.laws.every_setting --sample 200        some of them

A run is compared by all that comes out of it except run.yaml and the files that only repeat settings: its
weights, tokenizer, metrics, messages, the shapes of what went through the model, the names of its files, and
what it answers and measures with the settings that it has stored.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
import re
import shutil
import struct
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, get_args, get_type_hints

import numpy as np
import torch
from tests.laws.test_setting_laws import FROM_ELSEWHERE, NEEDED, SMALL, other_value
from torch import nn

import seqloom
from seqloom.config import SECTIONS
from seqloom.errors import SeqloomError
from seqloom.models import families_for, model_family
from seqloom.registry import TASKS, all_tasks
from seqloom.tasks.model import load

SIZES = SMALL | {
    "electra": SMALL["bert"],
    "word2vec": {"vocabulary_size": 30, "width": 8},
    "glove": {"vocabulary_size": 30, "width": 8},
    "ngram": {"vocabulary_size": 30, "order": 2},
}
WORDS = ("dog", "cat", "bird", "Haus", "boat", "park", "Tür", "red", "old", "small")
TOPICS = ("pets", "birds", "things")


def _sentence(number: int, words: int = 6) -> str:
    chosen = (WORDS[(number * 7 + place * (number % 3 + 1)) % len(WORDS)] for place in range(words))
    return " ".join(chosen) + "."


def _quoted(*cells: str) -> str:
    return ",".join(f'"{cell}"' for cell in cells) + "\n"


ROWS = 24


def write_data(folder: Path) -> None:
    """A file of each kind of data; in each the settings of reading have something to read."""
    texts = [_sentence(number) for number in range(ROWS)]
    kinds = ("good", "bad", "good:er", "good|bad", "good")
    labels = [kinds[number % 5] for number in range(ROWS)]
    scores = [f"{number % 5 / 5}" for number in range(ROWS)]
    pairs = [_quoted("source", "target", "extra")]
    pairs += [_quoted(text, text[::-1], "x") for text in texts]
    (folder / "pairs.csv").write_text("".join(pairs), "utf-8")
    paragraphs = "\n\n".join("\n".join(texts[first : first + 4]) for first in range(0, ROWS, 4))
    (folder / "book.txt").write_text(paragraphs + "\n", "utf-8")
    (folder / "book.csv").write_text(
        _quoted("text", "other") + "".join(_quoted(text, text[::-1]) for text in texts), "utf-8"
    )
    rows = zip(texts, labels, scores, strict=True)
    header = _quoted("text", "second", "label", "score", "topic", "a", "b", "answer")
    table = [header]
    for number, (text, label, score) in enumerate(rows):
        second, topic = texts[-number - 1], TOPICS[number % 3]
        table.append(_quoted(text, second, label, score, topic, "yes", "no", str(1 + number % 2)))
    (folder / "one.csv").write_text(
        _quoted("text", "label", "topic")
        + "".join(
            _quoted(text, label, TOPICS[number % 3])
            for number, (text, label) in enumerate(zip(texts, labels, strict=True))
        ),
        "utf-8",
    )
    new = _quoted("dog", "new", "pets")
    (folder / "unseen.csv").write_text((folder / "one.csv").read_text("utf-8") + new, "utf-8")
    (folder / "table.csv").write_text("".join(table), "utf-8")
    (folder / "spaced.csv").write_text("".join(table).replace(",", ", "), "utf-8")
    conllu, conll = [], []
    for text in texts:
        for number, word in enumerate(text.split(), 1):
            tag = "NOUN" if word[0].isupper() else "ADJ"
            conllu.append(f"{number}\t{word}\t_\t{tag}\tX{tag}\tA={number}\t0\troot\t_\t_\n")
            conll.append(f"{word} {word.lower()} {'B-X' if number % 3 == 0 else 'O'}\n")
        conllu.append("\n")
        conll.append("\n")
    (folder / "tags.conllu").write_text("".join(conllu), "utf-8")
    (folder / "tags.conll").write_text("".join(conll), "utf-8")
    lines = []
    for text in texts:
        answers = {"text": [text[:3]], "answer_start": [0]}
        question = {"question": "which dog?", "context": text * 4, "answers": answers}
        lines.append(json.dumps(question, ensure_ascii=False) + "\n")
    (folder / "questions.jsonl").write_text("".join(lines), "utf-8")
    pixels = np.random.default_rng(0).integers(0, 255, (ROWS, 4, 4), np.uint8)
    header_bytes = struct.pack(">IIII", 0x803, ROWS, 4, 4)
    (folder / "x-images-idx3-ubyte").write_bytes(header_bytes + pixels.tobytes())
    classes = bytes(number % 2 for number in range(ROWS))
    (folder / "x-labels-idx1-ubyte").write_bytes(struct.pack(">II", 0x801, ROWS) + classes)
    for source, name in (
        ("pairs.csv", "damaged.csv"),
        ("table.csv", "damaged_table.csv"),
        ("book.txt", "damaged.txt"),
        ("tags.conll", "damaged.conll"),
    ):
        good = (folder / source).read_bytes().replace(b'"x"', b'"1"')
        (folder / name).write_bytes(good.replace(b"boat", b"bo\xfft", 1))
    blanks = "".join(
        f'"{text}", {text[::-1]},{number % 2 + 1}\n' for number, text in enumerate(texts)
    )
    (folder / "blanks.csv").write_text(_quoted("source", "target", "extra") + blanks, "utf-8")
    tagged = (folder / "tags.conll").read_text("utf-8").replace("B-X", "I-X")
    (folder / "loose.conll").write_text(tagged, "utf-8")
    (folder / "damaged.jsonl").write_text("".join(lines) + "no object\n", "utf-8")
    vectors = "".join(f"{word} {' '.join(['0.5'] * 8)}\n" for word in WORDS)
    (folder / "vectors.txt").write_text(vectors, "utf-8")


class Data(NamedTuple):
    """Files of a task, and the settings that they need."""

    train: tuple[str, ...]
    settings: tuple[str, ...] = ()


DATA: dict[str, Data] = {
    "translation": Data(("pairs.csv",)),
    "text-generation": Data(("book.txt",)),
    "denoising": Data(("book.txt",)),
    "feature-extraction": Data(("book.txt",)),
    "fill-mask": Data(("book.txt",)),
    "word-vectors": Data(("book.txt",)),
    "text-classification": Data(("one.csv",)),
    "sentence-similarity": Data(
        ("table.csv",), ("data.text=text", "data.second=second", "model.context=40")
    ),
    "token-classification": Data(("tags.conllu",)),
    "question-answering": Data(("questions.jsonl",)),
    "multiple-choice": Data(("table.csv",), ("data.options=[a,b]", "data.label=answer")),
    "image-classification": Data(("x-images-idx3-ubyte", "x-labels-idx1-ubyte")),
    "masked-image-modeling": Data(("x-images-idx3-ubyte",)),
}
OTHER_DATA: dict[tuple[str, str], Data] = {
    ("token-classification", "data.columns"): Data(("tags.conll",)),
    ("token-classification", "data.stride"): Data(("tags.conllu",), ("model.context=6",)),
    ("token-classification", "data.repair_tags"): Data(("loose.conll",)),
    ("token-classification", "data.on_bad_line"): Data(("damaged.conll",)),
    ("text-generation", "data.on_bad_line"): Data(("damaged.txt",)),
    ("translation", "data.on_bad_line"): Data(("damaged.csv",)),
    ("text-classification", "data.on_bad_line"): Data(
        ("damaged.csv",), ("data.text=source", "data.label=extra")
    ),
    ("sentence-similarity", "data.on_bad_line"): Data(
        ("damaged.csv",), ("data.text=source", "data.second=target", "data.score=extra")
    ),
    ("question-answering", "data.on_bad_line"): Data(("damaged.jsonl",)),
    ("multiple-choice", "data.on_bad_line"): Data(
        ("damaged_table.csv",), ("data.options=[a,b]", "data.label=answer")
    ),
    ("translation", "data.skip_initial_space"): Data(("blanks.csv",)),
    ("text-generation", "data.skip_initial_space"): Data(("blanks.csv",), ("data.text=source",)),
    ("text-classification", "data.skip_initial_space"): Data(
        ("blanks.csv",), ("data.text=target", "data.label=extra")
    ),
    ("sentence-similarity", "data.skip_initial_space"): Data(
        ("blanks.csv",),
        ("data.text=source", "data.second=target", "data.score=extra", "model.context=40"),
    ),
    ("multiple-choice", "data.skip_initial_space"): Data(
        ("spaced.csv",), ("data.options=[a,b]", "data.label=answer")
    ),
    ("text-generation", "data.text"): Data(("book.csv",)),
    ("text-generation", "data.delimiter"): Data(("book.csv",)),
    ("text-generation", "data.header"): Data(("book.csv",)),
    ("text-generation", "data.quoting"): Data(("book.csv",)),
    ("text-classification", "head.pair"): Data(
        ("table.csv",),
        ("data.text=text", "data.second=second", "data.label=label", "model.context=40"),
    ),
}
"""(task, setting) -> files in which it has something to read."""
OTHER_DATA |= {
    (like, setting): data
    for (task, setting), data in OTHER_DATA.items()
    for like in ("denoising", "feature-extraction", "fill-mask", "word-vectors")
    if task == "text-generation"
}
PAIRS = ("translation", "summarization", "text2text-generation")
HEADS = {
    "text-classification",
    "sentence-similarity",
    "token-classification",
    "question-answering",
    "multiple-choice",
}
"""Tasks whose models have no decoder."""
VALUES: dict[str, str] = {
    "model.smoothing": "kneser_ney",
    "model.window": "2",
    "data.format": "parquet",
    "data.source": "target",
    "data.target": "extra",
    "data.text": "other",
    "data.second": "topic",
    "data.label": "topic",
    "data.score": "topic",
    "data.options": "[b,a]",
    "data.answers_from": "0",
    "data.group": "topic",
    "data.split_seed": "5",
    "data.label_separator": "|",
    "data.label_until": ":",
    "data.repair_tags": "true",
    "data.part": "train",
    "data.columns": "[2,3]",
    "data.tags": "xpos",
    "data.unseen_labels": "ignore",
    "data.stride": "3",
    "data.document": "paragraph",
    "data.encoding": "latin-1",
    "data.on_bad_line": "skip",
    "data.delimiter": ";",
    "data.header": "false",
    "data.quoting": "false",
    "data.max_line_bytes": "9",
    "data.tokenizer": "bytes",
    "data.vocabulary": "290",
    "data.learn_from": "20",
    "data.normalisation": "lower",
    "data.max_length": "4",
    "head.pooling": "attention",
    "head.hidden_width": "5",
    "head.pair": "both_orders",
    "head.activation": "relu",
    "head.lm_weight": "0.5",
    "head.class_weights": "balanced",
    "train.max_steps": "3",
    "train.epochs": "2",
    "train.min_steps": "5",
    "train.batch_tokens": "60",
    "train.batch_rows": "3",
    "train.window": "6",
    "train.accumulate": "2",
    "train.learning_rate": "0.1",
    "train.schedule": "constant",
    "train.warmup_steps": "2",
    "train.layer_decay": "0.5",
    "train.relative_rate": "true",
    "train.head_learning_rate": "0.1",
    "data.join": "' / '",
    "data.no_label": "bad,no,0.2,1",
    "data.skip_initial_space": "true",
    "train.beta2": "0.5",
    "train.weight_decay": "0.9",
    "train.clip_norm": "0.001",
    "train.label_smoothing": "0.3",
    "train.shift": "1",
    "train.evaluate_every": "2",
    "train.patience": "1",
    "train.log_every": "1",
    "train.dtype": "float64",
    "train.device": "cuda",
    "train.threads": "2",
    "train.seed": "3",
    "decode.temperature": "0.5",
    "decode.top_k": "2",
    "decode.top_p": "0.3",
    "decode.min_p": "0.5",
    "decode.seed": "4",
    "decode.beam": "2",
    "decode.length_penalty": "0",
    "decode.groups": "5",
    "decode.diversity": "50",
    "decode.repetition_penalty": "3",
    "decode.no_repeat_ngram": "1",
    "decode.begin": "o",
    "decode.min_length": "9",
    "decode.max_length": "4",
    "decode.n_best": "3",
    "decode.batch_rows": "1",
    "evaluate.bleu_tokenizer": "char",
}
"""Another value of each setting; others are `other_of`."""
LISTS = {
    "decode.ban": "[' ', o, e]",
    "decode.stop": "[' ', o, e]",
    "decode.processors": "[nobody]",
    "train.freeze": "[{first}]",
    "train.lora_targets": "[key]",
    "data.add_tokens": "[bird Haus]",
    "train.word_vectors": "{folder}/vectors.txt",
    "train.objective": "nobody",
    "train.best": "{best}",
}
TAUGHT = ("train.max_steps=40", "train.learning_rate=0.02", "train.evaluate_every=40")
"""So much training that texts end, and differ."""
NEEDS: dict[str, tuple[str, ...]] = {
    "decode.groups": ("decode.strategy=beam", "decode.beam=5", "decode.n_best=5"),
    "decode.diversity": (
        "decode.strategy=beam",
        "decode.beam=4",
        "decode.groups=2",
        "decode.n_best=4",
    ),
    "decode.n_best": ("decode.beam=5",),
    "decode.temperature": ("decode.strategy=sample",),
    "decode.top_k": ("decode.strategy=sample",),
    "decode.top_p": ("decode.strategy=sample",),
    "decode.min_p": ("decode.strategy=sample",),
    "decode.seed": ("decode.strategy=sample",),
    "decode.beam": ("decode.strategy=beam",),
    "decode.length_penalty": ("decode.strategy=beam", "decode.beam=5"),
    "decode.refill": ("decode.strategy=beam", "decode.beam=5", "decode.n_best=5"),
    "head.activation": ("head.hidden_width=5",),
    "train.patience": ("train.max_steps=9", "train.learning_rate=90", "train.warmup_steps=0"),
    "train.best": ("train.max_steps=9", "train.learning_rate=90", "train.warmup_steps=0"),
    "train.epochs": ("train.max_steps=null",),
    "train.min_steps": ("train.max_steps=null", "train.epochs=0.1"),
    "train.label_smoothing": (),
    "data.unseen_labels": (),
}
"""Settings that must be there for a setting to be read; they are part of what it is compared with."""
LEFT_OUT = {"data.train", "data.validation", "train.worker_timeout"}
"""Files, which are arguments, and what only several workers read."""
NO_RESULT = re.compile(r"[0-9.]+ (?:s|min)\b|/tmp/\S+|\S*run\d+\S*")
SPEEDS = ("tokens_per_second", "seconds")


@cache
def data_folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="every-setting-"))
    write_data(folder)
    return folder


class Case(NamedTuple):
    """A setting on a task and family."""

    task: str
    family: str
    setting: str

    @property
    def name(self) -> str:
        return f"{self.task} {self.family} {self.setting}"


def cases() -> list[Case]:
    """The whole product."""
    found = []
    for task in all_tasks():
        if task.training_data is None or task.name not in TASKS:  # those of plugins are not ours
            continue
        for family in families_for(task):
            config = model_family(family)[0]
            names = [
                f"model.{one.name}"
                for one in dataclasses.fields(config)
                if one.name not in FROM_ELSEWHERE and not one.name.endswith("_id")
            ]
            for section, kind in SECTIONS.items():
                names += [f"{section}.{one.name}" for one in dataclasses.fields(kind)]
            found += [Case(task.name, family, name) for name in names if name not in LEFT_OUT]
    return found


def base_settings(case: Case) -> list[str]:
    """What a training of this task and family has before the setting is changed."""
    small = {"vocabulary_size", "labels", "image_size"}
    sizes = SIZES[case.family]
    settings = [
        f"model.{name}={json.dumps(value)}" for name, value in sizes.items() if name not in small
    ]
    if 'model.attention="none"' in _needs(case):
        settings = [one for one in settings if not one.startswith("model.attention_width")]
    if case.task in HEADS:
        settings = [one for one in settings if not one.startswith("model.decoder_")]
    steps = [] if case.family == "ngram" else ["train.max_steps=2", "train.evaluate_every=1"]
    data = _data(case)
    fields = {f"model.{one.name}" for one in dataclasses.fields(model_family(case.family)[0])}
    own = [
        one
        for one in data.settings
        if not one.startswith("model.") or one.partition("=")[0] in fields
    ]
    return [*settings, *steps, *own, *_needs(case)]


def _data(case: Case) -> Data:
    task = "translation" if case.task in PAIRS else case.task
    return OTHER_DATA.get((task, case.setting), DATA[task])


def _needs(case: Case) -> list[str]:
    section, _, name = case.setting.partition(".")
    if section != "model":
        task = next(task for task in all_tasks() if task.name == case.task)
        needs = NEEDS.get(case.setting, ())
        if section == "decode" and case.family != "ngram":
            needs = (*TAUGHT, *needs)
        fields = {f"model.{one.name}" for one in dataclasses.fields(model_family(case.family)[0])}
        return [need for need in needs if need.partition("=")[0] in task.settings | fields]
    fields = {one.name for one in dataclasses.fields(model_family(case.family)[0])}
    return [
        f"model.{key}={json.dumps(value)}"
        for key, value in NEEDED.get(name, {}).items()
        if key in fields
    ]


def other_of(case: Case) -> str:
    """Another value of the setting than the one it has."""
    section, _, name = case.setting.partition(".")
    if case.setting in VALUES:
        return VALUES[case.setting]
    if case.setting in LISTS:
        task = next(task for task in all_tasks() if task.name == case.task)
        first = _first_parameter(case)
        best = task.best[-1] if task.best[0] == "loss" else "loss"
        return LISTS[case.setting].format(first=first, folder=data_folder(), best=best)
    if section == "model":
        fields = SIZES[case.family] | {
            key.removeprefix("model."): json.loads(value)
            for key, _, value in (need.partition("=") for need in _needs(case))
        }
        config = model_family(case.family)[0]
        known = {one.name for one in dataclasses.fields(config)}
        value = other_value(config(**{k: v for k, v in fields.items() if k in known}), name)
    else:
        value = other_value(SECTIONS[section](), name)
    return json.dumps(value)


@cache
def _first_parameters() -> dict[tuple[str, str], str]:
    return {}


def _first_parameter(case: Case) -> str:
    """The name of the first weights of the model."""
    known = _first_parameters()
    if (case.task, case.family) not in known:
        folder = trained(case._replace(setting="train.seed"), ()).folder
        names = list(seqloom.load(folder).model.state_dict()) if folder else ["none"]
        known[case.task, case.family] = names[0].rpartition(".")[0] or names[0]
    return known[case.task, case.family]


class Outcome(NamedTuple):
    """What came out of a training."""

    error: str
    """The line of the refusal; empty where it ended well."""
    trace: tuple[str, ...]
    folder: Path | None = None

    def answers(self, case: Case) -> str:
        return "" if self.folder is None else _answers(self.folder, case)


class _Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(NO_RESULT.sub("", record.getMessage()))


@contextmanager
def watched() -> Iterator[tuple[list[str], list[str]]]:
    """(messages, shapes of what goes through embeddings and linear maps)."""
    handler, shapes = _Lines(), list[str]()

    def see(module: nn.Module, inputs: Any, output: Any) -> None:
        if isinstance(module, nn.Embedding | nn.Linear):
            shapes.append(str([tuple(one.shape) for one in inputs if torch.is_tensor(one)]))

    hook = nn.modules.module.register_module_forward_hook(see)
    logger = logging.getLogger("seqloom")
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield handler.lines, shapes
    finally:
        hook.remove()
        logger.removeHandler(handler)
        logger.setLevel(before)


_COUNTER = iter(range(10**9))


def _files(case: Case) -> list[str]:
    data = _data(case)
    return [str(data_folder() / name) for name in data.train]


def _validation(case: Case, paths: list[str]) -> list[str]:
    """The training files, or where labels may be new some that have one."""
    new_labels = (case.task, case.setting) == ("text-classification", "data.unseen_labels")
    return [str(data_folder() / "unseen.csv")] if new_labels else paths


def trained(case: Case, changes: tuple[str, ...]) -> Outcome:
    """Trains; the settings that `changes` gives replace those of the base."""
    given = {key: value for key, _, value in (s.partition("=") for s in base_settings(case))}
    given |= {key: value for key, _, value in (s.partition("=") for s in changes)}
    settings = [f"{key}={value}" for key, value in given.items() if value != "null"]
    folder = data_folder() / f"run{next(_COUNTER)}"
    threads = torch.get_num_threads()
    paths = _files(case)
    # what is held out is drawn by the run's own settings, but one text cannot be split
    splits = case.setting in ("data.split_seed", "data.group") or case.family == "glove"
    try:
        with watched() as (lines, shapes):
            seqloom.train(
                case.task,
                paths,
                output_dir=folder,
                model=case.family,
                validation=() if splits else _validation(case, paths),
                settings=settings,
            )
        used = torch.get_num_threads()
    except SeqloomError as error:
        shutil.rmtree(folder, ignore_errors=True)
        return Outcome(str(error), ())
    except Exception as error:  # noqa: BLE001  # of two lines, so that it counts as broken
        return Outcome(f"{type(error).__name__}:\n{error}", ())
    finally:
        torch.set_num_threads(threads)
    files = sorted(path.name for path in folder.rglob("*") if "tfevents" not in path.name)
    return Outcome(
        "",
        (
            hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest(),
            _content(folder / "tokenizer.json"),
            json.dumps(_metrics(folder)),
            "\n".join(lines),
            "\n".join(shapes),
            " ".join(files),
            str(used),
            _bests(folder),
        ),
        folder,
    )


def _bests(folder: Path) -> str:
    """The best checkpoint, and the value that it was chosen by."""
    states = [json.loads(path.read_text()) for path in folder.glob("*/trainer_state.json")]
    return str([[state.get(key) for key in ("best", "best_step")] for state in states])


def _content(path: Path) -> str:
    return path.read_text("utf-8") if path.exists() else ""


def _metrics(folder: Path) -> list[dict[str, Any]]:
    if not (folder / "metrics.jsonl").exists():
        return []
    lines = (folder / "metrics.jsonl").read_text("utf-8").splitlines()
    return [
        {key: value for key, value in json.loads(line).items() if key not in SPEEDS}
        for line in lines
    ]


def _answers(folder: Path, case: Case) -> str:
    """What a run measures and answers with the settings that it has stored."""
    model: Any = load(folder)
    paths = _files(case)
    with watched() as (lines, shapes):
        said = []
        try:
            if case.task == "word-vectors":
                said.append(repr(model.similar("dog")))
            result = model.evaluate(paths)
            said.append(
                json.dumps([result.metrics, result.signatures, result.details], default=str)
            )
            if case.task == "text-generation":
                said.append(repr(model.generator.generate(["old", "the dog"])))
            elif case.task in PAIRS:
                said.append(repr(model.n_best(["old dog", "red cat", "the park", "a boat"])))
        except SeqloomError as error:
            said.append(str(error))
    return "\n".join([*said, *lines, *shapes])


@cache
def base(case: Case) -> Outcome:
    """The training without the change; cases with the same base share it (`plain`)."""
    return trained(case, ())


@cache
def base_answers(case: Case) -> str:
    return base(case).answers(case)


def plain(case: Case) -> Case:
    """A case whose base is that of this one: where nothing of its own is needed, that of the seed."""
    needs = _needs(case)
    if needs and needs == list(TAUGHT):
        return case._replace(setting="decode.ban")
    own = (
        needs
        or case.setting == "data.unseen_labels"
        or _data(case) is not _data(case._replace(setting="train.seed"))
        or case.setting in ("data.split_seed", "data.group")
    )
    return case if own else case._replace(setting="train.seed")


class Verdict(NamedTuple):
    """What a setting does."""

    what: str
    """changes, refused, IGNORED, or BROKEN where the base fails."""
    detail: str = ""


def judged(case: Case) -> Verdict:
    """Whether the setting changes the run, or is refused."""
    reference = plain(case)
    before = base(reference)
    if before.error and _needs(case):  # what it needs cannot be, so neither can it
        outcome = trained(case, (f"{case.setting}={other_of(case)}",))
        if outcome.error:
            return Verdict("refused", outcome.error)
    verdict = Verdict("IGNORED")
    for value in dict.fromkeys([other_of(case), *_further_values(case)]):
        verdict = _judged_with(case, reference, before, value)
        if verdict.what != "IGNORED":
            break
    return verdict


def _further_values(case: Case) -> list[str]:
    """Other values, where the first may be what the task has by default anyway."""
    section, _, name = case.setting.partition(".")
    kind = model_family(case.family)[0] if section == "model" else SECTIONS[section]
    hint = get_type_hints(kind)[name]
    if hint is bool:
        return ["true", "false"]
    if case.setting == "decode.diversity":
        return ["0", "3"]
    if case.setting == "train.best":
        return list(next(task for task in all_tasks() if task.name == case.task).best)
    choices = [
        one for part in (hint, *get_args(hint)) for one in get_args(part) if isinstance(one, str)
    ]
    return choices[:6]


def _judged_with(case: Case, reference: Case, before: Outcome, value: str) -> Verdict:
    after = trained(case, (f"{case.setting}={value}",))
    try:
        if before.error:  # as where data are damaged, and the setting says what happens then
            same = after.error == before.error
            return Verdict("BROKEN" if same else "changes", before.error)
        if after.error:
            plain_line = "\n" not in after.error and len(after.error) < 2000
            return Verdict("refused" if plain_line else "BROKEN", after.error)
        if after.trace != before.trace:
            return Verdict("changes")
        if after.answers(case) != base_answers(reference):
            return Verdict("changes", "only answers")
        return Verdict("IGNORED", f"{case.setting}={value}")
    finally:
        if after.folder is not None:
            shutil.rmtree(after.folder, ignore_errors=True)


def main(arguments: list[str]) -> int:
    torch.set_num_threads(1)
    chosen = cases()
    if "--sample" in arguments:
        size = int(arguments[arguments.index("--sample") + 1])
        order = np.random.default_rng(0).permutation(len(chosen))
        chosen = [chosen[index] for index in order[:size]]
    elif arguments:
        chosen = [case for case in chosen if any(word in case.name for word in arguments)]
    counts: dict[str, int] = {}
    started = time.perf_counter()
    for case in chosen:
        verdict = judged(case)
        counts[verdict.what] = counts.get(verdict.what, 0) + 1
        if verdict.what.isupper() or "--all" in arguments:
            print(f"{case.name}: {verdict.what} {verdict.detail}", flush=True)
    print(len(chosen), "settings", counts, f"{time.perf_counter() - started:.0f} s", flush=True)
    shutil.rmtree(data_folder(), ignore_errors=True)
    return sum(count for what, count in counts.items() if what.isupper())


if __name__ == "__main__":
    sys.exit(1 if main(sys.argv[1:]) else 0)
