"""`evaluate` shows single examples: the worst ones, all in a table, and pictures of them."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import rankdata  # type: ignore[import-untyped]

import seqloom
from seqloom.evaluation.worst_examples import by_length, with_text_scores, worst_examples
from seqloom.protocols import EvaluatedExample, Evaluation
from seqloom.workflows.evaluate import write_outputs
from seqloom.workflows.train import train


@pytest.fixture(scope="module")
def labelled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Files with labels, of which some are wrong, and a model that was trained on the right ones."""
    place = tmp_path_factory.mktemp("labelled")
    rows = [f"{'good' if n % 2 else 'bad'} film {'x ' * (n % 9)},{n % 2}" for n in range(60)]
    (place / "train.csv").write_text("text,label\n" + "\n".join(rows) + "\n")
    wrong = [row[:-1] + str(1 - int(row[-1])) if n % 10 == 0 else row for n, row in enumerate(rows)]
    (place / "test.csv").write_text("text,label\n" + "\n".join(wrong) + "\n")
    train(
        "text-classification",
        [str(place / "train.csv")],
        output_dir=place / "run",
        model="bag_of_words:tiny",
        settings=["train.max_steps=60", "data.tokenizer=words", "train.learning_rate=0.05"],
    )
    return place / "test.csv", place / "run"


def test_the_wrong_answers_that_the_model_is_most_sure_of_come_first(
    labelled: tuple[Path, Path], command: Any
) -> None:
    table, run = labelled
    ran = command("evaluate", run, table, "--errors", 4, "--json")
    errors = ran.json["errors"]
    assert len(errors) == 4
    sure = [one["confidence"] for one in errors]
    assert sure == sorted(sure, reverse=True)
    lines = table.read_text().splitlines()
    for one in errors:
        path, _, line = one["place"].rpartition(":")
        assert path == str(table)
        text, label = lines[int(line) - 1].rsplit(",", 1)
        assert (one["input"], one["truth"]) == (text, label)
        assert one["answer"] != one["truth"]
    shown = command("evaluate", run, table, "--errors", 4).out
    assert "Wrong answers" in shown
    assert "Wrong answers" not in command("evaluate", run, table).out


@pytest.mark.parametrize("ending", ["csv", "jsonl"])
def test_outputs_have_the_input_the_truth_and_the_answer(
    ending: str, labelled: tuple[Path, Path], command: Any, tmp_path: Path
) -> None:
    table, run = labelled
    output = tmp_path / f"all.{ending}"
    assert command("evaluate", run, table, "--outputs", output).code == 0
    if ending == "csv":
        with output.open(newline="") as file:
            found = list(csv.DictReader(file))
    else:
        found = [json.loads(line) for line in output.read_text().splitlines()]
    with table.open(newline="") as file:
        given = list(csv.DictReader(file))
    assert [(one["input"], one["truth"]) for one in found] == [
        (row["text"], row["label"]) for row in given
    ]
    answers = seqloom.load(run).predict([row["text"] for row in given])
    assert [one["answer"] for one in found] == [answer["label"] for answer in answers]
    right = [float(one["answer"] == one["truth"]) for one in found]
    assert [float(one["right"]) for one in found] == right


def test_texts_have_a_score_each_and_their_own_lines(
    pairs: Path, trained: Path, command: Any, tmp_path: Path
) -> None:
    table = tmp_path / "v.csv"
    rows = [json.loads(line) for line in (pairs / "val.jsonl").read_text().splitlines()]
    lines = [f"{row['source']},{row['target']}" for row in rows]
    table.write_text("source,target\n\n" + "\n".join(lines) + "\n")
    ran = command("evaluate", trained, table, "--errors", 3, "--json")
    for one in ran.json["errors"]:
        number = int(one["place"].rpartition(":")[2])
        assert one["input"] == rows[number - 3]["source"]
        assert 0 <= one["right"] < 1


def test_pictures_are_drawn_in_a_new_folder(
    labelled: tuple[Path, Path], trained: Path, pairs: Path, command: Any, tmp_path: Path
) -> None:
    table, run = labelled
    assert command("evaluate", run, table, "--pictures", tmp_path / "a").code == 0
    drawn = sorted(path.name for path in (tmp_path / "a").iterdir())
    assert [name for name in drawn if name.endswith(".svg")] == [
        "confusions.svg",
        "lengths.svg",
        "reliability.svg",
    ]
    svg = (tmp_path / "a" / "confusions.svg").read_text()
    assert "Which label is taken for which" in svg
    again = command("evaluate", run, table, "--pictures", tmp_path / "a")
    assert again.code == 2
    val = pairs / "val.jsonl"
    assert command("evaluate", trained, val, "--pictures", tmp_path / "b").code == 0
    assert "lengths.svg" in [path.name for path in (tmp_path / "b").iterdir()]


