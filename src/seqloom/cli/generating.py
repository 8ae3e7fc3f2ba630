"""The verb generate."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Annotated

from cyclopts import Parameter

from seqloom.cli.options import Data, Flag, Settings, reading
from seqloom.cli.terminal import notices_afterwards, put_json
from seqloom.errors import UsageError

logger = logging.getLogger(__name__)

Prompts = Annotated[
    list[str] | None, Parameter(negative="", consume_multiple=False, allow_leading_hyphen=True)
]
"""Prompts, each with its option."""


def generate(
    folder: str,
    file: Data | None = None,
    /,
    *,
    prompt: Prompts = None,
    settings: Settings = None,
    trace: str | None = None,
    json: Flag = False,
) -> None:
    """Go on with texts: each prompt and what a language model makes of it. Without a prompt it begins a text
    of its own.

    Args:
        folder: A run folder of a language model.
        file: A text file of prompts, one a line, an empty one for a text of its own; - is standard input.
        prompt: A prompt; may be given again.
        settings: key=value for decode.* (and data.* of the file), such as decode.temperature=0.8,
            decode.top_p=0.9 or decode.n_best=3.
        trace: A new file for every step: the candidates, which of them go on, and why the others fall.
        json: One JSON object a line for each text: prompt, sample, text, tokens, log_probability, finished.
    """
    if file is not None and prompt:
        raise UsageError("generate takes --prompt or FILE, but both are given; leave one out")
    _, decode, data_config = reading(settings, ("decode",) if file is None else ("data", "decode"))
    from seqloom.runs.output_files import new_file
    from seqloom.runs.progress import each_text
    from seqloom.runs.tracing import decode_with_trace
    from seqloom.tasks.language_modeling.generate import Continuation, load_generator

    place = None if trace is None else new_file(trace)
    writer = load_generator(folder)
    given = writer.run.decode_settings(decode)
    prompts = (prompt or [""]) if file is None else each_text(file, data_config)
    first = True

    def tell(texts: list[Continuation]) -> None:
        nonlocal first
        for one in texts:
            if json:
                put_json(one._asdict())
            else:
                _write(one.prompt + one.text + "\n", begins=True, first=first)
            first = False
        sys.stdout.flush()

    if place is not None:
        for texts in decode_with_trace(
            place,
            prompts,
            writer.run,
            decode,
            lambda text, watch: writer.generate([text], watch=watch, **decode)[0],
        ):
            tell(texts)
    for some in (
        () if place else _batches(prompts, 1 if file == "-" and sys.stdin.isatty() else given.batch_rows)
    ):
        if len(some) == 1 and given.n_best == 1 and not json:
            with notices_afterwards():
                pieces = writer.stream(some[0], **decode)
                begun = next(pieces, "")  # what is refused is refused before anything is written
                _write(some[0], begins=True, first=first)
                _write(begun)
                for piece in pieces:
                    _write(piece)
                _write("\n")
            first = False
        else:
            with _counter() as progress:
                found = writer.generate(some, progress, **decode)
            tell([one for outputs in found for one in outputs])


def _batches(prompts: Iterable[str], size: int) -> Iterator[list[str]]:
    """So many prompts at a time. Before more than one, all are read: an error in their file comes before the
    work."""
    remaining = iter(prompts if size == 1 else list(prompts))
    while some := list(islice(remaining, size)):
        yield some


def _write(text: str, begins: bool = False, first: bool = False) -> None:
    """Text as it is, line breaks too, as UTF-8 whatever the locale. An empty line stands before one that
    begins, but for the first."""
    sys.stdout.buffer.write((("\n" if begins and not first else "") + text).encode("utf-8", "replace"))
    sys.stdout.buffer.flush()


@contextmanager
def _counter() -> Iterator[Callable[[int], None]]:
    """A running number of tokens; silent where standard error is no terminal."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    made, began, shown = 0, time.monotonic(), 0.0

    def count(new: int) -> None:
        nonlocal made, shown
        made += new
        now = time.monotonic()
        if now - shown > 0.2:
            sys.stderr.write(f"\r{made:,} tokens, {made / max(now - began, 1e-9):,.0f} tokens/s\x1b[K")
            sys.stderr.flush()
            shown = now

    try:
        yield count
    finally:
        sys.stderr.write("\r\x1b[K")
        sys.stderr.flush()


VERBS = (generate,)
