"""The verb exact."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from cyclopts import Parameter

from seqloom.cli.options import Data, Flag, Settings, Texts, Verb, read_settings, whole_numbers
from seqloom.cli.terminal import (
    even_if_nobody_reads,
    flush_results,
    overwritten_line,
    put,
    put_json,
    put_table,
)
from seqloom.errors import UsageError

if TYPE_CHECKING:
    from seqloom.config import DataConfig
    from seqloom.workflows.analysis.exact import ExactReport, SearchResult


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class ExactOptions:
    """Options of exact."""

    prompt: Texts = ()
    """An input. May be given again."""
    beams: str = "1,2,5,10,50,100"
    """Beam widths to compare with, such as 1,5,50."""
    nodes: int = 200_000
    """The most prefixes that the model reads for an input. After that the remaining gap is shown."""
    seconds: float | None = None
    """The most seconds of the exact search for an input. The beam searches before it are not counted."""
    max_length: int | None = None
    """Longest output in ids, the end mark counted. By default that of the folder; without one, twice the
    source plus 20, or 200 after a prompt."""
    length_penalty: float = 0.0
    """α of the score, Σ log p / length^α. With 0 the most likely text is searched for."""
    output: str | None = None
    """Also write a line of JSON for each input to this new file, as soon as it is known."""
    limit: int | None = None
    """Only the first inputs, at most this many."""


def exact(
    folder: str,
    file: Data | None = None,
    /,
    *,
    options: ExactOptions = ExactOptions(),
    settings: Settings = (),
    json: Flag = False,
) -> None:
    """Find the most likely output with proof, and judge beam search.

    Shows for each input how far beams of several widths are from the best output.

    Args:
        folder: A run folder.
        file: A text file with one input in each line: texts to translate, or prompts of a language model. -
            is standard input.
        settings: key=value for data.* and decode.*: rules for every search, and how the folder would decode;
            not those of sampling.
        json: One JSON object for each input, and one for all at the end.
    """
    if file is not None and options.prompt:
        raise UsageError("exact takes --prompt or FILE, but both are given; leave one out")
    if options.limit is not None and options.limit < 1:
        raise UsageError(f"--limit must be at least 1, but is {options.limit}")
    given = read_settings(settings, ("decode",) if options.prompt else ("data", "decode"))
    widths = whole_numbers(options.beams, "--beams", "1,5,50")
    from seqloom.decoding.exact_search import SearchBudget
    from seqloom.tasks.model import refuse_unread_inputs
    from seqloom.workflows.analysis.exact import load_searcher, make_report, saved

    refuse_unread_inputs(given.data, file or "-")
    decode = given.decode
    if options.max_length is not None:
        decode["max_length"] = options.max_length
    searcher = load_searcher(
        folder,
        beams=widths,
        length_penalty=options.length_penalty,
        budget=SearchBudget(nodes=options.nodes, seconds=options.seconds),
        decode=decode,
    )
    texts = _inputs(file, options, given.config, searcher.run.task)
    results: list[SearchResult] = []
    with overwritten_line() as show, even_if_nobody_reads(options.output):
        for result in saved(searcher.compare(texts), options.output):
            results.append(result)
            show("")
            if json:
                put_json(result.summary())
            else:
                _put_result(result)
            flush_results()
            proven = sum(result.proven for result in results)
            show(f"{len(results):,} of {len(texts):,} inputs, {proven:,} proven")
    report = make_report(results)
    if json:
        put_json({"report": asdict(report)})
    else:
        _put_report(report, options.length_penalty)


def _inputs(
    file: str | None, options: ExactOptions, data_config: DataConfig, task: str
) -> Sequence[str]:
    """The prompts or the lines of the file, all of them: an error in the file comes before the work."""
    from seqloom.tasks.language_modeling.generate import TASK
    from seqloom.workflows.analysis.exact import read_inputs

    if options.prompt and task != TASK and not all(text.strip() for text in options.prompt):
        raise UsageError(
            "each --prompt must have text for a translation model to read, but one is blank; leave it out"
        )
    if options.prompt:
        return options.prompt[: options.limit]
    if file is None and task == TASK:
        return [""]
    return read_inputs(file or "-", data_config, task, options.limit)


def _put_result(result: SearchResult) -> None:
    """The best output, and below it each beam that found another one."""
    status = "gap unknown" if result.gap is None else f"gap {result.gap:.3f}"
    if result.proven:
        status = "proven"
    log_prob = "" if result.log_probability is None else f"{result.log_probability:.4f}"
    text = "(nothing found)" if result.text is None else result.text or "(empty)"
    put(f"{log_prob}\t{status}\t{result.nodes:,} nodes\t{result.seconds:.1f} s\t{text}")
    for name, beam in result.beams.items():
        if beam is None:
            put(f"\t\t{name}\t\t(nothing found)")
        elif beam.tokens != result.tokens or not beam.finished:
            short = "cut off" if beam.shortfall is None else f"{beam.shortfall:.3f} short"
            put(f"{beam.log_probability:.4f}\t\t{name}\t{short}\t{beam.text or '(empty)'}")


def _put_report(report: ExactReport, length_penalty: float) -> None:
    header, rows = report.table()
    unit = "nats" if not length_penalty else f"nats / length^{length_penalty:g}"
    title = f"{report.proven:,} of {report.inputs:,} inputs proven; how much worse the beams are is in {unit}"
    put("")
    put_table(title, rows, header)
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


VERB = Verb(exact, "seqloom exact runs/captions test.en --beams 1,5,50 --limit 100")
