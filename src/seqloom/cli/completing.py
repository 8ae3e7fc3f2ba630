"""The verb complete."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from seqloom.cli.options import Flag
from seqloom.cli.terminal import put_json, put_table
from seqloom.errors import DataError


def complete(
    folder: str, prefix: str | None = None, /, *, n: int = 5, words: int = 1, json: Flag = False
) -> None:
    """Say how a text is likely to go on as it is typed, to the end of a word: "the qu" may become "the
    quick".

    Args:
        folder: A run folder of a language model.
        prefix: The text so far; it may end inside of a word. By default each line of standard input is one,
            answered as it comes.
        n: How many completions, the likeliest first.
        words: How many words: the one that is being typed, and those after it.
        json: One JSON object a line for each text: prefix, completions, each with text, word, probability,
            ended.
    """
    from seqloom.tasks.language_modeling.complete import last_word, load_completer

    completer = load_completer(folder)
    for typed in _lines() if prefix is None else [prefix]:
        found = completer.complete(typed, n=n, words=words)
        if json:
            put_json(
                {
                    "prefix": typed,
                    "completions": [{"word": last_word(typed, one), **one._asdict()} for one in found],
                }
            )
        else:
            rows: list[tuple[str, ...]] = [
                (last_word(typed, one) + (" (the text ends)" if one.ended else ""), f"{one.probability:.4f}")
                for one in found
            ]
            put_table(typed, rows, ("completion", "probability"))
        sys.stdout.flush()


def _lines() -> Iterator[str]:
    """The lines of standard input as they come; blanks at their ends count."""
    for number, line in enumerate(sys.stdin.buffer, start=1):
        try:
            yield line.removesuffix(b"\n").removesuffix(b"\r").decode()
        except UnicodeDecodeError as error:
            raise DataError(
                f"standard input:{number}: a line must be UTF-8, but is not ({error.reason}); convert it"
            ) from None


VERBS = (complete,)
