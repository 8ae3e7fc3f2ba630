"""The verb generate as a user gives it."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.decoding.toys import Remembering

import seqloom.tasks.language_modeling.generate as workflow
from seqloom.config import DecodeConfig
from seqloom.runs.run_folder import LoadedRun
from seqloom.text.tokenizers import train_tokenizer

TOKENIZER = train_tokenizer(["ein Hund läuft 🐕 日本語"], "bytes")
SHORT = "--set=decode.max_length=12"


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """`opened(task=..., context=..., strategy=...)`: any folder is from now on that of a tiny model."""

    def opened(task: str = "text-generation", context: int | None = None, **decode: Any) -> None:
        model: Any = Remembering(TOKENIZER.vocabulary_size, context)
        model.table[:, 16 + ord("a") : 16 + ord("z")] += 6
        bundle = LoadedRun(
            folder=Path("runs/x"),
            task=task,
            model_type="gpt",
            model=model,
            tokenizer=TOKENIZER,
            decode=DecodeConfig(**{"strategy": "sample"} | decode),
            weights=Path("none"),
        )
        monkeypatch.setattr("seqloom.tasks.model.load_run", lambda *_: bundle)

    return opened


def test_a_prompt_and_its_continuation(command: Any, opened: Any) -> None:
    opened()
    ran = command("generate", "runs/x", "--prompt", "Hund 🐕", SHORT)
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.startswith("Hund 🐕")
    assert len(ran.out) > len("Hund 🐕\n")
    one = command("generate", "runs/x", "--prompt", "Hund 🐕", SHORT, "--json").json
    assert list(one) == ["prompt", "sample", "text", "tokens", "log_probability", "finished"]
    assert one["prompt"] + one["text"] + "\n" == ran.out
    assert one["log_probability"] < 0
    assert command("generate", "runs/x", "--prompt", "Hund 🐕", SHORT).out == ran.out
    assert (
        command("generate", "runs/x", "--prompt", "Hund 🐕", SHORT, "--set=decode.seed=1").out
        != ran.out
    )


def test_without_a_prompt_a_text_of_its_own(command: Any, opened: Any) -> None:
    opened()
    alone, empty = (
        command("generate", "runs/x", SHORT),
        command("generate", "runs/x", "--prompt", "", SHORT),
    )
    assert alone.code == 0
    assert alone.out.strip()
    assert alone.out == empty.out


def test_texts_of_many_prompts_and_samples_stand_apart(command: Any, opened: Any) -> None:
    opened()
    words = ("generate", "runs/x", "--prompt", "ab", "--prompt", "- cd", SHORT)
    apart = [
        command("generate", "runs/x", "--prompt", prompt, SHORT).out for prompt in ("ab", "- cd")
    ]
    assert command(*words).out == "\n".join(apart)
    three = command(*words, "--set=decode.n_best=3", "--json")
    lines = [json.loads(line) for line in three.out.splitlines()]
    assert [(line["prompt"], line["sample"]) for line in lines] == [
        (p, i) for p in ("ab", "- cd") for i in range(3)
    ]
    assert [lines[i]["prompt"] + lines[i]["text"] + "\n" for i in (0, 3)] == apart
    shown = command(*words, "--set=decode.n_best=3").out
    assert shown == "\n".join(line["prompt"] + line["text"] + "\n" for line in lines)


def test_prompts_of_a_file_and_of_standard_input(
    command: Any, opened: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened()
    (tmp_path / "prompts").write_text("ab\n\ncd\n")
    of_options = command(
        "generate",
        "runs/x",
        *(f"--prompt={prompt}" for prompt in ("ab", "", "cd")),
        SHORT,
        "--json",
    )
    of_file = command("generate", "runs/x", tmp_path / "prompts", SHORT, "--json")
    assert of_file.out == of_options.out
    assert len(of_file.out.splitlines()) == 3
    for rows in (1, 2):
        assert (
            command(
                "generate",
                "runs/x",
                tmp_path / "prompts",
                SHORT,
                "--json",
                f"--set=decode.batch_rows={rows}",
            ).out
            == of_file.out
        )
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"ab\n\ncd\n")))
    assert command("generate", "runs/x", "-", SHORT, "--json").out == of_file.out


def test_at_a_terminal_each_prompt_is_answered_before_the_next_is_read(
    command: Any, opened: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened()
    written = list[str]()

    def typed(*_: object) -> Any:
        for prompt in ("ab", "cd"):
            written.append(f"typed {prompt}")
            yield prompt

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stdin", Terminal())
    monkeypatch.setattr("seqloom.runs.progress.each_text", typed)
    original = workflow.TextGenerator.stream

    def noted(self: workflow.TextGenerator, prompt: str, **decode: Any) -> Any:
        written.append(f"answered {prompt}")
        return original(self, prompt, **decode)

    monkeypatch.setattr(workflow.TextGenerator, "stream", noted)
    assert command("generate", "runs/x", "-", SHORT).code == 0
    assert written == ["typed ab", "answered ab", "typed cd", "answered cd"]


def test_a_window_that_slides_is_said_after_the_text(command: Any, opened: Any) -> None:
    opened(context=6)
    for words in ((), ("--set=decode.n_best=2",), ("--json",)):
        ran = command(
            "generate", "runs/x", "--prompt", "abcd", "--set=decode.max_length=40", *words
        )
        assert (
            ran.err
            == "the model looks at 6 tokens at most: where a text was longer, it went on from the last 3,"
            " read afresh\n"
        )


def test_a_stream_is_written_piece_by_piece(
    command: Any, opened: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened()
    writes = list[str]()
    monkeypatch.setattr("seqloom.cli.use.generate._write", lambda text: writes.append(text))
    assert command("generate", "runs/x", "--prompt", "ab", SHORT).code == 0
    assert len(writes) > 5
    assert (writes[0], writes[-1]) == ("ab", "\n")


def test_how_many_tokens_is_shown_at_a_terminal_and_taken_away(
    opened: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from seqloom.cli.use.generate import _token_counter

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with _token_counter() as count:
        count(1200)
        count(34)
    shown = terminal.getvalue()
    assert "\r1,200 tokens, " in shown
    assert shown.endswith("\r\x1b[K")


@pytest.mark.parametrize(
    ("words", "message", "code"),
    [
        (
            ["prompts", "--prompt", "ab"],
            "generate takes --prompt or FILE, but both are given; leave one out",
            2,
        ),
        (
            ["--prompt", "ab", "--set", "data.encoding=latin-1"],
            "--set can change decode.* here, but not data.*",
            2,
        ),
        (["--prompt", "ab", "--set", "model.width=3"], "but not model.*", 2),
        (
            ["--prompt", "ab", "--set", "decode.temperature=-1"],
            "decode.temperature must be greater than or equal to 0",
            2,
        ),
        (
            ["--prompt", "ab", "--set", "decode.beam=3"],
            "decode.beam changes nothing with decode.strategy=sample",
            2,
        ),
        (
            ["--prompt", "ab", "--set", "decode.strategy=greedy", "--set", "decode.beam=3"],
            "decode.beam changes nothing with decode.strategy=greedy: it needs decode.strategy=beam",
            2,
        ),
        (
            ["--prompt", "ab", "--set", "decode.strategy=greedy", "--set", "decode.top_p=0.5"],
            "decode.top_p changes nothing with decode.strategy=greedy: it needs decode.strategy=sample",
            2,
        ),
        (
            ["--prompt", "ab", "--set", "decode.temperature=0", "--set", "decode.seed=3"],
            "decode.seed changes nothing with decode.temperature=0",
            2,
        ),
        (["nowhere.txt"], "nowhere.txt", 2),
        (["--prompt", "ab", "--set", "decode.begin=\ud800"], "the beginning must be Unicode", 2),
        (
            [
                "--prompt",
                "ab",
                "--set",
                "decode.strategy=beam",
                "--set",
                "decode.length_penalty=1e300",
            ],
            "decode.length_penalty must be",
            2,
        ),
        (
            ["--prompt", "ab", "--set", "decode.groups=2000"],
            "decode.groups must be less than or equal to 1000",
            2,
        ),
    ],
)
def test_mistakes_are_one_line(
    words: list[str], message: str, code: int, command: Any, opened: Any
) -> None:
    opened()
    ran = command("generate", "runs/x", *words)
    (line,) = ran.err.splitlines()
    assert line.startswith("seqloom: ")
    assert message in line
    assert (ran.code, ran.out) == (code, "")


@pytest.mark.parametrize(
    "options",
    [["decode.n_best=2"], *(["decode.strategy=beam", f"decode.beam={width}"] for width in (1, 3))],
)
@pytest.mark.parametrize("json", [["--json"], []])
def test_rules_that_leave_nothing_are_said(
    options: list[str], json: list[str], command: Any, opened: Any
) -> None:
    opened()
    rules = [
        "decode.no_repeat_ngram=1",
        "decode.min_length=1000",
        "decode.max_length=1000",
        *options,
    ]
    ran = command(
        "generate",
        "runs/x",
        "--prompt",
        "ab",
        *json,
        *(word for rule in rules for word in ("--set", rule)),
    )
    (line,) = ran.err.splitlines()
    assert "the rules must leave a token that may come next" in line
    assert ran.code == 1


def test_a_model_of_another_task_is_refused(command: Any, opened: Any) -> None:
    opened(task="translation")
    ran = command("generate", "runs/x")
    assert (
        ran.err
        == "seqloom: runs/x: a model of translation cannot generate; use: seqloom predict runs/x\n"
    )
    assert ran.code == 2


def test_a_folder_that_is_none_is_refused(command: Any, tmp_path: Path) -> None:
    ran = command("generate", tmp_path)
    assert "holds no config.json" in ran.err
    assert ran.code == 1
