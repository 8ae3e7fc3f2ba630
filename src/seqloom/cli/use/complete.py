"""The verb complete."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial

from seqloom.cli.options import Flag, Verb
from seqloom.cli.terminal import flush_results, put_json, put_table
from seqloom.errors import DataError
from seqloom.files import standard_input

LONGEST_LINE = 1_000_000
"""Bytes, as data.max_line_bytes."""


def complete(
    folder: str, prefix: str | None = None, /, *, n: int = 5, words: int = 1, json: Flag = False
) -> None:
    """Suggest how to complete a text that is being typed.

    A completion reaches to the end of a word: "the qu" may become "the quick".

    Args:
        folder: A run folder of a language model.
        prefix: The text so far, which may end inside a word. By default each line of standard input is one,
            and is answered at once.
        n: Number of completions, the most likely first.
        words: Number of words: the one that is being typed, and those after it.
        json: One JSON object for each text: prefix, and completions with text, word, probability and ended.
    """
    from seqloom.tasks.language_modeling.complete import last_word, load_completer

    completer = load_completer(folder)
    prefixes: Iterable[str] = _lines() if prefix is None else [prefix]
    for typed in prefixes:
        completions = completer.complete(typed, n=n, words=words)
        last_words = [last_word(typed, completion) for completion in completions]
        if json:
            objects = [
                {"word": word, **completion._asdict()}
                for word, completion in zip(last_words, completions, strict=True)
            ]
            put_json({"prefix": typed, "completions": objects})
        else:
            rows: list[tuple[str, ...]] = []
            for word, completion in zip(last_words, completions, strict=True):
                end = " (the text ends)" if completion.ended else ""
                rows.append((word + end, f"{completion.probability:.4f}"))
            put_table(typed, rows, ("completion", "probability"))
        flush_results()


def _lines() -> Iterator[str]:
    """The lines of standard input as they come. Spaces at their ends count."""
    lines = iter(partial(standard_input().readline, LONGEST_LINE + 1), b"")
    for number, line in enumerate(lines, start=1):
        if len(line) > LONGEST_LINE:
            raise DataError(
                f"a line must have at most {LONGEST_LINE} bytes, but has more", "-", number
            )
        try:
            yield line.removesuffix(b"\n").removesuffix(b"\r").decode()
        except UnicodeDecodeError as error:
            raise DataError(
                f"a line must be UTF-8, but is not ({error.reason}); convert it", "-", number
            ) from None


VERB = Verb(complete, 'seqloom complete runs/tales "the qu"')
