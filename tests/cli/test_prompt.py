"""The verb prompt."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import seqloom
from seqloom.errors import UsageError

RUNS = Path(__file__).parent.parent / "fixtures" / "runs"
TEMPLATES = """\
templates:
  a1: !Template
    name: sees
    jinja: "{{ text }} ||| {{ answer_choices[label] }}"
    answer_choices: a dog ||| the cat ||| it
"""


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "t.yaml").write_text(TEMPLATES)
    rows = [
        f"{who} {verb},{label}"
        for verb in ("sees", "likes", "runs to")
        for label, who in enumerate(("the cat", "a dog", "the bird"))
    ]
    (tmp_path / "train.csv").write_text("\n".join(["text,label", *rows]) + "\n")
    (tmp_path / "test.csv").write_text("\n".join(["text,label", *rows[:4]]) + "\n")
    return tmp_path


@pytest.mark.parametrize(
    "name", ["text-gpt", "text-ngram", "text-recurrent-lm", "text-mixture", "translation-t5"]
)
def test_every_model_that_writes_text_answers_prompts(command: Any, files: Path, name: str) -> None:
    words = ("prompt", RUNS / name, files / "test.csv", "--template", files / "t.yaml", "--json")
    found = command(*words).json
    assert found["items"] == 4
    assert found["chance"] == pytest.approx(100 / 3)
    for kind in ("raw", "token", "byte", "pmi", "calibrated"):
        low, high = found[f"accuracy_{kind}_low"], found[f"accuracy_{kind}_high"]
        assert low <= found[f"accuracy_{kind}"] <= high
    written = command(*words, "--generate", "--set", "decode.max_length=3").json
    assert written["accuracy_exact"] <= written["accuracy_normalised"]


def test_outputs_hold_the_prompt_the_scores_and_the_place(command: Any, files: Path) -> None:
    words = ("--template", files / "t.yaml", "--outputs", files / "out.jsonl", "--scores=raw,byte")
    ran = command("prompt", RUNS / "text-gpt", files / "test.csv", *words)
    assert ran.code == 0
    assert "by chance: 33.33" in ran.out
    lines = [json.loads(line) for line in (files / "out.jsonl").read_text().splitlines()]
    assert [(line["line"], line["truth"]) for line in lines] == [(2, 0), (3, 1), (4, 2), (5, 0)]
    assert lines[0]["prompt"] == "the cat sees"
    for line in lines:
        raw = line["scores"]["raw"]
        assert line["choice"]["raw"] == raw.index(max(raw))
        assert line["right"]["raw"] == (line["choice"]["raw"] == line["truth"])


def test_seeds_and_orders_are_measured_and_drawn(command: Any, files: Path) -> None:
    words = ("--template", files / "t.yaml", "--shots=2", "--examples", files / "train.csv")
    more = ("--seeds=3,4", "--orders=2", "--too-long=cut", "--plot", files / "orders.svg")
    out = ("--outputs", files / "out.jsonl", "--scores=raw", "--balanced", "--between= . ")
    ran = command("prompt", RUNS / "text-gpt", files / "test.csv", *words, *more, *out, "--json")
    assert [(run["seed"], run["order"]) for run in ran.json["runs"]] == [
        *((3, 0), (3, 1), (4, 0), (4, 1))
    ]
    assert {*ran.json["seeds_raw"]} == {"mean", "min", "max", "deviation"}
    assert all(len(run["shots"]) == 2 for run in ran.json["runs"])
    assert "order of the shots" in (files / "orders.svg").read_text()
    lines = [json.loads(line) for line in (files / "out.jsonl").read_text().splitlines()]
    for line in lines:
        *shots, own = line["prompt"].split(" . ")
        assert len(shots) == 2
        # the test rows are among the examples
        assert not any(shot.startswith(own) for shot in shots)


@pytest.mark.parametrize(
    ("runs", "axis", "lines"),
    [
        (["--orders=2"], "order of the shots", ["raw", "byte"]),
        (["--seeds=4,2"], "seed of the shots", ["raw", "byte"]),
        (["--seeds=4,2", "--orders=2"], "order of the shots", ["seed 4", "seed 2"]),
    ],
)
def test_the_chart_shows_orders_or_seeds(
    command: Any, files: Path, runs: list[str], axis: str, lines: list[str]
) -> None:
    words = ("--template", files / "t.yaml", "--shots=2", "--examples", files / "train.csv")
    more = ("--scores=raw,byte", "--too-long=cut", "--plot", files / "c.json", *runs)
    assert command("prompt", RUNS / "text-gpt", files / "test.csv", *words, *more).code == 0
    chart = (files / "c.json").read_text()
    assert axis in chart
    assert all(f'"series": "{line}"' in chart for line in lines)


def test_the_labels_are_those_of_all_rows_and_examples(command: Any, files: Path) -> None:
    (files / "a.csv").write_text("text,label\nx,one\ny,two\n")
    (files / "b.csv").write_text("text,label\np,one\nq,three\nr,one\n")
    shots = ("--shots=1", "--examples", files / "b.csv", "--limit=1", "--too-long=cut")
    out = ("--template=topic", "--outputs", files / "out.jsonl", "--scores=raw")
    assert command("prompt", RUNS / "text-gpt", files / "a.csv", *shots, *out).code == 0
    assert json.loads((files / "out.jsonl").read_text())["options"] == ["one", "three", "two"]


def test_equal_answers_are_a_tie_and_not_right(command: Any, files: Path) -> None:
    same = TEMPLATES.replace("a dog ||| the cat ||| it", "it ||| it")
    (files / "same.yaml").write_text(same.replace("[label]", "[0]"))
    words = ("--template", files / "same.yaml", "--json")
    found = command("prompt", RUNS / "text-gpt", files / "test.csv", *words).json
    assert found["accuracy_raw"] == 0
    assert found["ties_raw"] == 4


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--orders", "3"], "--orders changes nothing without shots"),
        (["--shots", "2"], "--shots are drawn from --examples FILE, but none is named"),
        (["--scores", "raw,best"], "--scores must be some of raw,token,byte,pmi,calibrated"),
        (["--field", "text"], "--field must be NAME=COLUMN or NAME=EXPRESSION"),
        (["--labels", "a,a"], "--labels must be the labels with commas between, each once"),
        (["--seeds", "1,one"], "--seeds must be different whole numbers"),
        (["--set", "decode.beam=2"], "decode.beam changes nothing where answers are not written"),
        (["--generate", "--scores=raw"], "--scores changes nothing where answers are written"),
        (["--generate", "--separator=:"], "--separator changes nothing here"),
        (["--set", "data.label=label"], "data.label changes nothing here"),
        (["--limit", "0"], "--limit must be at least 1"),
        (["--plot", "x.png"], "--plot changes nothing without shots"),
        (["--shots=1", "--examples=train.csv", "--plot=x.png"], "--plot shows several runs, but"),
        (["--outputs", "out.csv"], "must end in .jsonl"),
        (["--field", "label=text"], "test.csv:2: template 'sees'"),
        (["--field", "label=label+7"], "list object has no element 7"),
        (["--labels", "no,yes"], "the label '0' is none of --labels no, yes"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(
    command: Any, files: Path, words: list[str], message: str
) -> None:
    ran = command(
        "prompt", RUNS / "text-gpt", files / "test.csv", "--template", files / "t.yaml", *words
    )
    assert ran.code == 2
    assert message in ran.err
    assert "Traceback" not in ran.err


def test_a_prompt_longer_than_the_context_is_refused_or_cut(command: Any, files: Path) -> None:
    words = ("prompt", RUNS / "text-gpt", files / "test.csv", "--template", files / "t.yaml")
    long = ("--field", "text='the cat sees ' * 40")
    ran = command(*words, *long)
    assert ran.code == 2
    assert "test.csv:2: a prompt with its answer must fit the" in ran.err
    ran = command(*words, *long, "--too-long", "cut")
    assert ran.code == 0
    assert "4 of 4 prompts cut at the left" in ran.err


def test_a_model_that_writes_no_text_says_so(command: Any, files: Path) -> None:
    words = ("prompt", RUNS / "labels-bag", files / "test.csv", "--template", files / "t.yaml")
    ran = command(*words)
    assert ran.code == 2
    assert "a model of text-classification cannot prompt; use: seqloom predict" in ran.err


def test_from_python_the_options_are_keywords(files: Path) -> None:
    model = seqloom.load(RUNS / "text-gpt")
    result = model.prompt([str(files / "test.csv")], template=str(files / "t.yaml"))
    assert result.items == 4
    with pytest.raises(UsageError, match="template"):
        model.prompt([str(files / "test.csv")])
