"""Decoding with somebody who writes down every step."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import BinaryIO, TypeVar

from seqloom import files
from seqloom.config import DecodeConfig
from seqloom.decoding.live_rows import Step
from seqloom.decoding.trace import Trace
from seqloom.runs.decoding_options import decoding_of
from seqloom.runs.run_folder import LoadedRun

T = TypeVar("T")


def traced(
    place: Path,
    texts: Iterable[str],
    bundle: LoadedRun,
    settings: DecodeConfig,
    run: Callable[[str, Callable[[Step], None]], T],
    tell: Callable[[T], object],
) -> None:
    """Runs each text by itself, `run(text, watch)`, writes its trace to the file `place`, and tells its
    result."""
    strategy, rules, _ = decoding_of(settings, bundle.tokenizer)

    def write(file: BinaryIO) -> None:
        def line(text: str) -> None:
            file.write((text + "\n").encode("utf-8", "replace"))

        for text in texts:
            line(f"input: {text}")
            tell(run(text, Trace(line, bundle.tokenizer.pieces, strategy, rules)))
            line("")

    files.write_atomic(place, write)