def test_a_model_that_answers_nothing_has_no_errors(command: Any, tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_text("a b c\nb c\n" * 9)
    train(
        "text-generation",
        [str(tmp_path / "t.txt")],
        output_dir=tmp_path / "run",
        model="ngram:bigram",
        settings=["data.tokenizer=words"],
    )
    ran = command("evaluate", tmp_path / "run", tmp_path / "t.txt", "--errors", 3)
    assert ran.code == 2
    assert "--errors is for models that answer each input" in ran.err


def test_the_order_of_errors_and_the_groups_of_lengths() -> None:
    def example(words: int, right: float | None, sure: float | None = None) -> EvaluatedExample:
        answer = "same" if right == 1 else "other text"
        return EvaluatedExample("f:1", "w " * words, "same", answer, right, sure)

    examples = [example(1, 0, 0.6), example(2, 1, 0.9), example(3, 0, 0.8)]
    assert worst_examples(examples, 9) == [examples[2], examples[0]]
    numbers = [example(1, -0.5), example(1, -2.0), example(1, -1.0)]
    assert [one.right for one in worst_examples(numbers, 2)] == [-2.0, -1.0]
    scored = with_text_scores([example(1, None), examples[1]])
    assert scored[0].right is not None
    assert 0 <= scored[0].right < 1
    assert scored[1].right == 1
    groups = by_length([example(n, n % 2) for n in range(1, 41)])
    assert sum(group.examples for group in groups) == 40
    assert [group.words for group in groups] == sorted(group.words for group in groups)
    assert len(by_length([example(5, 1)] * 9)) == 1


def test_outputs_of_word_vectors_are_a_table_too(command: Any, tmp_path: Path) -> None:
    """Of pairs, and of analogies; those whose cosines have other ranks than their scores come first."""
    (tmp_path / "text.txt").write_text("king queen prince palace\nbread butter milk egg\n" * 200)
    train(
        "word-vectors",
        [str(tmp_path / "text.txt")],
        output_dir=tmp_path / "run",
        model="word2vec:tiny",
        settings=["train.threads=1", "train.batch_tokens=2000", "model.subsample=0"],
    )
    pairs = [("king", "queen", 9), ("king", "bread", 5), ("milk", "prince", 1), ("milk", "egg", 0)]
    lines = [f"{first} {second} {score}" for first, second, score in pairs]
    (tmp_path / "pairs.txt").write_text(
        "\n".join([*lines[:2], "", "king zzz 3", *lines[2:]]) + "\n"
    )
    (tmp_path / "questions.txt").write_text(": x\nking queen milk egg\nking queen milk palace\n")
    found, worst = {}, {}
    for name in ("pairs", "questions"):
        output = tmp_path / f"{name}.csv"
        ran = command(
            *("evaluate", tmp_path / "run", tmp_path / f"{name}.txt"),
            *("--outputs", output, "--errors", 1, "--json"),
        )
        worst[name] = ran.json["errors"][0]
        with output.open(newline="") as file:
            found[name] = list(csv.DictReader(file))
    vectors = seqloom.load(tmp_path / "run")
    cosines = [vectors.similarity(first, second) for first, second, _ in pairs]
    errors = np.abs(rankdata(cosines) - rankdata([score for *_, score in pairs])) / 3
    assert [(row["input"], float(row["truth"])) for row in found["pairs"]] == [
        (f"{first} {second}", score) for first, second, score in pairs
    ]
    assert [row["place"].rpartition(":")[2] for row in found["pairs"]] == ["1", "2", "5", "6"]
    assert [float(row["answer"]) for row in found["pairs"]] == pytest.approx(cosines, abs=1e-6)
    assert [-float(row["right"]) for row in found["pairs"]] == pytest.approx(errors)
    assert worst["pairs"]["right"] == pytest.approx(-max(errors))
    (near,) = vectors.analogy("king", "queen", "milk", 1)
    assert [(row["truth"], row["answer"], row["right"]) for row in found["questions"]] == [
        (truth, near.word, str(float(truth == near.word))) for truth in ("egg", "palace")
    ]
    assert worst["questions"]["right"] == 0


def test_answers_alone_are_a_table_of_one_column(tmp_path: Path) -> None:
    write_outputs(str(tmp_path / "a.csv"), Evaluation({}, outputs=["one, two", "three"]))
    assert (tmp_path / "a.csv").read_text() == 'answer\n"one, two"\nthree\n'
