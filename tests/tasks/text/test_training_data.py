"""Readers from files to answers: every task trained, opened, measured and asked; the same to the bit after a
stop."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.campaigns.damage import unvouched
from tests.runs.test_run_folder import change, reseal

import seqloom
from seqloom import files
from seqloom.data.readers.examples import ChoiceQuestion, LabelledText
from seqloom.errors import DataError, FolderError, SeqloomError, UsageError
from seqloom.models.encoder_with_head import EncoderWithHead
from seqloom.runs import run_folder
from seqloom.tasks.settings import resolve
from seqloom.tasks.text.predictor import load_reader
from seqloom.training.checkpoints import read_tensors
from seqloom.workflows.check import check
from seqloom.workflows.evaluate import evaluate
from seqloom.workflows.onnx import export_onnx
from seqloom.workflows.train import train

FAST = [
    "train.max_steps=6",
    "train.evaluate_every=3",
    "train.log_every=2",
    "train.batch_rows=4",
    "train.threads=1",
    "data.vocabulary=400",
]
ANIMALS = ["cat", "dog", "cow", "fox", "owl", "bat", "hen", "pig"]
SAYS = ["meow", "woof", "moo", "yip"]


def labels_file(folder: Path, name: str = "train.csv", number: int = 24) -> Path:
    rows = [
        f"the {ANIMALS[i % 8]} says {SAYS[i % 4]} number {i},{SAYS[i % 4]}" for i in range(number)
    ]
    return written(folder / name, "text,label\n" + "\n".join(rows) + "\n")


def pairs_file(folder: Path, name: str = "train.csv") -> Path:
    rows = [
        f"{ANIMALS[i % 8]} one {i},{ANIMALS[i % 4]} two,{'same' if i % 8 == i % 4 else 'other'}"
        for i in range(24)
    ]
    return written(folder / name, "sentence1,sentence2,label\n" + "\n".join(rows) + "\n")


def scores_file(folder: Path, name: str = "train.csv") -> Path:
    rows = [f"{ANIMALS[i % 8]} one {i},{ANIMALS[i % 4]} two,{i % 6 / 2}" for i in range(24)]
    return written(folder / name, "sentence1,sentence2,score\n" + "\n".join(rows) + "\n")


def several_file(folder: Path, name: str = "train.csv") -> Path:
    rows = [f"the {ANIMALS[i % 8]} {i},{';'.join(SAYS[: i % 4])}" for i in range(24)]
    return written(folder / name, "text,label\n" + "\n".join(rows) + "\n")


def tags_file(folder: Path, name: str = "train.conll") -> Path:
    sentences = [
        [("the", "O"), (ANIMALS[i % 8], "B-ANIMAL"), (str(i), "I-ANIMAL"), ("ran", "O")][
            : 2 + i % 3
        ]
        for i in range(20)
    ]
    return written(
        folder / name,
        "\n\n".join("\n".join(f"{word}\t{tag}" for word, tag in one) for one in sentences) + "\n",
    )


def questions_file(folder: Path, name: str = "train.json") -> Path:
    articles = []
    for i in range(12):
        context = f"The {ANIMALS[i % 8]} number {i} lives in house {i * 7} by the sea."
        start = context.index("house")
        answer = {"text": context[start : context.index(" by")], "answer_start": start}
        qas = [
            {
                "id": f"q{i}",
                "question": f"Where does the {ANIMALS[i % 8]} live?",
                "answers": [answer],
            }
        ]
        articles.append({"title": f"t{i}", "paragraphs": [{"context": context, "qas": qas}]})
    return written(folder / name, json.dumps({"version": "1.1", "data": articles}))


def choices_file(folder: Path, name: str = "train.jsonl") -> Path:
    rows = [
        {
            "text": f"the {ANIMALS[i % 8]} {i}",
            "choice1": SAYS[i % 4],
            "choice2": "runs",
            "label": i % 2,
        }
        for i in range(20)
    ]
    return written(folder / name, "".join(json.dumps(row) + "\n" for row in rows))


def written(path: Path, content: str) -> Path:
    path.write_text(content, "utf-8")
    return path


CASES: dict[str, tuple[str, Callable[[Path], Path], str, list[str]]] = {
    "labels, bag of words": (
        "text-classification",
        labels_file,
        "bag_of_words:tiny",
        ["model.features=tf-idf", "model.ngrams=2", "model.buckets=64"],
    ),
    "labels, mlp": ("text-classification", labels_file, "mlp:tiny", []),
    "pairs, mlp": ("text-classification", pairs_file, "mlp:tiny", []),
    "choices, mlp": ("multiple-choice", choices_file, "mlp:tiny", []),
    "labels, convolution": (
        "text-classification",
        labels_file,
        "convolution:tiny",
        ["head.class_weights=balanced"],
    ),
    "labels, recurrent": (
        "text-classification",
        labels_file,
        "recurrent:tiny",
        ["head.pooling=attention"],
    ),
    "labels, transformer": ("text-classification", labels_file, "bert:tiny", []),
    "labels, causal": ("text-classification", labels_file, "gpt:tiny", ["head.lm_weight=0.5"]),
    "labels, t5": ("text-classification", labels_file, "t5:tiny", []),
    "several labels": (
        "text-classification",
        several_file,
        "recurrent:tiny",
        ["data.label_separator=;"],
    ),
    "pairs, compared": ("text-classification", pairs_file, "recurrent:tiny", []),
    "pairs, joined": ("text-classification", pairs_file, "bert:tiny", []),
    "scores, both orders": (
        "sentence-similarity",
        scores_file,
        "gpt:tiny",
        ["head.pair=both_orders"],
    ),
    "tags": ("token-classification", tags_file, "recurrent:tiny", ["model.characters=convolution"]),
    "tags, crf": ("token-classification", tags_file, "bert:tiny", ["head.crf=true"]),
    "questions": (
        "question-answering",
        questions_file,
        "bert:tiny",
        ["data.max_length=24", "data.stride=4"],
    ),
    "choices": ("multiple-choice", choices_file, "recurrent:tiny", []),
}
"""what is trained: task, its file, model, settings."""


def trained(
    folder: Path, case: str, settings: list[str] | None = None, name: str = "run"
) -> tuple[Path, Path]:
    task, make, model, more = CASES[case]
    data = make(folder)
    train(
        task,
        [str(data)],
        output_dir=folder / name,
        model=model,
        settings=[*FAST, *more, *(settings or [])],
    )
    return folder / name, data


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Path]]:
    torch.set_num_threads(1)
    return {case: trained(tmp_path_factory.mktemp("reader"), case) for case in CASES}


@pytest.mark.parametrize("case", CASES)
def test_a_trained_reader_is_measured_and_asked_from_its_folder(
    case: str, runs: dict[str, tuple[Path, Path]]
) -> None:
    folder, data = runs[case]
    task = CASES[case][0]
    found = evaluate(folder, [str(data)], {}, {})
    best = {
        "sentence-similarity": "spearman",
        "question-answering": "f1",
        "token-classification": "f1",
    }.get(task, "accuracy")
    assert {
        best,
        f"{best}_low",
        f"{best}_high",
        "loss",
    } <= found.metrics.keys() or case == "several labels"
    assert found.by_example is not None
    replies = list(load_reader(folder).stream([str(data)]))
    assert len(replies) == len(found.outputs)
    assert [reply.text for reply in replies] == found.outputs


@pytest.mark.parametrize("case", CASES)
def test_a_reader_goes_on_to_the_same_bits(
    case: str, runs: dict[str, tuple[Path, Path]], tmp_path: Path
) -> None:
    """Stopped at step 3 and resumed = not stopped."""
    import signal

    task, make, model, more = CASES[case]
    data = make(tmp_path)

    def stop(progress: Any) -> None:
        if progress.step == 3:
            signal.raise_signal(signal.SIGTERM)

    result = train(
        task,
        [str(data)],
        output_dir=tmp_path / "run",
        model=model,
        settings=[*FAST, *more],
        progress=stop,
    )
    assert result.stopped == "SIGTERM"
    train(resume=tmp_path / "run")
    whole, resumed = (
        read_tensors(folder / "model.safetensors") for folder in (runs[case][0], tmp_path / "run")
    )
    assert whole.keys() == resumed.keys()
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)


def test_labels_keep_their_order(runs: dict[str, tuple[Path, Path]]) -> None:
    folder, _ = runs["labels, transformer"]
    assert json.loads((folder / "config.json").read_text())["labels"] == sorted(SAYS)
    reader = load_reader(folder)
    assert reader.head_task.labels == tuple(sorted(SAYS))
    (answer,) = reader.predict(["the cat says meow"])
    assert set(answer["probabilities"]) == set(SAYS)
    assert sum(answer["probabilities"].values()) == pytest.approx(1, abs=1e-5)


def test_a_folder_of_an_earlier_version_still_opens(
    runs: dict[str, tuple[Path, Path]], tmp_path: Path
) -> None:
    """Its config.json says "reader" where it says "encoder_with_head" today."""
    folder, data = runs["labels, transformer"]
    former = Path(shutil.copytree(folder, tmp_path / "former"))
    assert json.loads((former / "config.json").read_text())["model_type"] == "encoder_with_head"
    change(former / "config.json", model_type="reader")
    reseal(former)
    assert run_folder.load_run(former).model_type == "encoder_with_head"
    assert run_folder.encoder_of(former) == run_folder.encoder_of(folder)
    assert run_folder.pretrained_from(former).kind == "classification"
    replies = [
        [reply.text for reply in load_reader(one).stream([str(data)])] for one in (folder, former)
    ]
    assert replies[0] == replies[1]


def test_a_text_gets_the_same_answer_alone_and_among_others(
    runs: dict[str, tuple[Path, Path]],
) -> None:
    reader = load_reader(runs["labels, recurrent"][0])
    texts = ["the cat says", "a", "the dog says woof and woof and woof again and again"]
    together = reader.predict(texts)
    for text, answer in zip(texts, together, strict=True):
        (alone,) = reader.predict([text])
        assert alone["probabilities"] == pytest.approx(answer["probabilities"], abs=1e-6)


def test_as_many_tags_come_out_as_words_went_in(
    runs: dict[str, tuple[Path, Path]], tmp_path: Path
) -> None:
    """Of sentences longer than the model reads too, and of words that no token spells."""
    sentences = ["the cat", " ".join(["the", "\u200b", "cat"] * 200), "x"]
    file = written(tmp_path / "plain.txt", "\n".join(sentences) + "\n")
    replies = list(load_reader(runs["tags, crf"][0], {"format": "text"}).stream([str(file)]))
    assert [len(reply.content["tags"]) for reply in replies] == [
        len(one.split(" ")) for one in sentences
    ]


def test_answers_are_parts_of_the_context(runs: dict[str, tuple[Path, Path]]) -> None:
    folder, data = runs["questions"]
    contexts = {
        q["id"]: p["context"]
        for a in json.loads(data.read_text())["data"]
        for p in a["paragraphs"]
        for q in p["qas"]
    }
    for reply in load_reader(folder).stream([str(data)]):
        for answer in reply.content["answers"]:
            assert contexts[reply.content["id"]][answer["start"] : answer["end"]] == answer["text"]


def test_a_label_that_only_the_test_has_is_an_error_or_counted(
    runs: dict[str, tuple[Path, Path]], tmp_path: Path, notices: list[str]
) -> None:
    folder, _ = runs["labels, convolution"]
    file = written(tmp_path / "test.csv", "text,label\nthe cat says meow,meow\nthe ox,mooo\n")
    with pytest.raises(DataError, match=r"test\.csv:3: .*mooo"):
        evaluate(folder, [str(file)], {}, {})
    found = evaluate(folder, [str(file)], {"unseen_labels": "ignore"}, {})
    assert found.metrics["unseen"] == 1
    assert found.metrics["accuracy"] <= 0.5
    assert any("mooo" in one for one in notices)


@pytest.mark.parametrize("model", ["bert:tiny", "mlp:tiny"])
def test_a_text_that_is_too_long_is_cut_only_by_option(
    model: str, tmp_path: Path, notices: list[str]
) -> None:
    rows = [f"{'word ' * (300 if i == 5 else 3)}{i},{SAYS[i % 2]}" for i in range(12)]
    data = written(tmp_path / "train.csv", "text,label\n" + "\n".join(rows) + "\n")
    with pytest.raises(
        DataError,
        match=(
            r"train\.csv:7: a text must have at most 128 tokens .* 1 has more \(the longest"
            r" \d+\).*data\.max_length=128"
        ),
    ):
        train(
            "text-classification",
            [str(data)],
            output_dir=tmp_path / "run",
            model=model,
            settings=FAST,
        )
    assert not (tmp_path / "run" / "config.json").exists()
    train(
        "text-classification",
        [str(data)],
        output_dir=tmp_path / "run",
        model=model,
        settings=[*FAST, "data.max_length=128"],
    )
    assert any("1 text is cut" in one for one in notices)


# --- fine-tuning
# -----------------------------------------------------------------------------------------------------


def test_a_run_begins_with_the_encoder_of_another(
    runs: dict[str, tuple[Path, Path]], tmp_path: Path, notices: list[str]
) -> None:
    """Its tokenizer comes along, its head does not where the labels are others, and what is new is named."""
    before, _ = runs["labels, transformer"]
    data = written(
        tmp_path / "new.csv",
        "text,label\n" + "".join(f"the cat {i},{'ab'[i % 2]}\n" for i in range(12)),
    )
    train(
        "text-classification",
        [str(data)],
        output_dir=tmp_path / "run",
        start=before,
        settings=[*FAST[:-1], "train.freeze=[encoder]"],
    )
    assert (tmp_path / "run" / "tokenizer.json").read_bytes() == (
        before / "tokenizer.json"
    ).read_bytes()
    old, new = (read_tensors(folder / "model.safetensors") for folder in (before, tmp_path / "run"))
    assert all(torch.equal(old[name], new[name]) for name in new if name.startswith("encoder."))
    assert any("head.output.weight" in one and "new" in one for one in notices)
    model = run_folder.load_run(tmp_path / "run").model
    assert isinstance(model, EncoderWithHead)
    assert model.config.labels == ("a", "b")


@pytest.mark.parametrize("case", CASES)
def test_every_run_can_be_gone_on_with_in_another(
    case: str, runs: dict[str, tuple[Path, Path]], tmp_path: Path
) -> None:
    """Its head comes along too, where the data are the same: without training the answers are those of
    before."""
    before, data = runs[case]
    task, _, _, more = CASES[case]
    settings = [
        *FAST[:-1],
        *(one for one in more if not one.startswith("model.")),
        "train.learning_rate=1e-30",
        "train.weight_decay=0",
    ]
    train(task, [str(data)], output_dir=tmp_path / "run", start=before, settings=settings)
    old, new = (read_tensors(folder / "model.safetensors") for folder in (before, tmp_path / "run"))
    assert old.keys() == new.keys()
    for name, tensor in new.items():
        torch.testing.assert_close(tensor, old[name], msg=name)


def test_a_start_brings_its_own_model(runs: dict[str, tuple[Path, Path]], tmp_path: Path) -> None:
    with pytest.raises(
        UsageError,
        match=r"--from brings its own model \(bert\), so --model must be left out, but is gpt",
    ):
        train(
            "text-classification",
            [str(labels_file(tmp_path))],
            output_dir=tmp_path / "run",
            model="gpt",
            start=runs["labels, transformer"][0],
        )


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["head.crf=true"], r"head\.crf must be false for classification"),
        (
            ["train.freeze=[nothing]"],
            r"train\.freeze must name parameters, but none begins with 'nothing'",
        ),
        (
            ["head.lm_weight=1"],
            r"head\.lm_weight needs an encoder that predicts the next token \(gpt\), but this is recurrent",
        ),
        (["model.characters=convolution"], r"model\.characters is for token-classification"),
        (["head.pooling=median"], r"head\.pooling must be"),
        (["train.best=bleu"], r"train\.best must be accuracy or loss or macro_f1"),
    ],
)
def test_settings_that_cannot_be_are_said_before_the_work(
    settings: list[str], message: str, tmp_path: Path
) -> None:
    with pytest.raises(SeqloomError, match=message):
        train(
            "text-classification",
            [str(labels_file(tmp_path))],
            output_dir=tmp_path / "run",
            model="recurrent:tiny",
            settings=[*FAST, *settings],
        )


@pytest.mark.parametrize("case", ["tags", "questions"])
def test_a_model_with_one_state_of_a_text_is_refused_for_words(case: str, tmp_path: Path) -> None:
    task, make, *_ = CASES[case]
    with pytest.raises(UsageError, match=r"the model of .* must be one of .*'mlp'$"):
        train(task, [str(make(tmp_path))], output_dir=tmp_path / "run", model="mlp:tiny")


@pytest.mark.parametrize("pooling", ["first", "mean"])
def test_one_state_of_a_text_is_not_pooled(pooling: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"head\.pooling makes one state .* mlp has only one"):
        train(
            "text-classification",
            [str(labels_file(tmp_path))],
            output_dir=tmp_path / "run",
            model="mlp:tiny",
            settings=[*FAST, f"head.pooling={pooling}"],
        )


@pytest.mark.parametrize(
    ("case", "setting", "message"),
    [
        (
            "labels, recurrent",
            "data.columns=[1,2]",
            r"data\.columns changes nothing for text-classification \(it is for token-classification\)",
        ),
        (
            "labels, recurrent",
            "data.source=x",
            r"data\.source changes nothing for text-classification \(it is for translation",
        ),
        (
            "labels, recurrent",
            "head.pair=compared",
            r"head\.pair is for two texts, but each example has one",
        ),
        (
            "labels, recurrent",
            "head.activation=gelu",
            r"head\.activation is that of a hidden layer, but there is none",
        ),
        (
            "labels, recurrent",
            "train.window=8",
            r"train\.window changes nothing for text-classification \(it is for ",
        ),
        (
            "scores, both orders",
            "train.label_smoothing=0.1",
            r"train\.label_smoothing is for labels",
        ),
        (
            "scores, both orders",
            "data.label_separator=;",
            r"data\.label_separator changes nothing for sentence-similarity",
        ),
        ("tags", "data.second=x", r"data\.second changes nothing for token-classification"),
        ("tags", "data.group=x", r"data\.group changes nothing for token-classification"),
        (
            "tags",
            "head.pooling=mean",
            r"head\.pooling makes one state of a text, but token-classification asks each word",
        ),
        (
            "questions",
            "data.options=[a,b]",
            r"data\.options changes nothing for question-answering \(it is for multiple-choice\)",
        ),
        ("choices", "data.score=x", r"data\.score changes nothing for multiple-choice"),
        (
            "choices",
            "head.pair=joined",
            r"head\.pair is for two texts and their label or score, but the task is multiple-choice",
        ),
    ],
)
def test_settings_that_change_nothing_are_refused(
    case: str, setting: str, message: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=message) as refused:
        trained(tmp_path, case, [setting])
    assert "\n" not in str(refused.value)
    assert not files.holds_something(tmp_path / "run")


def test_settings_that_change_nothing_are_refused_where_a_reader_is_asked(
    runs: dict[str, tuple[Path, Path]], tmp_path: Path
) -> None:
    run, data = runs["labels, recurrent"]
    with pytest.raises(UsageError, match=r"data\.tags changes nothing for text-classification"):
        load_reader(run, {"tags": "xpos"})
    with pytest.raises(
        UsageError, match=r"--from brings its own tokenizer, so data\.vocabulary changes nothing"
    ):
        train(
            "text-classification",
            [str(data)],
            output_dir=tmp_path / "run",
            start=run,
            settings=FAST,
        )


def test_a_head_belongs_to_readers(tmp_path: Path) -> None:
    written(tmp_path / "a.en", "a\nb\n")
    written(tmp_path / "a.de", "a\nb\n")
    with pytest.raises(UsageError, match=r"head\.pooling changes nothing for translation"):
        train(
            "translation",
            [str(tmp_path / "a.en"), str(tmp_path / "a.de")],
            output_dir=tmp_path / "run",
            settings=["head.pooling=mean"],
        )


# --- before the training
# ---------------------------------------------------------------------------------------------


def test_the_check_says_what_there_is_and_what_it_would_cost(tmp_path: Path) -> None:
    data, test = labels_file(tmp_path), labels_file(tmp_path, "test.csv", 8)
    report = check(
        "text-classification", [str(data)], [], [str(test)], FAST, model="recurrent:tiny"
    )
    summary = report.to_json()
    assert summary["splits"]["test"]["examples"] == 8
    assert (
        sum(counts.get("train", 0) for counts in summary["labels"].values())
        == summary["splits"]["train"]["examples"]
    )
    assert summary["training"]["steps"] == 6
    assert summary["training"]["parameters"] > summary["training"]["trained_parameters"] - 1 > 0
    assert summary["training"]["memory_of_the_longest_batch_mib"] > 0
    assert any("8 of 8 examples stand in the training too" in one for one in report.problems())


@pytest.mark.parametrize(
    ("model", "settings", "rate"),
    [
        ("bag_of_words:tiny", [], 1e-2),
        ("recurrent:tiny", [], 1e-3),
        ("bag_of_words", ["train.learning_rate=0.1"], 0.1),
    ],
)
def test_a_family_may_have_a_learning_rate_of_its_own(
    model: str, settings: list[str], rate: float, tmp_path: Path
) -> None:
    data = str(labels_file(tmp_path))
    assert (
        resolve(
            "text-classification", [data], tmp_path / "run", model, (), settings, None
        ).train.learning_rate
        == rate
    )


@pytest.mark.parametrize(
    ("settings", "steps"),
    [([], 1000), (["train.epochs=3"], 9), (["train.max_steps=5"], 5), (["train.min_steps=40"], 40)],
)
def test_a_new_reader_has_steps_enough_of_small_data_unless_they_are_told(
    settings: list[str], steps: int, tmp_path: Path
) -> None:
    data = str(labels_file(tmp_path, number=80))
    found = check(
        "text-classification",
        [data],
        (),
        (),
        ["data.vocabulary=400", *settings],
        model="bag_of_words:tiny",
    )
    assert found.training["steps"] == steps


# --- what reviews found
# ----------------------------------------------------------------------------------------------


class Killed(Exception):
    pass


def test_a_fine_tuning_that_was_killed_before_its_first_checkpoint_begins_again_with_what_it_began_with(
    runs: dict[str, tuple[Path, Path]], tmp_path: Path
) -> None:
    start, data = runs["labels, transformer"]

    def kill(progress: Any) -> None:
        raise Killed

    for name, progress in (("whole", lambda _: None), ("killed", kill)):
        with contextlib.suppress(Killed):
            settings = [*FAST[:-1], "train.seed=3"]
            train(
                "text-classification",
                [str(data)],
                output_dir=tmp_path / name,
                start=start,
                settings=settings,
                progress=progress,
            )
    assert (tmp_path / "killed" / "config.json").exists()
    train(resume=tmp_path / "killed")
    whole, again = (
        read_tensors(tmp_path / name / "model.safetensors") for name in ("whole", "killed")
    )
    assert all(torch.equal(whole[name], again[name]) for name in whole)


@pytest.mark.parametrize(
    "settings", [["train.freeze=[nothing]"], ["train.word_vectors=nothing.txt"]]
)
def test_a_mistake_that_is_found_late_leaves_no_folder_behind(
    settings: list[str], tmp_path: Path
) -> None:
    data = labels_file(tmp_path)
    with pytest.raises(SeqloomError):
        train(
            "text-classification",
            [str(data)],
            output_dir=tmp_path / "run",
            model="recurrent:tiny",
            settings=[*FAST, *settings],
        )
    train(
        "text-classification",
        [str(data)],
        output_dir=tmp_path / "run",
        model="recurrent:tiny",
        settings=FAST,
    )


def test_plain_text_is_answered_whatever_columns_the_training_had(tmp_path: Path) -> None:
    """A line for each line, a blank one for a blank one."""
    rows = "".join(f"x,the cat {i},{'ab'[i % 2]}\n" for i in range(12))
    data = written(tmp_path / "train.csv", "id,tweet,mood\n" + rows)
    settings = [*FAST, "data.text=tweet", "data.label=mood"]
    train(
        "text-classification",
        [str(data)],
        output_dir=tmp_path / "run",
        model="bag_of_words:tiny",
        settings=settings,
    )
    plain = written(tmp_path / "new.txt", "the cat 3\n\nthe cat, 4\n")
    replies = list(load_reader(tmp_path / "run").stream([str(plain)]))
    assert [bool(reply.text) for reply in replies] == [True, False, True]
    assert evaluate(tmp_path / "run", [str(data)], {}, {}).metrics["examples"] == 12


def test_a_file_whose_name_says_nothing_is_read_as_the_training_was_told(
    tmp_path: Path, notices: list[str]
) -> None:
    """As the SMS spam collection, which is a tsv without an ending; a line that is typed is a text still."""
    rows = "".join(f"{'ab'[i % 2]}\tthe cat {i}\n" for i in range(12))
    data = written(tmp_path / "collection", rows)
    settings = [*FAST, "data.format=tsv", "data.header=false", "data.text=2", "data.label=1"]
    train(
        "text-classification",
        [str(data)],
        output_dir=tmp_path / "run",
        model="bag_of_words:tiny",
        settings=settings,
    )
    notices.clear()
    reader = load_reader(tmp_path / "run")
    asked = [reply.content["probabilities"] for reply in reader.stream([data])]
    assert asked == [
        one["probabilities"] for one in reader.predict([f"the cat {i}" for i in range(12)])
    ]
    assert notices == [
        f"{data}: read as data.format=tsv, as in the training; of plain text: --set data.format=text"
    ]
    plain = load_reader(tmp_path / "run", {"format": "text"})
    assert len(list(plain.stream([str(written(tmp_path / "new.txt", "the cat\nthe dog\n"))]))) == 2
    assert len(notices) == 1


@pytest.mark.parametrize(
    ("name", "given"), [("a.bio", {}), ("a.txt", {"format": "conll"}), ("a.tsv", {})]
)
def test_columns_of_words_are_those_of_the_training(
    name: str, given: dict[str, Any], tmp_path: Path
) -> None:
    data = written(
        tmp_path / name, "\n\n".join(f"1\tthe\tDT\tO\n2\tcat{i}\tNN\tB-A" for i in range(12)) + "\n"
    )
    settings = [*FAST, "data.columns=[2,4]"]
    train(
        "token-classification",
        [str(data)],
        output_dir=tmp_path / "run",
        model="convolution:tiny",
        settings=settings,
    )
    assert next(load_reader(tmp_path / "run", given).stream([str(data)])).content["words"] == [
        "the",
        "cat0",
    ]
    assert "f1" in evaluate(tmp_path / "run", [str(data)], given, {}).metrics


def test_files_named_as_those_of_the_training_are_read_as_those(tmp_path: Path) -> None:
    """A .csv that is a tsv without a header, as the STS benchmark has them."""
    rows = "".join(f"x\tthe cat {i}\t{'ab'[i % 2]}\n" for i in range(12))
    data, test = written(tmp_path / "train.csv", rows), written(tmp_path / "test.csv", rows)
    settings = [*FAST, "data.format=tsv", "data.header=false", "data.text=2", "data.label=3"]
    train(
        "text-classification",
        [str(data)],
        output_dir=tmp_path / "run",
        model="bag_of_words:tiny",
        settings=settings,
    )
    assert evaluate(tmp_path / "run", [str(test)], {}, {}).metrics["examples"] == 12


def test_a_folder_without_a_model_is_nothing_to_begin_with(tmp_path: Path) -> None:
    with pytest.raises(
        FolderError, match=r"must be a model to begin with, but holds no config\.json"
    ):
        train(
            "text-classification",
            [str(labels_file(tmp_path))],
            output_dir=tmp_path / "run",
            start=tmp_path,
            settings=FAST,
        )


def test_a_reader_of_endless_layers_is_refused_at_once(tmp_path: Path) -> None:
    run, _ = trained(tmp_path, "labels, recurrent")
    content = json.loads((run / "config.json").read_text())
    content["encoder"]["layers"] = 10**9
    (run / "config.json").write_text(json.dumps(content))
    unvouched(run)
    with pytest.raises(FolderError, match="layers must be at most the number of tensors"):
        load_reader(run)


def test_each_answer_knows_its_line_where_rows_are_skipped(tmp_path: Path) -> None:
    run, _ = trained(tmp_path, "choices")
    row = json.dumps({"text": "the cat", "choice1": "moo", "choice2": "runs"})
    new = tmp_path / "new.jsonl"
    new.write_bytes(
        f"{row}\n".encode()
        + row.replace("cat", "caf\u00e9").encode("latin-1")
        + f"\n{row}\n".encode()
    )
    found = load_reader(run, {"on_bad_line": "skip"}).stream([str(new)])
    assert [reply.content["line"] for reply in found] == [1, 3]


@pytest.mark.parametrize("options", [(), ("moo",)])
def test_a_choice_of_fewer_than_two_options_is_no_choice(
    options: tuple[str, ...], runs: dict[str, tuple[Path, Path]]
) -> None:
    with pytest.raises(
        DataError, match=f"asked:1: a choice needs at least two options, but has {len(options)}$"
    ):
        load_reader(runs["choices"][0]).answer(
            [ChoiceQuestion("the cat", options, None, "asked", 1)]
        )


def numbered(path: Path, labels: str) -> Path:
    return written(
        path,
        "text,choice1,choice2,label\n"
        + "".join(f"the cat {at},moo,runs,{one}\n" for at, one in enumerate(labels)),
    )


@pytest.mark.parametrize(
    ("labels", "told", "base"),
    [
        ("121212", [], 1),
        ("010101", [], 0),
        ("111111", [], 0),
        ("111111", ["data.answers_from=1"], 1),
    ],
)
def test_numbers_of_options_count_in_all_files_as_in_those_of_the_training(
    labels: str, told: list[str], base: int, tmp_path: Path, notices: list[str]
) -> None:
    data, small, other = (
        numbered(tmp_path / f"{at}.csv", those)
        for at, those in enumerate([labels, "1", str(2 * (1 - base))])
    )
    given: dict[str, Any] = {"model": "bag_of_words:tiny", "settings": [*FAST, *told]}
    train(
        "multiple-choice",
        [str(data)],
        validation=[str(small)],
        output_dir=tmp_path / "run",
        **given,
    )
    assert sum("answers are taken as numbers" in one for one in notices) == (not told)
    chosen = (
        load_reader(tmp_path / "run")
        .answer([ChoiceQuestion("the cat 0", ("moo", "runs"), None, "asked", 1)])[0]
        .content["choice"]
    )
    hit = float(chosen == 1 - base)
    assert evaluate(tmp_path / "run", [str(small)], {}, {}).metrics["accuracy"] == hit
    assert (
        evaluate(tmp_path / "run", [str(small)], {"answers_from": 1 - base}, {}).metrics["accuracy"]
        == 1 - hit
    )
    with pytest.raises(
        DataError, match=rf"2\.csv:2: .*answers count from {base}.*data\.answers_from={1 - base}"
    ):
        evaluate(tmp_path / "run", [str(other)], {}, {})
    with pytest.raises(DataError, match=rf"2\.csv:2: .*data\.answers_from={1 - base}"):
        train(
            "multiple-choice",
            [str(data)],
            validation=[str(other)],
            output_dir=tmp_path / "no",
            **given,
        )


def test_a_new_head_of_numbers_begins_with_their_mean_and_one_that_was_trained_stays(
    tmp_path: Path,
) -> None:
    settings = ["train.learning_rate=1e-9", "data.split_seed=1"]
    run, data = trained(tmp_path, "scores, both orders", settings)
    bias = load_reader(run).encoder.head.output.bias
    # of 21 of the 24
    assert bias.item() == pytest.approx(sum(i % 6 / 2 for i in range(24)) / 24, abs=0.15)
    (tmp_path / "more.csv").write_text(data.read_text().replace("0.5\n", "100\n"))
    train(
        "sentence-similarity",
        [str(tmp_path / "more.csv")],
        output_dir=tmp_path / "on",
        start=run,
        settings=[*FAST[:-1], *settings],
    )
    torch.testing.assert_close(load_reader(tmp_path / "on").encoder.head.output.bias, bias)


def test_a_setting_that_is_given_as_its_default_is_not_that_of_the_training(tmp_path: Path) -> None:
    data = tmp_path / "train.csv"
    data.write_bytes(
        (
            "text,label\n"
            + "".join(f"caf\u00e9 {'ab'[i % 2]} {i},{'ab'[i % 2]}\n" for i in range(12))
        ).encode("latin-1")
    )
    settings = [*FAST, "data.encoding=latin-1"]
    train(
        "text-classification",
        [str(data)],
        output_dir=tmp_path / "run",
        model="bag_of_words:tiny",
        settings=settings,
    )
    reader = load_reader(tmp_path / "run", {"encoding": "utf-8"})
    with pytest.raises(DataError, match="is not UTF-8"):
        reader.measure([str(data)])
    (tmp_path / "new.csv").write_bytes(data.read_text("latin-1").encode())
    assert reader.measure([str(tmp_path / "new.csv")]).metrics["examples"] == 12
    with pytest.raises(UsageError, match=r"data\.encodng"):
        load_reader(tmp_path / "run", {"encodng": "utf-8"})


def test_tags_that_are_all_the_same_are_nothing_to_learn(tmp_path: Path) -> None:
    data = written(tmp_path / "a.conll", "the\t_\ncat\t_\n\na\t_\n\n" * 8)
    with pytest.raises(DataError, match="at least two different tags to train on, but all are '_'"):
        train("token-classification", [str(data)], output_dir=tmp_path / "run", settings=FAST)


def test_what_cannot_be_asked_is_said(runs: dict[str, tuple[Path, Path]], tmp_path: Path) -> None:
    reader = load_reader(runs["labels, recurrent"][0])
    with pytest.raises(UsageError, match="put it into a list"):
        reader.predict("good")
    with pytest.raises(UsageError, match="needs data"):
        reader.measure([])
    with pytest.raises(UsageError, match="give tuples of two"):
        load_reader(runs["pairs, compared"][0]).predict(["one"])
    with pytest.raises(UsageError, match="trained on single texts, but was given a pair"):
        reader.predict(["one", ("one", "two")])
    for wrong in (None, 3, b"x", ("a", "b", "c"), ("a", None)):
        with pytest.raises(
            UsageError, match="predict takes texts, or pairs of texts, but was given"
        ):
            reader.predict([wrong])
    with pytest.raises(UsageError, match="put it into a list"):
        reader.measure("train.csv")
    with pytest.raises(UsageError, match="put it into a list"):
        list(reader.stream("train.csv"))
    with pytest.raises(UsageError, match="at least 1 example"):
        list(reader.stream(["train.csv"], chunk=0))
    exported = load_reader(runs["several labels"][0], {"label_separator": None})
    with pytest.raises(UsageError, match="say what stands between them"):
        exported.measure([str(runs["several labels"][1])])
    with pytest.raises(UsageError, match="ONNX holds encoders with a head that give one text"):
        export_onnx(str(runs["tags"][0]), str(tmp_path / "graphs"))


def test_every_task_is_asked_with_plain_strings_and_lists(
    runs: dict[str, tuple[Path, Path]],
) -> None:
    tags = seqloom.load(runs["tags"][0])
    assert tags.predict(["the cat"]) == tags.predict([["the", "cat"]])
    assert len(tags.predict(["the cat"])[0]["tags"]) == 2
    questions = seqloom.load(runs["questions"][0])
    plain, named = ("who", "the cat says meow"), {"question": "who", "context": "the cat says meow"}
    assert questions.predict([plain])[0]["answer"] == questions.predict([named])[0]["answer"]
    choices = seqloom.load(runs["choices"][0])
    assert choices.predict([("the cat", ["says meow", "says woof"])])[0]["choice"] in (0, 1)
    for model, wrong in ((tags, 3), (questions, "who"), (choices, "the cat")):
        with pytest.raises(UsageError, match=r"^predict takes "):
            model.predict([wrong])


def test_a_loaded_model_says_what_it_is_and_what_it_cannot_do(
    runs: dict[str, tuple[Path, Path]],
) -> None:
    model = seqloom.load(runs["labels, recurrent"][0])
    assert repr(model).startswith("<text-classification: encoder_with_head of ")
    assert repr(model).endswith("; predict, evaluate, explain, stream>")
    with pytest.raises(
        UsageError, match="a model of text-classification cannot generate; use: seqloom predict"
    ):
        model.generate(["a"])
    assert not hasattr(model, "complete")


def test_a_share_without_examples_trains_no_next_token_either(
    runs: dict[str, tuple[Path, Path]],
) -> None:
    model = run_folder.load_run(runs["labels, causal"][0]).model
    assert isinstance(model, EncoderWithHead)
    reader = load_reader(runs["labels, causal"][0])
    items = reader.head_task.encode(
        [LabelledText("the cat says meow", None, ("meow",), None, "f", 1)], reader.options
    )
    loss = model.loss(items.load(np.array([], np.int64), np.array([0])))
    assert (float(loss.total.detach()), int(loss.count)) == (0.0, 0)
