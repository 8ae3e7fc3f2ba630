"""Every command that the documentation shows is one that the command line takes, and short ones run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.docs.commands import Shown, shown_commands

import seqloom.cli as cli
from seqloom.cli.options import read_settings
from seqloom.tasks.settings import resolve
from seqloom.workflows.compare.plan import read_entries, settings_of

COMMANDS = shown_commands()


def touch(path: str) -> None:
    """Makes a file of this name, or what a pattern or a folder stands for."""
    place = Path(path.replace("*", "a"))
    if path.endswith("/"):
        place = place / "a.txt"
    place.parent.mkdir(parents=True, exist_ok=True)
    place.touch()


def bound(shown: Shown) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments and keywords of the verb as the command line reads the words."""
    words, _ = cli._split_plugins(list(shown.words))
    _, arguments, _ = cli.app.parse_args(
        cli._in_our_words(cli._folder_first(words)), print_error=False, exit_on_error=False
    )
    return arguments.args, arguments.kwargs


@pytest.mark.parametrize("shown", [one for one in COMMANDS if not one.inline], ids=str)
def test_a_command_is_one_that_the_command_line_takes(
    shown: Shown, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if any(word.startswith("hf://datasets/") for word in shown.words):
        return
    monkeypatch.chdir(tmp_path)
    arguments, keywords = bound(shown)
    settings = keywords.get("settings", ())
    if "--plugin" in shown.words:
        return
    if shown.verb not in ("train", "check", "compare"):
        read_settings(settings, ("data", "decode", "evaluate"))
        return
    options: Any = keywords.get("options")
    start = getattr(options, "start", None) or getattr(options, "resume", None)
    if start or keywords.get("start") or keywords.get("config") or not arguments:
        return
    task, *data = arguments
    for path in data:
        touch(path)
    if shown.verb != "compare":
        resolve(task, data, "run", getattr(options, "model", None), (), settings, None)
        return
    for entry in read_entries(options.models, task) if options.models else []:
        resolve(task, data, "run", entry.model, (), settings_of(entry, settings), None)


@pytest.mark.parametrize("shown", [one for one in COMMANDS if one.inline], ids=str)
def test_a_command_within_a_sentence_names_a_verb_and_options_that_exist(shown: Shown) -> None:
    if shown.verb.startswith("-"):
        return
    assert shown.verb in cli.VERBS
    named = {word.partition("=")[0] for word in shown.words if word.startswith("--")}
    known = {
        name
        for argument in cli.app[shown.verb].assemble_argument_collection()
        for name in argument.names
    }
    assert named <= known | {"--from", "--plugin", "--debug", "--help"}


def test_the_pages_show_many_commands() -> None:
    assert len(COMMANDS) > 120
    assert len({one.page for one in COMMANDS}) > 20
    assert {one.verb for one in COMMANDS} >= cli.VERBS.keys() - {"demo"}


OF_LANGUAGE_MODELS = {
    "generate",
    "score",
    "complete",
    "degeneration",
    "ensemble",
    "rescore",
    "prompt",
}
OF_OTHERS = {"predict"}


def test_a_run_folder_is_one_kind_of_model_on_all_pages() -> None:
    kinds: dict[str, set[str]] = {}
    for one in COMMANDS:
        if one.verb == "train" and "--output-dir" in one.words:
            folder = one.words[one.words.index("--output-dir") + 1]
            is_lm = one.words[1] == "text-generation"
            kinds.setdefault(folder, set()).add("language model" if is_lm else "other")
            continue
        for word in one.words[1:]:
            if word.startswith("runs/") and one.verb in OF_LANGUAGE_MODELS | OF_OTHERS:
                is_lm = one.verb in OF_LANGUAGE_MODELS
                kinds.setdefault(word, set()).add("language model" if is_lm else "other")
    assert {folder: kind for folder, kind in kinds.items() if len(kind) > 1} == {}
