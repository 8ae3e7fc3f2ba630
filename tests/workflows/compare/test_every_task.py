"""Comparisons of language models, translation models and finished folders, and the floor of each."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest

import seqloom
from seqloom.errors import UsageError
from seqloom.workflows.compare.folders import compare_folders
from seqloom.workflows.compare.plan import CompareConfig, read_entries
from seqloom.workflows.compare.run import run_compare

LANGUAGE_MODELS = "ngram:bigram,lstm:tiny+width={8,12}"
FOLDERS = ("gru-tiny-width-8", "transformer-tiny")
WORDS = ["the", "a", "dog", "cat", "king", "sees", "likes", "park", "old", "red"]


def config(place: Path, task: str, data: Path, models: str = "", **more: Any) -> CompareConfig:
    options: dict[str, Any] = {"test": [str(data)], "seeds": 1, "grid": 1} | more
    return CompareConfig(
        task=task,
        data=[str(data)],
        models=models,
        output_dir=place / "out",
        settings=["train.max_steps=4", "data.tokenizer=words", "train.threads=1"],
        **options,
    )


def measured(place: Path, task: str, data: Path) -> CompareConfig:
    """Of finished folders."""
    return CompareConfig(task=task, data=[str(data)], output_dir=place / "out")


@pytest.fixture(scope="module")
def book(tmp_path_factory: pytest.TempPathFactory) -> Path:
    random = Random(1)
    lines = [" ".join(random.choices(WORDS, k=7)) for _ in range(120)]
    path = tmp_path_factory.mktemp("book") / "book.txt"
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture(scope="module")
def language_models(book: Path) -> tuple[Path, Any]:
    asked = config(book.parent, "text-generation", book, LANGUAGE_MODELS)
    return book.parent / "out", run_compare(asked)


def test_language_models_are_ranked_by_bits_a_byte_above_unigrams(
    language_models: tuple[Path, Any], book: Path
) -> None:
    folder, result = language_models
    board = result.leaderboard
    assert board.plan.score == "bits_per_byte"
    assert board.rows[0].model == "ngram:bigram"
    means = [row.mean for row in board.rows]
    assert means == sorted(means)
    assert board.rows[1].p is not None
    assert board.floor.name == "unigrams"
    assert board.no_better() == [row.model for row in board.rows if row.mean >= board.floor.score]
    assert "lstm:tiny+width=8" in board.no_better()
    (note,) = [note for note in board.notes() if note.startswith("no better than unigrams")]
    assert "lstm:tiny+width=12" in note
    content = json.loads((folder / "leaderboard.json").read_text())
    assert content["floor"]["score"] == board.floor.score
    curves = (folder / "curves.svg").read_text()
    assert "lstm:tiny+width=8" in curves
    again = run_compare(config(book.parent, "text-generation", book, LANGUAGE_MODELS))
    assert again.leaderboard is not None
    assert [row.mean for row in again.leaderboard.rows] == means


def test_finished_folders_are_measured_on_the_same_files(
    language_models: tuple[Path, Any], book: Path, tmp_path: Path
) -> None:
    out, result = language_models
    folders = [str(out / f"{name}-seed0") for name in ("lstm-tiny-width-8", "ngram-bigram")]
    board = compare_folders(measured(tmp_path, "text-generation", book), folders)
    by_model = {row.model: row.mean for row in result.leaderboard.rows}
    assert {row.model: row.mean for row in board.rows} == pytest.approx(
        {
            "ngram-bigram-seed0": by_model["ngram:bigram"],
            "lstm-tiny-width-8-seed0": by_model["lstm:tiny+width=8"],
        }
    )
    assert (tmp_path / "out" / "leaderboard.csv").is_file()
    with pytest.raises(UsageError, match="must be a model of translation, but is one of text-gen"):
        compare_folders(measured(tmp_path / "x", "translation", book), folders)
    with pytest.raises(UsageError, match="at least two run folders"):
        compare_folders(measured(tmp_path / "x", "text-generation", book), folders[:1])


def test_unlike_vocabularies_that_hide_words_are_refused(book: Path, tmp_path: Path) -> None:
    test = tmp_path / "t.txt"
    test.write_text("the zebra sees a dog\nold king likes the park\n")
    folders = []
    for vocabulary in (24, 22):
        folders.append(str(tmp_path / f"v{vocabulary}"))
        seqloom.train(
            "text-generation",
            [str(book)],
            output_dir=folders[-1],
            model="ngram:bigram",
            settings=["data.tokenizer=words", f"data.vocabulary={vocabulary}"],
            progress=lambda _: None,
        )
    with pytest.raises(UsageError, match="compares models with the same vocabulary where it hides"):
        compare_folders(measured(tmp_path, "text-generation", test), folders)
    assert not (tmp_path / "out").exists()


def test_translation_is_ranked_by_bleu_with_copying_as_the_floor(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    random = Random(2)
    texts = [" ".join(random.choices(WORDS, k=5)) for _ in range(40)]
    data = tmp_path / "pairs.tsv"
    data.write_text("source\ttarget\n" + "".join(f"{one}\t{one} !\n" for one in texts))
    asked = config(tmp_path, "translation", data, "gru:tiny+width=8,transformer:tiny", processes=2)
    with caplog.at_level("INFO", "seqloom"):
        board = run_compare(asked).leaderboard
    assert "2 of 2 trainings are over" in caplog.text  # in processes of their own
    assert board is not None
    assert board.plan.score == "bleu"
    assert board.floor is not None
    assert board.floor.name == "copy of the input"
    assert board.floor.score > 50
    assert set(board.no_better()) == {"gru:tiny+width=8", "transformer:tiny"}
    for side, ending in enumerate(("en", "de")):
        sides = [f"{one}\n" if side == 0 else f"{one} !\n" for one in texts]
        (tmp_path / f"prefix.{ending}").write_text("".join(sides))
    folders = [str(tmp_path / "out" / f"{name}-seed0") for name in FOLDERS]
    again = compare_folders(measured(tmp_path / "p", "translation", tmp_path / "prefix"), folders)
    assert [row.mean for row in again.rows] == [row.mean for row in board.rows]
    with pytest.raises(UsageError, match="name them after --test or --validation"):
        run_compare(config(tmp_path / "y", "translation", data, "gru,t5", test=()))


def test_models_that_learnt_nothing_are_named(tmp_path: Path) -> None:
    data = tmp_path / "t.csv"
    random = Random(3)
    rows = [
        f"{' '.join(random.choices(WORDS, k=4))},{'pos' if n % 5 == 0 else 'neg'}"
        for n in range(100)
    ]
    data.write_text("text,label\n" + "\n".join(rows) + "\n")
    asked = config(tmp_path, "text-classification", data, "bag_of_words:tiny,cnn:tiny")
    board = run_compare(asked).leaderboard
    assert board is not None
    assert board.floor is not None
    assert tuple(board.floor) == ("always neg", 0.8)
    assert "no better than always neg (0.8): " in " ".join(board.notes())
    assert board.table()[1][-1][:2] == ("(always neg)", "0.8000")
    svg = (tmp_path / "out" / "leaderboard.svg").read_text()
    assert ">1</text>" not in svg


def test_braces_are_a_grid() -> None:
    words = "gru:tiny+width={8,16}+layers={1,2},convolution+windows=[3,4]"
    names = [entry.name for entry in read_entries(words, "text-classification")]
    assert names == [
        *(f"gru:tiny+width={width}+layers={layers}" for width in (8, 16) for layers in (1, 2)),
        "convolution+windows=[3,4]",
    ]
