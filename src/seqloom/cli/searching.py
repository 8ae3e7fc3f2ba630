"""The verb exact."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING

from seqloom.cli.generating import Prompts
from seqloom.cli.options import Data, Flag, Settings, reading
from seqloom.cli.terminal import put, put_json, put_table
from seqloom.errors import UsageError, printable

if TYPE_CHECKING:
    from seqloom.workflows.analysis.exact import ExactReport, SearchResult


def exact(
    folder: str,
    file: Data | None = None,
    /,
    *,
    prompt: Prompts = None,
    beams: str = "1,2,5,10,50,100",
    nodes: int = 200_000,
    seconds: float | None = None,
    max_length: int | None = None,
    length_penalty: float = 0.0,
    output: str | None = None,
    limit: int | None = None,
    settings: Settings = None,
    json: Flag = False,
) -> None:
    """Find the most likely output of each input, with proof; say how far beams of several widths are from it.

    Args:
        folder: A run folder.
        file: A text file, one input a line: texts to translate, or prompts of a language model; - is standard
            input.
        prompt: An input, given here; may be given again.
        beams: Widths of the beams to compare with, such as 1,5,50.
        nodes: Prefixes that the model reads for each input, at most; then the gap that is left is said.
        seconds: For the exact search of each input, at most; the beams before it are not counted.
        max_length: Longest output in ids, the end mark counted; by default that of the folder, or twice the
            source and 20 more, or 200.
        length_penalty: α of what is searched for, Σ log p / length^α; at 0 it is the most likely text.
        output: Also write a line of JSON for each input to this new file, as they come.
        limit: Only the first so many inputs.
        settings: key=value for data.* and decode.*: rules for every search, and what the folder would decode
            with; not those of sampling.
        json: One JSON object a line for each input, and one for all at the end.
    """
    if file is not None and prompt:
        raise UsageError("exact takes --prompt or FILE, but both are given; leave one out")
    if limit is not None and limit < 1:
        raise UsageError(f"--limit must be at least 1, but is {limit}")
    _, decode, data_config = reading(settings)
    widths = _widths(beams)
    from seqloom.decoding.exact_search import SearchBudget
    from seqloom.tasks.language_modeling.generate import TASK
    from seqloom.workflows.analysis.exact import load_searcher, make_report, read_inputs, saved

    decode |= {"max_length": max_length} if max_length is not None else {}
    searcher = load_searcher(
        folder,
        beams=widths,
        length_penalty=length_penalty,
        budget=SearchBudget(nodes=nodes, seconds=seconds),
        decode=decode,
    )
    task = searcher.run.task
    if prompt and task != TASK and not all(text.strip() for text in prompt):
        raise UsageError(
            "each --prompt must have text for a translation model to read, but one is blank; leave it out"
        )
    given = prompt or ([""] if task == TASK else None)
    # an error in the file comes before the work
    texts = (
        given[:limit]
        if file is None and given is not None
        else read_inputs(file or "-", data_config, task, limit)
    )
    rows: list[SearchResult] = []
    for row in _counted(saved(searcher.compare(texts), output), len(texts)):
        rows.append(row)
        if json:
            put_json(row.summary())
        else:
            _put(row)
        sys.stdout.flush()
    if json:
        put_json({"report": asdict(make_report(rows))})
    else:
        _put_report(make_report(rows), length_penalty)


def _widths(text: str) -> list[int]:
    try:
        return [int(word) for word in text.split(",")]
    except ValueError:
        raise UsageError(
            f"--beams must be whole numbers with commas between, such as 1,5,50, but is {printable(text)}"
        ) from None


def _put(row: SearchResult) -> None:
    """The best output, and below it each beam that found something else."""
    found = "proven" if row.proven else "gap unknown" if row.gap is None else f"gap {row.gap:.3f}"
    number = "" if row.log_probability is None else f"{row.log_probability:.4f}"
    put(
        f"{number}\t{found}\t{row.nodes:,} nodes\t{row.seconds:.1f}"
        f" s\t{'(nothing found)' if row.text is None else row.text or '(empty)'}"
    )
    for name, beam in row.beams.items():
        if beam is None:
            put(f"\t\t{name}\t\t(nothing found)")
        elif beam.tokens != row.tokens or not beam.finished:
            short = "cut off" if beam.shortfall is None else f"{beam.shortfall:.3f} short"
            put(f"{beam.log_probability:.4f}\t\t{name}\t{short}\t{beam.text or '(empty)'}")


def _put_report(report: ExactReport, length_penalty: float) -> None:
    header, rows = report.table()
    unit = "nats" if not length_penalty else f"nats / length^{length_penalty:g}"
    put("")
    put_table(
        f"{report.proven:,} of {report.inputs:,} inputs proven; how much worse the beams are is in {unit}",
        rows,
        header,
    )
    put(
        f"exact search: {report.nodes:,} nodes, {report.seconds:,.1f} s; mean log p"
        f" {report.mean_log_probability:.3f}; the best text is empty for {report.empty:,} inputs; mean log p"
        f" of the empty text {report.mean_empty_log_probability:.3f}"
    )
    if report.proven < report.inputs:
        put(
            f"not proven: {report.inputs - report.proven:,}, the largest gap {report.largest_gap:.3f}: there,"
            " errors and shortfalls are at least what is shown; raise --nodes to prove more"
        )


def _counted(rows: Iterator[SearchResult], total: int) -> Iterator[SearchResult]:
    """The same rows, with a running count; silent where standard error is no terminal."""
    if not sys.stderr.isatty():
        yield from rows
        return
    proven = 0
    try:
        for number, row in enumerate(rows, start=1):
            proven += row.proven
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
            yield row
            sys.stderr.write(f"\r{number:,} of {total:,} inputs, {proven:,} proven\x1b[K")
            sys.stderr.flush()
    finally:
        sys.stderr.write("\r\x1b[K")
        sys.stderr.flush()


VERBS = (exact,)
