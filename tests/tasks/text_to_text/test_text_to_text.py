"""Several tasks in one text-to-text model, from files to answers."""

from __future__ import annotations

import json
import signal
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml

import seqloom
from seqloom.data.batching.pair_batches import shard
from seqloom.errors import UsageError
from seqloom.files import sha256
from seqloom.protocols import Request
from seqloom.run_file import read_run_file
from seqloom.runs.settings import run_config_in
from seqloom.tasks.settings import resolve
from seqloom.tasks.text_to_text.training_data import prepare_mixture
from seqloom.training import metrics_log
from seqloom.training.loop import Progress
from seqloom.workflows.check import check
from seqloom.workflows.train import train

ANIMALS = ("cat", "dog", "bird", "cow", "fox")
COLOURS = ("red", "blue", "green", "white")
PHRASES = [f"a {colour} {animal}" for colour in COLOURS for animal in ANIMALS]
SQUAD = {
    "data": [
        {
            "title": phrase,
            "paragraphs": [
                {
                    "context": f"I see {phrase} .",
                    "qas": [
                        {
                            "id": phrase,
                            "question": "what ?",
                            "answers": [{"text": phrase, "answer_start": 6}],
                        }
                    ],
                }
            ],
        }
        for phrase in PHRASES
    ]
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files of five tasks, and a run file that mixes them."""
    folder = tmp_path_factory.mktemp("tasks")
    (folder / "label.tsv").write_text(
        "text\tlabel\n" + "".join(f"{one}\t{one.split()[1]}\n" for one in PHRASES)
    )
    rows = [
        f"{one}\t{two}\t{number % 6}.0\n" for number, (one, two) in enumerate(pairwise(PHRASES))
    ]
    (folder / "pairs.tsv").write_text("text\tsecond\tscore\n" + "".join(rows))
    words = [
        ("a DET", f"{colour} ADJ", f"{animal} NOUN") for colour in COLOURS for animal in ANIMALS
    ]
    (folder / "tags.conll").write_text("\n\n".join("\n".join(one) for one in words) + "\n")
    (folder / "squad.json").write_text(json.dumps(SQUAD))
    (folder / "text.en").write_text("\n".join(PHRASES) + "\n")
    (folder / "text.de").write_text("\n".join(one.upper() for one in PHRASES) + "\n")
    content = {
        "task": "text2text-generation",
        "model": {"name": "t5", "size": "tiny", "width": 16},
        "data": {"vocabulary": 300, "mixing_cap": 15, "mixing_temperature": 2},
        "train": {
            "max_steps": 6,
            "evaluate_every": 3,
            "batch_rows": 12,
            "best": "score",
            "device": "cpu",
        },
        "decode": {"strategy": "greedy", "max_length": 12},
        "tasks": {
            "colour": one_task("text-classification", folder / "label.tsv"),
            "sim": one_task("sentence-similarity", folder / "pairs.tsv"),
            "pos": one_task("token-classification", folder / "tags.conll"),
            "qa": one_task("question-answering", folder / "squad.json"),
            "up": one_task("translation", folder / "text.en", folder / "text.de")
            | {"prefix": "upper: "},
        },
    }
    (folder / "run.yaml").write_text(yaml.safe_dump(content, sort_keys=False))
    return folder


def one_task(name: str, *paths: Path) -> dict[str, Any]:
    return {"task": name, "data": {"train": [str(path) for path in paths]}}


@pytest.fixture(scope="module")
def run(place: Path) -> Path:
    return train(config=str(place / "run.yaml"), output_dir=place / "run").folder


def files_of(place: Path) -> list[str]:
    named = {
        "colour": "label.tsv",
        "sim": "pairs.tsv",
        "pos": "tags.conll",
        "qa": "squad.json",
        "up": "text",
    }
    return [f"{name}={place / file}" for name, file in named.items()]


MAIN = {"colour": "accuracy", "sim": "spearman", "pos": "f1", "qa": "f1", "up": "bleu"}


def test_each_task_is_validated_and_the_best_checkpoint_has_the_best_score(run: Path) -> None:
    records = [one for one in metrics_log.read(run) if "validation_score" in one]
    assert len(records) == 2
    for record in records:
        losses = [record[f"validation_{name}_loss"] for name in MAIN]
        assert record["validation_loss"] == pytest.approx(sum(losses) / 5)
        scores = []
        for name, metric in MAIN.items():
            # a correlation of answers that are all equal is none, and counts as 0
            value = record[f"validation_{name}_{metric}"] or 0
            scores.append(value * 100 if name in ("colour", "pos") else value)
        assert record["validation_score"] == pytest.approx(sum(scores) / 5)


def test_the_folder_measures_each_task_with_its_own_metrics(run: Path, place: Path) -> None:
    model = seqloom.load(run, "cpu")
    together = model.evaluate(files_of(place)).metrics
    for name, path in zip(MAIN, files_of(place), strict=True):
        alone = model.evaluate([path]).metrics
        assert MAIN[name] in alone
        assert f"{MAIN[name]}_low" in alone or name == "up"
        for metric, value in alone.items():
            assert together[f"{name}_{metric}"] == pytest.approx(value, nan_ok=True)
    assert together["loss"] == pytest.approx(
        sum(together[f"{name}_loss"] for name in MAIN) / len(MAIN)
    )


def test_it_answers_files_and_inputs_of_each_task(run: Path, place: Path) -> None:
    model = seqloom.load(run, "cpu")
    inputs: dict[str, Any] = {
        "colour": "a red cat",
        "sim": ("a red cat", "a red dog"),
        "pos": ["a", "red", "cat"],
        "qa": ("what ?", "I see a red cat ."),
        "up": "a red cat",
    }
    for name, path in zip(MAIN, files_of(place), strict=True):
        file = f"{path}.en" if name == "up" else path
        (first, *others) = list(model.answers([file]))
        assert len(others) >= 18
        assert first.content["task"] == name
        (again,) = model.predict([inputs[name]], task=name)
        assert again == first.text
    (place / "blank.txt").write_text("a red cat\n\n")
    answers = [one.text for one in model.answers([f"up={place / 'blank.txt'}"])]
    assert answers[1] == ""


def test_a_stopped_training_goes_on_to_the_same_bits(run: Path, place: Path) -> None:
    def stop(progress: Progress) -> None:
        if progress.step == 4:
            signal.raise_signal(signal.SIGTERM)

    config, other = str(place / "run.yaml"), place / "stopped"
    assert train(config=config, output_dir=other, progress=stop).stopped == "SIGTERM"
    train(resume=other)
    assert sha256(run / "model.safetensors") == sha256(other / "model.safetensors")


def test_workers_and_micro_batches_share_the_rows_of_one_worker(place: Path, run: Path) -> None:
    data = prepare_mixture(run_config_in(run), run, first=False)
    batches = list(data.batches(2, 0))
    assert sum(map(len, batches)) == len(data.mixing) == 5 * 15
    later = list(data.batches(2, 3))
    assert [rows.tolist() for rows in later] == [rows.tolist() for rows in batches[3:]]
    rows = batches[0]
    whole = data.load(rows, rows)
    parts = [data.load(shard(rows, part, 3), rows) for part in range(3)]
    tokens = sum(int((part.targets >= 0).sum()) for part in parts)
    assert tokens == int((whole.targets >= 0).sum())
    assert data.describe(rows[:1]).startswith(f"the examples {name_of(data, rows[0])}:")


def name_of(data: Any, row: int) -> str:
    return str(data.tasks[data.store.place(int(row))[0]].task.name)


def test_a_check_shows_rates_and_texts(place: Path) -> None:
    report = check(None, [], [], [], [], config=str(place / "run.yaml"))
    assert report.errors == []
    assert sum(one["rate"] for one in report.splits.values()) == pytest.approx(1)
    shown = {one["task"]: (one["source"], one["target"]) for one in report.first_batch}
    assert shown["colour"] == ("colour sentence: a red cat", "red")
    assert shown["pos"] == ("pos: a red cat", "a DET red ADJ cat NOUN")
    assert shown["up"] == ("upper: a red cat", "A RED CAT")


@pytest.mark.parametrize("family", ["t5", "transformer", "seq2seq", "gpt", "recurrent_lm"])
def test_a_mixture_of_one_needs_no_name(place: Path, tmp_path: Path, family: str) -> None:
    content = read_run_file(str(place / "run.yaml"))
    content["tasks"] = {"colour": content["tasks"]["colour"]}
    content["train"] |= {"max_steps": 1, "best": "loss"}
    content["model"] = {"name": family, "size": "tiny"}
    (place / "one.yaml").write_text(yaml.safe_dump(content, sort_keys=False))
    folder = train(config=str(place / "one.yaml"), output_dir=tmp_path / "one").folder
    assert "seqloom predict" in (card := (folder / "README.md").read_text())
    assert f"{tmp_path / 'one'} colour=-" in card
    model = seqloom.load(folder, "cpu")
    assert "accuracy" in model.evaluate([str(place / "label.tsv")]).metrics
    assert len(model.predict(["a red cat"])) == 1


def test_a_mixture_starts_from_a_trained_model(run: Path, place: Path, tmp_path: Path) -> None:
    """With its tokenizer, whatever tasks it had."""
    content = read_run_file(str(place / "run.yaml"))
    content |= {"model": {}, "data": {}, "tasks": {"new": content["tasks"]["up"]}}
    content["train"] |= {"max_steps": 1, "best": "loss"}
    (tmp_path / "from.yaml").write_text(yaml.safe_dump(content))
    config = str(tmp_path / "from.yaml")
    folder = train(config=config, output_dir=tmp_path / "tuned", start=run).folder
    assert (folder / "tokenizer.json").read_bytes() == (run / "tokenizer.json").read_bytes()
    assert seqloom.load(folder, "cpu").predict(["a red cat"], task="new")


@pytest.mark.parametrize("tags", [False, True])
def test_an_answer_that_the_tokenizer_cannot_write_is_said(
    tags: bool, place: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A label is known by what is written of it: `red / x`. A word that is cut in three has no tag."""
    rows = [f"{one}\t{one.split()[1]}/x\n" for one in PHRASES]
    sentences = [f"{one.split()[1]}/x\tADJ\nis\tVERB\n\n" for one in PHRASES]
    (tmp_path / "odd.tsv").write_text("text\tlabel\n" + "".join(rows))
    (tmp_path / "odd.conll").write_text("".join(sentences))
    task, path = (
        ("token-classification", "odd.conll") if tags else ("text-classification", "odd.tsv")
    )
    content = read_run_file(str(place / "run.yaml"))
    content |= {"data": {"tokenizer": "words"}, "tasks": {"odd": one_task(task, tmp_path / path)}}
    content["train"] |= {"max_steps": 1, "best": "loss"}
    (tmp_path / "odd.yaml").write_text(yaml.safe_dump(content))
    with caplog.at_level("INFO", "seqloom"):
        train(config=str(tmp_path / "odd.yaml"), output_dir=tmp_path / "odd")
    said = "odd: the tokenizer cannot write 3 of 3 answers so that they are read as themselves: 'blue/x ADJ"
    assert (said in caplog.text) == tags
    assert ("cannot write" in caplog.text) == tags


def changed(content: dict[str, Any], path: str, value: object) -> None:
    *parents, last = path.split(".")
    for parent in parents:
        content = content.setdefault(parent, {})
    content[last] = value


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("task", "translation", "tasks is for text2text-generation, but the task is translation"),
        ("data.source", "a", "data.source is a setting of each task: tasks.NAME.data.source"),
        ("data.train", ["x.tsv"], "data.train is a setting of each task"),
        ("train.best", "bleu", "train.best=bleu is a metric of one task"),
        ("data.mixing_temperature", 0.5, "data.mixing_temperature"),
        ("data.mixing_cap", 0, "data.mixing_cap"),
        ("tasks.colour.task", "fill-mask", "tasks.colour.task must be one of translation, "),
        ("tasks.colour.data.train", [], "tasks.colour.data.train must name the files"),
        (
            "tasks.colour.data.columns",
            [1, 2],
            "data.columns does not belong to one task of several, and changes nothing",
        ),
        (
            "tasks.colour.data.max_length",
            3,
            "does not belong to one task of several; give it to all as data.max_length",
        ),
        ("tasks.colour.data.tabs", 3, "there is no setting tasks.colour.data.tabs"),
        ("tasks.colour.train", ["a"], "did you mean tasks.colour.data.train?"),
        ("tasks.colour.number_step", 0.5, "tasks.colour.number_step is for sentence-similarity"),
        ("tasks.a b", {"task": "translation"}, "the name of a task must be a letter, then"),
    ],
)
def test_what_cannot_be_is_refused(path: str, value: object, said: str, place: Path) -> None:
    content = read_run_file(str(place / "run.yaml"))
    changed(content, path, value)
    (place / "wrong.yaml").write_text(yaml.safe_dump(content, sort_keys=False))
    with pytest.raises(UsageError) as error:
        resolve(None, [], place / "no", None, [], [], str(place / "wrong.yaml"))
    assert said in str(error.value)


def test_mixing_is_for_several_tasks(place: Path) -> None:
    data = [str(place / "text.en"), str(place / "text.de")]
    for setting in ("data.mixing_cap=3", "data.mixing_temperature=equal", "train.best=score"):
        with pytest.raises(UsageError, match="but the run file has no tasks"):
            resolve("text2text-generation", data, place / "no", None, [], [setting], None)


def test_a_file_without_a_task_is_refused(run: Path, place: Path) -> None:
    model = seqloom.load(run, "cpu")
    with pytest.raises(
        UsageError, match="must be given as TASK=FILE, where TASK is one of colour,"
    ):
        model.evaluate([str(place / "label.tsv")])
    with pytest.raises(UsageError, match="name of a task must be one of colour, "):
        model.predict(["a red cat"])
    with pytest.raises(UsageError, match=r"data\.columns changes nothing for text-classification"):
        model.evaluate([files_of(place)[0]], Request(data={"columns": (1, 2)}))
