"""The command `seqloom`: one thin file for each group of verbs. Importing it imports no torch."""

from __future__ import annotations

import inspect
import os
import sys
import time
from itertools import pairwise

import cyclopts
from rich.console import Console

import seqloom
from seqloom.cli import (
    comparing,
    completing,
    degenerating,
    exchanging,
    generating,
    learning,
    looking,
    predicting,
    probing,
    rescoring,
    scoring,
    searching,
)
from seqloom.cli.terminal import notices_on_standard_error
from seqloom.errors import SeqloomError, printable
from seqloom.plugins import load_plugin

app = cyclopts.App(
    name="seqloom",
    help=(
        "Sequence models on your own text: train, score, generate, explain. FOLDER is a run folder, a Hugging"
        " Face directory or hf://NAME@REVISION; --from FOLDER says the same. With --debug, errors show where"
        " they come from. --plugin FILE.py (or a module's name; any number) loads cells, models, tasks and"
        " rules of your own."
    ),
    version=seqloom.__version__,
    help_format="plaintext",
    error_console=Console(stderr=True),
)
WORKER_WAITS = 10.0
"""Seconds, at most: the end of the first worker ends the others too."""
TAKE_A_FOLDER = {"import"}
"""Verbs whose first argument is a model: a run folder, a Hugging Face directory or hf://NAME@REVISION."""

for verb in (
    *learning.VERBS,
    *predicting.VERBS,
    *comparing.VERBS,
    *generating.VERBS,
    *scoring.VERBS,
    *looking.VERBS,
    *probing.VERBS,
    *rescoring.VERBS,
    *degenerating.VERBS,
    *searching.VERBS,
    *completing.VERBS,
    *exchanging.VERBS,
):
    app.command(verb)
    if next(iter(inspect.signature(verb).parameters)) == "folder":
        TAKE_A_FOLDER.add(verb.__name__.replace("_", "-"))
app.command(exchanging.import_model, name="import")  # a word that Python keeps for itself


def main(arguments: list[str] | None = None) -> None:
    """Runs a command line and ends the process: 0 done, 1 failed, 2 asked wrongly, 130 and 143 stopped by
    Ctrl-C and SIGTERM."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in words
    words, plugins = _split_plugins([word for word in words if word != "--debug"])
    words = _named(words)
    if any(
        pair in (("--validation", "-"), ("--test", "-")) for pair in pairwise(words)
    ):  # cyclopts would take - as training data
        sys.exit(
            _refuse(
                "validation and test data must be files; only training data can come from standard input", 2
            )
        )
    try:
        with notices_on_standard_error():
            for plugin in plugins:
                load_plugin(plugin)
            code = app(words, exit_on_error=False, print_error=False, result_action="return_value")
    except cyclopts.CycloptsError as error:
        code = _refuse(" ".join(str(error).split()) + " (see seqloom --help)", 2)
    except SeqloomError as error:
        if debug:
            raise
        code = _refuse(str(error), error.exit_code)
    except BrokenPipeError:  # the reader of our output has left
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 1
    except KeyboardInterrupt:
        code = 130
    except Exception as error:
        if debug:
            raise
        code = _fail(f"{type(error).__name__}: {error} (run it again with --debug to see where)", 1)
    sys.exit(code if isinstance(code, int) else 0)


def _split_plugins(words: list[str]) -> tuple[list[str], list[str]]:
    """(the other words, what each --plugin names)."""
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


def _named(words: list[str]) -> list[str]:
    """`VERB ... --from MODEL` as `VERB MODEL ...`: another way to say the first argument."""
    if not words or words[0] not in TAKE_A_FOLDER:
        return words
    for at, word in enumerate(words):
        if word.startswith("--from="):
            return [words[0], word.removeprefix("--from="), *words[1:at], *words[at + 1 :]]
        if word == "--from" and at + 1 < len(words):
            return [words[0], words[at + 1], *words[1:at], *words[at + 2 :]]
    return words


def _refuse(message: str, code: int) -> int:
    """Of the workers that `torchrun` starts, which all are refused alike, the first speaks."""
    if os.environ.get("RANK", "0") == "0":
        return _fail(message, code)
    time.sleep(WORKER_WAITS)  # torchrun ends all workers when one has ended: the first must have spoken
    return code


def _fail(message: str, code: int) -> int:
    sys.stderr.write(f"seqloom: {''.join(printable(line) + ' ' for line in message.splitlines()).rstrip()}\n")
    return code
