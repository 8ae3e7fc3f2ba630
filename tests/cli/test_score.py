"""The verbs score, ensemble, export and import, and what train and evaluate say of language models."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

TEXT = "".join(
    f"{who} {verb} {what} .\n"
    for who in ("the cat", "a dog", "the bird")
    for verb in ("sees", "likes")
    for what in ("it", "us", "them")
)


@pytest.fixture(scope="module")
def ngram(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.cli.conftest import run

    place = tmp_path_factory.mktemp("ngram")
    (place / "train.txt").write_text(TEXT * 3)
    words = [
        "--model",
        "ngram:bigram",
        "--validation",
        place / "train.txt",
        "--output-dir",
        place / "run",
        "--set",
        "data.tokenizer=words",
    ]
    assert run("train", "text-generation", place / "train.txt", *words) == 0
    return place / "run"


def test_alternatives_stand_likeliest_first(command: Any, ngram: Path) -> None:
    texts = ["--text", "it likes cat the .", "--text", "the cat likes it ."]
    ran = command("score", ngram, *texts)
    assert ran.code == 0
    assert ran.out.index("the cat likes it") < ran.out.index("it likes cat the")
    assert "1 : " in ran.out
    assert "<s> is fed and never predicted" in ran.err
    lines = [
        json.loads(line) for line in command("score", ngram, *texts, "--json").out.splitlines()
    ]
    assert [line["text"] for line in lines] == ["it likes cat the .", "the cat likes it ."]
    assert (
        lines[0]["log_probability"]
        < lines[1]["log_probability"]
        < lines[1]["log_probability_without_end"]
        < 0
    )


def test_a_file_gives_a_line_for_each_of_its_lines(
    command: Any, ngram: Path, tmp_path: Path
) -> None:
    (tmp_path / "lines.txt").write_text("the cat sees it .\n\n-- odd --\n")
    lines = command("score", ngram, tmp_path / "lines.txt").out.splitlines()
    assert [line.split("\t")[-1] for line in lines] == ["the cat sees it .", "", "-- odd --"]
    assert [int(line.split("\t")[2]) for line in lines] == [6, 1, 4]


def test_tokens_have_probability_rank_and_surprisal(command: Any, ngram: Path) -> None:
    (line,) = command("score", ngram, "--text", "the cat", "--tokens", "--json").out.splitlines()
    table = json.loads(line)["table"]
    assert [row["token"] for row in table] == ["the", "cat", "</s>"]
    assert table[0]["rank"] == 1
    shown = command("score", ngram, "--text", "the cat", "--tokens").out
    assert "surprisal" in shown
    assert "</s>" in shown


def test_an_interval_stands_beside_its_number(command: Any, ngram: Path, tmp_path: Path) -> None:
    (tmp_path / "test.txt").write_text(TEXT)
    shown = command("evaluate", ngram, tmp_path / "test.txt").out
    (row,) = [line for line in shown.splitlines() if line.strip().startswith("perplexity")]
    assert " to " in row
    assert "_low" not in shown
    assert command("evaluate", ngram, tmp_path / "test.txt", "--json").json["bits_per_byte_low"] > 0


def test_pairs_are_a_table_with_a_column_for_each_model(
    command: Any, ngram: Path, tmp_path: Path
) -> None:
    rows = [
        {"a": "the cat sees it .", "b": "the sees cat it .", "kind": kind}
        for kind in ("one", "two", "two")
    ]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = [
        "score",
        ngram,
        tmp_path / "pairs.jsonl",
        "--pairs",
        "a,b",
        "--by",
        "kind",
        "--beside",
        ngram,
    ]
    shown = command(*words).out
    assert shown.count("100.0 (") == 6  # two models, two groups and all
    found = command(*words, "--json").json
    assert found[0]["pairs"] == {"one": 1, "two": 2}
    assert found[1]["accuracy"][0] == 100


UNLIKE = "have unlike numbers of unknown words"


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        (("the cat sees it .", "the emperor sees it ."), True),
        (("the emperor sees it .", "the cat sees a tiger ."), False),
        (("the cat sees it .", "the dog sees it ."), False),
        (("the emperor sees it .",), False),
    ],
)
@pytest.mark.parametrize("form", [(), ("--tokens",), ("--json",)])
def test_texts_with_unlike_numbers_of_unknown_words_are_not_ranked_silently(
    texts: tuple[str, ...], said: bool, form: tuple[str, ...], command: Any, ngram: Path
) -> None:
    named = [word for text in texts for word in ("--text", text)]
    assert (UNLIKE in command("score", ngram, *named, *form).err) == said


def test_a_prompt_that_ends_in_a_blank_is_said(command: Any, ngram: Path) -> None:
    for prompt, said in (("the ", True), ("the", False)):
        ran = command("score", ngram, "--prompt", prompt, "--text", "cat sees it .")
        assert ("ends in a blank" in ran.err) == said


def test_pairs_with_unlike_numbers_of_unknown_words_are_counted(
    command: Any, ngram: Path, tmp_path: Path
) -> None:
    rows = [{"a": "the cat sees it .", "b": f"the {word} sees it ."} for word in ("dog", "tiger")]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    ran = command("score", ngram, tmp_path / "pairs.jsonl", "--pairs", "a,b")
    assert f"in 1 of 2 pairs the two texts {UNLIKE}" in ran.err


def test_evaluate_says_the_vocabulary_and_that_unknown_words_are_not_scored(
    command: Any, ngram: Path, tmp_path: Path
) -> None:
    (tmp_path / "known.txt").write_text("the cat sees it .\n")
    (tmp_path / "unknown.txt").write_text("the emperor sees <unk> .\n")
    known = command("evaluate", ngram, tmp_path / "known.txt", "--json")
    unknown = command("evaluate", ngram, tmp_path / "unknown.txt", "--json")
    assert known.json["vocabulary"] == unknown.json["vocabulary"] > 16
    assert known.json["tokenizer"] == "words"
    assert f"vocabulary of {known.json['vocabulary']} (words)" in known.err
    assert "unknown words" not in known.err
    assert unknown.json["unknown_percent"] == 40
    assert "40.00 % of the tokens are unknown words" in unknown.err


def test_a_mixture_and_an_arpa_file(command: Any, ngram: Path, tmp_path: Path) -> None:
    words = ["--output-dir", tmp_path / "mixed", "--weights", "1,3"]
    assert "must be given once" in command("ensemble", ngram, ngram, *words).err
    shutil.copytree(ngram, tmp_path / "copy")
    assert list(
        command("ensemble", ngram, tmp_path / "copy", *words, "--json").json["weights"].values()
    ) == [
        0.25,
        0.75,
    ]
    assert command("score", tmp_path / "mixed", "--text", "the cat .").code == 0
    assert command("export", ngram, tmp_path / "m.arpa.gz", "--json").json["ngrams"]["1"] > 10
    assert command("import", tmp_path / "m.arpa.gz", tmp_path / "in").code == 0
    one, other = (
        json.loads(command("score", run, "--text", "the cat likes us .", "--json").out)
        for run in (ngram, tmp_path / "in")
    )
    assert one["log_probability"] == pytest.approx(other["log_probability"], abs=1e-4)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--pairs", "a"], "--pairs must be two columns"),
        (["--pairs", "a,b"], "--pairs needs files"),
        (["--by", "x", "--text", "a"], "--by and --beside belong to --pairs"),
        (["--pairs", "a,b", "--tokens", "x.jsonl"], "no --text, --prompt, --tokens"),
        (["x.txt", "--text", "a"], "score takes one FILE, or --text"),
        (["--text", "a", "--set", "decode.beam=2"], "nothing is decoded"),
        (["nowhere.txt"], "nowhere.txt"),
    ],
)
def test_mistakes_are_one_line(words: list[str], message: str, command: Any, ngram: Path) -> None:
    ran = command("score", ngram, *words)
    assert ran.code == 2
    assert message in ran.err.splitlines()[-1]


def test_a_model_of_another_task_is_sent_elsewhere(
    command: Any, trained: Path, ngram: Path
) -> None:
    ran = command("score", trained, "--text", "a")
    assert ran.code == 2
    assert "must be a language model" in ran.err
    ran = command("evaluate", trained, trained.parent / "val.jsonl", "--stride", "3")
    assert "--stride changes nothing in evaluate" in ran.err
    assert command("predict", ngram, "-").code == 2


def test_a_table_is_scored_row_by_row(command: Any, ngram: Path, tmp_path: Path) -> None:
    """With the settings of reading that change something for it, and no others."""
    table, lines = tmp_path / "t.csv", tmp_path / "t.txt"
    table.write_text('id,text,more\n1,"a b, a",c\n2,b,a\n')
    lines.write_text("a b, a\nb\n")
    assert command("score", ngram, table).out == command("score", ngram, lines).out
    joined = command("score", ngram, table, "--set=data.text=text,more", "--set=data.join= - ")
    lines.write_text("a b, a - c\nb - a\n")
    assert joined.out == command("score", ngram, lines).out
    for setting in ("data.label=id", "data.join=+", "data.second=more"):
        refused = command("score", ngram, table, f"--set={setting}")
        assert (refused.code, "changes nothing here, where each row" in refused.err) == (2, True)
    assert command("score", ngram, lines, "--set=data.text=id").code == 2
