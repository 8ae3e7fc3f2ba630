"""The short commands that the documentation shows run, on small data and with small models under the names
that the pages use."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path

import pytest
from tests.cli.conftest import run
from tests.docs.commands import Shown, shown_commands
from tests.laws.test_setting_laws import SMALL
from tests.recorded.toy_data import write_data

pytestmark = pytest.mark.usefixtures("one_thread")

FILES = {
    "train.en": "train.en",
    "train.de": "train.de",
    "val.en": "val.en",
    "val.de": "val.de",
    "test.en": "test.en",
    "test.de": "test.de",
    "short.en": "test.en",
    "sources.txt": "test.en",
    "sentences.txt": "test.en",
    "train.tsv": "train.tsv",
    "pairs.tsv": "train.tsv",
    "reviews.csv": "reviews.csv",
    "test.csv": "reviews-test.csv",
    "new.txt": "reviews.input.txt",
    "book.txt": "book.txt",
    "test.txt": "held.txt",
    "dev.txt": "dev.txt",
    "texts.txt": "held.txt",
    "prompts.txt": "prompts.txt",
    "prefixes.txt": "prompts.txt",
    "train.conllu": "words.conllu",
    "dev.conllu": "words-test.conllu",
    "nbest.jsonl": "nbest.jsonl",
    "test.jsonl": "nbest.jsonl",
    "dev.jsonl": "nbest-dev.jsonl",
    "squad.json": "answers.json",
}
"""A file of the pages -> what stands for it."""
MODELS = {
    "translation": ("seq2seq", "train.en", "train.de"),
    "language model": ("gpt", "book.txt"),
    "labels": ("bag_of_words", "reviews.csv"),
}
FOLDERS = {
    "runs/en-de": "translation",
    "runs/captions": "translation",
    "runs/gpt": "language model",
    "runs/lstm": "language model",
    "runs/kn": "language model",
    "runs/book": "language model",
    "runs/tales": "language model",
    "runs/captions-lm": "language model",
    "runs/lm": "language model",
    "runs/reviews": "labels",
}
"""A run folder of the pages -> the model in it."""
TASKS = {
    "translation": "translation",
    "language model": "text-generation",
    "labels": "text-classification",
}
LONG = {"compare", "probe", "demo", "degeneration", "exact", "prompt", "serve"}
"""Verbs that take long even on small data or never end, or that need a longer context than these models have.
"""


def small(family: str, given: tuple[str, ...]) -> list[str]:
    """The settings that make a model of a family small, but for those that the command gives."""
    names = {word.partition("=")[0] for word in given}
    fields = {
        key: value for key, value in SMALL.get(family, {}).items() if key != "vocabulary_size"
    }
    if any(name.startswith("model.") for name in names):
        return []
    return [f"--set=model.{key}={json.dumps(value)}" for key, value in fields.items()]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files and the run folders of the pages."""
    folder = tmp_path_factory.mktemp("pages")
    write_data(folder / "toy")
    for name, source in FILES.items():
        if (folder / "toy" / source).exists():
            shutil.copy(folder / "toy" / source, folder / name)
    for kind, (family, *data) in MODELS.items():
        words = [*small(family, ()), "--set=train.max_steps=2", "--set=data.vocabulary=300"]
        paths = [folder / name for name in data]
        made = folder / "made" / kind.replace(" ", "-")
        options = ["--model", family, "--output-dir", made, *words]
        assert run("train", TASKS[kind], *paths, *options) == 0
        for name, of in FOLDERS.items():
            if of == kind:
                (folder / name).parent.mkdir(exist_ok=True)
                shutil.copytree(made, folder / name)
    return folder


def is_short(shown: Shown) -> bool:
    """Whether all that the command needs is there."""
    words = shown.words
    # graphs need an extra, and what is read from a pipe is not there
    if "onnx" in words or (shown.verb == "rescore" and "-" in words) or ":medium" in str(shown):
        return False
    if shown.inline or shown.verb in LONG or "--plugin" in words or "--from" in words:
        return False
    if any("word_vectors=runs/" in word for word in words):
        return False
    if shown.verb == "train":
        if "--output-dir" not in words or "--resume" in words or words[1] not in TASKS.values():
            return False
        paths = words[2 : next(i for i, word in enumerate(words) if word.startswith("--"))]
        of_pairs = words[1] == "text-generation" and "train.tsv" in paths
        return all(path in FILES for path in paths) and not of_pairs
    folders = [word for word in words if word.startswith(("runs/", "hf://", "./"))]
    files = [word for word in words[1:] if "." in word.rpartition("/")[2] and " " not in word]
    outputs = {words[i + 1] for i, word in enumerate(words[:-1]) if word in ("--output", "--trace")}
    known = [file in FILES or file in outputs or "=" in file or "/" in file for file in files]
    return bool(folders) and all(folder in FOLDERS for folder in folders) and all(known)


SHORT = [one for one in shown_commands() if is_short(one)]


@pytest.mark.parametrize("shown", SHORT, ids=str)
def test_a_short_command_runs(
    shown: Shown, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path in place.iterdir():
        if path.name not in ("toy", "made", "runs"):
            (tmp_path / path.name).symlink_to(path)
    shutil.copytree(place / "runs", tmp_path / "runs")
    monkeypatch.chdir(tmp_path)
    text = (place / "test.en").read_bytes()
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text)))
    words = list(shown.words)
    if shown.verb == "train":
        family = words[words.index("--model") + 1] if "--model" in words else ""
        default = {"translation": "seq2seq", "text-generation": "gpt"}.get(words[1], "recurrent")
        words += small(family.partition(":")[0] or default, shown.words)
        words += ["--set=data.vocabulary=300"] * ("ngram" not in family)
        if "ngram" not in family and not any("max_steps" in word for word in words):
            words.append("--set=train.max_steps=1")
        shutil.rmtree(tmp_path / "runs")
    assert run(*words) == 0


def test_many_commands_are_short() -> None:
    assert len(SHORT) > 30
    assert len({one.verb for one in SHORT}) >= 9
