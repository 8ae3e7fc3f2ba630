"""The benchmark of pre-trained encoders trains each cell once, goes on where it was stopped, and pairs by
seed."""

from __future__ import annotations

import csv
import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from benchmarks.encoder_data import SETS, prepared
from benchmarks.encoder_pretraining import (
    Cell,
    Results,
    Trained,
    draw,
    gains,
    main,
    table,
)

from benchmarks import encoder_pretraining
from seqloom.workflows.train import train

pytestmark = pytest.mark.usefixtures("one_thread")

QUESTIONS = [
    f"{('NUM:count', 'LOC:city')[i % 2]} {('How many', 'Where is')[i % 2]} {i} ?" for i in range(40)
]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Each set as its source ships it."""
    place = tmp_path_factory.mktemp("data")
    for name in SETS:
        (place / name).mkdir()
    for part in ("train", "test"):
        (place / "trec" / f"{part}.txt").write_text("\n".join(QUESTIONS) + "\n", "latin-1")
        text = "".join(f"1\tw{i}\tw\tNOUN\n2\truns\trun\tVERB\n\n" for i in range(30))
        path = place / "ud_english_ewt" / f"en_ewt-ud-{part}.conllu.gz"
        path.write_bytes(gzip.compress(text.replace("\tNOUN", "\tNOUN" + "\t_" * 6)
                                       .replace("\tVERB", "\tVERB" + "\t_" * 6).encode()))  # fmt: skip
    dev = (place / "ud_english_ewt" / "en_ewt-ud-train.conllu.gz").read_bytes()
    (place / "ud_english_ewt" / "en_ewt-ud-dev.conllu.gz").write_bytes(dev)
    for label in ("pos", "neg"):
        lines = "".join(f"a {label} film, number\x85 {i}\n" for i in range(20))
        (place / "mr_polarity" / f"rt-polarity.{label}").write_text(lines, "latin-1")
    for part in ("train", "dev"):
        with (place / "rte" / f"{part}.csv").open("w", newline="") as file:
            rows = [(f"It is {i}.", f"{i}, it is.", ("yes", "no")[i % 2]) for i in range(20)]
            csv.writer(file).writerows([("premise", "hypothesis", "label"), *rows])
    return place


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("run")
    (place / "text.txt").write_text("How many of it is a film?\n" * 30)
    settings = ["train.max_steps=1", "model.width=16", "model.layers=1", "train.batch_rows=4"]
    train(
        "fill-mask",
        [str(place / "text.txt")],
        output_dir=place / "electra",
        model="electra:tiny",
        settings=settings,
    )
    return place / "electra"


def test_every_set_has_few_examples_and_all(data: Path, tmp_path: Path) -> None:
    for one in prepared(list(SETS), data, tmp_path, few=10):
        blocks = one.few.suffix == ".conllu"
        parts = {
            name: one._asdict()[name].read_text().strip().split("\n\n" if blocks else "\n")
            for name in ("few", "all", "validation", "test")
        }
        few = parts["few"] if blocks else parts["few"][1:]
        assert len(few) == 10
        assert parts["all"][: len(parts["few"])] == parts["few"]
        if not blocks:
            assert not set(parts["validation"][1:]) & set(parts["all"])


def test_it_measures_both_sides_and_goes_on_where_it_was_stopped(
    data: Path, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results, chart = tmp_path / "results.jsonl", tmp_path / "chart.svg"
    arguments = [str(data), str(results), f"ELECTRA={run}", "--sets", "trec", "ud_english_ewt"]
    arguments += ["--sizes", "few", "--few", "10", "--rates", "0.001", "0.002", "--seeds", "2"]
    arguments += ["--steps", "1", "1", "--chart", str(chart)]
    main(arguments)
    lines = results.read_text().splitlines()
    # two sets, two sides, two rates with the first seed and one with the second
    assert len(lines) == 2 * 2 * 3
    one = json.loads(lines[0])
    assert one["cell"] == ["trec", "few", "ELECTRA", "from scratch"]
    assert one["examples"] == 10
    assert chart.read_text().startswith("<svg")
    # killed while the last line was written
    results.write_text("\n".join(lines[:-1]) + "\n" + lines[-1][:30])
    trained: list[Cell] = []
    inner = encoder_pretraining.fine_tuned

    def watched(*given: Any) -> Trained:
        trained.append(given[2])
        return inner(*given)

    monkeypatch.setattr(encoder_pretraining, "fine_tuned", watched)
    main(arguments)
    assert trained == [Cell("ud_english_ewt", "few", "ELECTRA", "pre-trained")]
    again = [json.loads(line) for line in results.read_text().splitlines()]
    for before, after in zip(map(json.loads, lines), again, strict=True):
        assert {**before, "seconds": 0} == {**after, "seconds": 0}


def test_differences_are_paired_by_seed_at_the_best_rate(tmp_path: Path) -> None:
    results = Results(tmp_path / "results.jsonl")
    scores = {
        ("from scratch", 0.1): (60, 70, 50.0),
        ("from scratch", 0.2): (99, None, 40.0),
        ("pre-trained", 0.2): (63, 74, 80.0),
        ("pre-trained", 0.1): (10, None, 70.0),
    }
    for (side, rate), (first, second, validation) in scores.items():
        for seed, test in enumerate((first, second)):
            if test is not None:
                cell = Cell("trec", "few", "BERT", side)
                results.add(Trained(cell, seed, rate, 500, validation, test, 3.0))
    (found,) = gains(Results(tmp_path / "results.jsonl"))
    assert (found.scratch, found.pretrained) == ([60, 70], [63, 74])
    assert found.differences == [3, 4]
    line = table([found]).splitlines()[2]
    assert "| trec | 500      | BERT  | 65.0 (" in line
    assert "| 3.5 (-2.9 to 9.9)" in line
    # one seed has no interval, in the table and in the picture
    alone = found._replace(scratch=[60], pretrained=[63])
    assert "| 3.0  " in table([alone])
    draw([alone, found], tmp_path / "chart.svg")
    assert (tmp_path / "chart.svg").exists()
