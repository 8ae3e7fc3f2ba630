"""The accuracy of prompts by the order of their shots, as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from seqloom.errors import UsageError, counted
from seqloom.explaining.charts import MOST_SERIES, line_chart, require_extra, save_chart
from seqloom.tasks.prompting.result import PromptResult, PromptRun


def require_few_seeds(seeds: Sequence[int]) -> None:
    """Raises UsageError if there are more seeds than lines in a chart, MissingExtraError without the extra
    `plot`: both are known before the work."""
    if len(seeds) > MOST_SERIES:
        raise UsageError(f"--plot shows {MOST_SERIES} seeds at most, but there are {len(seeds)}")
    require_extra()


def draw_spread(result: PromptResult, path: Path) -> None:
    """Accuracy over the orders of the shots, or over the seeds where there is one order: a line for each kind
    of score, the first with its intervals. With several seeds and orders a line for each seed, of the first
    kind alone."""
    seeds = result.seeds()
    first, shots = result.kinds[0], counted(result.shots, "shot")
    by_order = len(result.runs) > len(seeds)
    what = f"the band is the 95 % interval of {first}"
    x, drawn = "seed of the shots", "draws"
    if by_order:
        x, drawn = "order of the shots", "orders"

    def place(run: PromptRun) -> float:
        return float(run.order + 1 if by_order else run.seed)

    def line(kind: str, runs: Sequence[PromptRun]) -> list[tuple[float, float]]:
        return [(place(run), run.accuracy(kind).value) for run in runs]

    bands = {}
    if by_order and len(seeds) > 1:
        series = {f"seed {seed}": line(first, runs) for seed, runs in seeds.items()}
        what = f"answers chosen by {first}"
    else:
        runs = sorted(result.runs, key=place)
        series = {kind: line(kind, runs) for kind in result.kinds}
        intervals = [(place(run), run.accuracy(first)) for run in runs]
        bands = {first: [(at, accuracy.low, accuracy.high) for at, accuracy in intervals]}
    chart = line_chart(
        series,
        x=x,
        y="accuracy, %",
        title=f"{result.template}: {drawn} of {shots}",
        subtitle=f"{result.items:,} items; {what}",
        bands=bands,
    )
    save_chart(chart, path)
