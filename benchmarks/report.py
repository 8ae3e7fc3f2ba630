"""Where the figures go: docs/results/benchmarks.json, and as tables between marks in docs/benchmarks.md."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.measuring import machine
from seqloom.files import write_atomic, write_json

DOCS = Path(__file__).parents[1] / "docs"
PAGE, FIGURES = DOCS / "benchmarks.md", DOCS / "results" / "benchmarks.json"


def publish(section: str, figures: Mapping[str, Any], text: str) -> None:
    """Puts the figures of a section, and on which machine they were measured, in the place of those of the
    last run."""
    on = machine()
    known = json.loads(FIGURES.read_text()) if FIGURES.exists() else {}
    write_json(FIGURES, {**known, section: {"machine": on, **figures}})
    described = ", ".join(f"{name} {value}" for name, value in on.items())
    begin, end = f"<!-- begin {section} -->", f"<!-- end {section} -->"
    block = f"{begin}\n{text.strip()}\n\nMeasured with {described}.\n{end}"
    page = PAGE.read_text() if PAGE.exists() else "# Benchmarks\n"
    pattern = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
    page = (
        pattern.sub(lambda _: block, page)
        if pattern.search(page)
        else f"{page.rstrip()}\n\n{block}\n"
    )
    write_atomic(PAGE, page)


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Markdown, padded so that it reads as plain text too."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    lines = [header, ["-" * width for width in widths], *rows]
    return "\n".join(
        "| "
        + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        + " |"
        for line in lines
    )
