"""An option that would change nothing is refused in one line, of every kind of model."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cli.conftest import Command
from tests.tasks.explain.subjects import RUNS, SENTENCE

import seqloom
from seqloom.protocols import Request

COMPARE = f"compare text-classification x.csv --folders {RUNS}/labels-bag {RUNS}/labels-bert"
IDLE = {
    # of a table of answers
    "predict RUNS/labels-bag - --probabilities": "--probabilities needs --output or --json",
    "predict RUNS/translation-seq2seq x.txt --probabilities --json": (
        "--probabilities changes nothing in predict"
    ),
    "predict RUNS/vectors-bert x.txt --probabilities --json": (
        "--probabilities changes nothing in predict"
    ),
    "predict RUNS/tags-recurrent x.txt --probabilities --json": (
        "--probabilities is for models that give a text labels, but this is one of tagging"
    ),
    "predict RUNS/similar-recurrent x.csv --probabilities --json": (
        "--probabilities is for models that give a text labels, but this is one of regression"
    ),
    "evaluate RUNS/labels-bag x.csv --outputs a.xlsx": "a table must end in .csv, .tsv, .jsonl",
    "evaluate RUNS/labels-bag x.csv --errors -1": "--errors must be at least 0, but is -1",
    # of windows over a long text
    "score RUNS/text-ngram --text a --stride 4": "--stride changes nothing here",
    "score RUNS/text-recurrent-lm --text a --stride 4": "--stride changes nothing here",
    "evaluate RUNS/text-recurrent-lm x.txt --stride 4": "--stride changes nothing here",
    # of pictures
    "explain RUNS/text-gpt --words dog --show attention": (
        "--words is --show words, but --show attention is given"
    ),
    "explain RUNS/text-gpt dog --projection --show attention": (
        "--projection is --show projection, but --show attention is given"
    ),
    "explain RUNS/text-gpt dog --projection --gradient-flow": (
        "--projection is --show projection, but --show gradient-flow is given"
    ),
    "explain RUNS/labels-bert dog --show attention --target 1": (
        "--target changes nothing of --show attention of a model that writes no text"
    ),
    "explain RUNS/masks-bert dog --show attention --target dog": (
        "--target changes nothing of --show attention of a model that writes no text"
    ),
    "explain RUNS/tags-recurrent dog --show gates --target dog": (
        "--target changes nothing of --show gates of a model that writes no text"
    ),
    "explain RUNS/text-gpt dog --show attribution --word 1": "--word is for tags",
    "explain RUNS/translation-seq2seq dog --show attribution --word 1": "--word is for tags",
    "explain RUNS/masks-bert [MASK] --show attribution --word 1": "--word is for tags",
    "explain RUNS/labels-bag-several dog --show attribution --foil red": (
        "--foil is for one label of several"
    ),
    "explain RUNS/translation-seq2seq dog --target cat --set decode.beam=2": (
        "decode.beam changes nothing beside --target"
    ),
    # of what is not trained
    f"{COMPARE} --output-dir new --seeds 5": "--seeds changes nothing with --folders",
    f"{COMPARE} --output-dir new --test y.csv": "--test changes nothing with --folders",
    f"{COMPARE} --output-dir new --match time": "--match changes nothing with --folders",
    f"{COMPARE} --output-dir new --models bag_of_words": "--models changes nothing with --folders",
    f"{COMPARE} --output-dir new --set train.max_steps=3": (
        "train.max_steps changes nothing with --folders"
    ),
    "check masked-image-modeling x.npz --test y.npz": "--test changes nothing for masked-image",
}


@pytest.mark.parametrize(("line", "message"), IDLE.items())
def test_an_option_that_changes_nothing_is_refused(
    line: str, message: str, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("x.txt", "x.csv", "y.csv"):
        Path(name).write_text("text,second,label\na,b,0\n" if name.endswith("csv") else "a b\n")
    before = sorted(tmp_path.iterdir())
    ran = command(*line.replace("RUNS", str(RUNS)).split())
    assert ran.code == 2
    assert ran.out == ""
    assert message in ran.err.splitlines()[-1]
    assert sorted(tmp_path.iterdir()) == before


def test_one_request_for_all_labels_changes_no_other(tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_text(f"{SENTENCE}\n")
    model = seqloom.load(RUNS / "labels-bag")
    before = [answer.row() for answer in model.answers([str(tmp_path / "x.txt")])]
    every = list(model.answers([str(tmp_path / "x.txt")], Request(all_labels=True)))
    assert len(every[0].row()) > len(before[0])
    assert [answer.row() for answer in model.answers([str(tmp_path / "x.txt")])] == before
