"""The accuracy of prompts by the order of their shots, as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from seqloom.errors import UsageError, counted
from seqloom.explaining.charts import MOST_SERIES, line_chart, require_extra, save_chart
from seqloom.tasks.prompting.result import PromptResult


def require_few_seeds(seeds: Sequence[int]) -> None:
    """Raises UsageError where there are more seeds than lines in a chart, MissingExtraError without the extra
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
    bands = {}
    if by_order and len(seeds) > 1:
        series = {
            f"seed {seed}": [(run.order + 1.0, run.accuracy(first).value) for run in runs]
            for seed, runs in seeds.items()
        }
        what = f"answers chosen by {first}"
    else:
        runs = result.runs if by_order else sorted(result.runs, key=lambda run: run.seed)
        places = [float(run.order + 1 if by_order else run.seed) for run in runs]
        series = {
            kind: [
                (place, run.accuracy(kind).value) for place, run in zip(places, runs, strict=True)
            ]
            for kind in result.kinds
        }
        accuracies = zip(places, [run.accuracy(first) for run in runs], strict=True)
        bands = {first: [(place, one.low, one.high) for place, one in accuracies]}
        what = f"the band is the 95 % interval of {first}"
    chart = line_chart(
        series,
        x="order of the shots" if by_order else "seed of the shots",
        y="accuracy, %",
        title=f"{result.template}: {'orders' if by_order else 'draws'} of {shots}",
        subtitle=f"{result.items:,} items; {what}",
        bands=bands,
    )
    save_chart(chart, path)
