"""The command `seqloom`: one thin file or folder for each group of verbs. Importing it imports no torch."""

from __future__ import annotations

import logging
import sys
from itertools import pairwise
from pathlib import Path

import cyclopts
from rich.console import Console

import seqloom
from seqloom.cli import data, exchange, train, understand, use
from seqloom.cli.failures import failure_of, report
from seqloom.cli.familiar_options import names_of_the_program, understood
from seqloom.cli.process import end_streams, prepare, require_memory, silence
from seqloom.cli.terminal import HelpPages, flush_results, notices_on_standard_error
from seqloom.errors import UsageError, printable
from seqloom.familiar_names import did_you_mean
from seqloom.files import is_there, regular
from seqloom.json_values import as_whole_number

logger = logging.getLogger(__name__)

GROUPS = {
    "Data": data.VERBS,
    "Train": train.VERBS,
    "Use": use.VERBS,
    "Understand": understand.VERBS,
    "Exchange": exchange.VERBS,
}
VERBS = {verb.name or verb.run.__name__: verb for verbs in GROUPS.values() for verb in verbs}


def _make_app() -> cyclopts.App:
    app = cyclopts.App(
        name="seqloom",
        help=(
            "Train, use and understand sequence models on your own data.\n\nFOLDER is a run folder, a Hugging"
            " Face directory or hf://NAME@REVISION. It may also be given as --from FOLDER. --plugin FILE.py,"
            " or the name of a module, loads your own cells, models, tasks and rules; it may be given again."
            " With --debug, an error shows a traceback; with --quiet, no notice and no progress is shown.\n\n"
            "Options of Hugging Face, fairseq, OpenNMT and JoeyNMT, such as --lr or --num-beams, are read as"
            " the setting that they mean, which is said.\n\n"
            "Exit codes: 0 done, 1 failed, 2 a wrong command line or wrong data, 130 and 143 stopped by"
            " Ctrl-C and SIGTERM."
        ),
        help_epilogue="Example: seqloom demo",
        version=seqloom.__version__,
        help_format="plaintext",
        help_formatter=HelpPages(),
        error_console=Console(stderr=True),
    )
    for number, (title, verbs) in enumerate(GROUPS.items()):
        group = cyclopts.Group(title, sort_key=number)
        for place, verb in enumerate(verbs):
            example = f"Example: {verb.example}"
            app.command(
                verb.run, name=verb.name, group=group, sort_key=place, help_epilogue=example
            )
    options = cyclopts.Group("Options", sort_key=len(GROUPS))
    for option in ("--help", "--version"):
        app[option].group = options
    app.register_install_completion_command(
        group=options, help="Complete words of the command line in bash, zsh or fish."
    )
    return app


app = _make_app()


def main(arguments: list[str] | None = None) -> None:
    """Runs a command line and ends the process.

    The exit code is 0 after success, 1 after a failure, 2 after a wrong command line or wrong data, 130 and
    143 after Ctrl-C and SIGTERM.
    """
    words = sys.argv[1:] if arguments is None else arguments
    debug, quiet = "--debug" in words, "--quiet" in words
    words, plugins = _split_plugins([word for word in words if word not in ("--debug", "--quiet")])
    prepare()
    try:
        code = _run(_folder_first(words), plugins, quiet)
        flush_results()
    except SystemExit:
        raise
    except BrokenPipeError:
        # the program that reads the output has ended
        silence(1)
        code = 1
    except (KeyboardInterrupt, cyclopts.CycloptsError) as error:
        code = report(failure_of(error))
    # a panic of Rust is no Exception
    except BaseException as error:
        if debug:
            raise
        code = report(failure_of(error))
    end_streams()
    sys.exit(code)


def _run(words: list[str], plugins: list[str], quiet: bool) -> int:
    for pair in pairwise(words):
        # cyclopts would take - as training data
        if pair in (("--validation", "-"), ("--test", "-")):
            raise UsageError(
                "validation and test data must be files;"
                " only training data can come from standard input"
            )
    if words and not {"--help", "-h", "--version"} & set(words):
        require_memory()
    _check_model(words)
    with notices_on_standard_error(quiet):
        if plugins:
            _load_plugins(plugins)
        code = app(
            _in_our_words(words),
            console=Console(),  # as wide as the terminal is now
            exit_on_error=False,
            print_error=False,
            result_action="return_value",
        )
    return as_whole_number(code) or 0


def _in_our_words(words: list[str]) -> list[str]:
    """The same command line without options of other programs. Raises UsageError for an unknown verb or
    option."""
    if not words or words[0].startswith("-"):
        return words
    verb, *rest = words
    if verb not in VERBS:
        near = did_you_mean(verb, names_of_the_program(VERBS))
        raise UsageError(f"there is no verb {printable(verb)}{near} (see seqloom --help)")
    rest, notices = understood(app, verb, rest, lambda: names_of_the_program(VERBS))
    for notice in notices:
        logger.info(notice)
    return [verb, *(_as_file(word) for word in rest)]


def _as_file(word: str) -> str:
    """A data set of the hub as the file that holds it."""
    if not word.startswith("hf://datasets/"):
        return word
    from seqloom.interop.hub_datasets import fetched_dataset

    path = fetched_dataset(word)
    logger.info(f"{printable(word)} is {path}")
    return path


def _check_model(words: list[str]) -> None:
    """Refuses a pipe or a device in place of the config.json of a model before anything large is imported."""
    verb = VERBS.get(words[0]) if words else None
    if verb is not None and verb.takes_model and len(words) > 1 and "\0" not in words[1]:
        config = Path(words[1]) / "config.json"
        if is_there(config):
            regular(config)


def _load_plugins(plugins: list[str]) -> None:
    from seqloom.plugins import load_plugin

    for plugin in plugins:
        load_plugin(plugin)


def _split_plugins(words: list[str]) -> tuple[list[str], list[str]]:
    """(the other words, the plugins that --plugin names)"""
    others: list[str] = []
    plugins: list[str] = []
    remaining = iter(words)
    for word in remaining:
        option, equals, value = word.partition("=")
        if option != "--plugin":
            others.append(word)
        elif equals:
            plugins.append(value)
        else:
            plugins.append(next(remaining, ""))
    return others, plugins


def _folder_first(words: list[str]) -> list[str]:
    """`VERB ... --from MODEL` as `VERB MODEL ...`, where the first argument of the verb is a model."""
    verb = VERBS.get(words[0]) if words else None
    if verb is None or not verb.takes_model:
        return words
    for index, word in enumerate(words):
        if word.startswith("--from="):
            return [words[0], word.removeprefix("--from="), *words[1:index], *words[index + 1 :]]
        if word == "--from" and index + 1 < len(words):
            return [words[0], words[index + 1], *words[1:index], *words[index + 2 :]]
    return words
