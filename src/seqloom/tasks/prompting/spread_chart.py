"""The accuracy of prompts by the order of their shots, as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from seqloom.errors import UsageError
from seqloom.explaining.charts import MOST_SERIES, line_chart, require_extra, save_chart
from seqloom.tasks.prompting.result import PromptResult


def require_few_seeds(seeds: Sequence[int]) -> None:
    """Raises UsageError where there are more seeds than lines in a chart, MissingExtraError without the extra
    `plot`: both are known before the work."""
    if len(seeds) > MOST_SERIES:
        raise UsageError(f"--plot shows {MOST_SERIES} seeds at most, but there are {len(seeds)}")
    require_extra()


def draw_spread(result: PromptResult, path: Path) -> None:
    """A line for each kind of score over the orders of the shots, the first with its intervals; with several
    seeds a line for each of them, of the first kind alone."""
    seeds = result.seeds()
    first = result.kinds[0]
    bands = {}
    if len(seeds) == 1:
        (runs,) = seeds.values()
        series = {
            kind: [(run.order + 1.0, run.accuracy(kind).value) for run in runs]
            for kind in result.kinds
        }
        accuracies = [(run.order + 1.0, run.accuracy(first)) for run in runs]
        bands = {first: [(order, one.low, one.high) for order, one in accuracies]}
        what = f"the band is the 95 % interval of {first}"
    else:
        series = {
            f"seed {seed}": [(run.order + 1.0, run.accuracy(first).value) for run in runs]
            for seed, runs in seeds.items()
        }
        what = f"answers chosen by {first}"
    chart = line_chart(
        series,
        x="order of the shots",
        y="accuracy, %",
        title=f"{result.template}: the same {result.shots} shots in other orders",
        subtitle=f"{result.items:,} items; {what}",
        bands=bands,
    )
    save_chart(chart, path)
