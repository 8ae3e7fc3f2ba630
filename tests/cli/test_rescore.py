"""The verb rescore."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

LINES = [
    {
        "id": 1,
        "ref": "the cat sees it",
        "nbest": [
            {"text": "the cat it sees", "score": -1},
            {"text": "the cat sees it", "score": -1.1},
        ],
    },
    {
        "id": 2,
        "ref": "a dog likes us",
        "nbest": [{"text": "a dog likes us", "score": 0}, {"text": "dog a likes us", "score": -2}],
    },
]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the language model `run` and the lists `lists.jsonl`, and `bare.jsonl` without
    references."""
    from tests.cli.conftest import run

    folder = tmp_path_factory.mktemp("rescoring")
    (folder / "train.txt").write_text("the cat sees it\na dog likes us\nthe cat likes us\n" * 5)
    words = [
        "--model",
        "ngram:bigram",
        "--validation",
        folder / "train.txt",
        "--output-dir",
        folder / "run",
        "--set",
        "data.tokenizer=words",
    ]
    assert run("train", "text-generation", folder / "train.txt", *words) == 0
    (folder / "lists.jsonl").write_text("".join(json.dumps(line) + "\n" for line in LINES))
    (folder / "bare.jsonl").write_text(
        "".join(json.dumps({"nbest": line["nbest"]}) + "\n" for line in LINES)
    )
    return folder


def test_a_table_shows_before_after_and_the_best_possible(command: Any, place: Path) -> None:
    ran = command("rescore", place / "run", place / "lists.jsonl", "--tune", place / "lists.jsonl")
    assert ran.code == 0
    rows = {
        line.split("│")[0].strip(): [cell.strip() for cell in line.split("│")[1:]]
        for line in ran.out.splitlines()
        if "│" in line
    }
    assert rows["first hypotheses"] == ["25.00", "25.00"]
    assert rows["rescored"] == rows["run alone"] == ["0.00", "0.00"]
    assert "tuning 3 weights" in ran.err
    assert "the lists that they are measured on" in ran.err
    found = command(
        "rescore", place / "run", place / "lists.jsonl", "--tune", place / "lists.jsonl", "--json"
    ).json
    assert (found["tuning"]["first"], found["test"]["rescored"], found["test"]["oracle"]) == (
        25,
        0,
        0,
    )
    assert found["test"]["difference_low"] <= found["test"]["difference"] == -25


def test_without_references_the_best_texts_or_lists_are_the_result(
    command: Any, place: Path
) -> None:
    ran = command("rescore", place / "run", place / "bare.jsonl")
    assert ran.out.splitlines() == ["the cat sees it", "a dog likes us"]
    assert "half" in ran.err or "0.5" in ran.err
    lines = [
        json.loads(line)
        for line in command(
            "rescore", place / "run", place / "bare.jsonl", "--json"
        ).out.splitlines()
    ]
    assert [line["nbest"][0]["text"] for line in lines] == ["the cat sees it", "a dog likes us"]
    assert lines[0]["nbest"][0].keys() == {"text", "score", "total", "log_probability_run"}


def test_lists_before_one_that_is_damaged_are_answered(
    command: Any, place: Path, tmp_path: Path
) -> None:
    """A result that would be measured or written is never made of a part of the lists."""
    damaged = tmp_path / "damaged.jsonl"
    damaged.write_text((place / "bare.jsonl").read_text() + '{"id": "x"}\n')
    ran = command("rescore", place / "run", damaged)
    assert (ran.code, ran.out.splitlines()) == (2, ["the cat sees it", "a dog likes us"])
    assert f"{damaged}:3: " in ran.err
    ran = command("rescore", place / "run", damaged, "--output", tmp_path / "out.tsv")
    assert (ran.code, ran.out, (tmp_path / "out.tsv").exists()) == (2, "", False)
    damaged.write_text((place / "lists.jsonl").read_text() + '{"id": "x"}\n')
    ran = command("rescore", place / "run", damaged)
    assert (ran.code, ran.out) == (2, "")


def test_an_output_is_written_and_can_be_read_again(
    command: Any, place: Path, tmp_path: Path
) -> None:
    ran = command("rescore", place / "run", place / "bare.jsonl", "--output", tmp_path / "out.tsv")
    assert (ran.code, ran.out) == (0, "")
    assert (tmp_path / "out.tsv").read_text().splitlines()[
        0
    ] == "id\ttext\tscore\ttotal\tlog_probability_run"
    again = command(
        "rescore", place / "run", tmp_path / "out.tsv", "--score", "total", "--weights", "given=1"
    )
    assert again.out.splitlines() == ["the cat sees it", "a dog likes us"]


def test_bleu_and_word_errors_respect_scripts_without_spaces(
    command: Any, place: Path, tmp_path: Path
) -> None:
    lists = tmp_path / "chinese.jsonl"
    texts = ["我今天没有时间去学校。", "我今天没时间去学校。"]
    nbest = [{"text": text, "score": -1.0} for text in texts]
    lists.write_text(json.dumps({"nbest": nbest, "ref": texts[0]}) + "\n")
    ran = command("rescore", place / "run", lists, "--metric", "bleu", "--json")
    assert (ran.json["bleu_tokenizer"], ran.json["test"]["first"]) == ("zh", pytest.approx(100))
    assert "tokenizer zh" in ran.err
    named = ("--set", "evaluate.bleu_tokenizer=13a")
    ran = command("rescore", place / "run", lists, "--metric", "bleu", "--json", *named)
    assert (ran.json["bleu_tokenizer"], ran.json["test"]["first"]) == ("13a", 0)
    ran = command("rescore", place / "run", lists, "--json")
    assert "takes each stretch between spaces for one word" in ran.err
    ran = command("rescore", place / "run", lists, *named)
    assert (ran.code, len(ran.err.splitlines())) == (2, 1)
    assert "evaluate.bleu_tokenizer changes nothing with --metric wer" in ran.err


def test_mistakes_are_one_line(command: Any, place: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.jsonl").write_text(json.dumps(LINES[0]) + '\n{"nbest": []}\n')
    ran = command("rescore", place / "run", tmp_path / "bad.jsonl")
    assert ran.code == 2
    assert len(ran.err.splitlines()) == 1
    assert (
        f"{tmp_path / 'bad.jsonl'}:2: 'nbest' must be a list of hypotheses, but is empty" in ran.err
    )
    for words, message in (
        (["--set", "decode.beam=1"], "--set can change data.* and evaluate.* here"),
        (["--weights", "lm"], "name=number"),
    ):
        ran = command("rescore", place / "run", place / "lists.jsonl", *words)
        assert (ran.code, message in ran.err) == (2, True)


def test_hypotheses_with_unlike_numbers_of_unknown_words_are_counted(
    command: Any, place: Path, tmp_path: Path
) -> None:
    lists = [["the cat sees it", "the tiger sees it"], ["the cat likes us", "a dog likes us"]]
    path = tmp_path / "lists.jsonl"
    nbest = [[{"text": text} for text in texts] for texts in lists]
    path.write_text("".join(json.dumps({"nbest": texts}) + "\n" for texts in nbest))
    ran = command("rescore", place / "run", path)
    assert "run: in 1 of 2 lists the hypotheses have unlike numbers of unknown words" in ran.err
