"""Decoding with every step written to a file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TypeVar

from seqloom import files
from seqloom.decoding.hypotheses import DecodingStep
from seqloom.decoding.trace import Trace
from seqloom.runs.decoding_options import generation_options
from seqloom.runs.run_folder import LoadedRun

T = TypeVar("T")


def decode_with_trace(
    place: Path,
    texts: Iterable[str],
    run: LoadedRun,
    decode: Mapping[str, object],
    decoded: Callable[[str, Callable[[DecodingStep], None]], T],
) -> Iterator[T]:
    """Decodes each text by itself, `decoded(text, watch)`, and writes its trace to the new file `place`,
    which is there when the last result has been taken."""
    options = generation_options(run.decode_settings(decode), run.tokenizer)
    with files.atomic_file(place) as file:

        def line(text: str) -> None:
            file.write((text + "\n").encode("utf-8", "replace"))

        for text in texts:
            line(f"input: {text}")
            yield decoded(
                text, Trace(line, run.tokenizer.pieces, options.strategy, options.processors)
            )
            line("")
