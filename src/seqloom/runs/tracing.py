"""Decoding with somebody who writes down every step."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import BinaryIO, TypeVar

from seqloom import files
from seqloom.config import DecodeConfig
from seqloom.decoding.hypotheses import DecodingStep
from seqloom.decoding.trace import Trace
from seqloom.runs.decoding_options import generation_options
from seqloom.runs.run_folder import LoadedRun

T = TypeVar("T")


def traced(
    place: Path,
    texts: Iterable[str],
    bundle: LoadedRun,
    settings: DecodeConfig,
    run: Callable[[str, Callable[[DecodingStep], None]], T],
    tell: Callable[[T], object],
) -> None:
    """Runs each text by itself, `run(text, watch)`, writes its trace to the file `place`, and tells its
    result."""
    options = generation_options(settings, bundle.tokenizer)

    def write(file: BinaryIO) -> None:
        def line(text: str) -> None:
            file.write((text + "\n").encode("utf-8", "replace"))

        for text in texts:
            line(f"input: {text}")
            tell(run(text, Trace(line, bundle.tokenizer.pieces, options.strategy, options.processors)))
            line("")

    files.write_atomic(place, write)
