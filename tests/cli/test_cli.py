"""The verbs as a user gives them."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import seqloom.tasks.translation.translator
import seqloom.workflows.evaluate
from seqloom.cli import VERBS, app, main
from seqloom.cli.terminal import put_metrics, put_table
from seqloom.errors import FolderError
from seqloom.models import MODELS, model_family
from seqloom.registry import all_tasks
from seqloom.training import metrics_log
from seqloom.workflows.demo import DemoResult
from seqloom.workflows.train import TrainResult

LINES = ["a b c", "", "d b c a", "<s> a </s>", " b z"]
"""Sources; the second is empty, the fourth spells special tokens, the last holds an unknown word."""


def one_line(ran: Any, code: int) -> str:
    """The one line of an error."""
    (line,) = ran.err.splitlines()
    assert ran.code == code
    assert ran.out == ""
    assert line.startswith("seqloom: ")
    assert line.isprintable()
    return str(line)


# Help, versions, mistakes


def test_help_versions_and_mistakes_load_no_engine() -> None:
    commands = [
        ["--help"],
        ["--version"],
        ["nonsense"],
        ["predict"],
        *([verb, "--help"] for verb in VERBS),
        ["train", "--nonsense", "1"],
    ]
    script = (
        "import json, sys\nfrom seqloom.cli import main\ncodes = []\n"
        "for words in json.loads(sys.argv[1]):\n"
        "    try:\n        main(words)\n    except SystemExit as ended:\n        codes.append(ended.code)\n"
        "heavy = sorted({'torch', 'numpy', 'tokenizers', 'altair', 'sacrebleu'} & sys.modules.keys())\n"
        "sys.stderr.write(json.dumps([codes, heavy]))\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", script, json.dumps(commands)],
        capture_output=True,
        text=True,
        check=True,
    )
    codes, heavy = json.loads(ran.stderr.splitlines()[-1])
    assert codes == [0, 0, 2, 2, *[0] * len(VERBS), 2]
    assert heavy == []


def test_train_names_every_task_that_can_be_trained(command: Any) -> None:
    shown = command("train", "--help").out
    for task in all_tasks():
        assert (f"{task.name}," in shown or f"{task.name};" in shown) == bool(task.training_data)


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_explains_its_arguments(verb: str, command: Any) -> None:
    ran = command(verb, "--help")
    assert ran.code == 0
    assert f"Usage: seqloom {verb}" in ran.out
    # a server prints no result
    if verb != "serve":
        assert "--json" in ran.out
        assert "JSON" in ran.out.replace("--json", "")  # what it does is said


def test_help_shows_each_verb_in_its_group_with_one_line(
    command: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = [line.strip("│ ") for line in command("--help").out.splitlines()]
    titles = [line.strip("╭─╮ ") for line in lines if line.startswith("╭")]
    assert titles == ["Data", "Train", "Use", "Understand", "Exchange", "Options"]
    start = lines.index(next(line for line in lines if line.startswith("╭─ Data")))
    listed = [line for line in lines[start:] if line and line[0] not in "╭╰"]
    assert [line.split()[0] for line in listed][: len(VERBS)] == list(VERBS)
    assert all(line.endswith(".") for line in listed[: len(VERBS)])


@pytest.mark.parametrize("verb", VERBS)
def test_the_help_of_a_verb_ends_with_an_example_that_can_be_given(
    verb: str, command: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    example = VERBS[verb].example
    assert command(verb, "--help").out.splitlines()[-1] == f"Example: {example}"
    program, *words = shlex.split(example)
    assert (program, words[0]) == ("seqloom", verb)
    app.parse_args(words, exit_on_error=False, print_error=False)


def test_help_fills_the_lines_of_a_paragraph(command: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    shown = command("compare", "--help").out
    assert "measured on the validation data." in next(
        line for line in shown.splitlines() if "--test" in line
    )


def test_positional_arguments_are_no_options(command: Any) -> None:
    for verb, name in (
        ("train", "task"),
        ("check", "task"),
        ("evaluate", "folder"),
        ("explain", "text"),
        ("models", "name"),
    ):
        shown = command(verb, "--help").out
        assert name.upper() in shown
        assert f"--{name}" not in shown


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nonsense"], "nonsense"),
        (["non\x1b[31m\nsense"], "sense"),
        (["train", "--nonsense", "1"], "--nonsense"),
        (["predict"], "FOLDER"),
        (["demo", "--steps", "x"], "steps"),
        (["train"], "TASK, DATA and --output-dir"),
        (
            ["train", "dancing", "a.tsv", "--output-dir", "x"],
            "TASK must be one of translation, summarization, text2text-generation, denoising, ",
        ),
        (
            ["check", "dancing", "a.tsv"],
            "TASK must be one of translation, summarization, text2text-generation, denoising, ",
        ),
        (["check", "translation"], "needs data"),
        (["models", "nonsense"], "seq2seq"),
        (
            ["train", "translation", "a.tsv", "--set", "train.max_steps=3", "data.vocabulary=5"],
            "data.vocabulary=5 is no file, but a setting: each needs its own --set",
        ),
        (
            ["train", "translation", "a.tsv", "--validation", "b.tsv", "model.width=3"],
            "model.width=3 is no file, but a setting: each needs its own --set",
        ),
    ],
)
def test_mistakes_are_one_line(words: list[str], message: str, command: Any) -> None:
    assert message in one_line(command(*words), 2)


def test_both_spellings_of_an_option(command: Any, tmp_path: Path) -> None:
    for option in ("--output-dir", "--output_dir"):
        (tmp_path / "full").mkdir(exist_ok=True)
        (tmp_path / "full" / "x").touch()
        assert "must be new or empty" in one_line(
            command("train", "translation", "a.tsv", option, tmp_path / "full"), 2
        )


@pytest.mark.parametrize(
    "words",
    [
        "demo --output-dir x",
        "ensemble a b --output-dir x",
        "compare text-classification a.csv --models gpt --output-dir x",
        "train --output-dir x",
        "score a --beside b",
        "explain a b.csv --gradient-flow",
        "export a b --shard-size 3",
        "exact a --max-length 3 --length-penalty 1",
        "degeneration a b --prompt-tokens 2 --new-tokens 3 --samples-output x",
    ],
)
def test_every_option_may_be_spelled_with_underscores(words: str) -> None:
    def parsed(line: str) -> Any:
        function, bound, _ = app.parse_args(line.split(), exit_on_error=False, print_error=False)
        return function, bound

    underscored = " ".join(
        "--" + word[2:].replace("-", "_") if word.startswith("--") else word
        for word in words.split()
    )
    assert parsed(underscored) == parsed(words)


@pytest.mark.parametrize(
    ("words", "code", "last"),
    [
        (["predict", "nowhere"], 1, "FolderError: "),
        (["train", "dancing", "a.tsv", "--output-dir", "x"], 2, "UsageError: "),
    ],
)
def test_debug_shows_the_traceback_of_an_error(words: list[str], code: int, last: str) -> None:
    def ran(*more: str) -> Any:
        command_line = [sys.executable, "-m", "seqloom", *words, *more]
        return subprocess.run(command_line, capture_output=True, text=True, check=False)

    plain = ran()
    assert plain.returncode == code
    assert plain.stderr.startswith("seqloom: ")
    assert plain.stderr.count("\n") == 1
    debugged = ran("--debug")
    assert debugged.returncode != 0
    assert "Traceback (most recent call last)" in debugged.stderr
    assert last in debugged.stderr.splitlines()[-1]


def test_an_unexpected_error_is_one_line_too(command: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise RuntimeError("two\nlines")

    monkeypatch.setattr("seqloom.workflows.models.families", broken)
    message = one_line(command("models"), 1)
    assert message == "seqloom: RuntimeError: two lines (run it again with --debug to see where)"
    with pytest.raises(RuntimeError):
        main(["models", "--debug"])


def test_a_traceback_only_with_debug(command: Any, tmp_path: Path) -> None:
    assert "holds no config.json" in one_line(command("predict", tmp_path, "-"), 1)
    with pytest.raises(FolderError):
        main(["predict", str(tmp_path), "-", "--debug"])


# Tables


@pytest.mark.parametrize("odd", ["m[/x]", "runs/[de]/b", "[bold]a[/bold]", "a\x1b[31m", "日本語"])
def test_a_table_shows_names_as_they_are(
    odd: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    put_table(odd, [(odd, "1")], (odd, "value"))
    shown = odd.replace("\x1b", "\\x1b")
    assert [line.split()[0] for line in capfd.readouterr().out.splitlines() if shown in line] == [
        shown
    ] * 3


@pytest.mark.parametrize("columns", [40, 100])
def test_a_table_is_utf8_whatever_the_locale_and_as_wide_as_the_terminal(columns: int) -> None:
    script = (
        "from seqloom.cli.terminal import put, put_table\nput_table('Tägliche 日', [('ä' * 70,)],"
        " ('größe',))\nput('é')"
    )
    surroundings = os.environ | {"PYTHONIOENCODING": "ascii", "COLUMNS": str(columns)}
    ran = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, check=True, env=surroundings
    )
    *table, last = ran.stdout.decode("utf-8").splitlines()
    assert last == "é"
    assert table[0].rstrip() == "Tägliche 日"
    assert "größe" in "".join(table)
    assert [line.count("ä") for line in table if "ää" in line] == (
        [70] if columns == 100 else [38, 32]
    )


def test_an_interval_stands_beside_its_value_where_both_ends_are_known(
    capfd: pytest.CaptureFixture[str],
) -> None:
    metrics = {
        "loss": 2.0,
        "loss_low": 1.5,
        "loss_high": 2.5,
        "perplexity": 7.4,
        "perplexity_low": 0.0,
        "pairs": 1200,
    }
    put_metrics("Validation", metrics)
    shown = capfd.readouterr().out
    assert "2 (1.5 to 2.5)" in shown
    assert [line.split()[-1] for line in shown.splitlines() if "perplexity" in line] == ["7.4"]
    assert "1,200" in shown


def test_one_document_of_validation_whose_interval_has_no_end(command: Any, tmp_path: Path) -> None:
    """The interval of one short text is infinite above, which the log of the training cannot hold."""
    text = "".join(
        f"the {colour} dog sees the {other} cat\n" for colour in "abcdef" for other in "ghijk"
    )
    (tmp_path / "few.txt").write_text(text)
    ran = command(
        *("train", "text-generation", tmp_path / "few.txt", "--output-dir", tmp_path / "run"),
        *(
            "--model",
            "recurrent_lm:tiny",
            "--set",
            "data.tokenizer=words",
            "--set",
            "model.width=4",
        ),
        *("--set", "train.max_steps=1"),
    )
    assert ran.code == 0
    assert "perplexity" in ran.out
    assert "1 document held out" in ran.err


# Stopped


@pytest.mark.parametrize(("reason", "code"), [("SIGINT", 130), ("SIGTERM", 143), ("max_steps", 0)])
def test_a_demo_that_is_stopped_says_how_to_continue(
    reason: str, code: int, command: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = DemoResult({"output_dir": "a b/model"}, [("1 May", "2000-05-01", "yes")], reason)
    monkeypatch.setattr("seqloom.workflows.demo.demo", lambda *_: result)
    for words in ([], ["--json"]):
        ran = command("demo", *words)
        assert ran.code == code
        assert ran.out.splitlines()[-1] == '{"output_dir": "a b/model"}'
        assert ("1 May" in ran.out) == (code == 0 and not words)
        assert ran.err == ("to continue: seqloom train --resume 'a b/model'\n" if code else "")


@pytest.mark.parametrize(("reason", "code"), [("SIGINT", 130), ("SIGTERM", 143), ("max_steps", 0)])
@pytest.mark.parametrize("metrics", [{}, {"loss": 1.5}])
def test_a_training_that_is_stopped_shows_what_there_is(
    reason: str, code: int, metrics: dict[str, float], command: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = TrainResult(Path("runs/a"), 3, 2 if metrics else None, reason, metrics)
    monkeypatch.setattr("seqloom.workflows.train.train", lambda *_, **__: result)
    ran = command("train", "--resume", "runs/a")
    assert ran.code == code
    assert (
        ("Validation at step 2" in " ".join(ran.out.split()))
        == ("loss" in ran.out)
        == bool(metrics)
    )
    assert "None" not in ran.out
    last = ran.out.splitlines()[-1]
    how = f"stopped by {reason} at step 3" if code else "finished: 3 steps"
    best = "; the best checkpoint is that of step 2, with the lowest validation loss, 1.5"
    assert last == f"{how}{best if metrics else ''}; folder: runs/a"
    assert ran.err == ("to continue: seqloom train --resume runs/a\n" if code else "")


# Predict


def predicted(
    command: Any, monkeypatch: pytest.MonkeyPatch, folder: Path, content: bytes, *words: str
) -> Any:
    """`predict` with these bytes on standard input."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
    return command("predict", folder, *words)


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("last", [True, False])
def test_as_many_lines_as_were_read(
    end: str,
    last: bool,
    command: Any,
    trained: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    content = (end.join(LINES) + end * last).encode()
    (tmp_path / "in.txt").write_bytes(content)
    from_file = command("predict", trained, tmp_path / "in.txt")
    assert from_file.code == 0
    assert from_file.out.endswith("\n")
    lines = from_file.out.removesuffix("\n").split("\n")
    assert len(lines) == len(LINES)
    assert [not line for line in lines] == [not line for line in LINES]
    piped = predicted(command, monkeypatch, trained, content, "-")
    assert piped.out == from_file.out == predicted(command, monkeypatch, trained, content).out


@pytest.mark.parametrize("content", [b"", b"\n", b"\n\n \n"])
@pytest.mark.parametrize("as_json", [False, True])
def test_no_lines_and_blank_lines_are_no_error(
    content: bytes,
    as_json: bool,
    command: Any,
    trained: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "in.txt").write_bytes(content)
    blank = '{"outputs": [{"text": "", "score": null, "finished": true}]}\n' if as_json else "\n"
    piped = predicted(command, monkeypatch, trained, content, "-", *["--json"] * as_json)
    for ran in (piped, command("predict", trained, tmp_path / "in.txt", *["--json"] * as_json)):
        assert (ran.code, ran.out) == (0, blank * content.count(b"\n"))


def test_a_skipped_line_keeps_its_place(
    command: Any, trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = predicted(
        command, monkeypatch, trained, b"a b\n\xff\nc d\n", "-", "--set", "data.on_bad_line=skip"
    )
    clean = predicted(command, monkeypatch, trained, b"a b\n\nc d\n", "-")
    assert ran.code == 0
    assert ran.out == clean.out
    assert ran.err == "1 line skipped: bad UTF-8 (first: standard input:2)\n"


@pytest.mark.parametrize("chunk", [1, 2, 3, 512])
def test_what_came_before_a_bad_line_is_written(
    chunk: int, command: Any, trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(seqloom.tasks.translation.translator, "CHUNK", chunk)
    good = predicted(command, monkeypatch, trained, b"a b\nc\n", "-")
    ran = predicted(command, monkeypatch, trained, b"a b\nc\n\xff\nd\n", "-")
    assert ran.out == good.out
    assert good.out.count("\n") == 2
    assert ran.code == 2
    assert ran.err.splitlines()[-1].startswith("seqloom: standard input:3: is not UTF-8")


def test_answers_stand_before_the_error(trained: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "seqloom", "predict", str(trained), "-"],
        input=b"a b\n\xff\n",
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    assert ran.returncode == 2
    answer, *_, error = ran.stdout.decode().splitlines()
    assert not answer.startswith("seqloom:")
    assert error.startswith("seqloom: standard input:2: ")


def test_json_holds_the_same_texts(
    command: Any, trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = "\n".join(LINES).encode()
    plain = predicted(command, monkeypatch, trained, content, "-").out.splitlines()
    one = predicted(command, monkeypatch, trained, content, "--set", "decode.n_best=3")
    assert one.out.splitlines() == plain
    assert "decode.n_best is for --json and --output" in one.err
    best = predicted(
        command, monkeypatch, trained, content, "--json", "--set", "decode.n_best=3"
    ).out.splitlines()
    outputs = [json.loads(line)["outputs"] for line in best]
    assert [one[0]["text"] for one in outputs] == plain
    assert [len(one) for one in outputs] == [3, 1, 3, 3, 3]
    assert all(
        one.keys() == {"text", "score", "finished"} for several in outputs for one in several
    )
    assert all(
        several == sorted(several, key=lambda one: -(one["score"] or 0)) for several in outputs
    )


def test_settings_of_the_model_cannot_be_changed_any_more(command: Any, trained: Path) -> None:
    assert "model.*" in one_line(command("predict", trained, "-", "--set", "model.width=3"), 2)
    assert "did you mean decode.beam?" in one_line(
        command("predict", trained, "-", "--set", "decode.baem=3"), 2
    )


def test_a_program_that_stops_reading_is_no_error(trained: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    ran = subprocess.run(
        [sys.executable, "-m", "seqloom", "predict", str(trained), "-"],
        input=b"a b\nc\n",
        stdout=writing,
        stderr=subprocess.PIPE,
        check=False,
    )
    os.close(writing)
    assert ran.stderr == b""
    assert ran.returncode == 1


# Evaluate


def test_evaluate_gives_the_numbers_of_the_training(
    command: Any, trained: Path, pairs: Path
) -> None:
    measured = command(
        "evaluate", trained, pairs / "val.jsonl", "--json", "--set", "decode.beam=1"
    ).json
    best = json.loads((trained / "manifest.json").read_text())["best"].removeprefix("checkpoint-")
    logged = [
        record
        for record in metrics_log.read(trained)
        if record["step"] == int(best) and "validation_loss" in record
    ]
    names = (
        "loss",
        "perplexity",
        "token_accuracy",
        "bleu",
        "chrf",
        "exact_match",
        "pairs",
        "tokens",
        "unfinished",
    )
    assert measured["bleu"] > 0
    assert {name: measured[name] for name in names} == {
        name: logged[0][f"validation_{name}"] for name in names
    }
    assert measured["pairs"] == 20
    assert "version:" in measured["bleu_signature"]


def test_outputs_go_to_a_new_file_only(
    command: Any, trained: Path, pairs: Path, tmp_path: Path
) -> None:
    ran = command("evaluate", trained, pairs / "val.jsonl", "--outputs", tmp_path / "out.txt")
    assert ran.code == 0
    assert "perplexity" in ran.out
    written = (tmp_path / "out.txt").read_text()
    assert written.count("\n") == 20
    again = command("evaluate", trained, pairs / "val.jsonl", "--outputs", tmp_path / "out.txt")
    assert "must be a new file" in one_line(again, 2)
    assert (tmp_path / "out.txt").read_text() == written


def refused_early(command: Any, monkeypatch: pytest.MonkeyPatch, *words: object) -> str:
    """The refusal of a command that must not get as far as to open a model."""

    def opened(*_: object) -> None:
        raise AssertionError("a model was opened")

    monkeypatch.setattr("seqloom.workflows.evaluate.load", opened)
    monkeypatch.setattr("seqloom.tasks.model.load", opened)
    return one_line(command(*words), 2)


def test_an_output_that_cannot_be_is_refused_before_the_work(
    command: Any, trained: Path, pairs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    for place in ("no/such/x.txt", "file/x.txt"):
        message = refused_early(
            command,
            monkeypatch,
            "evaluate",
            trained,
            pairs / "val.jsonl",
            "--outputs",
            tmp_path / place,
        )
        assert "must be in a folder that is there" in message
    for place, must in {
        "nodir/x.png": "must be in a folder that is there",
        "out.jpg": "must end in .png, .svg, .html, .json, but this has .jpg",
        "out": "but this has no suffix",
    }.items():
        assert must in refused_early(
            command, monkeypatch, "explain", trained, "a b", "--output", tmp_path / place
        )


def test_metrics_are_shown_though_the_outputs_cannot_be_written(
    command: Any, trained: Path, pairs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise FolderError("the disk is full")

    monkeypatch.setattr("seqloom.files.write_atomic", full)
    for words in ([], ["--json"]):
        ran = command(
            "evaluate", trained, pairs / "val.jsonl", "--outputs", tmp_path / "out.txt", *words
        )
        assert ran.code == 1
        assert "perplexity" in ran.out
        assert ran.err.splitlines()[-1] == "seqloom: the disk is full"


# Models


def test_models_lists_families_and_sizes(command: Any) -> None:
    listed = command("models", "--json").json
    assert [one["name"] for one in listed] == list(MODELS)
    table = command("models").out
    for one in listed:
        _, _, sizes = model_family(one["name"])
        assert one["sizes"] == list(sizes)
        assert one["summary"]
        assert all(word in table for word in (one["name"], *sizes))


def test_models_lists_every_key_of_a_family(command: Any) -> None:
    listed = command("models", "seq2seq", "--json").json
    config, _, _ = model_family("seq2seq")
    of_tokenizer = {"vocabulary_size", "pad_id", "suppressed_ids"}
    fields = {one.name for one in dataclasses.fields(config)} - of_tokenizer
    assert {one["key"] for one in listed if one["key"].startswith("model.")} == {
        f"model.{name}" for name in fields
    }
    assert {"data.tokenizer", "train.max_steps", "decode.beam"} <= {one["key"] for one in listed}
    assert all(one["meaning"] for one in listed)
    table = command("models", "seq2seq").out
    assert all(one["key"] in table for one in listed)


# Explain


def test_explain_draws_a_new_picture(command: Any, trained: Path, tmp_path: Path) -> None:
    ran = command(
        "explain", trained, "a b c d", "--target", "a b", "--output", tmp_path / "a.svg", "--json"
    )
    explanation = ran.json
    assert explanation["source"] == ["a", "b", "c", "d", "</s>"]
    assert explanation["target"] == ["a", "b", "</s>"]
    assert [sum(row) for row in explanation["weights"]] == pytest.approx([1.0] * 3)
    assert (tmp_path / "a.svg").read_text().startswith("<svg")
    assert "must be a new file" in one_line(
        command("explain", trained, "a b c", "--output", tmp_path / "a.svg"), 2
    )
    assert command("explain", trained, "a b c", "--output", tmp_path / "a.png").code == 0
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("suffix", [".png", ".svg", ".html", ".json", ".PNG"])
def test_explain_takes_what_a_chart_can_be(
    suffix: str, command: Any, trained: Path, tmp_path: Path
) -> None:
    assert command("explain", trained, "a b", "--output", tmp_path / f"a{suffix}").code == 0
    assert (tmp_path / f"a{suffix}").stat().st_size
    assert suffix.lower() in command("explain", "--help").out


def test_explain_reads_no_data(command: Any, trained: Path, tmp_path: Path) -> None:
    message = one_line(
        command(
            "explain",
            trained,
            "a b",
            "--output",
            tmp_path / "a.svg",
            "--set",
            "data.encoding=latin-1",
        ),
        2,
    )
    assert message == "seqloom: --set can change decode.* here, but not data.*: no file is read"
    assert "not model.*: the model is trained" in one_line(
        command("explain", trained, "a", "--set", "model.width=3"), 2
    )
    assert "decode.beam" in one_line(command("explain", trained, "a", "--set", "decode.baem=1"), 2)


def test_explain_without_the_extra_names_it(
    command: Any, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "altair", None)
    message = one_line(command("explain", trained, "a b c", "--output", tmp_path / "a.png"), 1)
    assert "pip install 'seqloom[plot]'" in message
    assert not (tmp_path / "a.png").exists()


def test_explain_needs_a_model_with_attention(
    command: Any, pairs: Path, tmp_path: Path, narrow: list[str]
) -> None:
    sets = [
        *(word for word in narrow if "attention_width" not in word),
        "--set=model.attention=none",
        "--set=data.tokenizer=characters",
        "--set=train.max_steps=1",
        "--set=train.batch_rows=4",
    ]
    ran = command(
        "train",
        "translation",
        pairs / "val.jsonl",
        "--output-dir",
        tmp_path / "run",
        "--json",
        *sets,
    )
    assert ran.code == 0
    assert ran.json["step"] == 1
    message = one_line(
        command(
            "explain", tmp_path / "run", "a b", "--show=attention", "--output", tmp_path / "a.png"
        ),
        2,
    )
    assert "must have attention" in message


def test_the_script_is_installed() -> None:
    """As a user starts it: through the entry point of the package."""
    ran = subprocess.run(
        [Path(sys.executable).with_name("seqloom"), "--version"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout.strip()
    assert ran.stderr == ""
