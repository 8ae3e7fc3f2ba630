"""The verb generate."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import TYPE_CHECKING, Any

from seqloom.cli.options import Data, Flag, Settings, Texts, Verb, read_settings
from seqloom.cli.terminal import (
    even_if_nobody_reads,
    flush_results,
    is_typed,
    notices_afterwards,
    overwritten_line,
    put_json,
    write_result,
)
from seqloom.errors import UsageError

if TYPE_CHECKING:
    from seqloom.tasks.language_modeling.generate import Continuation, TextGenerator


def generate(
    folder: str,
    file: Data | None = None,
    /,
    *,
    prompt: Texts = (),
    settings: Settings = (),
    trace: str | None = None,
    json: Flag = False,
) -> None:
    """Continue texts with a language model.

    Writes each prompt with its continuation. Without a prompt the model writes a text from the beginning.

    Args:
        folder: A run folder of a language model.
        file: A text file with one prompt in each line; an empty line asks for a text from the beginning. - is
            standard input.
        prompt: A prompt. May be given again.
        settings: key=value for decode.* (and data.* for the file), such as decode.temperature=0.8,
            decode.top_p=0.9 or decode.n_best=3.
        trace: A new file that shows each step: the candidates, which are kept, and why others are dropped.
        json: One JSON object for each text: prompt, sample, text, tokens, log_probability, finished.
    """
    if file is not None and prompt:
        raise UsageError("generate takes --prompt or FILE, but both are given; leave one out")
    sections = ("decode",) if file is None else ("data", "decode")
    given = read_settings(settings, sections)
    from seqloom.runs.output_files import new_file
    from seqloom.runs.progress import each_text
    from seqloom.runs.tracing import decode_with_trace
    from seqloom.tasks.language_modeling.generate import load_generator
    from seqloom.tasks.model import refuse_unread_inputs

    refuse_unread_inputs(given.data, file or "-")
    place = None if trace is None else new_file(trace)
    generator = load_generator(folder)
    decode = given.decode
    batch_rows = generator.run.decode_settings(decode).batch_rows
    prompts: Iterable[str] = prompt or ("",)
    if file is not None:
        prompts = each_text(file, given.config)
        if file == "-" and is_typed():
            batch_rows = 1  # each prompt is answered before the next one is typed
    output = _Output(generator, decode, json)
    if place is None:
        for batch in _batches(prompts, batch_rows):
            output.put_batch(batch)
        return
    with even_if_nobody_reads(trace):
        for texts in decode_with_trace(
            place,
            prompts,
            generator.run,
            decode,
            lambda text, watch: generator.generate([text], watch=watch, **decode)[0],
        ):
            output.put(texts)


class _Output:
    """Writes texts with an empty line between two, or as JSON."""

    def __init__(self, generator: TextGenerator, decode: dict[str, Any], json: bool) -> None:
        self.generator, self.decode, self.json = generator, decode, json
        self.one_text = generator.run.decode_settings(decode).n_best == 1 and not json
        self.first = True

    def put_batch(self, prompts: list[str]) -> None:
        """Generates and writes what belongs to these prompts; a single text as it is generated."""
        if len(prompts) == 1 and self.one_text:
            self._stream(prompts[0])
            return
        with _token_counter() as progress:
            found = self.generator.generate(prompts, progress, **self.decode)
        for texts in found:
            self.put(texts)

    def put(self, texts: Iterable[Continuation]) -> None:
        for text in texts:
            if self.json:
                put_json(text._asdict())
            else:
                self._begin(text.prompt + text.text + "\n")
        flush_results()

    def _stream(self, prompt: str) -> None:
        with notices_afterwards():
            pieces = self.generator.stream(prompt, **self.decode)
            first_piece = next(pieces, "")  # raises any error before the prompt is written
            self._begin(prompt)
            _write(first_piece)
            for piece in pieces:
                _write(piece)
            _write("\n")

    def _begin(self, text: str) -> None:
        if not self.first:
            _write("\n")
        self.first = False
        _write(text)


def _batches(prompts: Iterable[str], size: int) -> Iterator[list[str]]:
    """`size` prompts at a time. If that is more than one, all are read first: an error in their file comes
    before the work."""
    if size > 1:
        prompts = list(prompts)
    remaining = iter(prompts)
    while batch := list(islice(remaining, size)):
        yield batch


def _write(text: str) -> None:
    """Text as it is, with its line breaks, as UTF-8 whatever the locale."""
    write_result(text)
    flush_results()


@contextmanager
def _token_counter() -> Iterator[Callable[[int], None]]:
    """Counts new tokens, and shows the count and the speed on a terminal."""
    total, started, shown = 0, time.monotonic(), 0.0
    with overwritten_line() as show:

        def count(new: int) -> None:
            nonlocal total, shown
            total += new
            now = time.monotonic()
            if now - shown > 0.2:
                show(f"{total:,} tokens, {total / max(now - started, 1e-9):,.0f} tokens/s")
                shown = now

        yield count


VERB = Verb(
    generate, 'seqloom generate runs/tales --prompt "Once upon a time" --set decode.temperature=0.8'
)
