"""degeneration: a table, a chart, all texts; and mistakes are one line."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("altair")

WORDS = ["the", "a", "dog", "cat", "runs", "sees", "barks", "often", "and", "with"]


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """40 documents of 20 words, and one of 2."""
    chance = random.Random(0)
    place = tmp_path_factory.mktemp("degeneration") / "texts.txt"
    place.write_text(
        "the dog\n" + "".join(" ".join(chance.choices(WORDS, k=20)) + "\n" for _ in range(40))
    )
    return place


@pytest.fixture(scope="module")
def model(texts: Path) -> Path:
    """An n-gram model of these words."""
    from seqloom.workflows.train import train

    folder = texts.parent / "ngram"
    settings = ["data.tokenizer=words", "model.order=3"]
    train(
        "text-generation",
        [str(texts)],
        model="ngram",
        output_dir=str(folder),
        validation=[str(texts)],
        settings=settings,
    )
    return folder


def one_line(ran: Any, code: int = 2) -> str:
    *_, line = ran.err.splitlines()
    assert (ran.code, ran.out) == (code, "")
    assert line.startswith("seqloom: ")
    return str(line)


SHORT = ("--prompt-tokens", "4", "--new-tokens", "10", "--limit", "12")


def test_a_table_and_a_chart(
    command: Any, model: Path, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    picture = tmp_path / "chart.svg"
    ran = command(
        "degeneration",
        model,
        texts,
        *SHORT,
        "--strategies",
        "greedy, beam=3,sampling",
        "--output",
        picture,
    )
    assert ran.code == 0
    assert "12 texts, 10 tokens after a prompt of 4" in ran.out
    assert f"probability of each token: {picture}" in ran.out
    rows = [line.split("│")[0].strip() for line in ran.out.splitlines() if "│" in line]
    assert rows == ["human", "greedy", "beam=3", "sampling"]
    assert "1 document was too short" in ran.err
    assert "2 of 3: beam=3" in ran.err
    assert all(f">{name}<" in picture.read_text("utf-8") for name in ("human", "greedy", "beam=3"))


def test_all_strategies_and_all_numbers(
    command: Any, model: Path, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each number of the table follows from the texts that are written."""
    monkeypatch.chdir(tmp_path)
    told = command(
        "degeneration", model, texts, *SHORT, "--json", "--samples-output", "all.jsonl"
    ).json
    assert (tmp_path / "degeneration.png").read_bytes().startswith(b"\x89PNG")
    assert (told["texts"], told["too_short"], told["new_tokens"], told["unknown"]) == (12, 1, 10, 0)
    records = [json.loads(line) for line in (tmp_path / "all.jsonl").read_text().splitlines()]
    assert len(told["rows"]) == 11
    assert [record["strategy"] for record in records] == [
        name for name in told["rows"] for _ in range(12)
    ]
    lines = texts.read_text().splitlines()
    for name, row in told["rows"].items():
        some = [record for record in records if record["strategy"] == name]
        probabilities = [p for record in some for p in record["probabilities"]]
        assert row["mean_probability"] == pytest.approx(sum(probabilities) / len(probabilities))
        assert row["perplexity"] == pytest.approx(
            math.exp(-sum(map(math.log, probabilities)) / len(probabilities))
        )
        assert row["loops"] == pytest.approx(
            sum(record["loop"] is not None for record in some) / 12
        )
        assert row["finished"] == pytest.approx(sum(record["finished"] for record in some) / 12)
        for record in some:
            assert (
                len(record["pieces"])
                == len(record["probabilities"])
                == len(record["tokens"]) + record["finished"]
                <= 10
            )
            assert record["prompt"].split() == lines[record["document"]].split()[:4]
            assert record["text"].split() == record["pieces"][: len(record["tokens"])]
    people = [record["prompt"] + record["text"] for record in records[:12]]
    assert people == [" ".join(line.split()[:14]) for line in lines[1:13]]
    greedy, strict = told["rows"]["greedy"], told["rows"]["greedy+no_repeat_ngram=3"]
    assert strict["rep_4"] == 0 < greedy["rep_4"]
    assert greedy["perplexity"] < told["rows"]["sampling"]["perplexity"]


def test_the_people_depend_on_no_strategy_and_no_seed(
    command: Any, model: Path, texts: Path, tmp_path: Path
) -> None:
    def told(name: str, *words: str) -> Any:
        return command(
            "degeneration",
            model,
            texts,
            *SHORT,
            "--json",
            "--output",
            tmp_path / f"{name}.json",
            *words,
        ).json["rows"]

    first, again, other = (
        told("a", "--strategies", "sampling,greedy"),
        told("b", "--strategies", "sampling"),
        told("c", "--strategies", "top_k=4,sampling", "--seed", "7"),
    )
    assert first["human"] == again["human"] == other["human"]
    assert first["sampling"] == again["sampling"] != other["sampling"]


def test_mistakes_are_one_line(
    command: Any, model: Path, texts: Path, trained: Path, tmp_path: Path
) -> None:
    def refused(*words: object, code: int = 2) -> str:
        return one_line(command("degeneration", *words, "--output", tmp_path / "x.png"), code)

    assert "must be a language model (of text-generation), but is one of translation" in refused(
        trained, texts
    )
    assert "must have 116 tokens, prompt and all, but the longest of 41 has 21" in refused(
        model, texts
    )
    assert "but is 'nucleus'" in refused(model, texts, "--strategies", "greedy,nucleus")
    assert "decode.seed must be" in refused(model, texts, "--seed=-1")
    assert "needs human texts" in refused(model)
    assert "none.txt: " in refused(model, tmp_path / "none.txt")
    assert "each strategy says how it decodes" in refused(model, texts, "--set", "decode.beam=1")
    for option in ("--prompt-tokens", "--new-tokens", "--limit"):
        assert f"{option} must be at least 1, but is 0" in refused(model, texts, option, "0")
    assert "must end in .jsonl" in refused(model, texts, "--samples-output", tmp_path / "all.txt")
    assert "must be a run folder" in refused(tmp_path, texts, code=1)
    assert not list(tmp_path.iterdir())
    assert "must end in .png" in one_line(
        command("degeneration", model, texts, "--output", tmp_path / "x.gif")
    )
    (tmp_path / "x.png").touch()
    assert "must be a new file" in refused(model, texts)
